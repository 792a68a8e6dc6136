"""Sidebands: further connections to a session, and who hears what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from live_sessions import MESSAGE, close_code, hear, hear_until, manager_of, say, settled
from scripted_engine import ScriptedEngine
from session_driver import speech

from duologue.engine.deploy.config import DeployConfig, DuplexSession
from duologue.engine.requests import AudioDelta, Finished, TextDelta
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.sideband import MAX_SIDEBANDS, QueueBounds, SharedTransport
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.interfaces import DirectTransport
from duologue.sessions.manager import Opening

KEY = {"Authorization": "Bearer sekrit-1"}


@asynccontextmanager
async def two_on_one(serve: Any, engine: ScriptedEngine, query: str = "", **options: Any) -> AsyncIterator[Any]:
    """A session's own connection and a sideband, both past their ``session.created``."""
    async with serve(manager_of(engine), **options) as edge, edge.connect() as own:
        session = (await hear(own))["session"]
        async with edge.connect(f"?call_id={session['id']}{query}") as sideband:
            yield edge, own, sideband


async def test_a_sideband_gets_the_present_session_first_and_then_what_everybody_gets(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine)) as edge, edge.connect() as own:
        session = (await hear(own))["session"]
        await say(own, {"type": "session.update", "session": {"type": "realtime", "instructions": "Rhyme."}})
        await hear(own)
        async with edge.connect(f"?call_id={session['id']}") as sideband:
            created = await hear(sideband)
            assert created["type"] == "session.created"
            assert (created["session"]["id"], created["session"]["instructions"]) == (session["id"], "Rhyme.")
            await say(own, MESSAGE, {"type": "response.create"})
            stream = await engine.opened()
            stream.give(TextDelta(text="Hi."), AudioDelta(pcm=speech(200)), Finished(reason="completed"))
            heard = [await hear_until(connection, "response.done") for connection in (own, sideband)]
            assert heard[0] == heard[1]
            assert "response.output_audio.delta" in [event["type"] for event in heard[1]]


async def test_a_sideband_speaks_in_the_session_and_errors_go_to_whoever_made_them(serve: Any) -> None:
    engine = ScriptedEngine()
    async with two_on_one(serve, engine) as (_, own, sideband):
        await hear(sideband)
        wrong = {"type": "conversation.item.delete", "item_id": "item_nowhere"}
        for sender, listener in ((sideband, own), (own, sideband)):
            await say(sender, {**wrong, "event_id": "mine"}, wrong, {"type": "no.such.event", "event_id": "odd"})
            errors = [(await hear(sender))["error"] for _ in range(3)]
            assert [error["event_id"] for error in errors] == ["mine", None, "odd"]
            assert [error["code"] for error in errors] == [*["item_delete_invalid_item_id"] * 2, "invalid_event"]
            await say(sender, {"type": "session.update", "session": {"type": "realtime", "instructions": "Sing."}})
            for connection in (sender, listener):
                assert (await hear(connection))["session"]["instructions"] == "Sing."


async def test_a_session_survives_its_sideband(serve: Any) -> None:
    engine = ScriptedEngine()
    async with two_on_one(serve, engine) as (edge, own, sideband):
        await hear(sideband)
        await say(sideband, {"type": "conversation.item.delete", "item_id": "item_nowhere", "event_id": "late"})
        await sideband.close()
        shared = next(iter(edge.gateway.calls._calls.values())).transport
        await settled(lambda: not shared._sidebands)
        await say(own, {"type": "response.cancel", "event_id": "still here"})
        assert (await hear(own))["error"]["event_id"] == "still here", "what the sideband caused is not told to others"


@pytest.mark.parametrize("how", ["hang up", "vanish", "expire"])
async def test_the_end_of_a_session_closes_its_sidebands(serve: Any, how: str) -> None:
    engine = ScriptedEngine()
    limits = Limits(max_duration_s=0.5 if how == "expire" else 60.0)
    async with serve(manager_of(engine, limits=limits)) as edge:
        async with edge.connect() as own:
            session = (await hear(own))["session"]
            async with edge.connect(f"?call_id={session['id']}") as sideband:
                await hear(sideband)
                if how == "hang up":
                    await own.close()
                elif how == "vanish":
                    own.transport.abort()
                assert await close_code(sideband) == (1001 if how == "expire" else 1000)
        assert len(edge.gateway.calls) == 0
        with_no_session = edge.connect(f"?call_id={session['id']}")
        async with with_no_session as late:
            assert (await hear(late))["error"]["code"] == "call_id_not_found"
            assert await close_code(late) == 1008


async def test_only_a_real_key_joins(serve: Any) -> None:
    engine = ScriptedEngine()
    for keys in (["sekrit-1"], []):
        async with serve(manager_of(engine), keys=keys) as edge, edge.http(headers=KEY) as http:
            secret = (await http.post("/v1/realtime/client_secrets")).json()["value"]
            offer = {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}
            async with edge.connect(**offer) as own:
                session = (await hear(own))["session"]
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await edge.connect(f"?call_id={session['id']}", **offer)
                assert refused.value.response.status_code == 401
                async with edge.connect(f"?call_id={session['id']}", additional_headers=KEY) as sideband:
                    assert (await hear(sideband))["type"] == "session.created"


async def test_each_connection_speaks_the_dialect_of_its_own_handshake(serve: Any) -> None:
    engine = ScriptedEngine()
    async with two_on_one(serve, engine, "&dialect=beta") as (_, own, sideband):
        assert [(await hear(sideband))["type"] for _ in range(2)] == ["session.created", "conversation.created"]
        await say(sideband, MESSAGE)
        assert (await hear(sideband))["type"] == "conversation.item.created"
        assert [(await hear(own))["type"] for _ in range(2)] == ["conversation.item.added", "conversation.item.done"]


async def test_there_are_no_more_sidebands_than_allowed_and_a_full_server_still_lets_them_in(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine, max_sessions=1)) as edge, edge.connect() as own:
        session = (await hear(own))["session"]
        connections = [await edge.connect(f"?call_id={session['id']}") for _ in range(MAX_SIDEBANDS)]
        for connection in connections:
            await hear(connection)
        async with edge.connect(f"?call_id={session['id']}") as refused:
            assert (await hear(refused))["error"]["code"] == "duologue.capacity"
            assert await close_code(refused) == 1013
        await asyncio.gather(*(connection.close() for connection in connections))


# -- without a socket: a sideband that does not read -------------------------------------------------------------------


class StuckTransport:
    """A peer that has stopped reading."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.sent: list[events.ServerEvent] = []
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> None:
        await asyncio.Event().wait()

    async def send(self, batch: list[events.ServerEvent]) -> None:
        await self.reading.wait()
        self.sent += batch

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class Own(StuckTransport):
    async def send(self, batch: list[events.ServerEvent]) -> None:
        self.sent += batch


class Handle:
    """A session that is asked for nothing but its configuration."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def submit(self, event: Any) -> None:
        raise AssertionError("nobody speaks here")


def sound(number: int) -> events.OutputAudioDelta:
    place = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    return events.OutputAudioDelta(event_id=f"e{number}", delta=bytes(2000), **place)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sound", "events"])
async def test_fc_138_a_sideband_that_does_not_read_is_cut_off_and_holds_nobody_up(kind: str) -> None:
    own, stuck = Own(), StuckTransport()
    shared = SharedTransport(own, QueueBounds(events=50, bytes=100_000))
    session: Any = manager_of(ScriptedEngine()).configure(None, Opening())
    joined = asyncio.create_task(shared.serve(stuck, Handle(session)))  # type: ignore[arg-type]
    await settled(lambda: shared._sidebands)
    for number in range(60):
        event = sound(number) if kind == "sound" else events.InputAudioCleared(event_id=f"e{number}")
        await shared.send([event])
        await asyncio.sleep(0)
    assert len(own.sent) == 60
    (sideband,) = shared._sidebands.values()
    assert len(sideband._outbox) <= 1
    stuck.reading.set()
    await asyncio.wait_for(joined, 10)
    assert stuck.closed is not None
    assert stuck.closed[0] == 1013
    last = stuck.sent[-1]
    assert isinstance(last, events.ErrorEvent)
    assert last.error.code == "duologue.too_slow"
    assert not shared._sidebands


async def test_a_stuck_sideband_does_not_keep_a_session_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.realtime.sideband.CLOSE_TIMEOUT_S", 0.05)
    own, stuck = Own(), StuckTransport()
    shared = SharedTransport(own)
    session: Any = manager_of(ScriptedEngine()).configure(None, Opening())
    joined = asyncio.create_task(shared.serve(stuck, Handle(session)))  # type: ignore[arg-type]
    await settled(lambda: shared._sidebands)
    await shared.close(1001, "over")
    assert own.closed == (1001, "over")
    await asyncio.wait_for(joined, 10)
    assert stuck.closed == (1001, "over")


class DirectOwn(Own):
    """A transport with a short way."""

    inlet: Any = None

    def deliver_to(self, inlet: Any) -> None:
        self.inlet = inlet

    def send_now(self, batch: list[events.ServerEvent]) -> bool:
        self.sent += batch
        return True


async def test_the_short_way_is_open_until_somebody_joins() -> None:
    own, inlet = DirectOwn(), object()
    shared = SharedTransport(own)
    assert isinstance(shared, DirectTransport)
    shared.deliver_to(inlet)  # type: ignore[arg-type]
    assert own.inlet is inlet
    assert shared.send_now([sound(0)])
    session: Any = manager_of(ScriptedEngine()).configure(None, Opening())
    other = Own()
    joined = asyncio.create_task(shared.serve(other, Handle(session)))  # type: ignore[arg-type]
    await settled(lambda: other.sent)
    assert own.inlet is None, "what comes in has to be marked now"
    assert not shared.send_now([sound(1)]), "what goes out has to reach everybody now"
    shared.deliver_to(inlet)  # type: ignore[arg-type]
    assert own.inlet is None
    shared.end()
    await asyncio.wait_for(joined, 10)
    assert not SharedTransport(Own()).send_now([sound(2)])


async def test_marks_cannot_be_forged() -> None:
    own = Own()
    shared = SharedTransport(own)
    event = client.ResponseCancel(event_id="deadbeef-1:mine")
    shared._joined = 1
    error = events.ErrorBody(type="invalid_request_error", message="no", event_id=event.event_id)
    await shared.send([events.ErrorEvent(event_id="e", error=error)])
    assert own.sent[0].error.event_id == "deadbeef-1:mine"  # type: ignore[attr-defined]


def test_the_deploy_file_sets_the_bounds() -> None:
    duplex = DuplexSession(output_buffer_events=7, output_buffer_bytes=9, resume_window_s=3)
    assert EdgeSettings.of(DeployConfig(pipeline="assistant", duplex_session=duplex)) == EdgeSettings(
        QueueBounds(7, 9), 3
    )
