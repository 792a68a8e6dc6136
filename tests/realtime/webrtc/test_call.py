"""A call from its offer to its end, over a scripted engine: signalling, events, playout, what is left."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import aioice.ice
import impatient_media_worker
import pytest
from live_sessions import MESSAGE, hear, hear_until, manager_of, settled
from msgspec.structs import replace
from openai import AsyncOpenAI
from ordering import Line, violations
from rtc_client import RtcClient, calling, tone
from scripted_engine import ScriptedEngine, ScriptedStream
from session_driver import spread

from duologue.engine.requests import AudioDelta, Converse, Finished, TextDelta, TranscriptDelta
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc import media_workers

CALLS = "/v1/realtime/calls"
KEY = "sekrit-1"
BEARER = {"Authorization": f"Bearer {KEY}"}
DONE = Finished(reason="completed")
ANSWER = "one two three four five six seven eight nine ten"


async def spoken_turn(client: RtcClient, engine: ScriptedEngine, words: str = "Hello there.") -> ScriptedStream:
    """The user says something; returns the request for its answer."""
    client.microphone.say(tone(800))
    await client.until("input_audio_buffer.committed")
    (await engine.opened()).give(TranscriptDelta(text=words), DONE)
    return await engine.opened()


def answer_of(ms: int) -> tuple[TextDelta, AudioDelta, Finished]:
    return TextDelta(text=ANSWER), AudioDelta(pcm=tone(ms, 440), words=tuple(spread(ANSWER, ms))), DONE


def trace_of(client: RtcClient) -> list[Line]:
    return [Line(True, event) for event in client.said] + [Line(False, event) for event in client.events]


async def test_a_spoken_turn_over_a_call(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        assert client.events[0]["type"] == "session.created"
        stream = await spoken_turn(client, engine)
        stream.give(*answer_of(1000))
        created = await client.until("response.created")
        done = await client.until("response.done")
        stopped = await client.until("output_audio_buffer.stopped")
        assert stopped["response_id"] == created["response"]["id"] == done["response"]["id"]
        await settled(lambda: len(client.loud_at) >= 45)
        assert violations(trace_of(client)) == []
        assert len(edge.gateway.desk()) == 1
    assert engine.detectors[-1].closed


async def test_fc_003_barge_in_over_a_call_is_cut_by_the_server(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        (await spoken_turn(client, engine)).give(*answer_of(10_000))
        await client.until("output_audio_buffer.started")
        await settled(lambda: len(client.loud_at) >= 100)  # two seconds of it
        client.microphone.say(tone(800))
        await client.until("input_audio_buffer.speech_started")
        truncated = await client.until("conversation.item.truncated")
        await client.until("output_audio_buffer.cleared")
        assert 1900 < truncated["audio_end_ms"] < 3500
        await client.until("input_audio_buffer.committed")
        loud = len(client.loud_at)
        (await engine.opened()).give(TranscriptDelta(text="What did you say?"), DONE)
        payload = (await engine.opened()).request.payload
        assert isinstance(payload, Converse)
        said = [message.text for message in payload.messages if message.role == "assistant"]
        assert said == [" ".join(ANSWER.split()[: truncated["audio_end_ms"] // 1000])]
        assert len(client.loud_at) == loud, "nothing of the old answer is heard"
        await client.until("conversation.item.done")  # the turn is whole
        assert violations(trace_of(client)) == []


async def test_the_client_cancels_and_clears(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        (await engine.opened()).give(*answer_of(10_000)[:2])
        await client.until("output_audio_buffer.started")
        client.send({"type": "response.cancel"}, {"type": "output_audio_buffer.clear"})
        assert (await client.until("response.done"))["response"]["status"] == "cancelled"
        await client.until("output_audio_buffer.cleared")
        assert violations(trace_of(client)) == []


async def test_sound_in_events_is_refused_and_the_session_goes_on(serve: Any, settings: EdgeSettings) -> None:
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        client.send({"type": "input_audio_buffer.append", "audio": "AAAA", "event_id": "mine"})
        error = (await client.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("invalid_event", "mine")
        assert "audio track" in error["message"]
        assert client.channel is not None
        client.channel.send(b"\x00\x01")
        assert "Binary" in (await client.until("error"))["error"]["message"]
        client.send({"type": "session.update", "session": {"type": "realtime", "instructions": "Be kind."}})
        assert (await client.until("session.updated"))["session"]["instructions"] == "Be kind."


async def test_hanging_up_ends_a_call_and_frees_everything(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        stream = await engine.opened()
        stream.give(*answer_of(10_000)[:2])
        await client.until("output_audio_buffer.started")
        assert (await http.post(f"{client.location}/hangup")).status_code == 200
        assert (await client.until("response.done"))["response"]["status"] == "cancelled"
        await client.until_closed()
        assert stream.aborted
        await settled(lambda: not len(edge.gateway.desk()) and not edge.sessions.open_sessions)
        assert (await http.post(f"{client.location}/hangup")).status_code == 404


@pytest.mark.parametrize("leaves", ["closes", "closes its channel"])
async def test_a_client_that_leaves_ends_its_call(serve: Any, settings: EdgeSettings, leaves: str) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        stream = await engine.opened()
        stream.give(*answer_of(10_000)[:2])
        await client.until("output_audio_buffer.started")
        assert client.channel is not None
        if leaves == "closes":
            await client.connection.close()
        else:
            client.channel.close()
        await settled(lambda: not len(edge.gateway.desk()))
        assert stream.aborted


async def test_fc_128_a_peer_that_vanishes_is_freed_when_consent_is_lost(
    serve: Any, settings: EdgeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 0.2)  # 5 s for real: six of them are missed in 30 s
    monkeypatch.setattr(media_workers, "PROGRAM", impatient_media_worker.__name__)
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        stream = await engine.opened()
        stream.give(*answer_of(10_000)[:2])
        await client.until("output_audio_buffer.started")
        client.vanish()
        for _ in range(4):
            with suppress(AssertionError):
                await settled(lambda: not len(edge.gateway.desk()))
                break
        assert stream.aborted
        assert edge.sessions.open_sessions == 0


async def test_a_peer_that_never_connects_is_given_up(serve: Any, settings: EdgeSettings) -> None:
    hurried = EdgeSettings(webrtc=replace(settings.webrtc, connect_timeout_s=0.3))
    async with serve(manager_of(ScriptedEngine()), settings=hurried) as edge, edge.http() as http:
        client = RtcClient()
        try:
            sdp = {"content": await client.offer(), "headers": {"Content-Type": "application/sdp"}}
            assert (await http.post(CALLS, **sdp)).status_code == 201
            assert edge.sessions.open_sessions == 1
            await settled(lambda: not edge.sessions.open_sessions and not len(edge.gateway.desk()))
        finally:
            await client.close()


async def test_a_sideband_joins_a_call_by_its_id(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        assert client.call_id.startswith("rtc_")
        async with edge.connect(f"?call_id={client.call_id}") as sideband:
            assert (await hear(sideband))["type"] == "session.created"
            await sideband.send(json.dumps({"type": "session.update", "session": {"instructions": "Be kind."}}))
            assert (await client.until("session.updated"))["session"]["instructions"] == "Be kind."
            client.send(MESSAGE, {"type": "response.create"})
            (await engine.opened()).give(*answer_of(400))
            kinds = [event["type"] for event in await hear_until(sideband, "output_audio_buffer.stopped")]
            assert "response.output_audio.delta" not in kinds
            assert {"conversation.item.added", "response.done", "output_audio_buffer.started"} <= set(kinds)


async def test_a_client_secret_places_the_call_it_was_made_for(serve: Any, settings: EdgeSettings) -> None:
    async with serve(manager_of(ScriptedEngine()), keys=[KEY], settings=settings) as edge, edge.http() as http:
        session = {"type": "realtime", "instructions": "Whisper.", "audio": {"output": {"voice": "other"}}}
        minted = await http.post("/v1/realtime/client_secrets", json={"session": session}, headers=BEARER)
        secret = {"Authorization": f"Bearer {minted.json()['value']}"}
        async with calling(http, headers=secret) as client:
            configured = client.events[0]["session"]
            assert (configured["instructions"], configured["audio"]["output"]["voice"]) == ("Whisper.", "other")
            assert (await http.post(f"{client.location}/hangup", headers=secret)).status_code == 401
            assert (await http.post(f"{client.location}/hangup", headers=BEARER)).status_code == 200
        answer = await http.post(CALLS, content="v=0", headers={"Authorization": "Bearer ek_none"})
        assert answer.status_code == 401


async def test_openai_python_places_a_call_with_its_session(serve: Any, settings: EdgeSettings) -> None:
    async with serve(manager_of(ScriptedEngine()), keys=[KEY], settings=settings) as edge:
        client = RtcClient()
        try:
            async with AsyncOpenAI(api_key=KEY, base_url=f"http://{edge.address}/v1") as openai:
                session: Any = {"type": "realtime", "model": "gpt-realtime", "instructions": "Be kind."}
                answer = await openai.realtime.calls.create(sdp=await client.offer(), session=session)
                assert answer.response.status_code == 201
                location = answer.response.headers["location"]
                assert answer.response.headers["content-type"].startswith("application/sdp")
                await client.take(answer.text)
                assert (await client.until("session.created"))["session"]["instructions"] == "Be kind."
                await openai.realtime.calls.hangup(location.rpartition("/")[2])
                await client.until_closed()
                plain = RtcClient()
                answer = await openai.realtime.calls.create(sdp=await plain.offer())
                assert answer.response.status_code == 201
                await plain.close()
        finally:
            await client.close()


async def test_the_beta_path_speaks_beta(serve: Any, settings: EdgeSettings) -> None:
    path = "/v1/realtime?model=gpt-realtime"
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings) as edge,
        edge.http() as http,
        calling(http, path=path) as client,
    ):
        assert "modalities" in client.events[0]["session"]
        client.send(MESSAGE)
        await client.until("conversation.item.created")


async def test_a_call_without_a_data_channel_is_served(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http:
        async with calling(http, channel=False) as client:
            client.microphone.say(tone(800))
            (await engine.opened()).give(TranscriptDelta(text="Hello."), DONE)
            (await engine.opened()).give(*answer_of(600))
            await settled(lambda: len(client.loud_at) >= 25)
        await settled(lambda: not len(edge.gateway.desk()))


async def test_a_client_that_only_listens_is_served(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with (
        serve(manager_of(engine), settings=settings) as edge,
        edge.http() as http,
        calling(http, microphone=False) as client,
    ):
        client.send(MESSAGE, {"type": "response.create"})
        (await engine.opened()).give(*answer_of(600))
        await client.until("output_audio_buffer.stopped")
        await settled(lambda: len(client.loud_at) >= 25)


async def test_a_full_server_refuses_before_it_allocates(serve: Any, settings: EdgeSettings) -> None:
    async with (
        serve(manager_of(ScriptedEngine(), max_sessions=1), settings=settings) as edge,
        edge.http() as http,
        calling(http),
    ):
        answer = await http.post(CALLS, content="v=0", headers={"Content-Type": "application/sdp"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "duologue.capacity")
        assert len(edge.gateway.desk()) == 1


async def test_a_drain_lets_the_answer_be_heard(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        (await engine.opened()).give(*answer_of(1000))
        await client.until("output_audio_buffer.started")
        edge.gateway.draining = True
        await edge.sessions.drain(5)
        await client.until("output_audio_buffer.stopped")
        await client.until_closed()
        refused = await http.post(CALLS, content="v=0", headers={"Content-Type": "application/sdp"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "duologue.going_away")
        await settled(lambda: not len(edge.gateway.desk()))


async def test_a_drain_that_may_wait_no_longer_cuts_off(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as client:
        client.send(MESSAGE, {"type": "response.create"})
        (await engine.opened()).give(*answer_of(10_000))
        await client.until("output_audio_buffer.started")
        await edge.sessions.drain(0.1)
        await client.until_closed()
        await settled(lambda: not len(edge.gateway.desk()))


# -- joining again -----------------------------------------------------------------------------------------------------


async def test_fc_161_a_new_peer_connection_joins_the_same_session(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), keys=[KEY], settings=settings) as edge, edge.http() as http:
        async with calling(http, headers=BEARER) as before:
            (await spoken_turn(before, engine)).give(*answer_of(6000))
            await before.until("output_audio_buffer.started")
            session_id = before.events[0]["session"]["id"]
            before.vanish()
            after = RtcClient()
            try:
                await after.call(http, f"{before.location}/rejoin", Authorization=f"Bearer {before.rejoin_token}")
                assert (await after.until("session.created"))["session"]["id"] == session_id
                await settled(lambda: len(after.loud_at) > 20)  # the answer goes on where it was
                await after.until("output_audio_buffer.stopped")
                stream = await spoken_turn(after, engine, "And then?")
                assert isinstance(stream.request.payload, Converse)
                said = [(message.role, message.text) for message in stream.request.payload.messages[-3:]]
                assert said == [("user", "Hello there."), ("assistant", ANSWER), ("user", "And then?")]
                assert len(edge.gateway.desk()) == edge.sessions.open_sessions == 1
                assert after.kinds().count("output_audio_buffer.started") == 0
            finally:
                await after.close()
        await settled(lambda: not len(edge.gateway.desk()))


async def test_the_token_of_a_call_opens_that_call_and_nothing_else(serve: Any, settings: EdgeSettings) -> None:
    async with (
        serve(manager_of(ScriptedEngine()), keys=[KEY], settings=settings) as edge,
        edge.http() as http,
        calling(http, headers=BEARER) as one,
        calling(http, headers=BEARER) as other,
    ):
        token = {"Authorization": f"Bearer {one.rejoin_token}", "Content-Type": "application/sdp"}
        for path in (f"{other.location}/rejoin", CALLS, f"{one.location}/hangup", "/v1/models"):
            assert (await http.post(path, content="v=0", headers=token)).status_code == 401, path
        answer = await http.post(f"{one.location}/rejoin", content="v=0", headers=token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_offer")
        answer = await http.post(f"{CALLS}/rtc_none/rejoin", content="v=0", headers=BEARER)
        assert answer.status_code == 404
        client = RtcClient()  # a bad peer connection leaves the call as it was
        await client.call(http, f"{one.location}/rejoin", **BEARER)
        await client.close()
        one.send({"type": "session.update", "session": {"instructions": "Be kind."}})
        await one.until("session.updated")


# -- isolation, leftovers ----------------------------------------------------------------------------------------------


async def test_fc_124_calls_have_clocks_of_their_own(serve: Any, settings: EdgeSettings) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=settings) as edge, edge.http() as http, calling(http) as first:
        first.send(MESSAGE, {"type": "response.create"})
        (await engine.opened()).give(*answer_of(2000))
        await first.until("output_audio_buffer.started")
        async with calling(http) as second:
            second.send(MESSAGE, {"type": "response.create"})
            (await engine.opened()).give(*answer_of(500))
            await second.until("output_audio_buffer.stopped")
            await settled(lambda: len(second.loud_at) >= 20)
        await first.until("output_audio_buffer.stopped")
        await settled(lambda: len(first.loud_at) >= 90)
        assert len(second.loud_at) < 40
