"""What every executor promises, run over each, and over several in one pipeline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes
from scripted_stages import PIPELINE, SOURCE, TARGETS, ask, block

from duologue.engine.chunking import HandOver
from duologue.engine.connectors.options import THRESHOLD_BYTES
from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.deploy import RayDeploy, Resources
from duologue.engine.executors.base import WINDOW, Emitted, Message, Replica
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.process import ProcessReplica, WorkerSpec
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_replica import RayReplica, RaySpec
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import StageConfig
from duologue.engine.requests import AudioDelta, EngineRequest, Finished, TextDelta
from duologue.engine.stream import Stream

TIMEOUT_S = 30.0
EXECUTORS = {
    "inline": ("inline", "inline", "inline"),
    "process": ("process", "process", "inline"),
    "process-to-inline": ("process", "inline", "inline"),
    "inline-to-process": ("inline", "process", "inline"),
    "ray": ("ray", "ray", "inline"),
}
ACROSS = {
    "ray-to-inline": ("ray", "inline", "inline"),
    "inline-to-ray": ("inline", "ray", "inline"),
    "process-to-ray": ("process", "ray", "inline"),
    "ray-to-process": ("ray", "process", "inline"),
}
"""Edges that lead from Ray to another executor or back."""
PLACES = (Resources(num_cpus=0, custom={"near": 1}), Resources(num_cpus=0, custom={"far": 1}), Resources(num_cpus=0))
"""Of the stages: the first and the second are on two nodes."""


class Rig:
    """The scripted pipeline, its stages placed as asked."""

    def __init__(
        self,
        placement: tuple[str, ...],
        folder: Path,
        output_limit: int = 1_000_000,
        hand_over: HandOver | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self.folder = folder
        self.nodes = nodes
        self.segments = Segments(folder=folder)
        self.types = PieceTypes(SOURCE.emits)
        self.connector = SharedMemoryConnector(self.types, self.segments)
        self.hand_over = hand_over
        self.replicas: dict[int, list[Replica]] = {
            config.stage_id: [self._replica(config, executor, "process" in placement)]
            for config, executor in zip(PIPELINE.stages, placement, strict=True)
        }
        self.orchestrator = Orchestrator(PIPELINE, self.replicas, output_limit)
        self._count = 0

    def _replica(self, config: StageConfig, executor: str, by_process: bool) -> Replica:
        build = StageBuild(TARGETS[config.stage_id], hand_over=None if config.stage_id else self.hand_over)
        slots = config.max_num_seqs
        if executor == "process":
            return ProcessReplica(config.name, WorkerSpec(build, slots), self.connector)
        if executor == "inline":
            return InlineReplica(config.name, build, slots)
        assert self.nodes is not None
        spec = RaySpec(
            build=build,
            types=self.types,
            threshold_bytes=THRESHOLD_BYTES,
            slots=slots,
            final=config.final_output,
            resources=PLACES[config.stage_id],
        )
        # Patience: on a busy machine an actor may well be silent for longer than is good for a conversation.
        settings = RayDeploy(address=self.nodes.address, silent_after_s=TIMEOUT_S, dead_after_s=2 * TIMEOUT_S)
        return RayReplica(config.name, spec, RayCluster(settings), local=self.connector if by_process else None)

    async def start(self) -> None:
        async def bring_up(replica: Replica) -> None:
            await replica.load()
            await replica.warm_up()

        await asyncio.gather(*(bring_up(replica) for (replica,) in self.replicas.values()))
        self.orchestrator.start()

    def open(self, script: str, modalities: tuple[Any, ...] = ("text",), more_input: bool = False) -> Stream:
        self._count += 1
        request = EngineRequest(request_id=f"r{self._count}", session_id="s", payload=ask(script, modalities))
        return self.orchestrator.open(request, more_input)

    async def read(self, stream: Stream) -> list[Any]:
        async with asyncio.timeout(TIMEOUT_S):
            return [delta async for delta in stream]

    async def text(self, script: str) -> str:
        deltas = await self.read(self.open(script))
        assert deltas[-1].reason == "completed", deltas[-1]
        return text_of(deltas)

    async def released(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.orchestrator.idle()

    async def close(self) -> None:
        await self.orchestrator.close()
        for (replica,) in self.replicas.values():
            assert await replica.close(), f"stage {replica.stage} did not stop"
        assert list(self.folder.iterdir()) == [], "segments left"
        if self.nodes is not None:
            await asyncio.to_thread(self.nodes.wait_for_no_objects)


def text_of(deltas: list[Any]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, TextDelta))


@pytest.fixture
def made_of(request: Any, tmp_path: Path) -> Callable[..., Rig]:
    """A rig by its placement. The cluster is started for the first that needs it."""

    def make(placement: tuple[str, ...], **settings: Any) -> Rig:
        nodes = request.getfixturevalue("ray_nodes") if "ray" in placement else None
        return Rig(placement, tmp_path, nodes=nodes, **settings)

    return make


@pytest.fixture(params=EXECUTORS)
async def rig(request: Any, made_of: Callable[..., Rig]) -> AsyncIterator[Rig]:
    made = made_of(EXECUTORS[request.param])
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("placement", ACROSS)
async def test_edges_between_ray_and_another_executor(made_of: Callable[..., Rig], placement: str) -> None:
    rig = made_of(ACROSS[placement])
    await rig.start()
    assert (await rig.text("numbers 100")).split() == [str(n) for n in range(100)]
    for size in (0, 7, 200_000):
        assert (await rig.text(f"blocks 40 {size}")).split() == [f"{n}:{size / 2:g}:15" for n in range(40)]
    both = await rig.read(rig.open("blocks 3 50000", ("text", "audio")))
    assert text_of(both) == "0:25000:15 1:25000:15 2:25000:15 "
    assert b"".join(d.pcm for d in both if isinstance(d, AudioDelta)) == b"\0\1" * 3
    streams = [rig.open("endless-blocks") for _ in range(4)]
    await asyncio.wait_for(anext(streams[0]), TIMEOUT_S)
    for stream in streams:
        stream.abort()
        assert (await rig.read(stream))[-1].reason == "aborted"
    await rig.released()
    await rig.close()


async def test_pieces_arrive_whole_and_in_order(rig: Rig) -> None:
    assert (await rig.text("numbers 200")).split() == [str(n) for n in range(200)]


@pytest.mark.parametrize("size", [0, 7, 200_000], ids=["empty", "in the message", "in a segment"])
async def test_arrays_of_any_size_and_layout_arrive(rig: Rig, size: int) -> None:
    assert (await rig.text(f"blocks 40 {size}")).split() == [f"{n}:{size / 2:g}:15" for n in range(40)]


async def test_two_takers_of_one_segment_each_get_it(rig: Rig) -> None:
    deltas = await rig.read(rig.open("blocks 3 50000", ("text", "audio")))
    assert text_of(deltas) == "0:25000:15 1:25000:15 2:25000:15 "
    assert b"".join(d.pcm for d in deltas if isinstance(d, AudioDelta)) == b"\0\1" * 3
    assert deltas[-1] == Finished(reason="completed")


async def test_usage_and_an_early_end_reach_the_client(rig: Rig) -> None:
    deltas = await rig.read(rig.open("usage"))
    assert text_of(deltas) == "short"
    assert (deltas[-1].reason, deltas[-1].usage.input_tokens, deltas[-1].usage.output_tokens) == ("length", 3, 2)


async def test_a_failure_is_told_and_is_its_request_s_own(rig: Rig) -> None:
    good = rig.open("numbers 100")
    bad = await rig.read(rig.open("fail broken"))
    assert bad == [Finished(reason="failed", error="Stage 'source' failed: broken")]
    assert len(text_of(await rig.read(good)).split()) == 100


async def test_an_abort_reaches_a_stage_that_waits_for_credit_and_each_start_is_released(rig: Rig) -> None:
    streams = [rig.open("endless-blocks") for _ in range(4)] + [rig.open("endless") for _ in range(4)]
    for stream in streams[:4]:
        await asyncio.wait_for(anext(stream), TIMEOUT_S)
    for stream in streams:
        stream.abort()
        assert (await rig.read(stream))[-1].reason == "aborted"
    await rig.released()
    started, released = map(int, (await rig.text("counts")).split())
    assert started == released <= 8


async def test_stages_are_told_of_the_end_of_a_session(rig: Rig) -> None:
    rig.orchestrator.end_session("one")
    rig.orchestrator.end_session("two")
    assert await rig.text("ended") == "one two"


async def test_a_slow_reader_holds_its_own_producer_and_nobody_else(rig: Rig) -> None:
    slow = rig.open("numbers 5000")
    rig.orchestrator._runs[slow.request_id].stream._limit = 50
    assert len((await rig.text("numbers 100")).split()) == 100
    assert slow.pending_bytes <= 50 + 5 * 3 * WINDOW
    assert len(text_of(await rig.read(slow)).split()) == 5000


async def test_streamed_input_arrives_in_order(rig: Rig) -> None:
    stream = rig.open("numbers 0", more_input=True)
    for n in range(3 * WINDOW):
        await asyncio.wait_for(stream.push(f"{n} "), TIMEOUT_S)
    stream.end_input()
    assert text_of(await rig.read(stream)).split() == [str(n) for n in range(3 * WINDOW)]


async def test_many_at_once_get_what_each_would_get_alone(rig: Rig) -> None:
    answers = await asyncio.gather(*(rig.text(f"numbers {n}") for n in range(40)))
    assert [len(answer.split()) for answer in answers] == list(range(40))


async def test_the_trace_has_its_first_events_in_order(rig: Rig) -> None:
    stream = rig.open("numbers 3")
    await rig.read(stream)
    for edge in stream.trace[1:]:
        times = [t for t in (edge.emitted, edge.sent, edge.accepted) if t is not None]
        assert len(times) == 3
        assert times == sorted(times)


@pytest.fixture
async def rig_of(made_of: Callable[..., Rig]) -> AsyncIterator[Callable[..., Any]]:
    rigs: list[Rig] = []

    async def make(executor: str, hand_over: HandOver | None = None) -> Rig:
        rigs.append(made_of(EXECUTORS[executor], hand_over=hand_over))
        await rigs[-1].start()
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.close()


@pytest.mark.parametrize("whole", [None, HandOver(True)], ids=["at once", "whole"])
@pytest.mark.parametrize("executor", ["inline", "process"])
async def test_an_abort_interrupts_a_stage_that_waits_for_something_outside(
    rig_of: Callable[..., Any], executor: str, whole: HandOver | None
) -> None:
    rig = await rig_of(executor, whole)
    await rig.text("numbers 1")
    stream = rig.open("outside")
    if whole is None:
        await asyncio.wait_for(anext(stream), TIMEOUT_S)
    stream.abort()
    assert (await rig.read(stream))[-1].reason == "aborted"
    await rig.released()


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_a_whole_output_is_the_same_and_frees_its_segments(rig_of: Callable[..., Any], executor: str) -> None:
    rig = await rig_of(executor, HandOver(True))
    for size in (7, 50_000):
        answer = await rig.text(f"blocks {2 * WINDOW} {size}")
        assert answer.split() == [f"{n}:{size / 2:g}:15" for n in range(2 * WINDOW)]
    deltas = await rig.read(rig.open("usage"))
    assert (text_of(deltas), deltas[-1].reason) == ("short", "length")
    stream = rig.open("endless")
    stream.abort()
    assert (await rig.read(stream))[-1].reason == "aborted"
    await rig.released()
    chunked = await rig_of(executor, HandOver(False, "scripted_stages:five_with_two_before"))
    assert await chunked.text("numbers 7") == "[]0 1 2 3 4 [4 ]5 6 "


@pytest.mark.parametrize("executor", ["process", "ray"])
async def test_an_undeclared_piece_fails_the_request_by_its_type(rig_of: Callable[..., Any], executor: str) -> None:
    rig = await rig_of(executor)
    deltas = await rig.read(rig.open("undeclared"))
    assert deltas[-1].error == (
        "Stage 'source' failed: a piece of type 'Undeclared' is not declared in the pipeline's 'emits'"
    )


async def test_two_processes_share_one_segment(rig_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTORS, "all", ("process",) * 3)
    rig = await rig_of("all")
    deltas = await rig.read(rig.open("blocks 3 50000", ("text", "audio")))
    assert text_of(deltas) == "0:25000:15 1:25000:15 2:25000:15 "
    assert b"".join(d.pcm for d in deltas if isinstance(d, AudioDelta)) == b"\0\1" * 3


async def test_a_segment_that_arrives_after_the_end_is_freed_before_the_next_report(tmp_path: Path) -> None:
    connector = SharedMemoryConnector(PieceTypes(SOURCE.emits), Segments(folder=tmp_path))

    class Late(InlineReplica):
        """Reports a large piece of a request that is over, and then nothing."""

        waits = asyncio.Event()
        reports = [Emitted("over", connector.pack(block(0, 50_000)), 0.0)]  # noqa: RUF012

        async def messages(self) -> list[Message]:
            if self.reports:
                return [self.reports.pop()]
            self.waits.set()
            await asyncio.Event().wait()
            raise AssertionError

    assert len(os.listdir(tmp_path)) == 1
    orchestrator = Orchestrator(PIPELINE, {0: [Late("source", StageBuild(TARGETS[0]), 1)]})
    orchestrator.start()
    await asyncio.wait_for(Late.waits.wait(), TIMEOUT_S)
    assert os.listdir(tmp_path) == []
    await orchestrator.close()
