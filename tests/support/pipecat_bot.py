"""A pipecat bot around one service: a real pipeline and runner, with a microphone and a loudspeaker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pipecat.frames.frames import ErrorFrame, Frame, InputAudioRawFrame, LLMRunFrame, OutputAudioRawFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner
from tape import Tape
from waiting import PATIENCE_S, Log

RATE = 16_000
F = TypeVar("F", bound=Frame)


class Microphone(BaseInputTransport):
    """Delivers what the test says, in frames of 20 ms, at once or as fast as a microphone takes it in."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_in_enabled=True, audio_in_sample_rate=RATE))

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def hear(self, pcm: bytes, silence_s: float = 0.0, in_real_time: bool = False) -> None:
        """Real time is for the client's own turn detection, which answers the past with events of the present."""
        clock, pcm = asyncio.get_running_loop().time, pcm + bytes(2 * int(RATE * silence_s))
        began = clock()
        for first in range(0, len(pcm), 640):
            if in_real_time:
                await asyncio.sleep(began + first / (2 * RATE) - clock())
            await self.push_audio_frame(InputAudioRawFrame(pcm[first : first + 640], RATE, 1))


class Loudspeaker(BaseOutputTransport):
    """Takes sound as fast as a loudspeaker plays it."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=24_000))
        self.played = bytearray()
        self._free_at = 0.0

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + len(frame.audio) / 48_000
        await asyncio.sleep(self._free_at - now)
        self.played += frame.audio
        return True


class Watcher(BaseObserver):
    """Keeps every frame of the pipeline once, in the order in which they were first pushed."""

    def __init__(self) -> None:
        super().__init__()
        self._log: Log[Frame] = Log()

    @property
    def frames(self) -> list[Frame]:
        return self._log.items

    async def on_push_frame(self, data: FramePushed) -> None:
        if data.first_push and not isinstance(data.frame, InputAudioRawFrame):
            self._log.add(data.frame)

    async def until(self, kind: type[F], accept: Callable[[F], bool] = lambda frame: True) -> F:
        """The next frame of a kind after the one found last, as soon as it is pushed."""
        try:
            return cast(F, await self._log.next(lambda frame: isinstance(frame, kind) and accept(frame)))
        except TimeoutError:
            seen = ", ".join(dict.fromkeys(type(frame).__name__ for frame in self.frames))
            raise AssertionError(f"no {kind.__name__} among {seen}") from None

    def all(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.frames if isinstance(frame, kind)]


@dataclass
class Bot:
    """A running bot."""

    service: Any
    context: LLMContext
    microphone: Microphone
    loudspeaker: Loudspeaker
    watcher: Watcher
    tape: Tape
    worker: PipelineWorker

    async def run_model(self) -> None:
        """Give the service the context and have it answered."""
        await self.worker.queue_frame(LLMRunFrame())

    def errors(self) -> list[str]:
        return [frame.error for frame in self.watcher.all(ErrorFrame)]


@asynccontextmanager
async def running(
    service: Any, tape: Tape, context: LLMContext | None = None, user: LLMUserAggregatorParams | None = None
) -> AsyncIterator[Bot]:
    """Run microphone, context, service and loudspeaker as one pipeline until the block is left."""
    context = context or LLMContext()
    aggregators = LLMContextAggregatorPair(context, user_params=user)
    microphone, loudspeaker, watcher = Microphone(), Loudspeaker(), Watcher()
    pipeline = Pipeline([microphone, aggregators.user(), service, loudspeaker, aggregators.assistant()])
    worker = PipelineWorker(
        pipeline,
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        observers=[watcher],
        params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=24_000),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_started(worker: PipelineWorker, frame: Frame) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await started.wait()
            yield Bot(service, context, microphone, loudspeaker, watcher, tape, worker)
        finally:
            await worker.cancel()
