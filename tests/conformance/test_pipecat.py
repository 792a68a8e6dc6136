"""pipecat's Realtime service and its recogniser in real pipelines, with nothing changed but the URL.

Every conversation is taped on its socket and checked for shape and order at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from missing import need_package
from scripted_server import KEY, ScriptedServer
from served import Served
from tape import Tape, taped_connection
from waiting import PATIENCE_S

need_package("pipecat")

import pipecat.services.openai.realtime.llm as realtime  # noqa: E402
import pipecat.services.websocket_service as websocket_service  # noqa: E402
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema  # noqa: E402
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema  # noqa: E402
from pipecat.audio.vad.silero import SileroVADAnalyzer  # noqa: E402
from pipecat.frames.frames import (  # noqa: E402
    BotStoppedSpeakingFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext  # noqa: E402
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregatorParams  # noqa: E402
from pipecat.services.openai.realtime import events  # noqa: E402
from pipecat.services.openai.stt import OpenAIRealtimeSTTService  # noqa: E402
from pipecat.turns.user_start import VADUserTurnStartStrategy  # noqa: E402
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy  # noqa: E402
from pipecat.turns.user_turn_strategies import UserTurnStrategies  # noqa: E402
from pipecat_bot import Bot, running  # noqa: E402

BRIEF = 30
"""Tokens after which an answer is long enough, where its words are the model's own."""

NOVELIST = "You are a novelist. Write a long story of at least three hundred words."


@asynccontextmanager
async def bot(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    key: str = "none",
    context: LLMContext | None = None,
    user: LLMUserAggregatorParams | None = None,
    turn_detection: Any = None,
    **properties: Any,
) -> AsyncIterator[Bot]:
    """A bot that converses with ``url``."""
    tape = Tape()
    connect = partial(realtime.websocket_connect, create_connection=taped_connection(tape))
    monkeypatch.setattr(realtime, "websocket_connect", connect)
    transcription = events.InputAudioTranscription(model="gpt-4o-mini-transcribe")
    audio_input = events.AudioInput(transcription=transcription, turn_detection=turn_detection)
    session = events.SessionProperties(audio=events.AudioConfiguration(input=audio_input), **properties)
    service = realtime.OpenAIRealtimeLLMService(
        api_key=key,
        base_url=url,
        settings=realtime.OpenAIRealtimeLLMService.Settings(session_properties=session),
    )
    async with running(service, tape, context, user) as conversing:
        await tape.until("session.updated")
        yield conversing
        await settled(service, tape)
        tape.stop()  # a pipeline that is cancelled may ask for one more answer
    tape.check()


async def settled(service: Any, tape: Tape) -> None:
    """Wait until all that the service asked for has been answered, and each response has ended.

    pipecat may ask by itself: it has its context answered when it first gets one, which may be a user's turn that was
    answered already.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            asked = len(tape.all_sent("response.create"))
            with pytest.raises(Exception, match="does not exist"):  # whatever was sent before it has been answered
                await service.retrieve_conversation_item("item_that_is_not_there")
            begun = {event["response"]["id"] for event in tape.all("response.created")}
            ended = {event["response"]["id"] for event in tape.all("response.done")}
            if begun == ended and len(tape.all_sent("response.create")) == asked:
                return
            tape.rewind()
            for response in begun - ended:
                await tape.until("response.done", lambda event, id=response: event["response"]["id"] == id)
                tape.rewind()


def asking(text: str, tools: ToolsSchema | None = None) -> LLMContext:
    messages: list[Any] = [{"role": "user", "content": text}]
    return LLMContext(messages, tools) if tools else LLMContext(messages)


def said(bot: Bot) -> str:
    return "".join(frame.text for frame in bot.watcher.all(LLMTextFrame))


@pytest.mark.models
async def test_pipecat_connects_and_its_settings_are_echoed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bot(served.ws, monkeypatch, turn_detection=events.SemanticTurnDetection(eagerness="high")) as talk:
        (updated,) = talk.tape.all("session.updated")
        audio = updated["session"]["audio"]
        assert audio["input"]["turn_detection"]["eagerness"] == "high"
        assert audio["input"]["transcription"]["model"] == "gpt-4o-mini-transcribe"
        assert talk.errors() == []


@pytest.mark.models
async def test_pipecat_text_turn(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    context = asking("What is the capital of France?")
    async with bot(served.ws, monkeypatch, context=context, output_modalities=["text"]) as talk:
        await talk.run_model()
        await talk.tape.until("response.done")
        await talk.watcher.until(LLMFullResponseEndFrame)
        assert "Paris" in said(talk)
        assert not talk.watcher.all(TTSStartedFrame)


@pytest.mark.models
async def test_pipecat_spoken_turn(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording_16k: Callable[[str], bytes]
) -> None:
    detection = events.TurnDetection()
    async with bot(served.ws, monkeypatch, turn_detection=detection, max_output_tokens=BRIEF) as talk:
        await talk.microphone.hear(recording_16k("librivox-austen-0880"), silence_s=1)
        await talk.watcher.until(UserStartedSpeakingFrame)
        await talk.watcher.until(UserStoppedSpeakingFrame)
        heard = await talk.watcher.until(TranscriptionFrame)
        assert heard.text.lower().split()[:4] == ["he", "was", "not", "an"]
        await talk.watcher.until(TTSStartedFrame)
        await talk.watcher.until(TTSStoppedFrame)
        await talk.watcher.until(BotStoppedSpeakingFrame)
        assert said(talk)
        assert talk.loudspeaker.played
        assert talk.errors() == []


@pytest.mark.models
async def test_pipecat_barge_in_truncate_and_retrieve(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording_16k: Callable[[str], bytes]
) -> None:
    """pipecat truncates by itself, to what it can have played since the first delta."""
    context = asking("Tell me a very long story about a dragon, with many details.")
    detection = events.TurnDetection(silence_duration_ms=400)
    async with bot(served.ws, monkeypatch, context=context, turn_detection=detection, instructions=NOVELIST) as talk:
        await talk.run_model()
        first = await talk.tape.until("response.output_audio.delta")
        await talk.microphone.hear(recording_16k("librivox-austen-0880"), silence_s=1)
        await talk.watcher.until(InterruptionFrame)
        done = (await talk.tape.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
        talk.tape.rewind()
        cut = await talk.tape.until("conversation.item.truncated")
        assert cut["item_id"] == first["item_id"]
        item = await talk.service.retrieve_conversation_item(first["item_id"])
        (part,) = item.content
        assert not part.transcript
        assert len(part.audio or "") * 3 / 4 <= cut["audio_end_ms"] * 48 + 4
        await talk.tape.until("response.created", lambda event: event["response"]["id"] != done["id"])
        await talk.service.send_client_event(events.ResponseCancelEvent())
        await talk.tape.until("response.done")
        assert talk.errors() == []


@pytest.mark.models
async def test_pipecat_manual_turn(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording_16k: Callable[[str], bytes]
) -> None:
    """pipecat's own detector and its own turns: clear, the onset once more, cancel, commit, create."""
    strategies = UserTurnStrategies(
        start=[VADUserTurnStartStrategy()], stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)]
    )
    user = LLMUserAggregatorParams(user_turn_strategies=strategies, vad_analyzer=SileroVADAnalyzer())
    async with bot(served.ws, monkeypatch, user=user, turn_detection=False, max_output_tokens=BRIEF) as talk:
        await talk.microphone.hear(recording_16k("goforward"), silence_s=1, in_real_time=True)
        await talk.tape.until("input_audio_buffer.committed")
        done = (await talk.tape.until("response.done"))["response"]
        assert done["status"] in ("completed", "incomplete")
        talk.tape.rewind()
        heard = await talk.tape.until("conversation.item.input_audio_transcription.completed")
        assert heard["transcript"].lower().startswith("go forward")
        kinds = [line.event["type"] for line in talk.tape.trace if line.from_client]
        assert kinds.index("input_audio_buffer.clear") < kinds.index("input_audio_buffer.commit")
        assert not talk.tape.all("input_audio_buffer.speech_started")
        assert set(talk.tape.errors()) <= {"response_cancel_not_active"}
        assert talk.errors() == []


WEATHER = ToolsSchema(
    standard_tools=[
        FunctionSchema(
            name="weather",
            description="The weather in a city.",
            properties={"city": {"type": "string"}},
            required=["city"],
        )
    ]
)


async def test_pipecat_function_tool_round_trip(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    context = asking("What is the weather in Paris?", WEATHER)
    async with bot(scripted.ws, monkeypatch, KEY, context=context) as talk:

        async def weather(params: Any) -> None:
            asked.append(params.arguments)
            await params.result_callback({"sky": "sunny"})

        talk.service.register_function("weather", weather)
        await talk.run_model()
        await talk.watcher.until(LLMTextFrame, lambda frame: "sunny" in frame.text)
        assert asked == [{"city": "Paris"}]
        assert said(talk) == 'It is {"sky": "sunny"}.'
        assert talk.errors() == []


async def test_pipecat_is_spared_by_the_three_errors_that_it_bears(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other code ends its receive loop: the session must go on after these three, in exactly these words."""
    async with bot(scripted.ws, monkeypatch, KEY, context=asking("A story, please.")) as talk:
        await talk.service.send_client_event(events.ResponseCancelEvent())
        with pytest.raises(Exception, match="does not exist"):
            await talk.service.retrieve_conversation_item("item_x")
        await talk.run_model()
        await talk.tape.until("response.output_audio.delta")
        await talk.service.send_client_event(events.ResponseCreateEvent())
        await talk.tape.until("error", lambda event: event["error"]["code"].startswith("conversation_already"))
        assert talk.tape.errors() == [
            "response_cancel_not_active",
            "item_retrieve_invalid_item_id",
            "conversation_already_has_active_response",
        ]
        await talk.service.send_client_event(events.ResponseCancelEvent())
        await talk.tape.until("response.done")
        assert talk.errors() == []


@pytest.mark.models
@pytest.mark.parametrize("turn_detection", [None, False])
async def test_pipecat_recogniser(
    served: Served, monkeypatch: pytest.MonkeyPatch, recording_16k: Callable[[str], bytes], turn_detection: Any
) -> None:
    """With the server's turns, and with pipecat's own detector (its default)."""
    tape = Tape()
    bounded = websocket_service._BoundedConnection
    monkeypatch.setattr(websocket_service, "_BoundedConnection", taped_connection(tape, bounded))
    service = OpenAIRealtimeSTTService(api_key="none", base_url=served.ws, turn_detection=turn_detection)
    user = LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer()) if turn_detection is False else None
    async with running(service, tape, user=user) as talk:
        await tape.until("session.updated")
        await talk.microphone.hear(recording_16k("goforward"), silence_s=1, in_real_time=turn_detection is False)
        heard = await talk.watcher.until(TranscriptionFrame)
        assert heard.text.lower().startswith("go forward")
        assert talk.errors() == []
    tape.check()
