"""``/v1/realtime/translations`` through the official client: handshake, keys, vocabulary, the end."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from live_sessions import close_code, hear, hear_until, manager_of, say
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeTranslationServerEvent
from pydantic import TypeAdapter
from scripted_engine import ScriptedEngine
from session_driver import silence, speech

from duologue.engine.requests import AudioDelta, Converse, Finished, TextDelta, Transcribe, TranscriptDelta

KEY = "sekrit-1"
BEARER = {"Authorization": f"Bearer {KEY}"}
PATH = "/v1/realtime/translations"
server_event: TypeAdapter[Any] = TypeAdapter(RealtimeTranslationServerEvent)


@asynccontextmanager
async def translating(edge: Any, query: str = "", **options: Any) -> AsyncIterator[Any]:
    async with websockets.connect(f"ws://{edge.address}{PATH}{query}", compression=None, **options) as connection:
        yield connection


async def interpret(engine: ScriptedEngine, words: str, *texts: str) -> None:
    """One stretch of speech goes through the engine."""
    stream = await engine.opened()
    assert isinstance(stream.request.payload, Transcribe)
    stream.give(TranscriptDelta(text=words), Finished(reason="completed"))
    stream = await engine.opened()
    assert isinstance(stream.request.payload, Converse)
    for text in texts:
        stream.give(TextDelta(text=text), AudioDelta(pcm=speech(100)))
    stream.give(Finished(reason="completed"))


async def test_the_official_client_translates_from_the_first_word_to_the_last(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), keys=[KEY]) as edge:
        client = AsyncOpenAI(api_key=KEY, base_url=f"http://{edge.address}/v1")
        async with client, client.realtime.translations.connect(model="gpt-realtime") as connection:
            created = await connection.recv()
            assert created.type == "session.created"
            assert (created.session.type, created.session.audio.output.language) == ("translation", "en")  # type: ignore[union-attr]
            audio = {"output": {"language": "de"}, "input": {"transcription": {"model": "whisper-1"}}}
            await connection.session.update(session={"audio": audio})  # type: ignore[typeddict-item]
            updated = await connection.recv()
            assert updated.type == "session.updated"
            assert updated.session.audio.output.language == "de"  # type: ignore[union-attr]
            for piece in (speech(600), silence(600)):
                await connection.session.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
            await interpret(engine, "Good day.", "Guten ", "Tag.")
            await connection.session.close()
            heard = [event async for event in connection]
            assert heard[-1].type == "session.closed"
            assert "".join(event.delta for event in heard if event.type == "session.input_transcript.delta") == (
                "Good day."
            )
            spoken = "".join(event.delta for event in heard if event.type == "session.output_transcript.delta")
            assert spoken == "Guten Tag."
            sounds = [event for event in heard if event.type == "session.output_audio.delta"]
            assert b"".join(base64.b64decode(event.delta) for event in sounds) == speech(100) * 2
            for event in sounds:
                assert (event.sample_rate, event.channels, event.format) == (24000, 1, "pcm16")
            assert {event.elapsed_ms for event in heard if event.type != "session.closed"} == {1200}


async def test_fc_082_every_event_is_one_that_the_client_knows_and_the_end_is_a_clean_close(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine)) as edge, translating(edge, "?model=gpt-realtime") as connection:
        heard = [await hear(connection)]
        await say(connection, {"type": "session.update", "session": {"audio": {"output": {"language": "fr"}}}})
        sound = base64.b64encode(speech(600) + silence(600)).decode()
        await say(connection, {"type": "session.input_audio_buffer.append", "audio": sound}, {"type": "session.close"})
        await interpret(engine, "Yes.", "Oui.")
        heard += await hear_until(connection, "session.closed")
        assert await close_code(connection) == 1000
        for event in heard:
            parsed = server_event.validate_python(event, strict=True)
            assert json.loads(parsed.model_dump_json(exclude_unset=True)) == event
        ids = [event["event_id"] for event in heard]
        assert len(set(ids)) == len(ids)
        assert edge.gateway.sessions.open_sessions == 0


@pytest.mark.parametrize(
    ("event", "code", "param", "words"),
    [
        ({"type": "input_audio_buffer.append", "audio": ""}, "invalid_event", "type", "session.input_audio_buffer"),
        ({"type": "response.create"}, "invalid_event", "type", "translates"),
        ({"type": "nonsense"}, "invalid_event", "type", "session.close"),
        ({"type": "session.input_audio_buffer.append"}, "missing_required_parameter", "audio", "audio"),
        ({"type": "session.input_audio_buffer.append", "audio": "*"}, "invalid_value", "audio", "audio"),
        ({"type": "session.close", "now": True}, "unknown_parameter", "now", "now"),
        (
            {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
            "unknown_parameter",
            "session.audio.input.format",
            "format",
        ),
    ],
)
async def test_what_is_wrong_is_named_and_the_session_goes_on(
    serve: Any, event: dict[str, Any], code: str, param: str, words: str
) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, translating(edge) as connection:
        await hear(connection)
        await say(connection, {**event, "event_id": "mine"})
        error = (await hear(connection))["error"]
        assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
        assert words in error["message"]
        await say(connection, {"type": "session.close"})
        assert (await hear(connection))["type"] == "session.closed"


async def test_realtime_sessions_do_not_know_this_vocabulary(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, edge.connect() as connection:
        await hear(connection)
        await say(connection, {"type": "session.close"})
        error = (await hear(connection))["error"]
        assert error["code"] == "invalid_event"
        assert "translation dialect" in error["message"]


async def test_a_secret_is_bound_to_translation(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), keys=[KEY]) as edge, edge.http() as http:
        async with AsyncOpenAI(api_key=KEY, base_url=f"http://{edge.address}/v1") as client:
            created = await client.realtime.translations.client_secrets.create(
                session={"model": "gpt-realtime", "audio": {"output": {"language": "it"}}},
                expires_after={"anchor": "created_at", "seconds": 60},
            )
        assert created.session.audio.output.language == "it"  # type: ignore[union-attr]
        offer: Any = {"subprotocols": ["realtime", f"openai-insecure-api-key.{created.value}"]}
        async with translating(edge, "?model=gpt-realtime", **offer) as connection:
            assert (await hear(connection))["session"]["audio"]["output"]["language"] == "it"
        async with edge.connect(**offer) as connection:
            assert (await hear(connection))["error"]["code"] == "duologue.unsupported_intent"
            assert await close_code(connection) == 1008
        other = (await http.post("/v1/realtime/client_secrets", headers=BEARER)).json()["value"]
        offer = {"subprotocols": ["realtime", f"openai-insecure-api-key.{other}"]}
        async with translating(edge, **offer) as connection:
            assert (await hear(connection))["error"]["code"] == "duologue.unsupported_intent"
        for session, param in (
            ({"type": "realtime"}, "session.type"),
            ({"audio": {"output": {"language": 1}}}, "session.audio.output.language"),
            ({"model": "gpt-9"}, "session.model"),
        ):
            answer = await http.post(f"{PATH}/client_secrets", json={"session": session}, headers=BEARER)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_who_may_connect_and_when_is_as_for_other_sessions(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine(), max_sessions=1), keys=[KEY]) as edge:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(f"ws://{edge.address}{PATH}")
        assert refused.value.response.status_code == 401
        async with translating(edge, "?model=gpt-9", additional_headers=BEARER) as connection:
            assert (await hear(connection))["error"]["code"] == "model_not_found"
            assert await close_code(connection) == 1008
        async with translating(edge, additional_headers=BEARER) as connection:
            await hear(connection)
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(f"ws://{edge.address}{PATH}", additional_headers=BEARER)
            assert refused.value.response.status_code == 503
