"""Scripted stages, a rig that runs them, and the proof that nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from missing import need_package
from ray_nodes import Nodes, two_nodes

from duologue.engine.chunking import HandingOver, HandOver
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import ChatMessage, Converse, EngineRequest
from duologue.engine.stage import Stage, StageContext
from duologue.engine.stream import Stream

TIMEOUT_S = 20.0
"""A test that waits this long has failed."""


class Signal:
    """Set on a worker thread, awaited on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), TIMEOUT_S)

    @property
    def is_set(self) -> bool:
        return self._event.is_set()


class Gate:
    """Closed until the test opens it; a stage that waits at it fails loudly rather than hanging for ever."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    def wait(self) -> None:
        if not self._event.wait(TIMEOUT_S):
            raise TimeoutError("the test never opened the gate")


class Scripted(Stage):
    """A stage made of functions; by default it passes on what it gets. Keeps the ids it started and released."""

    def __init__(
        self,
        process: Callable[[Any, StageContext], None] | None = None,
        finish: Callable[[StageContext], None] | None = None,
        start: Callable[[EngineRequest], Any] | None = None,
    ) -> None:
        self._process = process
        self._finish = finish
        self._start = start
        self.started: list[str] = []
        self.released: list[str] = []
        self.closed = 0

    def start(self, request: EngineRequest) -> str:
        if self._start is not None:
            self._start(request)
        self.started.append(request.request_id)
        return request.request_id

    def process(self, state: Any, piece: Any, context: StageContext) -> None:
        assert state == context.request.request_id
        if self._process is None:
            context.emit(piece)
        else:
            self._process(piece, context)

    def finish(self, state: Any, context: StageContext) -> None:
        if self._finish is not None:
            self._finish(context)

    def release(self, state: Any) -> None:
        self.released.append(state)

    def close(self) -> None:
        self.closed += 1


class Rig:
    """An orchestrator over scripted stages. ``hand_over``: by stage id, how its pieces reach the next stage."""

    def __init__(
        self,
        config: PipelineConfig,
        stages: dict[int, Scripted],
        output_limit: int,
        hand_over: dict[int, HandOver] | None = None,
    ) -> None:
        self.config = config
        self.stages = stages

        def build(stage_id: int) -> Stage:
            plan = (hand_over or {}).get(stage_id)
            return HandingOver(stages[stage_id], plan) if plan else stages[stage_id]

        self.replicas = {
            s.stage_id: [InlineReplica(s.name, partial(build, s.stage_id), s.max_num_seqs)] for s in config.stages
        }
        self.orchestrator = Orchestrator(config, self.replicas, output_limit)
        self._ids = (f"request-{n}" for n in itertools.count())

    async def start(self) -> None:
        for (replica,) in self.replicas.values():
            await replica.load()
            await replica.warm_up()
        self.orchestrator.start()

    def open(
        self, payload: Any = None, request_id: str | None = None, timeout_s: float = 60.0, more_input: bool = False
    ) -> Stream:
        payload = payload or Converse(messages=(ChatMessage(role="user", text="hello"),), modalities=("text",))
        request = EngineRequest(
            request_id=request_id or next(self._ids), session_id="session", payload=payload, timeout_s=timeout_s
        )
        return self.orchestrator.open(request, more_input)

    async def read(self, stream: Stream) -> list[Any]:
        async with asyncio.timeout(TIMEOUT_S):
            return [delta async for delta in stream]

    async def released(self) -> None:
        """Wait until every stage has released every request."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.orchestrator.idle()

    async def close(self) -> None:
        await self.orchestrator.close()
        for (replica,) in self.replicas.values():
            assert await replica.close(), f"stage {replica.stage} did not stop"
        for stage in self.stages.values():
            assert sorted(stage.started) == sorted(stage.released), "each start has exactly one release"
            assert stage.closed == 1


def chain(*stages: Scripted, **sizes: int) -> tuple[PipelineConfig, dict[int, Scripted]]:
    """Stages one after another: Converse enters at the first, text leaves at the last. ``s1=4`` sizes stage 1."""
    last = len(stages) - 1
    configs = tuple(
        StageConfig(
            stage_id=i,
            name=f"stage-{i}",
            model_arch="scripted",
            input_sources=(i - 1,) if i else (),
            accepts=() if i else (Converse,),
            final_output=i == last,
            final_output_type="text" if i == last else None,
            max_num_seqs=sizes.get(f"s{i}", 1),
        )
        for i in range(len(stages))
    )
    return PipelineConfig("scripted", configs), dict(enumerate(stages))


@pytest.fixture(autouse=True)
def no_thread_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if "ray" in request.node.nodeid:  # the cluster's threads stay until the end of the session
        request.getfixturevalue("ray_nodes")
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.name != "asyncio_0"]
    assert not left, f"threads left: {left}"


@pytest.fixture
async def rig_of(no_thread_left: None) -> AsyncIterator[Callable[..., Any]]:
    """``await rig_of(stage, ..., s1=4, output_limit=...)``, or ``await rig_of(config=..., stages=...)``."""
    rigs: list[Rig] = []

    async def make(
        *stages: Scripted,
        config: PipelineConfig | None = None,
        by_id: dict[int, Scripted] | None = None,
        output_limit: int = 1_000_000,
        hand_over: dict[int, HandOver] | None = None,
        **sizes: int,
    ) -> Rig:
        if config is None or by_id is None:
            config, by_id = chain(*stages, **sizes)
        rig = Rig(config, by_id, output_limit, hand_over)
        await rig.start()
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        await rig.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left: {left}"


@pytest.fixture(scope="session")
def kit() -> Any:
    """The classes above, for tests to use (test modules cannot import each other)."""

    class Kit:
        Scripted = Scripted
        Signal = Signal
        Gate = Gate
        Rig = Rig
        chain = staticmethod(chain)
        timeout_s = TIMEOUT_S

    return Kit


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Nodes]:
    """A Ray cluster of two nodes, started once."""
    need_package("ray")
    with two_nodes() as nodes:
        yield nodes
