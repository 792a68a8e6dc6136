"""LiveKit's OpenAI plugin, its Realtime session and its recogniser, with nothing changed but the URL.

Every conversation is taped and checked for shape and order at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from missing import need_package
from scripted_server import KEY, ScriptedServer, scripted_server
from served import Served
from tape import SETTLE, Tape, settles
from waiting import PATIENCE_S

need_package("livekit.plugins.openai")

import aiohttp  # noqa: E402
from livekit import rtc  # noqa: E402
from livekit.agents import APIConnectOptions, llm, stt  # noqa: E402
from livekit.plugins.openai import STT  # noqa: E402
from livekit.plugins.openai.realtime import RealtimeModel  # noqa: E402
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad  # noqa: E402

RATE = 16_000
BRIEF = 30
"""Tokens after which an answer is long enough, where its words are the model's own."""

NOVELIST = "You are a novelist. Write a long story of at least three hundred words."


@dataclass
class Reply:
    """One generation as LiveKit hands it on, collected to its end."""

    text: str = ""
    audio: bytes = b""
    calls: list[llm.FunctionCall] = field(default_factory=list)
    message_id: str = ""


@dataclass
class Talk:
    """A LiveKit session and what went over its wire."""

    session: Any
    tape: Tape
    problems: list[Any]
    generations: asyncio.Queue[llm.GenerationCreatedEvent]

    def push(self, pcm: bytes, silence_s: float = 0.0) -> None:
        """Push audio at 16 kHz in frames of 20 ms, as a room's track delivers it."""
        pcm += bytes(2 * int(RATE * silence_s))
        for first in range(0, len(pcm), 640):
            piece = pcm[first : first + 640]
            self.session.push_audio(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))

    async def write(self, *messages: tuple[str, str]) -> None:
        """Add messages (role, text) to the end of the conversation."""
        context = self.session.chat_ctx
        for role, text in messages:
            context.add_message(role=role, content=text)
        await self.session.update_chat_ctx(context)

    async def reply(self, **options: Any) -> Reply:
        """Ask for an answer and wait for all of it."""
        return await collect(await self.session.generate_reply(**options))

    async def answered(self) -> Reply:
        """The next generation that the server began by itself."""
        async with asyncio.timeout(PATIENCE_S):
            return await collect(await self.generations.get())


async def collect(generation: llm.GenerationCreatedEvent) -> Reply:
    reply = Reply()
    async with asyncio.timeout(PATIENCE_S):
        async for message in generation.message_stream:
            reply.message_id = message.message_id
            async for piece in message.text_stream:
                reply.text += piece
            async for frame in message.audio_stream:
                reply.audio += frame.data.tobytes()
        async for call in generation.function_stream:
            reply.calls.append(call)
    return reply


@asynccontextmanager
async def talking(url: str, key: str = "none", check: bool = True, **options: Any) -> AsyncIterator[Talk]:
    """A LiveKit session against ``url``. Without ``check`` errors are what the test is about."""
    async with aiohttp.ClientSession() as http:
        model = RealtimeModel(base_url=url, api_key=key, http_session=http, **options)
        session: Any = model.session()
        talk = Talk(session, Tape(), [], asyncio.Queue())
        session.on("openai_server_event_received", talk.tape.received)
        session.on("openai_client_event_queued", talk.tape.sent)
        session.on("error", talk.problems.append)
        session.on("generation_created", talk.generations.put_nowait)
        try:
            await talk.tape.until("session.updated")
            yield talk
            if check:
                assert talk.problems == []
            session.send_event(dict(SETTLE))
            talk.tape.rewind()
            await talk.tape.until("error", settles)
        finally:
            await session.aclose()
    talk.tape.check()


@pytest.mark.models
async def test_livekit_connects_and_its_settings_are_echoed(served: Served) -> None:
    async with talking(f"{served.url}/v1") as talk:
        asked = talk.tape.all_sent("session.update")[0]["session"]
        echoed = talk.tape.all("session.updated")[0]["session"]
        assert asked["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
        for name in ("type", "create_response", "interrupt_response", "eagerness"):
            detection = asked["audio"]["input"]["turn_detection"]
            assert echoed["audio"]["input"]["turn_detection"][name] == detection[name]
        assert echoed["audio"]["input"]["transcription"]["model"] == "gpt-4o-mini-transcribe"
        assert echoed["audio"]["output"]["speed"] == 1.0
        assert echoed["output_modalities"] == ["audio"]


@pytest.mark.models
async def test_livekit_text_turn(served: Served) -> None:
    async with talking(f"{served.url}/v1", modalities=["text"]) as talk:
        await talk.write(("user", "What is the capital of France?"))
        reply = await talk.reply()
        assert "Paris" in reply.text
        assert reply.audio == b""


@pytest.mark.models
async def test_livekit_manual_audio_turn(served: Served, recording_16k: Callable[[str], bytes]) -> None:
    async with talking(f"{served.url}/v1", turn_detection=None) as talk:
        talk.session.update_options(max_response_output_tokens=BRIEF)
        talk.push(recording_16k("goforward"))
        talk.session.commit_audio()
        reply = await talk.reply()
        assert reply.text
        assert len(reply.audio) > 0.3 * 48_000
        heard = await talk.tape.until("conversation.item.input_audio_transcription.completed")
        assert heard["transcript"].lower().startswith("go forward")
        assert not talk.tape.all("input_audio_buffer.speech_started")


@pytest.mark.models
async def test_livekit_spoken_turn(served: Served, recording_16k: Callable[[str], bytes]) -> None:
    async with talking(f"{served.url}/v1") as talk:
        talk.session.update_options(max_response_output_tokens=BRIEF)
        transcripts: list[llm.InputTranscriptionCompleted] = []
        talk.session.on("input_audio_transcription_completed", transcripts.append)
        talk.push(recording_16k("librivox-austen-0880"), silence_s=5)
        reply = await talk.answered()
        assert reply.text
        assert len(reply.audio) > 0.3 * 48_000
        talk.tape.rewind()
        await talk.tape.until("conversation.item.input_audio_transcription.completed")
        final = [event for event in transcripts if event.is_final]
        assert [event.transcript.lower().split()[:4] for event in final] == [["he", "was", "not", "an"]]
        assert final[0].turn_started_at is not None
        item = talk.session.chat_ctx.get_by_id(final[0].item_id)
        assert item.role == "user"


@pytest.mark.models
async def test_livekit_barge_in_truncate_and_retrieve(served: Served, recording_16k: Callable[[str], bytes]) -> None:
    detection = ServerVad(type="server_vad", silence_duration_ms=400)
    async with talking(f"{served.url}/v1", turn_detection=detection) as talk:
        heard = asyncio.Event()
        talk.session.on("input_speech_started", lambda event: heard.set())
        await talk.write(("user", "Tell me a very long story about a dragon, with many details."))
        generation = await talk.session.generate_reply(instructions=NOVELIST)
        await talk.tape.until("response.output_audio.delta")
        talk.session.update_options(max_response_output_tokens=BRIEF)
        talk.push(recording_16k("librivox-austen-0880"), silence_s=1)
        cut = await collect(generation)
        assert heard.is_set()
        done = (await talk.tape.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
        await talk.generations.get()
        following = await talk.answered()
        assert following.text
        talk.session.truncate(message_id=cut.message_id, modalities=["audio", "text"], audio_end_ms=300)
        assert (await talk.tape.until("conversation.item.truncated"))["audio_end_ms"] == 300
        talk.session.send_event({"type": "conversation.item.retrieve", "item_id": cut.message_id})
        (part,) = (await talk.tape.until("conversation.item.retrieved"))["item"]["content"]
        assert not part.get("transcript")
        assert len(part["audio"]) * 3 / 4 <= 0.3 * 48_000 + 4


async def test_livekit_interrupts_and_truncates_to_nothing(scripted: ScriptedServer) -> None:
    async with talking(scripted.http, KEY) as talk:
        await talk.write(("user", "A story, please."))
        generation = await talk.session.generate_reply()
        await talk.tape.until("response.output_audio.delta")
        talk.session.interrupt()
        cut = await collect(generation)
        done = (await talk.tape.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        talk.session.truncate(message_id=cut.message_id, modalities=["audio", "text"], audio_end_ms=0)
        await talk.tape.until("conversation.item.deleted")
        assert talk.session.chat_ctx.get_by_id(cut.message_id) is None
        await talk.write(("user", "And now?"))
        assert (await talk.reply()).text == "You said: And now?"
        assert scripted.asked()[-1] == ("user", "And now?")
        assert "Once upon a time" not in str(scripted.asked())


async def test_livekit_cancels_a_reply_that_it_no_longer_wants(scripted: ScriptedServer) -> None:
    """The future is cancelled before ``response.created``: LiveKit cancels by itself, and may do so too late."""
    async with talking(scripted.http, KEY) as talk:
        await talk.write(("user", "A story, please."))
        talk.session.generate_reply().cancel()
        done = (await talk.tape.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        await talk.write(("user", "And now?"))
        assert (await talk.reply()).text == "You said: And now?"


class Weather:
    """A tool as a LiveKit agent has it."""

    schema: dict[str, Any] = {  # noqa: RUF012
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }

    @classmethod
    def tool(cls) -> Any:
        async def weather(raw_arguments: dict[str, object]) -> str:
            return "sunny"

        return llm.function_tool(weather, raw_schema=cls.schema)


async def tool_round_trip(talk: Talk) -> Reply:
    await talk.session.update_tools([Weather.tool()])
    await talk.write(("user", "What is the weather in Paris?"))
    reply = await talk.reply()
    (call,) = reply.calls
    assert (call.name, call.arguments) == ("weather", '{"city":"Paris"}')
    context = talk.session.chat_ctx
    context.items.append(llm.FunctionCallOutput(call_id=call.call_id, name="weather", output="sunny", is_error=False))
    await talk.session.update_chat_ctx(context)
    return await talk.reply()


async def test_livekit_function_tool_round_trip(scripted: ScriptedServer) -> None:
    async with talking(scripted.http, KEY) as talk:
        reply = await tool_round_trip(talk)
        assert reply.text == "It is sunny."
        assert [item.type for item in talk.session.chat_ctx.items] == [
            "message",
            "function_call",
            "function_call_output",
            "message",
        ]


async def test_livekit_edits_its_chat_context(scripted: ScriptedServer) -> None:
    """Insertion at the front and between, deletion, and an update under the same id."""
    async with talking(scripted.http, KEY) as talk:
        await talk.write(("user", "one"), ("assistant", "two"), ("user", "three"))
        one, two, three = talk.session.chat_ctx.items
        front = llm.ChatMessage(role="system", content=["Be kind."])
        between = llm.ChatMessage(role="user", content=["one and a half"])
        changed = llm.ChatMessage(id=two.id, role="assistant", content=["TWO"])
        await talk.session.update_chat_ctx(llm.ChatContext([front, one, between, changed]))
        expected = [front.id, one.id, between.id, two.id]
        assert [item.id for item in talk.session.chat_ctx.items] == expected
        assert talk.tape.conversation() == expected
        assert three.id not in expected
        created = talk.tape.all_sent("conversation.item.create")
        assert [event["previous_item_id"] for event in created][-3:] == ["root", one.id, between.id]
        assert (await talk.reply()).text
        assert scripted.asked()[1:] == [
            ("system", "Be kind."),
            ("user", "one"),
            ("user", "one and a half"),
            ("assistant", "TWO"),
        ]


async def test_livekit_metadata_names_the_reply_that_was_asked_for(scripted: ScriptedServer) -> None:
    async with talking(scripted.http, KEY) as talk:
        await talk.write(("user", "Hello"))
        generation = await talk.session.generate_reply()
        assert generation.user_initiated
        await collect(generation)
        (asked,) = talk.tape.all_sent("response.create")
        for kind in ("response.created", "response.done"):
            (event,) = talk.tape.all(kind)
            assert event["response"]["metadata"] == {"client_event_id": asked["event_id"]}


async def test_livekit_errors_keep_the_session_open(scripted: ScriptedServer) -> None:
    async with talking(scripted.http, KEY, check=False) as talk:
        talk.session.send_event({"type": "nonsense", "event_id": "wrong_1"})
        error = (await talk.tape.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("invalid_event", "wrong_1")
        assert [problem.recoverable for problem in talk.problems] == [True]
        # an item that is refused settles the update at once, and not by its timeout of 5 s
        stray = llm.FunctionCallOutput(call_id="call_x", name="weather", output="1", is_error=False)
        async with asyncio.timeout(4):
            await talk.session.update_chat_ctx(llm.ChatContext([stray]))
        assert talk.session.chat_ctx.items == []
        # a second reply while one is running fails at once, and the first goes on
        await talk.write(("user", "A story, please."))
        first = await talk.session.generate_reply()
        with pytest.raises(llm.RealtimeError) as refused:
            async with asyncio.timeout(4):
                await talk.session.generate_reply()
        assert refused.value.code == "conversation_already_has_active_response"
        talk.session.interrupt()
        assert (await collect(first)).audio
        # harmless: nothing to cancel, nothing to commit
        before = len(talk.problems)
        talk.session.send_event({"type": "response.cancel"})
        talk.session.send_event({"type": "input_audio_buffer.commit", "event_id": "commit_1"})
        await talk.tape.until("error", lambda event: event["error"]["code"] == "input_audio_buffer_commit_empty")
        assert len(talk.problems) == before
        await talk.write(("user", "And now?"))
        assert (await talk.reply()).text == "You said: And now?"
        assert all(problem.recoverable for problem in talk.problems)


async def test_livekit_comes_back_after_expiry_and_replays_the_conversation() -> None:
    """``session_expired`` and close 1001: LiveKit opens another session and replays items, calls and results."""
    async with (
        scripted_server(max_duration_s=1.5) as scripted,
        talking(scripted.http, KEY, check=False, conn_options=APIConnectOptions(retry_interval=0.1)) as talk,
    ):
        reconnected = asyncio.Event()
        talk.session.on("session_reconnected", lambda event: reconnected.set())
        assert (await tool_round_trip(talk)).text == "It is sunny."
        before = [item.id for item in talk.session.chat_ctx.items]
        expired = (await talk.tape.until("error"))["error"]
        assert expired["code"] == "session_expired"
        async with asyncio.timeout(PATIENCE_S):
            await reconnected.wait()
        assert all(problem.recoverable for problem in talk.problems)
        await talk.tape.until("session.created")
        for item_id in before:
            await talk.tape.until(
                "conversation.item.added", lambda event, wanted=item_id: event["item"]["id"] == wanted
            )
        assert [item.id for item in talk.session.chat_ctx.items] == before
        assert len(talk.tape.connections()) == 2


async def test_livekit_recycles_its_connection_and_replays_the_conversation(scripted: ScriptedServer) -> None:
    """LiveKit's own limit of a connection (20 minutes by default) is reached between two turns."""
    async with talking(scripted.http, KEY, max_session_duration=1.0) as talk:
        reconnected = asyncio.Event()
        talk.session.on("session_reconnected", lambda event: reconnected.set())
        await talk.write(("user", "My name is Ada."), ("assistant", "Hello Ada."), ("user", "And now?"))
        before = [item.id for item in talk.session.chat_ctx.items]
        async with asyncio.timeout(PATIENCE_S):
            await reconnected.wait()
        await talk.tape.until("conversation.item.added", lambda event: event["item"]["id"] == before[-1])
        assert talk.tape.conversation() == before


@pytest.mark.models
async def test_livekit_recogniser(served: Served, recording_16k: Callable[[str], bytes]) -> None:
    async with listening(served, model="gpt-4o-mini-transcribe") as listener:
        events = await listener.hear(recording_16k("librivox-austen-0880"))
        assert events[0].type == stt.SpeechEventType.START_OF_SPEECH
        assert final(events) == ["he was not an"]
        assert final(await listener.hear(recording_16k("goforward"))) == ["go forward 10 meters."]


@pytest.mark.models
async def test_livekit_recogniser_with_the_clients_own_endpointing(
    served: Served, recording_16k: Callable[[str], bytes]
) -> None:
    """A model without turn detection on the server: LiveKit's own detector commits, and no one else does."""
    async with listening(served, model="gpt-realtime-whisper") as listener:
        assert final(await listener.hear(recording_16k("librivox-austen-0880"))) == ["he was not an"]
        assert final(await listener.hear(recording_16k("goforward"))) == ["go forward 10 meters."]
        assert listener.tape.all("session.updated")[0]["session"]["audio"]["input"]["turn_detection"] is None
        assert not listener.tape.all("error", "input_audio_buffer.speech_started")
        assert len(listener.tape.all("input_audio_buffer.committed")) == 2


@dataclass
class Listener:
    """A stream of LiveKit's recogniser and what goes over its wire."""

    stream: Any
    tape: Tape

    async def hear(self, pcm: bytes) -> list[stt.SpeechEvent]:
        """Push a recording and a second and a half of silence; returns what is said of it."""
        pcm += bytes(RATE * 3)
        for first in range(0, len(pcm), 640):
            piece = pcm[first : first + 640]
            self.stream.push_frame(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))
        events: list[stt.SpeechEvent] = []
        ended = {stt.SpeechEventType.END_OF_SPEECH, stt.SpeechEventType.RECOGNITION_USAGE}
        async with asyncio.timeout(PATIENCE_S):
            while not ended <= {event.type for event in events}:
                events.append(await anext(self.stream))
        return events


@asynccontextmanager
async def listening(served: Served, model: str) -> AsyncIterator[Listener]:
    tape = Tape()

    class Taped(aiohttp.ClientWebSocketResponse):
        async def send_str(self, data: str, *args: Any, **options: Any) -> None:
            tape.wire(True, data)
            await super().send_str(data, *args, **options)

        async def receive(self, *args: Any, **options: Any) -> aiohttp.WSMessage:
            message = await super().receive(*args, **options)
            if message.type == aiohttp.WSMsgType.TEXT:
                tape.wire(False, message.data)
            return message

    async with aiohttp.ClientSession(ws_response_class=Taped) as http:
        recogniser = STT(base_url=f"{served.url}/v1", api_key="none", use_realtime=True, model=model)
        recogniser._session = http  # outside a LiveKit job there is no shared one
        stream = recogniser.stream()
        try:
            yield Listener(stream, tape)
        finally:
            await stream.aclose()
            await recogniser.aclose()
    tape.check()


def final(events: list[stt.SpeechEvent]) -> list[str]:
    """The first four words of each final transcript."""
    finals = [event for event in events if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT]
    return [" ".join(event.alternatives[0].text.lower().split()[:4]) for event in finals]
