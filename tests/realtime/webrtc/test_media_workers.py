"""The media of calls in worker processes: placement, death, restart, and what is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx2
import psutil
import pytest
from live_sessions import MESSAGE, manager_of, settled
from msgspec.structs import replace
from rtc_client import LOOPBACK, RtcClient, calling, tone
from scripted_engine import ScriptedEngine

from duologue.engine.executors import heartbeat, restarts
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.requests import AudioDelta, Finished, TextDelta
from duologue.realtime import metrics
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc import media_wire as wire
from duologue.realtime.webrtc import media_worker, media_workers
from duologue.realtime.webrtc.call import CallTransport
from duologue.realtime.webrtc.call_media import Video
from duologue.realtime.webrtc.remote_media import RemoteMedia
from duologue.realtime.webrtc_options import media_worker_count
from duologue.sessions.errors import ProtocolError

CALLS = "/v1/realtime/calls"
SDP = {"Content-Type": "application/sdp"}
DONE = Finished(reason="completed")


def workers(count: int) -> EdgeSettings:
    return EdgeSettings(webrtc=replace(LOOPBACK, media_workers=count))


def kill(worker: Any, number: signal.Signals = signal.SIGKILL) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, number)


async def health(http: httpx2.AsyncClient) -> tuple[int, str, dict[str, str]]:
    answer = await http.get("/health")
    return answer.status_code, answer.json()["status"], answer.json()["media_workers"]


async def works(client: RtcClient) -> None:
    """Sound in, events both ways."""
    client.microphone.say(tone(400))
    await client.until("input_audio_buffer.speech_started")
    client.send({"type": "session.update", "session": {"type": "realtime", "instructions": "Be kind."}})
    await client.until("session.updated")


async def exported(http: httpx2.AsyncClient, series: str) -> float:
    page = (await http.get("/metrics")).text
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{series} ")), 0.0)


async def test_a_killed_worker_ends_its_own_calls_and_is_started_again(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 2.0)
    engine = ScriptedEngine()
    async with (
        serve(manager_of(engine), settings=workers(2)) as edge,
        edge.http() as http,
        calling(http) as doomed,
        calling(http) as other,
    ):
        first, second = edge.gateway.media_workers()
        assert (first.calls, second.calls) == (1, 1), "each call goes where there are fewest"
        assert await health(http) == (200, "ok", {"0": "ready", "1": "ready"})
        doomed.send(MESSAGE, {"type": "response.create"})
        stream = await engine.opened()
        stream.give(TextDelta(text="Once upon a time"), AudioDelta(pcm=tone(5000)))
        await doomed.until("output_audio_buffer.started")
        lost = 'duologue_calls_ended_total{reason="worker_lost"}'
        before = await exported(http, lost)
        pid, killed_at = first.pid, doomed.loop_time()
        kill(first)
        await settled(lambda: edge.sessions.open_sessions == len(edge.gateway.desk()) == 1)
        assert doomed.loop_time() - killed_at < 1.0
        assert stream.aborted
        assert await exported(http, lost) == before + 1
        assert await health(http) == (200, "ok", {"0": "restarting", "1": "ready"})
        await works(other)
        async with calling(http) as meanwhile:
            assert await exported(http, 'duologue_media_worker_calls{worker="1"}') == 2
            await works(meanwhile)
        async with asyncio.timeout(30):
            while first.state != "ready":  # noqa: ASYNC110 - a process starts in its own time
                await asyncio.sleep(0.05)
        assert first.pid != pid
        async with calling(http) as later:
            assert first.calls == 1
            await works(later)
        await works(other)


async def test_without_a_worker_calls_are_refused_until_there_is_one_again(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge, edge.http() as http:
        (worker,) = edge.gateway.media_workers()
        client = RtcClient()
        offer = await client.offer()
        kill(worker)
        await settled(lambda: worker.state == "restarting")
        refused = await http.post(CALLS, content=offer, headers=SDP)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "duologue.not_ready")
        assert await health(http) == (503, "not_ready", {"0": "restarting"})
        await client.close()
        async with asyncio.timeout(30):
            while worker.state != "ready":  # noqa: ASYNC110 - a process starts in its own time
                await asyncio.sleep(0.05)
        assert (await health(http))[:2] == (200, "ok")
        async with calling(http) as late:
            await works(late)
        assert edge.sessions.open_sessions <= 1


async def test_an_offer_that_a_worker_dies_over_is_refused(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge, edge.http() as http:
        (worker,) = edge.gateway.media_workers()
        client = RtcClient()
        offer = await client.offer()
        kill(worker, signal.SIGSTOP)
        asked = asyncio.create_task(http.post(CALLS, content=offer, headers=SDP))
        await settled(lambda: worker.calls == 1)
        kill(worker)
        refused = await asked
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "duologue.media_worker_lost")
        assert edge.sessions.open_sessions == worker.calls == 0
        await client.close()


async def test_a_worker_that_hangs_is_killed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BUSY_PERIOD_S", 0.1)  # 2 s for real
    async with (
        serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge,
        edge.http() as http,
        calling(http),
    ):
        (worker,) = edge.gateway.media_workers()
        kill(worker, signal.SIGSTOP)
        await settled(lambda: worker.state == "restarting")
        await settled(lambda: not edge.sessions.open_sessions)


async def test_a_worker_that_hangs_does_not_hold_up_the_end(serve: Any) -> None:
    before = held()
    async with (
        serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        kill(edge.gateway.media_workers()[0], signal.SIGSTOP)
        began = client.loop_time()
        await edge.gateway.close()
        assert client.loop_time() - began < 4.5
        assert not edge.sessions.open_sessions
    assert nothing_left(before), (before, held())


async def test_a_fault_in_one_call_leaves_the_others_of_its_worker_alone(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(transport: CallTransport, key: str) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(CallTransport, "on_dialled", broken)
    async with (
        serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge,
        edge.http() as http,
        calling(http) as faulty,
        calling(http) as other,
    ):
        (worker,) = edge.gateway.media_workers()
        number = min(worker._calls)
        worker._on_messages([wire.Dialled(number, "1")])
        await faulty.until_closed()
        await settled(lambda: edge.sessions.open_sessions == worker.calls == 1)
        await works(other)


async def test_a_worker_that_cannot_start_says_so_and_leaves_nothing(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_workers, "PROGRAM", "duologue.no_such_module")
    before = held()
    with pytest.raises(WorkerError, match="Media worker 0 ended before it was ready"):
        async with serve(manager_of(ScriptedEngine()), settings=workers(2)):
            pass
    assert nothing_left(before), (before, held())


async def test_a_worker_that_keeps_dying_is_given_up(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 2)
    async with serve(manager_of(ScriptedEngine()), settings=workers(1)) as edge, edge.http() as http:
        (worker,) = edge.gateway.media_workers()
        monkeypatch.setattr(sys, "executable", "/bin/false")
        kill(worker)
        await settled(lambda: worker.state == "failed")
        assert await health(http) == (503, "not_ready", {"0": "failed"})


def held() -> tuple[int, int, set[int]]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), len(process.net_connections("udp")), {child.pid for child in process.children()}


def nothing_left(before: tuple[int, int, set[int]]) -> bool:
    """Less than ``before`` is nothing too: an earlier test's socket may have been about to close."""
    descriptors, ports, children = held()
    return descriptors <= before[0] and ports <= before[1] and children <= before[2]


async def test_nothing_is_left_when_a_server_with_workers_is_over(serve: Any) -> None:
    engine = ScriptedEngine()
    before = held()
    async with serve(manager_of(engine), settings=workers(2)) as edge:
        pids = [worker.pid for worker in edge.gateway.media_workers()]
        async with edge.http() as http:
            async with calling(http) as client, calling(http):
                client.send(MESSAGE, {"type": "response.create"})
                (await engine.opened()).give(TextDelta(text="Once"), AudioDelta(pcm=tone(5000)))
                await client.until("output_audio_buffer.started")
                await edge.gateway.close()
                await client.until_closed()
            await settled(lambda: not edge.sessions.open_sessions)
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert nothing_left(before), (before, held())


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_with_its_gateway_and_by_no_signal_of_the_group(number: signal.Signals | None) -> None:
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", media_workers.PROGRAM, "0", str(fd)]
    with ours, subprocess.Popen(command, pass_fds=[fd], env=os.environ | {"PYTHONPATH": path}) as process:
        theirs.close()
        body = wire_frame(wire.Launch(LOOPBACK, 30))
        ours.sendall(body)
        assert ours.recv(4096), "it is ready"
        if number is not None:
            process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        ours.close()
        assert process.wait(10) == 1


def wire_frame(message: wire.Wire) -> bytes:
    import msgspec

    body = msgspec.msgpack.encode([message])
    return len(body).to_bytes(4, "little") + body


async def test_fc_003_what_the_user_heard_is_what_the_worker_has_sent(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine()
    cleared: list[int] = []
    take = RemoteMedia.take

    def watched(media: RemoteMedia, message: wire.OfCall) -> None:
        if isinstance(message, wire.Cleared):
            cleared.append(message.samples_played)
        take(media, message)

    monkeypatch.setattr(RemoteMedia, "take", watched)
    async with (
        serve(manager_of(engine), settings=workers(1)) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        for _ in range(5):
            client.send(MESSAGE, {"type": "response.create"})
            (await engine.opened()).give(TextDelta(text="Once"), AudioDelta(pcm=tone(5000)), DONE)
            await client.until("output_audio_buffer.started")
            await settled(lambda: len(client.loud_at) > 10)
            client.send({"type": "output_audio_buffer.clear"})
            truncated = await client.until("conversation.item.truncated")
            await client.until("output_audio_buffer.cleared")
            # the report of a frame may have been on its way
            assert 0 <= cleared[-1] - truncated["audio_end_ms"] * 24 <= 2 * 480 + 24
            (media,) = edge.gateway.media_workers()[0]._calls.values()
            assert media.queued_bytes == 0
            client.loud_at.clear()


# -- one call without a process ----------------------------------------------------------------------------------------


class Still:
    """A worker whose gateway stands still, or not."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.link = self
        self.posted: list[wire.Wire] = []
        self.spawned: list[Any] = []

    def post(self, message: wire.Wire) -> None:
        self.posted.append(message)

    def spawn(self, work: Any) -> None:
        self.spawned.append(work)


async def test_sound_is_left_out_and_counted_while_the_gateway_stands_still_and_events_are_not() -> None:
    worker = Still()
    call = media_worker.WorkerCall(1, worker, LOOPBACK, Video())  # type: ignore[arg-type]
    call.on_heard(b"ab")
    worker.unsent_bytes = media_worker.MOST_UNSENT_BYTES + 1
    call.on_heard(b"cdef")
    call.on_heard(b"gh")
    call.on_message("{}")
    worker.unsent_bytes = 0
    call.on_heard(b"ij")
    sent = [wire.Heard(1, b"ab"), wire.Said(1, b"{}", True), wire.Unheard(1, 6), wire.Heard(1, b"ij")]
    assert worker.posted == sent
    worker.unsent_bytes = 2 * media_worker.MOST_UNSENT_BYTES + 1
    call.on_message("{}")
    assert worker.posted == sent, "whoever goes on is hung up on"
    await worker.spawned.pop()

    unheard = metrics.unheard_s._value.get()
    RemoteMedia(1, worker.post, None, Video()).take(wire.Unheard(1, 48_000))  # type: ignore[arg-type]
    assert metrics.unheard_s._value.get() == unheard + 1


async def test_what_is_queued_is_known_again_once_the_worker_has_cleared() -> None:
    class Deaf:
        def on_played(self, item_id: str, samples: int) -> None: ...

    posted: list[wire.Wire] = []
    media = RemoteMedia(1, posted.append, Deaf(), Video())  # type: ignore[arg-type]
    media.play("r", "i", bytes(2 * 960))
    media.take(wire.Played(1, "i", 480))
    assert media.queued_bytes == 960
    media.clear()
    media.play("s", "j", bytes(960))
    media.take(wire.Played(1, "i", 480))  # had left before
    assert media.queued_bytes == 960
    media.take(wire.Silent(1))
    media.take(wire.Played(1, "j", 240))
    assert media.queued_bytes == 480
    media.lost()
    with pytest.raises(ProtocolError):
        await media.join(None)  # type: ignore[arg-type]
    told = len(posted)
    media.play("s", "j", bytes(960))
    await media.close()
    assert len(posted) == told


def test_by_itself_a_server_has_workers_where_there_are_cores_for_them() -> None:
    alone = replace(LOOPBACK, media_workers="auto")
    assert [media_worker_count(alone, cores) for cores in (1, 2, 3, 4, 8, 64)] == [0, 0, 0, 1, 2, 2]
    assert media_worker_count(replace(LOOPBACK, media_workers=5), 1) == 5
