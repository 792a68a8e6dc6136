"""The official clients against the real gateway and session core, with an engine that follows a script.

What needs a model that calls tools, or two answers at once, is conformance that the packaged models cannot show.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from ordering import violations
from recorder import Recorder
from scripted_server import scripted_server
from session_driver import speech
from shapes import check_shapes

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PATIENCE_S = 20


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with scripted_server() as server:
        yield server.address


@asynccontextmanager
async def talking(address: str, key: str = "sekrit", **options: Any) -> AsyncIterator[Recorder]:
    """A recorded conversation over the official client, checked for shape and order at its end."""
    options = options or {"model": "gpt-realtime"}
    async with (
        AsyncOpenAI(base_url=f"http://{address}/v1", api_key=key) as client,
        client.realtime.connect(**options) as connection,
    ):
        recorder = Recorder(connection)
        assert (await recorder.next())["type"] == "session.created"
        yield recorder
        await recorder.settle()
    check_shapes(recorder.trace)
    assert violations(recorder.trace) == []


async def test_fc_089_a_tool_round_trip(address: str) -> None:
    async with talking(address) as talk:
        await talk.update(tools=[TOOL], output_modalities=["text"])
        await talk.write("What is the weather in Paris?")
        (call,) = (await talk.respond())["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city":"Paris"}')
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        await talk.send("conversation.item.create", item=output)
        response = await talk.respond()
        assert response["output"][0]["content"][0]["text"] == "It is sunny."


async def test_fc_070_words_and_then_a_call(address: str) -> None:
    async with talking(address) as talk:
        await talk.update(tools=[TOOL])
        await talk.write("Some words on the weather, please.")
        message, call = (await talk.respond())["output"]
        assert (message["type"], call["type"]) == ("message", "function_call")


async def test_o26_out_of_band_beside_the_conversation(address: str) -> None:
    async with talking(address) as talk:
        await talk.write("Hello")
        content = [{"type": "input_text", "text": "Classify this."}]
        response = await talk.respond(
            conversation="none",
            output_modalities=["text"],
            metadata={"topic": "support"},
            input=[{"type": "message", "role": "user", "content": content}],
        )
        assert response["metadata"] == {"topic": "support"}
        assert response["conversation_id"] is None
        assert response["output"][0]["content"][0]["text"] == "You said: Classify this."
        response = await talk.respond(output_modalities=["text"])
        assert response["output"][0]["content"][0]["text"] == "You said: Hello"


async def test_a_transcription_session_as_speech_to_text_clients_open_it(address: str) -> None:
    async with talking(address, extra_query={"intent": "transcription"}) as talk:
        session = {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "gpt-4o-mini-transcribe", "language": "en"},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 350},
                    "noise_reduction": None,
                }
            },
        }
        await talk.send("session.update", session=session)
        assert (await talk.until("session.updated"))["session"]["object"] == "realtime.transcription_session"
        await talk.append(speech(700) + bytes(48 * 900))
        completed = await talk.until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == "Hello there."


async def test_a_client_secret_opens_what_was_configured(address: str) -> None:
    async with AsyncOpenAI(base_url=f"http://{address}/v1", api_key="sekrit") as client:
        secret = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "model": "gpt-realtime", "output_modalities": ["text"]},
        )
    async with talking(address, key=secret.value) as talk:
        assert talk.received("session.created")[0]["session"]["output_modalities"] == ["text"]
        await talk.write("Hello")
        assert (await talk.respond())["output"][0]["content"][0]["text"] == "You said: Hello"


async def test_an_existing_beta_client_runs_unchanged(address: str) -> None:
    async with (
        AsyncOpenAI(websocket_base_url=f"ws://{address}/v1", api_key="sekrit") as client,
        client.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection,
        asyncio.timeout(PATIENCE_S),
    ):
        await connection.session.update(
            session={"modalities": ["audio", "text"], "voice": "alloy", "output_audio_format": "g711_ulaw"}
        )
        content: Any = [{"type": "input_text", "text": "Hello"}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create()
        kinds, said, heard = [], "", b""
        async for event in connection:
            kinds.append(event.type)
            match event.type:
                case "response.audio_transcript.delta":
                    said += event.delta
                case "response.audio.delta":
                    heard += base64.b64decode(event.delta)
                case "response.done":
                    break
        assert kinds[:2] == ["session.created", "conversation.created"]
        assert "conversation.item.created" in kinds
        assert "error" not in kinds
        assert said == "You said: Hello"
        assert len(heard) == pytest.approx(1600, abs=16)
