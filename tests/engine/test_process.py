"""Worker processes: death, restart, health, environment, shared memory, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_calls import TIMEOUT_S, Quiet, know_scripted_pipeline, open_, read, restarted, say, until_idle
from prometheus_client import generate_latest

from duologue.engine import engine as engines
from duologue.engine.connectors import segments
from duologue.engine.connectors.segments import SharedMemoryError
from duologue.engine.deploy import DeployError, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.executors import heartbeat, remote, restarts
from duologue.engine.executors.process import ProcessReplica
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.executors.wire import Ping
from duologue.engine.requests import EngineRequest, Speak, TextDelta

ONE_PROCESS = "stages: [{stage_id: 0, executor: process}]"
TWO_PROCESSES = "stages: [{stage_id: 0, executor: process}, {stage_id: 1, executor: process}]"


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of this test's own, and the scripted pipeline made known."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(segments, "shared_memory_folder", lambda: folder)
    know_scripted_pipeline(monkeypatch)
    return folder


@pytest.fixture
async def engine_of(tmp_path: Path, shared_memory: Path) -> AsyncIterator[Callable[..., Any]]:
    before = children()
    engines: list[Engine] = []

    async def make(text: str) -> Engine:
        (tmp_path / "scripted.yaml").write_text("pipeline: scripted\n" + text)
        engines.append(Engine(load_deploy(tmp_path / "scripted.yaml"), Quiet))
        await engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()
    assert children() == before, "processes left"
    assert os.listdir(shared_memory) == [], "segments left"
    assert asyncio.all_tasks() == {asyncio.current_task()}


def replica(engine: Engine, stage_id: int = 0, index: int = 0) -> ProcessReplica:
    found = engine._replicas[stage_id][index]
    assert isinstance(found, ProcessReplica)
    return found


def in_flight_series(stage: str) -> list[bytes]:
    return [s for s in generate_latest().splitlines() if b"in_flight{" in s and f'stage="{stage}"'.encode() in s]


async def test_a_killed_worker_fails_its_requests_at_once_and_comes_back(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(TWO_PROCESSES)
    streams = [open_(engine, "endless-blocks", f"r{n}") for n in range(3)]
    for stream in streams:
        await asyncio.wait_for(anext(stream), TIMEOUT_S)
    pid = replica(engine).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    for stream in streams:
        last = (await read(stream))[-1]
        assert (last.reason, last.error) == ("failed", "Stage 'source' failed: its worker process died.")
    assert time.monotonic() - killed_at < 1.0
    assert not engine.health().ready
    assert engine.health().stages["source"] == "restarting"
    assert not in_flight_series("source"), "a dead replica's series disappear"
    refused = await read(open_(engine, "pid", "meanwhile"))
    assert refused[-1].error == "Stage 'source' has no running worker."
    await restarted(replica(engine))
    assert engine.health().ready
    assert in_flight_series("source")
    assert int(await say(engine, "pid")) == replica(engine).pid != pid


async def test_a_worker_killed_behind_its_source_leaves_no_segment(
    engine_of: Callable[..., Any], shared_memory: Path
) -> None:
    engine = await engine_of(TWO_PROCESSES)
    stream = open_(engine, "endless-blocks")
    await asyncio.wait_for(anext(stream), TIMEOUT_S)
    os.kill(replica(engine, 1).pid or 0, signal.SIGKILL)
    assert (await read(stream))[-1].error == "Stage 'sum' failed: its worker process died."
    await restarted(replica(engine, 1))
    assert await say(engine, "blocks 2 50000") == "0:25000:15 1:25000:15 "
    assert os.listdir(shared_memory) == []


def beat_fast(monkeypatch: pytest.MonkeyPatch, busy_s: float, idle_s: float = 1000.0) -> None:
    monkeypatch.setattr(heartbeat, "BUSY_PERIOD_S", busy_s)
    monkeypatch.setattr(heartbeat, "IDLE_PERIOD_S", idle_s)


async def test_a_worker_that_does_not_answer_is_killed_and_replaced(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await engine_of(TWO_PROCESSES)
    beat_fast(monkeypatch, 0.05)
    pid = replica(engine).pid
    assert pid is not None
    stream = open_(engine, "endless")
    await asyncio.wait_for(anext(stream), TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    last = (await read(stream))[-1]
    assert (last.reason, last.error) == (
        "failed",
        "Stage 'source' failed: its worker process hung and was killed.",
    )
    assert engine.health().stages["source"] == "restarting"
    await restarted(replica(engine))
    assert int(await say(engine, "pid")) == replica(engine).pid != pid
    assert not psutil.pid_exists(pid)


async def test_a_worker_that_hangs_without_work_is_found_too(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat_fast(monkeypatch, 0.05, 0.1)
    engine = await engine_of(ONE_PROCESS)
    worker = replica(engine)
    os.kill(worker.pid or 0, signal.SIGSTOP)
    await asyncio.wait_for(worker._lost.wait(), TIMEOUT_S)
    await restarted(worker)
    assert engine.health().ready


async def test_a_stage_at_work_on_one_long_step_is_not_hung(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = await engine_of(ONE_PROCESS)
    beat_fast(monkeypatch, 0.05)
    worker = replica(engine)
    pid, fifo = worker.pid, tmp_path / "fifo"
    os.mkfifo(fifo)
    asked, enough = 0, asyncio.Event()
    send = worker._send

    def count(message: Any) -> None:
        nonlocal asked
        send(message)
        asked += isinstance(message, Ping)
        if asked == 3 * heartbeat.MISSED:
            enough.set()

    monkeypatch.setattr(worker, "_send", count)
    stream = open_(engine, f"hold {fifo}")
    await asyncio.wait_for(enough.wait(), TIMEOUT_S)
    fifo.open("w").close()
    assert (await read(stream))[0] == TextDelta(text="held")
    assert worker.pid == pid


async def test_a_stage_that_never_releases_an_aborted_request_is_hung(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = await engine_of(ONE_PROCESS)
    beat_fast(monkeypatch, 0.05)
    monkeypatch.setattr(remote, "ABORT_S", 0.2)
    os.mkfifo(tmp_path / "fifo")
    other = open_(engine, "endless", "other")
    stuck = open_(engine, f"hold {tmp_path / 'fifo'}", "stuck")
    await asyncio.wait_for(anext(other), TIMEOUT_S)
    stuck.abort()
    assert (await read(other))[-1].error == "Stage 'source' failed: its worker process hung and was killed."
    await until_idle(engine)
    await restarted(replica(engine))
    assert await say(engine, "numbers 2") == "0 1 "


async def test_a_worker_that_is_not_ready_in_time_fails_the_start(
    engine_of: Callable[..., Any], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(WorkerError, match=r"'source': .* not ready within 0\.2 s \(stage_init_timeout_s\)"):
        await engine_of(
            f"stage_init_timeout_s: 0.2\nstages: [{{stage_id: 0, executor: process, engine_args: {{broken: {fifo}}}}}]"
        )


async def test_a_stage_that_kills_its_process_fails_only_what_was_there(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of("stages: [{stage_id: 0, executor: process, replicas: 2}]")
    other = open_(engine, "endless", "other")
    await asyncio.wait_for(anext(other), TIMEOUT_S)
    assert (await read(open_(engine, "die")))[-1].error == "Stage 'source' failed: its worker process died."
    assert engine.health().ready, "one replica is left"
    assert (await read(open_(engine, "numbers 2", "next")))[-1].reason == "completed"
    other.abort()
    assert (await read(other))[-1].reason == "aborted"


async def test_a_worker_that_keeps_dying_is_given_up(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 2)
    engine = await engine_of(ONE_PROCESS)
    worker = replica(engine)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(worker.pid or 0, signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT_S):
        await worker._lost.wait()
    await restarted(worker)
    assert worker.state == "failed"
    assert engine.health().stages["source"] == "failed"
    assert (await read(open_(engine, "pid")))[-1].error == "Stage 'source' has no running worker."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_group_leaves_the_end_to_the_gateway(
    engine_of: Callable[..., Any], number: int
) -> None:
    engine = await engine_of(ONE_PROCESS)
    pid = replica(engine).pid
    assert pid is not None
    os.kill(pid, number)
    assert int(await say(engine, "pid")) == pid


async def test_closing_while_a_worker_starts_again_leaves_nothing(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(ONE_PROCESS)
    worker = replica(engine)
    os.kill(worker.pid or 0, signal.SIGKILL)
    await asyncio.wait_for(worker._lost.wait(), TIMEOUT_S)
    await engine.close()


async def test_a_worker_s_log_comes_out_as_the_gateway_s(
    engine_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = await engine_of(ONE_PROCESS)
    assert (await read(open_(engine, "fail broken")))[-1].error == "Stage 'source' failed: broken"
    (record,) = [r for r in caplog.records if r.name == "duologue.engine.executors.inline"]
    assert record.levelname == "ERROR"
    assert "RuntimeError: broken" in record.message


async def test_the_environment_is_the_worker_s_alone(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of("stages: [{stage_id: 0, executor: process, env: {DUOLOGUE_TEST_WORKER: 7}}]")
    assert await say(engine, "environment DUOLOGUE_TEST_WORKER") == "7"
    assert "DUOLOGUE_TEST_WORKER" not in os.environ


async def test_a_worker_sees_the_devices_of_its_replica(
    engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(engines, "current_platform", lambda: "cuda")
    engine = await engine_of(
        "stages: [{stage_id: 0, executor: process, replicas: 2, replica_policy: round_robin, devices: [1, 0]}]"
    )
    assert [await say(engine, "environment CUDA_VISIBLE_DEVICES", f"r{n}") for n in range(3)] == ["6", "4", "6"]


async def test_engine_arguments_reach_the_worker_and_a_wrong_one_stops_the_start(
    engine_of: Callable[..., Any],
) -> None:
    engine = await engine_of("stages: [{stage_id: 0, executor: process, engine_args: {greeting: hello}}]")
    assert await say(engine, "greeting") == "hello"
    with pytest.raises(
        DeployError, match=r"scripted\.yaml: stage 'source' \(0\): engine_args: .*'tone'.* Known: broken"
    ):
        await engine_of("stages: [{stage_id: 0, executor: process, engine_args: {tone: soft}}]")


@pytest.mark.parametrize(("broken", "text"), [("load", "weights.bin is missing"), ("die", "its worker process ended")])
async def test_a_worker_that_cannot_load_fails_the_start(engine_of: Callable[..., Any], broken: str, text: str) -> None:
    with pytest.raises(WorkerError, match=text):
        await engine_of(f"stages: [{{stage_id: 0, executor: process, engine_args: {{broken: {broken}}}}}]")


async def test_too_little_shared_memory_stops_the_start_with_what_to_do(engine_of: Callable[..., Any]) -> None:
    with pytest.raises(SharedMemoryError, match=r"MiB free, and .* needed: enlarge it .*min_free_bytes"):
        await engine_of(
            f"connectors: {{shm: {{name: SharedMemoryConnector, extra: {{min_free_bytes: {2**60}}}}}}}\n"
            "stages: [{stage_id: 0, executor: process, output_connectors: {to_stage_1: shm}}]"
        )


async def test_a_request_that_cannot_be_sent_fails_by_name_and_leaves_nothing(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(TWO_PROCESSES)
    payload = Speak(text=object())  # type: ignore[arg-type]
    deltas = await read(engine.open(EngineRequest(request_id="r", session_id="s", payload=payload)))
    assert deltas[-1].error == "Stage 'source' failed: 'EngineRequest' holds a 'object', which cannot be sent"
    await until_idle(engine)
    assert await say(engine, "numbers 2") == "0 1 "


async def test_the_threshold_of_the_deploy_file_counts(engine_of: Callable[..., Any]) -> None:
    engine = await engine_of(
        "connectors: {shm: {name: SharedMemoryConnector, extra: {threshold_bytes: 10}}}\n"
        "stages: [{stage_id: 0, executor: process, output_connectors: {to_stage_1: shm}}]"
    )
    assert replica(engine)._connector.threshold_bytes == 10
    assert await say(engine, "blocks 3 4") == "0:2:15 1:2:15 2:2:15 "


GATEWAY = """
import asyncio, sys
from pathlib import Path
from scripted_stages import TARGETS, SOURCE, PIPELINE, ask
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.process import ProcessReplica, WorkerSpec
from duologue.engine.requests import EngineRequest

async def main():
    connector = SharedMemoryConnector(PieceTypes(SOURCE.emits), Segments(folder=Path(sys.argv[1])))
    worker = ProcessReplica("source", WorkerSpec(StageBuild(TARGETS[0])), connector)
    await worker.load()
    await worker.warm_up()
    worker.open(EngineRequest(request_id="r", session_id="s", payload=ask("endless-blocks")))
    worker.push("r", worker._open["r"].payload)
    kept = []
    while len(kept) < 10:
        kept += await worker.messages()
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start_gateway(folder: Path) -> subprocess.Popen[str]:
    """Another gateway, with segments under way; it prints its worker's process id."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_workers_of_a_killed_gateway_exit_and_free_its_shared_memory(shared_memory: Path) -> None:
    gateway = start_gateway(shared_memory)
    assert gateway.stdout is not None
    with gateway, gateway.stdout:
        worker = psutil.Process(int(gateway.stdout.readline()))
        assert list(shared_memory.iterdir()), "segments are under way"
        gateway.kill()
    _, alive = psutil.wait_procs([worker], timeout=TIMEOUT_S)
    assert not alive
    assert os.listdir(shared_memory) == []


async def test_a_start_frees_what_a_killed_gateway_and_its_workers_left(
    engine_of: Callable[..., Any], shared_memory: Path
) -> None:
    gateway = start_gateway(shared_memory)
    assert gateway.stdout is not None
    with gateway, gateway.stdout:
        worker = psutil.Process(int(gateway.stdout.readline()))
        worker.suspend()  # so that it cannot sweep
        gateway.kill()
    worker.kill()
    psutil.wait_procs([worker])
    assert os.listdir(shared_memory)
    engine = await engine_of("")
    assert os.listdir(shared_memory) == []
    assert await say(engine, "numbers 2") == "0 1 "


async def test_nothing_is_left_after_a_thousand_aborts_and_a_kill(
    engine_of: Callable[..., Any], shared_memory: Path
) -> None:
    engine = await engine_of(TWO_PROCESSES)
    gc.collect()
    descriptors = psutil.Process().num_fds()
    for n in range(1000):
        stream = open_(engine, "endless-blocks", f"r{n}")
        if n % 8 == 0:
            await asyncio.wait_for(anext(stream), TIMEOUT_S)
        if n == 500:
            os.kill(replica(engine).pid or 0, signal.SIGKILL)
            assert (await read(stream))[-1].reason == "failed"
            await restarted(replica(engine))
        stream.abort()
    await until_idle(engine)
    assert os.listdir(shared_memory) == []
    assert await say(engine, "numbers 2", "last") == "0 1 "
    gc.collect()
    assert psutil.Process().num_fds() <= descriptors
