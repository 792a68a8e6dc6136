"""Going on after a broken connection: nothing is lost, nothing comes twice, and what cannot be is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_sessions import MESSAGE, close_code, hear, hear_until, manager_of, say, settled
from scripted_engine import ScriptedEngine
from session_driver import speech

from duologue.engine.requests import AudioDelta, Finished, TextDelta
from duologue.realtime import wire
from duologue.realtime.dialects import GA
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.resume import Replay, ResumableTransport
from duologue.realtime.sideband import QueueBounds
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.errors import ProtocolError

LONG = EdgeSettings(resume_window_s=30.0)
BRIEF = EdgeSettings(resume_window_s=0.05)


@asynccontextmanager
async def resumable(edge: Any, query: str = "") -> AsyncIterator[tuple[Any, str]]:
    """A connection whose session can be resumed, and its token."""
    async with edge.connect(f"?extensions=resume{query}") as connection:
        assert (await hear(connection))["type"] == "session.created"
        if "beta" in query:
            await hear(connection)
        offer = await hear(connection)
        assert offer["type"] == "x.resume.offered"
        yield connection, offer["token"]


async def lost(edge: Any, connection: Any) -> None:
    """Break a connection, and wait until the server has noticed."""
    (transport,) = edge.gateway.resumables._transports.values()
    connection.transport.abort()
    await settled(lambda: transport._connection is None)


# -- over real sockets -------------------------------------------------------------------------------------------------


async def test_it_is_off_and_invisible_unless_asked_for(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=LONG) as edge:
        async with edge.connect() as connection:
            assert (await hear(connection))["type"] == "session.created"
            await say(connection, {"type": "response.cancel"})
            assert (await hear(connection))["type"] == "error"
            assert len(edge.gateway.resumables) == 0
            connection.transport.abort()
        await settled(lambda: edge.gateway.sessions.open_sessions == 0)


async def test_fc_133_a_session_goes_on_where_its_connection_broke(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=LONG) as edge:
        async with resumable(edge) as (connection, token):
            await say(connection, MESSAGE, {"type": "response.create"})
            stream = await engine.opened()
            stream.give(TextDelta(text="One "))
            heard = await hear_until(connection, "response.output_audio_transcript.delta")
            await lost(edge, connection)
        stream.give(TextDelta(text="two."), AudioDelta(pcm=speech(100)), Finished(reason="completed"))
        async with edge.connect(f"?resume={token}&after={1 + len(heard)}") as again:
            resumed = await hear(again)
            assert (resumed["type"], resumed["received_events"]) == ("x.resume.resumed", 2)
            heard += await hear_until(again, "response.done")
            assert "".join(e["delta"] for e in heard if e["type"] == "response.output_audio_transcript.delta") == (
                "One two."
            )
            ids = [event["event_id"] for event in heard]
            assert len(set(ids)) == len(ids)
            assert edge.gateway.sessions.open_sessions == 1
            await say(again, {"type": "conversation.item.delete", "item_id": "nowhere", "event_id": "after all"})
            assert (await hear(again))["error"]["event_id"] == "after all"
        await settled(lambda: edge.gateway.sessions.open_sessions == 0)
        assert len(edge.gateway.resumables) == 0


async def test_a_client_that_says_goodbye_is_not_waited_for(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=LONG) as edge:
        async with resumable(edge) as (_, token):
            pass
        await settled(lambda: edge.gateway.sessions.open_sessions == 0)
        async with edge.connect(f"?resume={token}&after=1") as late:
            assert (await hear(late))["error"]["code"] == "duologue.resume_unknown"
            assert await close_code(late) == 1008


async def test_a_client_that_stays_away_is_waited_for_no_longer_than_the_window(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=BRIEF) as edge:
        async with resumable(edge) as (connection, _):
            await say(connection, MESSAGE, {"type": "response.create"})
            stream = await engine.opened()
            connection.transport.abort()
        stream.give(TextDelta(text="Nobody hears this."))
        await settled(lambda: edge.gateway.sessions.open_sessions == 0)
        assert stream.aborted


async def test_a_new_connection_takes_over_from_one_that_seems_alive(serve: Any) -> None:
    async with (
        serve(manager_of(ScriptedEngine()), settings=LONG) as edge,
        resumable(edge) as (old, token),
        edge.connect(f"?resume={token}&after=1") as new,
    ):
        assert (await hear(new))["type"] == "x.resume.resumed"
        assert await close_code(old) == 1008
        await say(new, {"type": "response.cancel"})
        assert (await hear(new))["error"]["code"] == "response_cancel_not_active"


async def test_the_token_is_a_key_to_its_session_once_the_secret_has_expired(serve: Any) -> None:
    bearer = {"Authorization": "Bearer sekrit-1"}
    async with serve(manager_of(ScriptedEngine()), keys=["sekrit-1"], settings=LONG) as edge:
        async with edge.http(headers=bearer) as http:
            secret = (await http.post("/v1/realtime/client_secrets")).json()["value"]
        offer = {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}
        async with edge.connect("?extensions=resume", **offer) as connection:
            token = (await hear_until(connection, "x.resume.offered"))[-1]["token"]
            await lost(edge, connection)
        edge.gateway.secrets._secrets.clear()
        async with edge.connect(f"?resume={token}&after=1", **offer) as again:
            assert (await hear(again))["type"] == "x.resume.resumed"


async def test_the_dialect_is_that_of_the_session(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=LONG) as edge:
        async with resumable(edge, "&dialect=beta") as (connection, token):
            await lost(edge, connection)
        async with edge.connect(f"?resume={token}&after=0") as again:
            kinds = [(await hear(again))["type"] for _ in range(3)]
            assert kinds == ["x.resume.resumed", "session.created", "conversation.created"]
            await say(again, MESSAGE)
            assert (await hear(again))["type"] == "conversation.item.created"


async def test_a_gap_is_refused_and_the_session_waits_on(serve: Any) -> None:
    narrow = EdgeSettings(QueueBounds(events=5, bytes=10_000), 30.0)
    async with serve(manager_of(ScriptedEngine()), settings=narrow) as edge:
        async with resumable(edge) as (connection, token):
            for _ in range(20):
                await say(connection, {"type": "response.cancel"})
                await hear(connection)
            await lost(edge, connection)
        for after, code in ((2, "duologue.resume_gap"), (500, "duologue.resume_gap"), ("x", "invalid_value")):
            async with edge.connect(f"?resume={token}&after={after}") as refused:
                assert (await hear(refused))["error"]["code"] == code
                assert await close_code(refused) == 1008
        async with edge.connect(f"?resume={token}&after=21") as again:
            assert (await hear(again))["received_events"] == 20


async def test_fc_137_a_frame_over_the_limit_ends_the_session_for_good(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=LONG) as edge:
        connection = await edge.connect("?extensions=resume")
        await hear_until(connection, "x.resume.offered")
        sending = asyncio.ensure_future(connection.send(" " * (wire.MAX_FRAME_BYTES + 1)))
        assert await close_code(connection) == 1009
        await asyncio.wait({sending})
        await settled(lambda: edge.gateway.sessions.open_sessions == 0)


async def test_expiry_while_nobody_is_connected_is_told_to_who_comes_back(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine(), limits=Limits(max_duration_s=0.3)), settings=LONG) as edge:
        async with resumable(edge) as (connection, token):
            await lost(edge, connection)
        shared = next(iter(edge.gateway.resumables._transports.values()))
        await settled(lambda: shared._replay.last == 2)
        async with edge.connect(f"?resume={token}&after=1") as again:
            await hear(again)
            assert (await hear(again))["error"]["code"] == "session_expired"
            assert await close_code(again) == 1001


# -- every place where a connection can break --------------------------------------------------------------------------


class CutConnection:
    """A connection that breaks after so many frames, of which the last ones never arrive."""

    dialect = GA

    def __init__(self, delivers: int, swallows: int) -> None:
        self._delivers, self._swallows = delivers, swallows
        self.heard: list[dict[str, Any]] = []
        self.over = self.lost = False
        self.broken = asyncio.Event()
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()

    async def send_frame(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        if self.over:
            return
        if self._delivers > 0:
            self._delivers -= 1
            self.heard.append(json.loads(frame))
        elif self._swallows > 0:
            self._swallows -= 1
        else:
            self.over = True
            self.broken.set()

    async def send(self, batch: list[events.ServerEvent]) -> None:
        for event in batch:
            self.heard.append(json.loads(GA.encode(event)[0]))

    async def receive(self) -> Any:
        waiting = {asyncio.ensure_future(self.broken.wait()), asyncio.ensure_future(self.incoming.get())}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for result in (task.result() for task in done):
                if result is not True:
                    return result
            self.lost = True
            return None
        finally:
            for task in waiting:
                task.cancel()

    async def close(self, code: int, reason: str) -> None:
        self.over = True
        self.broken.set()


def numbered(number: int) -> events.ErrorEvent:
    body = events.ErrorBody(type="server_error", message=str(number))
    return events.ErrorEvent(event_id=f"event_{number}", error=body)


CUTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=6)


async def conversation(count: int, cuts: list[tuple[int, int]], said: int) -> tuple[list[str], list[str], list[str]]:
    """``count`` events over connections that break as ``cuts`` says, while the client says ``said`` events of its own.

    Returns what the client heard, and what arrived of what it said, and what it meant to say.
    """
    first, *later = [CutConnection(*cut) for cut in (*cuts, (10_000, 0))]
    transport = ResumableTransport(first, 10.0, QueueBounds(events=100, bytes=10**6))  # type: ignore[arg-type]
    arrived: list[str] = []
    meant = [f"mine_{number}" for number in range(said)]

    async def read() -> None:
        while (event := await transport.receive()) is not None:
            arrived.append(event.event_id)  # type: ignore[arg-type]

    async def write() -> None:
        for number in range(count):
            await transport.send([numbered(number)])

    async def serve(connection: CutConnection, after: int) -> None:
        await transport.resume(connection, after)  # type: ignore[arg-type]

    def heard_of(connections: list[CutConnection]) -> list[str]:
        seen = [event for each in connections for event in each.heard]
        return [event["event_id"] for event in seen if not event["type"].startswith("x.resume.")]

    tasks = [asyncio.create_task(read()), asyncio.create_task(write())]
    used = [first]
    for event_id in meant[: said // 2]:
        first.incoming.put_nowait(client.ResponseCancel(event_id=event_id))
    for connection in later:
        await settled(lambda: used[-1].broken.is_set() or tasks[1].done())
        await used[-1].close(1006, "")
        used.append(connection)
        tasks.append(asyncio.create_task(serve(connection, len(heard_of(used)))))
        await settled(lambda: used[-1].heard)
        for event_id in meant[used[-1].heard[0]["received_events"] :]:
            connection.incoming.put_nowait(client.ResponseCancel(event_id=event_id))
    await asyncio.wait_for(tasks[1], 5)
    await settled(lambda: len(heard_of(used)) >= count and len(arrived) >= (said if later else said // 2))
    await transport.close(1000, "")
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    return heard_of(used), arrived, meant if later else meant[: said // 2]


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 25), cuts=CUTS, said=st.integers(0, 6))
def test_wherever_connections_break_each_event_comes_once_and_in_order(
    count: int, cuts: list[tuple[int, int]], said: int
) -> None:
    heard, arrived, meant = asyncio.run(conversation(count, cuts, said))
    assert heard == [f"event_{number}" for number in range(count)]
    assert arrived == meant


@given(sizes=st.lists(st.integers(1, 30), max_size=40), unwritten=st.integers(1, 41))
def test_what_is_kept_is_the_newest_within_bounds_and_all_that_is_unwritten(sizes: list[int], unwritten: int) -> None:
    replay = Replay(QueueBounds(events=10, bytes=100))
    for size in sizes:
        replay.add("x" * size)
    replay.trim(unwritten)
    assert replay.last == len(sizes)
    kept = [len(replay[number]) for number in range(replay.first, replay.last + 1)]
    assert kept == sizes[replay.first - 1 :]
    assert replay.first >= unwritten or (len(kept) <= 10 and sum(kept) <= 100)
    if replay.first > 1:
        more = [sizes[replay.first - 2], *kept]
        assert replay.first - 1 < unwritten
        assert len(more) > 10 or sum(more) > 100


async def test_a_session_that_is_over_cannot_be_resumed() -> None:
    transport = ResumableTransport(CutConnection(9, 0), 10.0, QueueBounds())  # type: ignore[arg-type]
    await transport.close(1000, "")
    with pytest.raises(ProtocolError) as refused:
        await transport.resume(CutConnection(9, 0), 0)  # type: ignore[arg-type]
    assert refused.value.code == "duologue.resume_unknown"
