"""The official client where a connection ends or is for something else: expiry, close codes, transcription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import websockets
from openai import AsyncOpenAI
from openai.types.websocket_reconnection import ReconnectingEvent
from ordering import violations
from recorder import Recorder
from scripted_server import KEY, ScriptedServer, scripted_server
from served import Served
from shapes import check_shapes
from waiting import PATIENCE_S

EXPIRED = "Your session hit the maximum duration of"


async def test_openai_expiry() -> None:
    async with (
        scripted_server(max_duration_s=1.0) as scripted,
        AsyncOpenAI(base_url=scripted.http, api_key=KEY) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        talk = Recorder(connection)
        await talk.next()
        await talk.update(output_modalities=["text"])
        await talk.write("Hello")
        await talk.respond()
        error = (await talk.until("error"))["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "session_expired")
        assert error["message"].startswith(EXPIRED)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await talk.next()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, error["message"])
    check_shapes(talk.trace)
    assert violations(talk.trace) == []


async def test_openai_reconnects_after_expiry() -> None:
    """The close code is one on which the client comes back, if the application wishes so: to a new, empty session."""
    attempts: list[ReconnectingEvent] = []
    async with (
        scripted_server(max_duration_s=1.0) as scripted,
        AsyncOpenAI(base_url=scripted.http, api_key=KEY) as client,
        client.realtime.connect(
            model="gpt-realtime", on_reconnecting=attempts.append, initial_delay=0.05
        ) as connection,
    ):
        sessions = []
        async with asyncio.timeout(PATIENCE_S):
            async for event in connection:
                if event.type == "session.created":
                    sessions.append(event.session.id)  # type: ignore[union-attr]
                if len(sessions) == 2:
                    break
        assert [attempt.close_code for attempt in attempts] == [1001]
        assert len(set(sessions)) == 2


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"model": "nobody"}, "model_not_found"),
        ({"extra_query": {"intent": "nonsense"}}, "duologue.unsupported_intent"),
    ],
)
async def test_openai_close_code_says_what_is_not_served(
    scripted: ScriptedServer, options: dict[str, Any], code: str
) -> None:
    async with (
        AsyncOpenAI(base_url=scripted.http, api_key=KEY) as client,
        client.realtime.connect(**options) as connection,
    ):
        talk = Recorder(connection)
        error = (await talk.next())["error"]
        assert error["code"] == code
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await talk.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert error["message"].startswith(closed.value.rcvd.reason.rstrip())


@pytest.mark.models
async def test_openai_transcription_session(served: Served, recording: Callable[[str], bytes]) -> None:
    async with (
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        talk = Recorder(connection)
        created = (await talk.next())["session"]
        assert (created["type"], created["object"]) == ("transcription", "realtime.transcription_session")
        transcription = {"model": "gpt-4o-mini-transcribe", "language": "en"}
        session = {"type": "transcription", "audio": {"input": {"transcription": transcription}}}
        await talk.send("session.update", session=session)
        await talk.until("session.updated")
        await talk.append(recording("librivox-austen-0880") + bytes(48_000))
        heard = await talk.until("conversation.item.input_audio_transcription.completed")
        assert heard["transcript"].lower().split()[:4] == ["he", "was", "not", "an"]
        assert not talk.received("response.created")
        await talk.settle()
    check_shapes(talk.trace)
    assert violations(talk.trace) == []


@pytest.mark.models
async def test_openai_words_while_they_are_spoken(served: Served, recording: Callable[[str], bytes]) -> None:
    """By hand, as recognisers of this kind are used: a client that waits has not stopped speaking."""
    pcm = bytes(24_000) + recording("librivox-austen-0870")
    async with (
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        talk = Recorder(connection)
        await talk.next()
        transcription = {"model": "gpt-realtime-whisper", "language": "en", "delay": "minimal"}
        audio_input = {"transcription": transcription, "turn_detection": None}
        await talk.send("session.update", session={"type": "transcription", "audio": {"input": audio_input}})
        delta = "conversation.item.input_audio_transcription.delta"
        for first in range(0, len(pcm), 24_000):
            await talk.append(pcm[first : first + 24_000])
            if not talk.received(delta):  # sound waits for a slow machine; a talker would get words later
                with suppress(TimeoutError):
                    await asyncio.wait_for(talk.until(delta), 2.0)
        await talk.send("input_audio_buffer.commit")
        completed = await talk.until("conversation.item.input_audio_transcription.completed")
        deltas = talk.received(delta)
        assert "".join(event["delta"] for event in deltas) == completed["transcript"]
        assert completed["transcript"].endswith("to do for them.")
        kinds = [line.event["type"] for line in talk.trace]
        committed = kinds.index("input_audio_buffer.committed")
        assert kinds.index(delta) < committed
        await talk.settle()
    check_shapes(talk.trace)
    assert violations(talk.trace) == []


@pytest.mark.models
async def test_openai_out_of_band_with_metadata(converse: Any) -> None:
    """Two answers at once: one to the conversation, and one beside it that leaves no trace in it."""
    async with converse() as talk:
        await talk.update(output_modalities=["text"])
        await talk.write("What is the capital of France?")
        content = [{"type": "input_text", "text": "What is the capital of Japan?"}]
        beside = {
            "conversation": "none",
            "metadata": {"topic": "beside"},
            "input": [{"type": "message", "role": "user", "content": content}],
        }
        await talk.send("response.create")
        await talk.send("response.create", response=beside)
        done = {}
        for _ in range(2):
            response = (await talk.until("response.done"))["response"]
            done[response["metadata"] and response["metadata"]["topic"]] = response
        assert "Paris" in done[None]["output"][0]["content"][0]["text"]
        assert "Tokyo" in done["beside"]["output"][0]["content"][0]["text"]
        assert done["beside"]["conversation_id"] is None
        added = [event["item"]["id"] for event in talk.received("conversation.item.added")]
        assert done[None]["output"][0]["id"] in added
        assert done["beside"]["output"][0]["id"] not in added
