"""Stages on a Ray cluster: death of an actor and of a node, silence, placement, scaling, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from engine_calls import TIMEOUT_S, Quiet, know_scripted_pipeline, open_, read, restarted, say, until_idle
from ray_nodes import Nodes
from scripted_stages import PIPELINE, TARGETS, ask

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.deploy import DeployError, RayDeploy, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.executors import restarts
from duologue.engine.executors.base import Done, Failed, Released, Working
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_replica import RayReplica, RaySpec
from duologue.engine.executors.ray_wire import Frame, InOrder, encoder
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.requests import EngineRequest, TextDelta
from duologue.engine.stream import Stream

PATIENT = "silent_after_s: 30, dead_after_s: 60"
ON = "executor: ray, resources: {num_cpus: 0, custom: {%s: 1}}"
ONE = "stages: [{stage_id: 0, " + ON % "far" + "}]"
SOURCE_BUILD, TYPES = StageBuild(TARGETS[0]), PieceTypes(PIPELINE.stages[0].emits)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    know_scripted_pipeline(monkeypatch)


@pytest.fixture
async def engine_of(tmp_path: Path, ray_nodes: Nodes) -> AsyncIterator[Callable[..., Any]]:
    engines: list[Engine] = []

    async def make(text: str, ray: str = PATIENT) -> Engine:
        settings = f"pipeline: scripted\nray: {{address: '{ray_nodes.address}', {ray}}}\n"
        (tmp_path / "scripted.yaml").write_text(settings + text)
        engines.append(Engine(load_deploy(tmp_path / "scripted.yaml"), Quiet))
        await engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.to_thread(ray_nodes.wait_for_no_objects)


def replica(engine: Engine, stage_id: int = 0, index: int = 0) -> RayReplica:
    found = engine._replicas[stage_id][index]
    assert isinstance(found, RayReplica)
    return found


async def at_work(engine: Engine, count: int, script: str = "endless-blocks") -> list[Stream]:
    streams = [open_(engine, script, f"r{n}") for n in range(count)]
    for stream in streams:
        await asyncio.wait_for(anext(stream), TIMEOUT_S)
    return streams


async def test_a_killed_actor_fails_its_requests_at_once_and_comes_back(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(ONE)
    streams = await at_work(engine, 3)
    pid = replica(engine).place[1]
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    for stream in streams:
        last = (await read(stream))[-1]
        assert (last.reason, last.error) == ("failed", "Stage 'source' failed: its worker died.")
    assert time.monotonic() - killed_at < 1.0
    assert engine.health().stages["source"] == "restarting"
    assert not engine.health().ready
    assert (await read(open_(engine, "pid", "meanwhile")))[-1].error == "Stage 'source' has no running worker."
    await restarted(replica(engine))
    assert engine.health().ready
    assert int(await say(engine, "pid")) == replica(engine).place[1] != pid


async def test_a_lost_node_fails_its_requests_at_once_and_the_replica_moves(
    engine_of: Callable[..., Any], ray_nodes: Nodes
) -> None:
    node = ray_nodes.add(third=1.0)
    engine = await engine_of("stages: [{stage_id: 0, " + ON % "third" + "}]", "silent_after_s: 1.0, dead_after_s: 60")
    streams = await at_work(engine, 2)
    pid = replica(engine).place[1]
    removal = asyncio.create_task(asyncio.to_thread(ray_nodes.remove, node))
    async with asyncio.timeout(TIMEOUT_S):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    lost_at = time.monotonic()
    for stream in streams:
        # Ray itself fails the calls after about 2 s, as nobody is left to tell it how the actor ended.
        assert (await read(stream))[-1].error.startswith("Stage 'source' failed: its worker ")
    assert time.monotonic() - lost_at < 1.5
    assert not engine.health().ready
    await removal
    async with asyncio.timeout(TIMEOUT_S):
        while replica(engine)._supervisor is None:  # noqa: ASYNC110 - Ray tells, in its own time
            await asyncio.sleep(0.01)
    another = ray_nodes.add(third=1.0)
    await restarted(replica(engine))
    assert int(await say(engine, "pid")) != pid
    await engine.close()
    await asyncio.to_thread(ray_nodes.remove, another)


async def test_a_silent_actor_fails_its_requests_and_is_taken_back_when_it_is_heard(
    engine_of: Callable[..., Any],
) -> None:
    engine = await engine_of(ONE, "silent_after_s: 1.0, dead_after_s: 60")
    worker = replica(engine)
    streams = await at_work(engine, 2)
    os.kill(worker.place[1], signal.SIGSTOP)  # what a node without power looks like from here
    stopped_at = time.monotonic()
    for stream in streams:
        assert "gave no sign of life for" in (await read(stream))[-1].error
    assert time.monotonic() - stopped_at < 2.0
    assert not engine.health().ready
    assert (await read(open_(engine, "pid", "meanwhile")))[-1].error == "Stage 'source' has no running worker."
    os.kill(worker.place[1], signal.SIGCONT)
    async with asyncio.timeout(TIMEOUT_S):
        while not worker.live:  # noqa: ASYNC110 - the actor's next report has no event of its own
            await asyncio.sleep(0.01)
    assert engine.health().ready
    assert int(await say(engine, "pid", "again")) == worker.place[1]


async def test_an_actor_that_stays_silent_is_replaced(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(ONE, "silent_after_s: 1.0, dead_after_s: 1.5")
    worker = replica(engine)
    (stream,) = await at_work(engine, 1)
    pid = worker.place[1]
    os.kill(pid, signal.SIGSTOP)
    assert (await read(stream))[-1].reason == "failed"
    async with asyncio.timeout(TIMEOUT_S):
        while worker._supervisor is None:  # noqa: ASYNC110 - it is given up by a timer
            await asyncio.sleep(0.01)
    await restarted(worker)
    assert worker.live
    assert worker.place[1] != pid
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=TIMEOUT_S)
    assert not psutil.pid_exists(pid)


async def test_an_idle_replica_has_no_timer(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(ONE, "silent_after_s: 0.5")
    await say(engine, "numbers 3")
    async with asyncio.timeout(TIMEOUT_S):
        while replica(engine)._watch is not None:  # noqa: ASYNC110 - the last look is a timer's
            await asyncio.sleep(0.01)
    assert replica(engine).live


async def test_an_actor_that_cannot_start_again_is_given_up(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 2)
    engine = await engine_of(ONE)
    worker = replica(engine)
    monkeypatch.setattr(worker, "_new_actor", lambda: (_ for _ in ()).throw(WorkerError("no")))
    os.kill(worker.place[1], signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT_S):
        while worker.state != "failed":  # noqa: ASYNC110 - Ray tells, in its own time
            await asyncio.sleep(0.01)
    assert engine.health().stages["source"] == "failed"


async def test_no_object_is_left_after_hundreds_of_aborts_and_a_kill(
    engine_of: Callable[..., Any], ray_nodes: Nodes
) -> None:
    both = "stages: [{stage_id: 0, " + ON % "far" + "}, {stage_id: 1, " + ON % "near" + "}]"
    engine = await engine_of(both)
    for n in range(300):
        stream = open_(engine, "endless-blocks", f"r{n}")
        if n % 8 == 0:
            await asyncio.wait_for(anext(stream), TIMEOUT_S)
        if n == 150:
            assert ray_nodes.held() > 100_000, "large pieces are in the store"
            os.kill(replica(engine).place[1], signal.SIGKILL)
            assert (await read(stream))[-1].reason == "failed"
            await restarted(replica(engine))
        stream.abort()
        stream.abort()
    await until_idle(engine)
    await asyncio.to_thread(ray_nodes.wait_for_no_objects)
    assert await say(engine, "blocks 2 50000", "last") == "0:25000:15 1:25000:15 "


async def test_environment_and_arguments_reach_the_actor(engine_of: Callable[..., Any]) -> None:
    more = "env: {DUOLOGUE_TEST_WORKER: 7}, engine_args: {greeting: hello}"
    engine = await engine_of("stages: [{stage_id: 0, " + ON % "near" + ", " + more + "}]")
    assert await say(engine, "environment DUOLOGUE_TEST_WORKER") == "7"
    assert await say(engine, "greeting") == "hello"
    assert "DUOLOGUE_TEST_WORKER" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ("{broken: load}", WorkerError, r"weights\.bin is missing"),
        ("{broken: die}", WorkerError, "died"),
        ("{tone: soft}", DeployError, r"stage 'source' \(0\): engine_args: .*'tone'"),
    ],
)
async def test_an_actor_that_cannot_load_fails_the_start(
    engine_of: Callable[..., Any], arguments: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await engine_of("stages: [{stage_id: 0, " + ON % "near" + ", engine_args: " + arguments + "}]")


async def test_a_replica_without_room_stops_the_start_by_name(engine_of: Callable[..., Any]) -> None:
    with pytest.raises(WorkerError, match=r"Stage 'source': no node .* within 0\.5 s .*'num_gpus': 2"):
        await engine_of(
            "stages: [{stage_id: 0, executor: ray, devices: [0, 1], tensor_parallel_size: 2}]",
            "placement_timeout_s: 0.5",
        )


async def test_an_actor_s_log_comes_out_as_the_gateway_s(
    engine_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = await engine_of(ONE)
    assert (await read(open_(engine, "fail broken")))[-1].error == "Stage 'source' failed: broken"
    (record,) = [r for r in caplog.records if r.name == "duologue.engine.executors.inline"]
    assert "RuntimeError: broken" in record.message


async def test_replicas_follow_the_load(engine_of: Callable[..., Any]) -> None:
    scale = "max_num_seqs: 2, autoscale: {max_replicas: 2, target_queue_depth: 1, cooldown_s: 0.2}"
    engine = await engine_of("stages: [{stage_id: 0, " + ON % "far" + ", " + scale + "}]")
    (scaler,) = engine._scalers
    streams = await at_work(engine, 2, "endless")
    async with asyncio.timeout(TIMEOUT_S):
        while len(scaler.serving) < 2:  # noqa: ASYNC110 - a start of Ray's takes what it takes
            await asyncio.sleep(0.02)
    assert int(await say_beside(engine, "pid")) == replica(engine, index=1).place[1], "the new one has no requests"
    for stream in streams:
        stream.abort()
    async with asyncio.timeout(TIMEOUT_S):
        while len(engine._replicas[0]) > 1:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    assert engine.health().ready


async def say_beside(engine: Engine, script: str) -> str:
    deltas = await read(open_(engine, script, "beside"))
    return "".join(d.text for d in deltas if isinstance(d, TextDelta))


GATEWAY = """
import asyncio, sys
from ray._private import ray_constants
ray_constants.ENABLE_RAY_CLUSTER = False
from scripted_stages import PIPELINE, TARGETS, ask
from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.deploy import RayDeploy
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_replica import RayReplica, RaySpec
from duologue.engine.requests import EngineRequest

async def main():
    spec = RaySpec(StageBuild(TARGETS[0]), PieceTypes(PIPELINE.stages[0].emits), 65536)
    cluster = RayCluster(RayDeploy())
    worker = RayReplica("source", spec, cluster)
    await worker.load()
    await worker.warm_up()
    worker.open(EngineRequest(request_id="r", session_id="s", payload=ask("endless-blocks")))
    worker.push("r", worker._open["r"].payload)
    kept = []
    while len(kept) < 10:
        kept += await worker.messages()
    print(worker.place[1], flush=True)
    if sys.argv[1] == "waits":
        await asyncio.Event().wait()
    del kept
    assert await worker.close()
    await cluster.close()
    import ray
    assert not ray.is_initialized()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["is killed", "closes"])
def test_a_gateway_that_ends_leaves_no_actor_and_no_object(ray_nodes: Nodes, end: str) -> None:
    environment = os.environ | {"RAY_ADDRESS": ray_nodes.address}
    how = "waits" if end == "is killed" else "closes"
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, how], stdout=subprocess.PIPE, text=True, env=environment)
    assert gateway.stdout is not None
    with gateway, gateway.stdout:
        actor = psutil.Process(int(gateway.stdout.readline()))
        if end == "is killed":
            gateway.kill()
        assert gateway.wait(TIMEOUT_S) == (-signal.SIGKILL if end == "is killed" else 0)
    _, alive = psutil.wait_procs([actor], timeout=TIMEOUT_S)
    assert not alive
    ray_nodes.wait_for_no_objects()


class Calls:
    """Stands for an actor of which only ``reports`` is called: the calls wait here to be answered."""

    def __init__(self) -> None:
        self.waiting: list[Future[Frame]] = []
        self.reports = self

    def remote(self) -> SimpleNamespace:
        call: Future[Frame] = Future()
        self.waiting.append(call)
        return SimpleNamespace(future=lambda: call)

    def answer(self, call: int, number: int, *messages: object) -> None:
        self.waiting[call].set_result((number, encoder.encode(messages), []))


@pytest.fixture
async def heard() -> AsyncIterator[tuple[RayReplica, Calls]]:
    """A replica with one request open that listens to a stand-in of its actor."""
    from duologue.engine.connectors.ray_store import RayConnector

    worker, calls = RayReplica("source", RaySpec(SOURCE_BUILD, TYPES, 65_536), RayCluster(RayDeploy())), Calls()
    worker._is_ready()
    worker._open["r"] = EngineRequest(request_id="r", session_id="s", payload=ask("numbers 1"))
    listener = asyncio.create_task(worker._listen(calls, RayConnector(TYPES)))
    await asyncio.sleep(0)  # it calls at once
    yield worker, calls
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


async def reports(worker: RayReplica, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found += [type(message).__name__ for message in await worker.messages()]
    return found


async def test_reports_are_taken_in_order_whichever_call_ray_has_run_first(heard: tuple[RayReplica, Calls]) -> None:
    worker, calls = heard
    calls.answer(0, 1, Done("r"))
    calls.answer(1, 0, Working("r"))
    assert await reports(worker, 2) == ["Working", "Done"]
    calls.answer(3, 2, Released("r", 0.1))  # the one before it is answered when there is more, which may be never
    assert await reports(worker, 1) == ["Released"]
    assert worker.live


async def test_a_report_that_cannot_be_taken_is_a_lost_worker_and_no_silence(
    heard: tuple[RayReplica, Calls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, calls = heard
    restart = asyncio.Event()
    monkeypatch.setattr(worker, "_restart", restart.wait)
    calls.waiting[0].set_result((0, b"nonsense", []))
    async with asyncio.timeout(TIMEOUT_S):
        failed, _ = await worker.messages()
    assert failed == Failed("r", "Stage 'source' failed: a report of its worker cannot be taken.")
    assert not worker.live
    assert "Stage 'source', replica 0: a report cannot be taken" in caplog.text
    restart.set()
    assert worker._supervisor is not None
    await worker._supervisor


def test_frames_are_put_in_order() -> None:
    in_order: InOrder[str] = InOrder()
    assert in_order.put(1, "b") == []
    assert in_order.put(0, "a") == ["a", "b"]
    assert in_order.put(2, "c") == ["c"]


OWN_CLUSTER = """
import asyncio
from duologue.engine.deploy import RayDeploy
from duologue.engine.executors.ray_cluster import RayCluster

def count():
    import ray
    return ray.get(ray.remote(lambda: 41 + 1).remote())

async def main():
    cluster = RayCluster(RayDeploy())
    await cluster.connect()
    print(await asyncio.to_thread(count))
    await cluster.close()
    import ray
    print("left" if ray.is_initialized() else "closed")

asyncio.run(main())
"""


def test_a_cluster_of_our_own_lives_on_after_the_call_that_started_it() -> None:
    """Ray's processes die with the thread that starts them; that used to end the gateway a minute later."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray's sockets lie in it
    environment |= {"RAY_TMPDIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", OWN_CLUSTER],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.stdout.split() == ["42", "closed"], done.stderr
