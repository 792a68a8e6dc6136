"""Client secrets: what they are bound to, where they open a door, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import websockets
from openai.types.beta.realtime import SessionCreateResponse, TranscriptionSession
from openai.types.realtime import ClientSecretCreateResponse

from duologue.realtime.client_secrets import ClientSecrets
from duologue.realtime.websocket import WebSocketTransport
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening

KEY = "sekrit-1"
BEARER = {"Authorization": f"Bearer {KEY}"}


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    while await transport.receive() is not None:
        pass


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_secret(value: str) -> dict[str, Any]:
    return {"subprotocols": ["realtime", f"openai-insecure-api-key.{value}"]}


# -- the keys themselves -----------------------------------------------------------------------------------------------


def test_a_key_is_good_until_it_expires_any_number_of_times() -> None:
    clock = Clock()
    keys = ClientSecrets(clock)
    value, secret = keys.mint(Opening(), 10)
    assert value.startswith("ek_")
    clock.now += 9.9
    assert keys.find(["other", value]) is secret
    assert keys.find([value]) is secret
    clock.now += 0.1
    assert keys.find([value]) is None


def test_living_keys_are_bounded_and_dead_ones_forgotten() -> None:
    clock = Clock()
    keys = ClientSecrets(clock, limit=2)
    keys.mint(Opening(), 10)
    keys.mint(Opening(), 20)
    with pytest.raises(ProtocolError):
        keys.mint(Opening(), 10)
    clock.now += 10
    keys.mint(Opening(), 10)
    assert len(keys._secrets) == 2


# -- over HTTP ---------------------------------------------------------------------------------------------------------


async def test_a_secret_comes_with_the_effective_session(serve: Any) -> None:
    body = {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "session": {"type": "realtime", "model": "gpt-realtime", "instructions": "Bound."},
    }
    async with serve(idle, keys=[KEY]) as edge, edge.http(headers=BEARER) as http:
        answer = await http.post("/v1/realtime/client_secrets", json=body)
        assert answer.status_code == 200
        shaped = ClientSecretCreateResponse.model_validate(answer.json(), strict=True)
        assert shaped.session.instructions == "Bound."  # type: ignore[union-attr]
        assert answer.json()["session"]["audio"]["output"]["voice"] == "heart"
        async with edge.connect(**with_secret(shaped.value)):
            pass
        (opening,) = edge.sessions.openings
        assert (opening.type, opening.config["instructions"]) == ("realtime", "Bound.")


async def test_an_empty_body_is_a_session_of_defaults(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as http:
        answer = (await http.post("/v1/realtime/client_secrets")).json()
        assert answer["session"]["instructions"] == "Be kind."


async def test_a_transcription_session_can_be_bound(serve: Any) -> None:
    session = {"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper"}}}}
    async with serve(idle) as edge, edge.http() as http:
        answer = (await http.post("/v1/realtime/client_secrets", json={"session": session})).json()
        ClientSecretCreateResponse.model_validate(answer, strict=True)
        async with edge.connect("?intent=transcription", **with_secret(answer["value"])):
            pass
        assert edge.sessions.openings[0].type == "transcription"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": {"type": "realtime", "voice": "heart"}}, "session.voice"),
        ({"session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"session": {"type": "realtime", "model": "gpt-9"}}, "session.model"),
        ({"session": {"type": "other"}}, "session.type"),
        ({"session": {"type": "realtime", "tools": [{"type": "function", "name": "f"}]}}, "session.tools"),
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_a_wrong_field_is_named(serve: Any, body: dict[str, Any], param: str) -> None:
    async with serve(idle) as edge, edge.http() as http:
        answer = await http.post("/v1/realtime/client_secrets", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (2**20 + 1)])
async def test_a_body_that_cannot_be_read_is_refused(serve: Any, body: bytes) -> None:
    async with serve(idle) as edge, edge.http() as http:
        assert (await http.post("/v1/realtime/client_secrets", content=body)).status_code == 400


async def test_a_server_that_is_not_ready_mints_nothing(serve: Any) -> None:
    async with serve(idle, opened=False) as edge, edge.http() as http:
        assert (await http.post("/v1/realtime/client_secrets")).status_code == 503


# -- what it opens -----------------------------------------------------------------------------------------------------


async def test_a_secret_opens_sessions_and_nothing_else(serve: Any) -> None:
    async with serve(idle, keys=[KEY]) as edge, edge.http(headers=BEARER) as http:
        value = (await http.post("/v1/realtime/client_secrets")).json()["value"]
        for path in ("/v1/realtime/client_secrets", "/v1/realtime/sessions"):
            answer = await http.post(path, headers={"Authorization": f"Bearer {value}"})
            assert answer.status_code == 401
        assert (await http.get("/v1/models", headers={"Authorization": f"Bearer {value}"})).status_code == 401


@pytest.mark.parametrize("keys", [[KEY], []])
async def test_fc_127_an_expired_secret_opens_nothing_and_ends_nothing(serve: Any, keys: list[str]) -> None:
    clock = Clock()
    async with serve(idle, keys=keys) as edge, edge.http(headers=BEARER) as http:
        edge.gateway.secrets._clock = clock
        body = {"expires_after": {"anchor": "created_at", "seconds": 10}}
        value = (await http.post("/v1/realtime/client_secrets", json=body)).json()["value"]
        async with edge.connect(**with_secret(value)) as running:
            clock.now += 30
            with pytest.raises(websockets.InvalidStatus) as refused:
                await edge.connect(**with_secret(value))
            assert refused.value.response.status_code == 401
            await (await running.ping())


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?model=second", "model_not_found"),
        ("?model=gpt-9", "model_not_found"),
        ("?intent=transcription", "duologue.unsupported_intent"),
    ],
)
async def test_the_url_cannot_say_something_else(serve: Any, query: str, code: str) -> None:
    session = {"type": "realtime", "model": "gpt-realtime"}
    async with serve(idle) as edge, edge.http() as http:
        names = edge.gateway.names
        edge.gateway.names = msgspec.structs.replace(names, models={**names.models, "second": "second"})
        value = (await http.post("/v1/realtime/client_secrets", json={"session": session})).json()["value"]
        async with edge.connect(query, **with_secret(value)) as connection:
            assert f'"code":"{code}"' in await connection.recv()
        async with edge.connect("?model=tiny", **with_secret(value)):
            pass
        assert edge.sessions.openings[0].config["model"] == "gpt-realtime"


# -- the predecessors --------------------------------------------------------------------------------------------------


async def test_the_legacy_session_is_flat_and_carries_its_secret(serve: Any) -> None:
    body = {"model": "gpt-realtime", "voice": "heart", "modalities": ["text"], "input_audio_format": "g711_ulaw"}
    async with serve(idle) as edge, edge.http() as http:
        answer = (await http.post("/v1/realtime/sessions", json=body)).json()
        shaped = SessionCreateResponse.model_validate(answer, strict=True)
        assert {name: answer[name] for name in body} == body
        async with edge.connect("?dialect=beta", **with_secret(shaped.client_secret.value)):
            pass
        assert edge.sessions.openings[0].config["output_modalities"] == ["text"]


async def test_the_legacy_transcription_session(serve: Any) -> None:
    body = {"input_audio_transcription": {"model": "whisper"}, "turn_detection": {"type": "server_vad"}}
    async with serve(idle) as edge, edge.http() as http:
        answer = (await http.post("/v1/realtime/transcription_sessions", json=body)).json()
        answer["input_audio_transcription"]["model"] = "whisper-1"  # the library lists OpenAI's own models only
        TranscriptionSession.model_validate(answer, strict=True)
        assert answer["client_secret"]["value"].startswith("ek_")
        wrong = await http.post("/v1/realtime/transcription_sessions", json={"input_audio_format": "mp3"})
        assert wrong.json()["error"]["param"] == "session.input_audio_format"
