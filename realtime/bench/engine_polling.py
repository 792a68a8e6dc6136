"""Event-driven routing against a loop that looks around every millisecond, in one run. Scripted stages, no model.

The polling loop lives here and nowhere else: it is what the orchestrator would be without its readers.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec

from duologue.engine.executors.base import Message
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.outbox import Outbox
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import StageConfig
from duologue.engine.requests import AudioDelta, ChatMessage, Converse, EngineRequest
from duologue.realtime.bench.engine_rig import running
from duologue.realtime.bench.engine_stages import WORDS
from duologue.realtime.bench.summary import Metric, metric

Loop = Literal["events", "polling"]
POLL_S: Final = 0.001
CONCURRENCY: Final = 8
STAGES: Final = "duologue.realtime.bench.engine_stages"


class Polling(msgspec.Struct, frozen=True):
    """One of the two loops over the same stages."""

    loop: Loop
    idle_seconds: float
    idle_cpu_percent: float
    """Processor time of the process while no request is open."""
    concurrency: int
    first_audio: Metric


class PolledOutbox(Outbox[Message]):
    """Wakes nobody."""

    def put(self, item: Message) -> None:
        """Thread-safe."""
        self._items.append(item)

    def drain(self) -> list[Message]:
        """What is there."""
        return [self._items.popleft() for _ in range(len(self._items))]


class PolledReplica(InlineReplica):
    """A replica whose reports are fetched, not awaited."""

    def __init__(self, stage: str, build: StageBuild, slots: int) -> None:
        super().__init__(stage, build, slots)
        self.outbox: PolledOutbox = PolledOutbox(asyncio.get_running_loop())


class PollingOrchestrator(Orchestrator):
    """The same routing, fed by one task that looks at every replica, sleeps a millisecond, and looks again."""

    _poller: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop in place of the readers."""
        self._poller = asyncio.create_task(self._poll(), name="polling loop")

    async def close(self) -> None:
        """See :class:`Orchestrator`."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await super().close()

    async def _poll(self) -> None:
        while True:
            for stage_id, pool in self._pools.items():
                for replica in pool.replicas:
                    assert isinstance(replica, PolledReplica)
                    if messages := replica.outbox.drain():
                        self.route(stage_id, messages)
            await asyncio.sleep(POLL_S)


async def measure_loops(idle_seconds: float, rounds: int = 50, turns: int = 16) -> list[Polling]:
    """Both loops: each idle once, then ``rounds`` answers of each of ``CONCURRENCY`` callers in each turn.

    They take turns since a machine is not as fast at every moment. Garbage collections leave out what is there now, as
    in a server that is ready: one that stops the process for 15 ms is met by eight answers, whichever loop they are of.
    """
    loops: tuple[Loop, ...] = ("events", "polling")
    firsts: dict[Loop, list[float]] = {loop: [] for loop in loops}
    gc.collect()
    gc.freeze()
    try:
        idle = {loop: await _idle(loop, idle_seconds) for loop in loops}
        for _ in range(turns):
            for loop in loops:
                firsts[loop] += await _answered(loop, rounds)
    finally:
        gc.unfreeze()
    formula = "first audio read - request opened, time.monotonic"
    return [Polling(loop, *idle[loop], CONCURRENCY, metric(firsts[loop], "ms", formula)) for loop in loops]


async def _idle(loop: Loop, seconds: float) -> tuple[float, float]:
    """So many seconds without a request after some, and the processor time of the process in per cent."""
    async with _engine(loop) as orchestrator:
        await _call_all(orchestrator, "before", 1)
        await asyncio.sleep(0.2)  # the threads of the start have gone to sleep
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        took, used = time.monotonic() - began, time.process_time() - used
    return round(took, 2), round(100 * used / took, 5)


async def _answered(loop: Loop, rounds: int) -> list[float]:
    async with _engine(loop) as orchestrator:
        # The first answers make threads; they are not measured.
        await _call_all(orchestrator, "warm-up", max(1, rounds // 10))
        return await _call_all(orchestrator, "caller", rounds)


async def _call_all(orchestrator: Orchestrator, name: str, rounds: int) -> list[float]:
    found = await asyncio.gather(*(_call(orchestrator, f"{name}-{n}", rounds) for n in range(CONCURRENCY)))
    return [first for firsts in found for first in firsts]


async def _call(orchestrator: Orchestrator, name: str, rounds: int) -> list[float]:
    """One answer after another; milliseconds to the first sound of each, the first answer left out."""
    firsts: deque[float] = deque()
    for n in range(rounds + 1):
        payload = Converse(messages=(ChatMessage(role="user", text=str(WORDS)),))
        began, first = time.monotonic(), None
        request = EngineRequest(request_id=f"{name}-{n}", session_id=name, payload=payload)
        async for delta in orchestrator.open(request):
            if first is None and isinstance(delta, AudioDelta):
                first = (time.monotonic() - began) * 1000
        assert first is not None
        firsts.append(first)
    firsts.popleft()
    return list(firsts)


@asynccontextmanager
async def _engine(loop: Loop) -> AsyncIterator[Orchestrator]:
    """Text, clauses and sound, in stages whose steps take as long as a small model's."""
    writer = StageConfig(0, "writer", "Writer", accepts=(Converse,), final_output=True, final_output_type="text")
    speaker = StageConfig(1, "speaker", "Speaker", input_sources=(0,))
    voice = StageConfig(2, "voice", "Voice", input_sources=(1,), final_output=True, final_output_type="audio")
    made = InlineReplica if loop == "events" else PolledReplica
    stages = [
        (config, made(config.name, StageBuild(f"{STAGES}:{config.model_arch}"), CONCURRENCY))
        for config in (writer, speaker, voice)
    ]
    kind = Orchestrator if loop == "events" else PollingOrchestrator
    async with running("bench-loops", stages, kind) as orchestrator:
        yield orchestrator
