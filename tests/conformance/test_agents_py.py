"""The Agents SDK for Python, which is strict about shapes: a RealtimeSession with nothing changed but the URL.

Every conversation is taped on its socket and checked for shape and order at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import websockets
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.model_inputs import RealtimeModelSendRawMessage
from scripted_server import KEY, ScriptedServer
from served import Served
from tape import SETTLE, Tape, settles, taped_connection
from waiting import Log

BRIEF = 30
"""Tokens after which an answer is long enough, where its words are the model's own."""

ASSISTANT = "You are a helpful assistant. Keep your answers short and simple, one or two sentences."
NOVELIST = "You are a novelist. Write a long story of at least three hundred words."
STORY = "Tell me a very long story about a dragon, with many details."


@dataclass
class Talk:
    """A session of the SDK, what it reported, and what went over its wire."""

    session: Any
    tape: Tape
    log: Log[Any] = field(default_factory=Log)

    async def until(self, kind: str) -> Any:
        """The next event of the session of that type."""
        try:
            return await self.log.next(lambda event: event.type == kind)
        except TimeoutError:
            raise AssertionError(f"no {kind} after {self.tape.summary()}") from None

    def problems(self) -> list[Any]:
        return [event for event in self.log.items if event.type == "error"]

    async def raw(self, kind: str, **fields: Any) -> None:
        """Send an event that the SDK has no call for."""
        await self.session.model.send_event(RealtimeModelSendRawMessage({"type": kind, "other_data": fields}))

    async def say(self, pcm: bytes, silence_s: float) -> None:
        pcm += bytes(int(48_000 * silence_s))
        for first in range(0, len(pcm), 4800):
            await self.session.send_audio(pcm[first : first + 4800])

    def texts(self) -> list[str]:
        """The words of the messages in the SDK's own history."""
        found = []
        for item in self.session._history:
            words = [getattr(part, "text", None) or getattr(part, "transcript", None) for part in item.content]
            found.append(" ".join(word for word in words if word))
        return found


@asynccontextmanager
async def talking(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    key: str = "none",
    tools: Any = (),
    instructions: str = ASSISTANT,
    check: bool = True,
    **settings: Any,
) -> AsyncIterator[Talk]:
    tape = Tape()
    connect = partial(websockets.connect, create_connection=taped_connection(tape))
    monkeypatch.setattr(websockets, "connect", connect)
    agent: RealtimeAgent[Any] = RealtimeAgent(name="Assistant", instructions=instructions, tools=list(tools))
    runner = RealtimeRunner(agent, config={"model_settings": {"model_name": "gpt-realtime", **settings}})  # type: ignore[typeddict-item]
    async with await runner.run(model_config={"url": url, "api_key": key}) as session:
        talk = Talk(session, tape)

        async def watch() -> None:
            async for event in session:
                talk.log.add(event)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            # one answer to the configuration, one to the tracing that the SDK switches on by itself, in whichever order
            await tape.until("session.updated")
            await tape.until("session.updated")
            yield talk
            assert not check or talk.problems() == []
            await talk.raw(SETTLE["type"], event_id=SETTLE["event_id"], item_id=SETTLE["item_id"])
            tape.rewind()
            await tape.until("error", settles)
            watching.cancel()
    tape.check()


@pytest.mark.models
async def test_agents_py_connects_and_its_settings_are_echoed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(served.ws, monkeypatch) as talk:
        session = talk.tape.all("session.updated")[-1]["session"]
        assert session["instructions"] == ASSISTANT
        assert session["audio"]["input"]["turn_detection"]["interrupt_response"] is True
        assert session["audio"]["input"]["transcription"]["model"] == "gpt-4o-mini-transcribe"


@pytest.mark.models
async def test_agents_py_text_turn(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(served.ws, monkeypatch, modalities=["text"]) as talk:
        await talk.session.send_message("What is the capital of France?")
        await talk.until("agent_end")
        assert "Paris" in talk.texts()[-1]
        assert not [event for event in talk.log.items if event.type == "audio"]


@pytest.mark.models
async def test_agents_py_manual_audio_turn(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording: Callable[[str], bytes]
) -> None:
    async with talking(served.ws, monkeypatch, turn_detection=None) as talk:
        await talk.raw("session.update", session={"type": "realtime", "max_output_tokens": BRIEF})
        await talk.session.send_audio(recording("goforward"), commit=True)
        heard = await talk.tape.until("conversation.item.input_audio_transcription.completed")
        assert heard["transcript"].lower().startswith("go forward")
        assert not talk.tape.all("response.created", "input_audio_buffer.speech_started")
        await talk.raw("response.create")
        await talk.until("audio_end")
        await talk.until("agent_end")
        assert talk.texts()[0].lower().startswith("go forward")
        assert talk.texts()[1]


@pytest.mark.models
async def test_agents_py_spoken_turn_and_barge_in(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording: Callable[[str], bytes]
) -> None:
    """The SDK's default detection, semantic. It truncates what it has not played, and asks for the item again."""
    async with talking(served.ws, monkeypatch, instructions=NOVELIST) as talk:
        await talk.session.send_message(STORY)
        first = await talk.until("audio")
        await talk.raw("session.update", session={"type": "realtime", "max_output_tokens": BRIEF})
        await talk.say(recording("librivox-austen-0880"), 5)
        await talk.until("audio_interrupted")
        done = (await talk.tape.until("response.done"))["response"]
        assert done["status_details"]["reason"] == "turn_detected"
        done = (await talk.tape.until("response.done"))["response"]
        assert done["status"] in ("completed", "incomplete")
        talk.tape.rewind()
        cut = await talk.tape.until("conversation.item.truncated")
        assert cut["item_id"] == first.item_id
        retrieved = await talk.tape.until("conversation.item.retrieved")
        assert retrieved["item"]["role"] == "assistant"
        assert not talk.tape.all_sent("response.cancel")
        heard = talk.tape.all("conversation.item.input_audio_transcription.completed")[0]["transcript"]
        assert heard.lower().split()[:4] == ["he", "was", "not", "an"]


@pytest.mark.models
async def test_agents_py_truncates_and_retrieves(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server interrupts by itself, the SDK's own interruption truncates and leaves the response running."""
    async with talking(served.ws, monkeypatch, instructions=NOVELIST) as talk:
        await talk.session.send_message(STORY)
        await talk.until("audio")
        await talk.session.interrupt()
        await talk.until("audio_interrupted")
        cut = await talk.tape.until("conversation.item.truncated")
        # the SDK asks for the item by itself; it is still in progress then
        retrieved = await talk.tape.until("conversation.item.retrieved")
        assert retrieved["item"]["id"] == cut["item_id"]
        await talk.raw("response.cancel")
        assert (await talk.tape.until("response.done"))["response"]["status"] == "cancelled"
        await talk.raw("conversation.item.retrieve", item_id=cut["item_id"])
        (part,) = (await talk.tape.until("conversation.item.retrieved"))["item"]["content"]
        assert not part.get("transcript")
        assert len(part.get("audio", "")) * 3 / 4 <= cut["audio_end_ms"] * 48 + 4


async def test_agents_py_function_tool(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"

    async with talking(scripted.ws, monkeypatch, KEY, tools=[weather]) as talk:
        await talk.session.send_message("How is the weather?")
        await talk.until("tool_start")
        await talk.until("tool_end")
        await talk.until("audio_end")
        assert asked == ["Paris"]
        done = talk.tape.all("response.done")[-1]["response"]
        assert done["output"][0]["content"][0]["transcript"] == "It is sunny."


async def test_agents_py_errors_keep_the_session_open(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(scripted.ws, monkeypatch, KEY, check=False) as talk:
        await talk.raw("conversation.item.delete", event_id="wrong_1", item_id="item_x")
        error = (await talk.tape.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("item_delete_invalid_item_id", "wrong_1")
        await talk.raw("response.create", event_id="wrong_2", response={"output_modalities": ["audio", "text"]})
        error = (await talk.tape.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("invalid_value", "wrong_2")
        # the error names the request it refuses, and that frees the SDK for the next one
        await talk.session.send_message("And now?")
        await talk.until("agent_end")
        done = talk.tape.all("response.done")[-1]["response"]
        assert done["output"][0]["content"][0]["transcript"] == "You said: And now?"
