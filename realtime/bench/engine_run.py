"""What the engine itself costs: hops, routing, aborts. Scripted stages, no model."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec

from duologue.engine.connectors.options import THRESHOLD_BYTES
from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.deploy import RayDeploy, Resources
from duologue.engine.executors.base import Replica
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.process import ProcessReplica, WorkerSpec
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_replica import RayReplica, RaySpec
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import StageConfig
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, TextDelta
from duologue.realtime.bench.engine_idle import Idle, measure_idle
from duologue.realtime.bench.engine_packaged import (
    AsyncChunk,
    StageAborts,
    measure_async_chunk,
    measure_stage_aborts,
)
from duologue.realtime.bench.engine_polling import Polling, measure_loops
from duologue.realtime.bench.engine_rig import running
from duologue.realtime.bench.engine_stages import STEP_S
from duologue.realtime.bench.summary import Metric, metric

Executor = Literal["inline", "process", "ray"]
STAGES: Final = "duologue.realtime.bench.engine_stages"
IN_MESSAGE: Final = 1 << 40
"""A threshold that no piece reaches."""


class Hop(msgspec.Struct, frozen=True):
    """Time from a stage's ``emit`` to the next stage's ``process``, both in the same executor."""

    executor: Executor
    connector: str
    payload_bytes: int
    per_second: int
    latency: Metric


class Routing(msgspec.Struct, frozen=True):
    """How many pieces the orchestrator moves."""

    executor: Executor
    streams: int
    pieces: int
    per_second: float


class Aborts(msgspec.Struct, frozen=True):
    """Time from ``Stream.abort`` until three stages that were computing have stopped and released."""

    executor: Executor
    step_ms: float
    until_stopped: Metric


class EngineReport(msgspec.Struct, frozen=True):
    idle: list[Idle]
    hops: list[Hop]
    routing: list[Routing]
    aborts: list[Aborts]
    loops: list[Polling]
    async_chunk: list[AsyncChunk]
    stage_aborts: list[StageAborts]


def ray_installed() -> bool:
    """Whether hops between actors can be measured."""
    return importlib.util.find_spec("ray") is not None


async def run_engine(seconds: float, idle_seconds: float, answers: int) -> EngineReport:
    """Every measurement, one after another; each hop is measured for so many seconds.

    With ``idle_seconds`` a server with the packaged models is started and watched as well; with ``answers`` the
    packaged pipeline gives so many long answers with and without async chunk, and five times as many are aborted.
    """
    idle = await measure_idle((0, 100), idle_seconds) if idle_seconds else []
    cases: list[tuple[Executor, str, int]] = [("inline", "local", THRESHOLD_BYTES)]
    cases += [("process", "message", IN_MESSAGE), ("process", "shared_memory", 0)]
    if ray_installed():
        cases += [("ray", "message", IN_MESSAGE), ("ray", "object_store", 0)]
    hops = []
    for executor, connector, threshold in cases:
        for size, rate in ((1024, 500), (65_536, 500), (4_194_304, 20)):
            if connector == "message" and size > THRESHOLD_BYTES:
                continue  # what the threshold is there to prevent
            hops.append(await measure_hop(executor, connector, threshold, size, rate, seconds))
    both: tuple[Executor, ...] = ("inline", "process")
    return EngineReport(
        idle=idle,
        hops=hops,
        routing=[await measure_routing(executor) for executor in both],
        aborts=[await measure_aborts(executor) for executor in both],
        loops=await measure_loops(seconds),
        async_chunk=await measure_async_chunk(answers) if answers else [],
        stage_aborts=await measure_stage_aborts(5 * answers) if answers else [],
    )


async def measure_hop(executor: Executor, connector: str, threshold: int, size: int, rate: int, seconds: float) -> Hop:
    """``rate`` pieces of ``size`` bytes a second from one stage to the next; the first tenth is left out."""
    count = max(20, int(rate * seconds))
    async with _engine(executor, ("Pacer", "Taker"), threshold=threshold) as orchestrator:
        stream = orchestrator.open(_request("hop", f"{count} {size} {rate}"))
        text = "".join([delta.text async for delta in stream if isinstance(delta, TextDelta)])
    times = [int(word) / 1000 for word in text.split()][count // 10 :]
    return Hop(executor, connector, size, rate, metric(times, "ms", "process entered - emit called, time.monotonic"))


async def measure_routing(executor: Executor, streams: int = 8, each: int = 10_000) -> Routing:
    """Texts from a first stage through a second to as many readers as there are streams."""
    each = each if executor == "inline" else each // 4

    async def read(orchestrator: Orchestrator, name: str) -> int:
        return len(
            "".join([d.text async for d in orchestrator.open(_request(name, str(each))) if isinstance(d, TextDelta)])
        )

    async with _engine(executor, ("Talkative", "Relay"), slots=2) as orchestrator:
        began = time.monotonic()
        sizes = await asyncio.gather(*(read(orchestrator, str(n)) for n in range(streams)))
        took = time.monotonic() - began
    assert set(sizes) == {each * len("word ")}
    pieces = 2 * streams * each
    return Routing(executor, streams, pieces, round(pieces / took, 1))


async def measure_aborts(executor: Executor, count: int = 50) -> Aborts:
    """Requests aborted as soon as all three stages compute."""
    times = []
    async with _engine(executor, ("Stepper", "Stepper", "Stepper")) as orchestrator:
        for n in range(count):
            stream = orchestrator.open(_request(str(n), ""))
            await anext(stream)  # the last stage has begun, so all have
            began = time.monotonic()
            stream.abort()
            await orchestrator.idle()
            times.append((time.monotonic() - began) * 1000)
    return Aborts(executor, STEP_S * 1000, metric(times, "ms", "last release reported - abort called"))


def _request(name: str, text: str) -> EngineRequest:
    payload = Converse(messages=(ChatMessage(role="user", text=text),), modalities=("text",))
    return EngineRequest(request_id=name, session_id="bench", payload=payload)


@asynccontextmanager
async def _engine(
    executor: Executor, stages: Sequence[str], slots: int = 1, threshold: int = THRESHOLD_BYTES
) -> AsyncIterator[Orchestrator]:
    """Stages one after another, started, and closed again."""
    last = len(stages) - 1
    configs = tuple(
        StageConfig(
            n,
            f"{name.lower()}-{n}",
            name,
            input_sources=(n - 1,) if n else (),
            accepts=() if n else (Converse,),
            emits=(f"{STAGES}:Stamped",),
            final_output=n == last,
            final_output_type="text" if n == last else None,
        )
        for n, name in enumerate(stages)
    )
    types, cluster = PieceTypes(configs[0].emits), RayCluster(RayDeploy())
    connector = SharedMemoryConnector(types, Segments(), threshold)
    built: list[tuple[StageConfig, Replica]] = []
    for config in configs:
        build = StageBuild(f"{STAGES}:{config.model_arch}")
        match executor:
            case "inline":
                replica: Replica = InlineReplica(config.name, build, slots)
            case "process":
                replica = ProcessReplica(config.name, WorkerSpec(build, slots), connector)
            case "ray":
                free = Resources(num_cpus=0)
                spec = RaySpec(build, types, threshold, slots, final=config.final_output, resources=free)
                replica = RayReplica(config.name, spec, cluster)
        built.append((config, replica))
    try:
        async with running("bench", built) as orchestrator:
            yield orchestrator
    finally:
        await cluster.close()
