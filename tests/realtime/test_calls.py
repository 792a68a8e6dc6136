"""The calls routes: what can be done to a session or a ringing call over HTTP, and from which pages."""

from __future__ import annotations

from typing import Any

import pytest
from live_sessions import MESSAGE, close_code, hear, hear_until, manager_of, say
from openai import APIStatusError, AsyncOpenAI
from scripted_engine import ScriptedEngine

from duologue.engine.requests import TextDelta
from duologue.sessions.manager import Opening

KEY = "sekrit-1"
BEARER = {"Authorization": f"Bearer {KEY}"}
CALLS = "/v1/realtime/calls"


class RingingCall:
    """A call by hand that nobody has taken yet."""

    def __init__(self) -> None:
        self.opening: Opening | None = None
        self.rejected: int | None = None

    async def accept(self, opening: Opening) -> None:
        self.opening = opening

    async def reject(self, status_code: int) -> None:
        self.rejected = status_code


@pytest.fixture
def ringing() -> RingingCall:
    return RingingCall()


def error_of(answer: Any) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return error


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("accept", {"type": "realtime"}),
        ("reject", {}),
        ("hangup", None),
        ("refer", {"target_uri": "tel:+1"}),
    ],
)
async def test_an_unknown_call_is_404_on_every_route(serve: Any, route: str, body: Any) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, edge.http() as http:
        answer = await http.post(f"{CALLS}/rtc_1/{route}", json=body)
        assert answer.status_code == 404
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("invalid_request_error", "call_id_not_found")
        assert "rtc_1" in error["message"]
        assert (await http.get(f"{CALLS}/rtc_1/{route}")).status_code == 405


async def test_hanging_up_ends_a_session_with_everything_it_was_saying(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine)) as edge, edge.http() as http, edge.connect() as own:
        session = (await hear(own))["session"]
        await say(own, MESSAGE, {"type": "response.create"})
        stream = await engine.opened()
        stream.give(TextDelta(text="Once upon a time"))
        await hear_until(own, "response.output_audio_transcript.delta")
        answer = await http.post(f"{CALLS}/{session['id']}/hangup")
        assert (answer.status_code, answer.content) == (200, b"")
        done = (await hear_until(own, "response.done"))[-1]["response"]
        assert done["status"] == "cancelled"
        assert await close_code(own) == 1000
        assert stream.aborted
        assert (await http.post(f"{CALLS}/{session['id']}/hangup")).status_code == 404


async def test_a_ringing_call_is_accepted_with_its_session(serve: Any, ringing: RingingCall) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge:
        edge.gateway.calls.file("rtc_1", ringing)
        async with AsyncOpenAI(api_key=KEY, base_url=f"http://{edge.address}/v1") as openai:
            await openai.realtime.calls.accept("rtc_1", type="realtime", instructions="Be kind.")
            assert ringing.opening == Opening("realtime", {"type": "realtime", "instructions": "Be kind."})
            await openai.realtime.calls.reject("rtc_1")
            assert ringing.rejected == 603
            await openai.realtime.calls.reject("rtc_1", status_code=486)
            assert ringing.rejected == 486
            await openai.realtime.calls.hangup("rtc_1")
            assert ringing.rejected == 603
            with pytest.raises(APIStatusError) as refused:
                await openai.realtime.calls.refer("rtc_1", target_uri="tel:+14155550123")
            assert refused.value.status_code == 501
            assert "SIP" in refused.value.message


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("accept", {}, "session.type"),
        ("accept", {"type": "transcription"}, "session.type"),
        ("accept", {"type": "realtime", "voice": "x"}, "session.voice"),
        ("accept", {"type": "realtime", "model": "gpt-9"}, "session.model"),
        ("reject", {"status_code": 200}, "status_code"),
        ("reject", {"reason": "busy"}, "reason"),
        ("refer", {}, "target_uri"),
        ("refer", {"target_uri": "https://example.com"}, "target_uri"),
    ],
)
async def test_a_wrong_field_is_named(serve: Any, ringing: RingingCall, route: str, body: Any, param: str) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, edge.http() as http:
        edge.gateway.calls.file("rtc_1", ringing)
        answer = await http.post(f"{CALLS}/rtc_1/{route}", json=body)
        assert (answer.status_code, error_of(answer)["param"]) == (400, param)
        assert (ringing.opening, ringing.rejected) == (None, None)


@pytest.mark.parametrize(("route", "body"), [("accept", {"type": "realtime"}), ("reject", {})])
async def test_a_session_in_progress_cannot_be_taken_again(serve: Any, route: str, body: Any) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, edge.http() as http, edge.connect() as own:
        session = (await hear(own))["session"]
        answer = await http.post(f"{CALLS}/{session['id']}/{route}", json=body)
        assert (answer.status_code, error_of(answer)["code"]) == (409, "duologue.call_in_progress")


async def test_a_call_that_rings_cannot_be_joined_yet(serve: Any, ringing: RingingCall) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge:
        edge.gateway.calls.file("rtc_1", ringing)
        async with edge.connect("?call_id=rtc_1") as connection:
            assert (await hear(connection))["error"]["code"] == "duologue.call_not_accepted"
            assert await close_code(connection) == 1008


# -- placing calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CALLS, "/v1/realtime?model=gpt-realtime"])
async def test_the_answer_to_an_offer_may_be_read_by_any_page(serve: Any, path: str) -> None:
    async with serve(manager_of(ScriptedEngine()), keys=[KEY]) as edge, edge.http() as http:
        page = {"Origin": "https://app.example"}
        preflight = await http.options(
            path,
            headers={
                **page,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-openai-agents-sdk",
            },
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert "x-openai-agents-sdk" in preflight.headers["access-control-allow-headers"]
        sdp = {"content": "v=0", "headers": {**page, **BEARER, "Content-Type": "application/sdp"}}
        answer = await http.post(path, **sdp)
        assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_offer")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "Location" in answer.headers["access-control-expose-headers"]
        secret = (await http.post("/v1/realtime/client_secrets", headers=BEARER)).json()["value"]
        answer = await http.post(path, content="v=0", headers={**page, "Authorization": f"Bearer {secret}"})
        assert answer.status_code == 400, "a client secret may place a call"
        answer = await http.post(path, content="v=0", headers=page)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")


@pytest.mark.parametrize("path", ["/v1/realtime/client_secrets", "/v1/models", f"{CALLS}/rtc_1/hangup"])
async def test_other_paths_are_not_for_other_origins(serve: Any, path: str) -> None:
    async with serve(manager_of(ScriptedEngine())) as edge, edge.http() as http:
        answer = await http.post(path, headers={"Origin": "https://app.example"})
        assert "access-control-allow-origin" not in answer.headers
