"""Voice activity for all sessions at once: the Silero model, one batch per tick of the event loop.

Each session owns a *slot*: a row of the recurrent state and of the context, zeroed when the session joins, written by
no one else. A tick gathers one frame of every slot that has one, runs the model on those rows, and scatters state and
context back; rows that take no part are not touched. There is at most one tick per ``TICK_S`` while it keeps up, so
that the frames of many sessions share a run; what a tick leaves over is the next one's, in the next turn of the loop.

Ticks run on the event loop itself. A row takes some 20 us and a tick has at most ``MAX_ROWS``; to hand the frames to a
thread and the results back costs more than small batches do, and on a busy core a thread waits for the interpreter
longer than it works.

What the model takes for speech but has been as steady as no speech is (:mod:`duologue.engine.sound_levels`) counts as
none: its probability becomes 0. The same levels tell for how long nothing has been heard, sooner than the model does.

A stream takes float32 samples at 16 kHz, or PCM16 at another rate: then the conversion is part of the tick, in one pass
for all its rows.

Model: Silero VAD v6 (:mod:`duologue.engine.silero`). Input ``[batch, 576]`` float32: the last 64 samples of the frame
before, then 512 new ones at 16 kHz. State ``[2, batch, 128]`` float32. Output ``[batch]``: speech probability.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import SAMPLE_BYTES, pcm16_to_float
from duologue.codecs.resample import FrameResampler
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.silero import CONTEXT, FRAME, STATE
from duologue.engine.sound_levels import SoundLevels

logger = logging.getLogger(__name__)

SAMPLE_RATE = 16_000
TICK_S = 0.008
"""A quarter of a frame: the longest that a frame waits for others to share its run."""
MAX_ROWS = 64
"""Most frames in a run, 1 to 2 ms of work. Larger batches would not be cheaper, and everybody else waits meanwhile."""
MAX_PENDING = 1024
"""Frames (32.8 s) of one session that may wait before ``feed`` refuses more."""


Frame = NDArray[np.float32] | bytes
"""One frame that waits: its samples, or the PCM16 window that its stream's converter makes them of."""


class VoiceFrame(msgspec.Struct, frozen=True, gc=False):
    """What is known of one frame."""

    probability: float
    """That somebody speaks."""
    quiet_ms: int
    """For how long at its end nothing has been heard."""
    heard_from: float
    """Power from which on something is, :func:`duologue.engine.sound_levels.heard`."""


class VoiceActivityError(Exception):
    """Voice activity cannot be had: no slot is free, too much is pending, or the model failed."""


class FrameModel(Protocol):
    """One step for a batch of rows."""

    def step(
        self, frames: NDArray[np.float32], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``frames [batch, 576]``, ``state [2, batch, 128]`` -> probabilities ``[batch]``, next state."""


class VoiceActivityService:
    """Owner of the model and of everybody's state. Used on the event loop: ``await start()`` first, ``await close()``
    last."""

    def __init__(self, load: Callable[[], FrameModel], slots: int = 64) -> None:
        self._load = load
        self._model: FrameModel | None = None
        self._state = np.zeros((2, slots, STATE), np.float32)
        self._context = np.zeros((slots, CONTEXT), np.float32)
        self._levels = SoundLevels(slots, FRAME, SAMPLE_RATE)
        self._input = np.zeros((min(slots, MAX_ROWS), CONTEXT + FRAME), np.float32)
        """The batch of a tick; only its first rows are in use."""
        self._free = list(range(slots - 1, -1, -1))
        self._streams: set[VoiceActivityStream] = set()
        self._waiting: dict[VoiceActivityStream, None] = {}
        """Streams with at least one frame, in the order in which they got it."""
        self._timer: asyncio.Handle | None = None
        """Of the next tick."""
        self._ticked_at = 0.0
        self._failure: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Load the model and run it once, on another thread. Raises what the loading raises."""

        def load() -> FrameModel:
            model = self._load()
            model.step(np.zeros((1, CONTEXT + FRAME), np.float32), np.zeros((2, 1, STATE), np.float32))
            return model

        self._model = await run_in_thread(load, "voice-activity-load")
        self._loop = asyncio.get_running_loop()

    def open(self, on_frame: Callable[[VoiceFrame], None], sample_rate: int = SAMPLE_RATE) -> VoiceActivityStream:
        """Join. ``on_frame`` gets what is known of each frame, in order, on the event loop.

        ``sample_rate`` is that of :meth:`VoiceActivityStream.feed_pcm`. Raises :class:`VoiceActivityError` when every
        slot is taken or the service does not run.
        """
        self._check_running()
        if not self._free:
            raise VoiceActivityError(f"All {self._context.shape[0]} voice-activity slots are taken.")
        slot = self._free.pop()
        self._state[:, slot] = 0
        self._context[slot] = 0
        self._levels.reset(slot)
        stream = VoiceActivityStream(self, slot, on_frame, sample_rate)
        self._streams.add(stream)
        return stream

    @property
    def failure(self) -> str | None:
        """Why the service stopped working, or None."""
        return self._failure

    @property
    def open_streams(self) -> int:
        """Sessions that have joined and not left."""
        return len(self._streams)

    async def close(self) -> None:
        """Close every stream."""
        for stream in list(self._streams):
            stream.close()
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    # -- for the streams -----------------------------------------------------------------------------------------------

    def submit(self, stream: VoiceActivityStream, frames: Sequence[Frame]) -> None:
        """Queue whole frames of a stream."""
        self._check_running()
        stream.frames.extend(frames)
        self._waiting[stream] = None
        if self._timer is None:
            self._wind(self._ticked_at + TICK_S - time.monotonic())

    def leave(self, stream: VoiceActivityStream) -> None:
        """Free the stream's slot."""
        self._streams.discard(stream)
        stream.frames.clear()
        self._waiting.pop(stream, None)
        self._free.append(stream.slot)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise VoiceActivityError(self._failure)
        if self._loop is None:
            raise VoiceActivityError("The voice-activity service is not running.")

    # -- ticks ---------------------------------------------------------------------------------------------------------

    def _wind(self, rest: float) -> None:
        """Have a tick in ``rest`` seconds, if none is due; after whatever else is due by then, so that more frames are
        there."""
        if self._timer is not None:
            return
        assert self._loop is not None
        self._timer = self._loop.call_later(rest, self._tick) if rest > 0 else self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        """Take one frame of each stream that has any, and say what it holds."""
        self._timer, self._ticked_at = None, time.monotonic()
        waiting = list(self._waiting)
        if not waiting:
            return  # all have left
        streams = waiting[:MAX_ROWS]
        frames = [stream.frames.popleft() for stream in streams]
        # Whoever has more goes behind those that have had none of this tick.
        self._waiting = dict.fromkeys(waiting[MAX_ROWS:] + [stream for stream in streams if stream.frames])
        lags = bool(self._waiting)
        try:
            heard = self._step(streams, frames)
        except Exception as error:
            logger.exception("Voice activity failed")
            self._failure = f"Voice activity failed: {error}"
            for stream in self._streams:
                stream.wake()
            return
        for stream, frame in zip(streams, heard, strict=True):
            stream.deliver(frame)
        if lags and self._loop is not None:
            self._wind(0)

    def _step(self, streams: Sequence[VoiceActivityStream], frames: Sequence[Frame]) -> Iterable[VoiceFrame]:
        assert self._model is not None
        slots = np.array([stream.slot for stream in streams], np.intp)
        rows = self._input[: len(streams)]
        rows[:, :CONTEXT] = self._context.take(slots, axis=0)
        _fill(rows[:, CONTEXT:], streams, frames)
        probabilities, self._state[:, slots] = self._model.step(rows, self._state.take(slots, axis=1))
        self._context[slots] = rows[:, -CONTEXT:]
        steady, quiet_ms, heard_from = self._levels.update(slots, self._levels.powers(rows[:, CONTEXT:]))
        return map(VoiceFrame, np.where(steady, 0.0, probabilities).tolist(), quiet_ms.tolist(), heard_from.tolist())


@lru_cache(maxsize=16)
def _converter(sample_rate: int) -> FrameResampler:
    return FrameResampler(sample_rate, SAMPLE_RATE, FRAME)


def _fill(rows: NDArray[np.float32], streams: Sequence[VoiceActivityStream], frames: Sequence[Frame]) -> None:
    """Write the samples of ``frames``, one of each stream, into ``rows [batch, 512]``, converting those of one rate
    together."""
    windows: defaultdict[FrameResampler, list[int]] = defaultdict(list)
    for row, frame in enumerate(frames):
        if isinstance(frame, bytes):
            converter = streams[row].converter
            assert converter is not None
            windows[converter].append(row)
        else:
            rows[row] = frame
    for converter, converted in windows.items():
        if len(converted) == len(frames):  # nearly always: everybody speaks at one rate
            converter.convert(frames, rows)  # type: ignore[arg-type]
        else:
            rows[converted] = converter.convert([frames[row] for row in converted])  # type: ignore[misc]


class VoiceActivityStream:
    """One session's place in the service. Used on the event loop only."""

    def __init__(
        self, service: VoiceActivityService, slot: int, on_frame: Callable[[VoiceFrame], None], sample_rate: int
    ) -> None:
        self.slot = slot
        self.frames: deque[Frame] = deque()
        """Frames that wait for a tick."""
        self.converter = None if sample_rate == SAMPLE_RATE else _converter(sample_rate)
        self._service = service
        self._on_frame = on_frame
        self._pcm = b""
        """Input from the lead of the frame that is not complete yet."""
        if self.converter is not None:
            self._pcm = bytes(self.converter.lead * SAMPLE_BYTES)
            self._window, self._step = self.converter.window * SAMPLE_BYTES, self.converter.step * SAMPLE_BYTES
        self._rest: NDArray[np.float32] | None = None
        self._filled = 0
        self.pending_frames = 0
        """Whole frames fed whose probability has not been delivered yet."""
        self._closed = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def feed(self, samples: NDArray[np.float32]) -> None:
        """Add mono samples at 16 kHz, any number; they are cut into frames, the rest waits for the next call.

        Raises :class:`VoiceActivityError` when ``MAX_PENDING`` frames wait already (the caller did not heed
        :meth:`wait_below`), when the stream is closed, or when the service has failed.
        """
        self._check_open()
        frames: list[Frame] = []
        position = 0
        while position < len(samples):
            if self._rest is None:
                self._rest = np.empty(FRAME, np.float32)
            taken = min(FRAME - self._filled, len(samples) - position)
            self._rest[self._filled : self._filled + taken] = samples[position : position + taken]
            self._filled += taken
            position += taken
            if self._filled == FRAME:
                frames.append(self._rest)
                self._rest = None
                self._filled = 0
        if frames:
            self._submit(frames)

    def feed_pcm(self, pcm: bytes) -> None:
        """Add mono PCM16 at the stream's own rate, whole samples; otherwise like :meth:`feed`.

        A frame is complete once the filter's reach beyond it (2 to 4 ms) has come as well.
        """
        if self.converter is None:
            self.feed(pcm16_to_float(pcm))
            return
        self._check_open()
        held = self._pcm + pcm
        first, window = 0, self._window
        frames: list[Frame] = []
        while first + window <= len(held):
            frames.append(held[first : first + window])
            first += self._step
        self._pcm = held[first:]
        if frames:
            self._submit(frames)

    def _check_open(self) -> None:
        if self._closed:
            raise VoiceActivityError("The voice-activity stream is closed.")
        if self.pending_frames >= MAX_PENDING:
            raise VoiceActivityError(f"{self.pending_frames} frames are pending; wait_below() says when to go on.")

    def _submit(self, frames: list[Frame]) -> None:
        self._service.submit(self, frames)
        self.pending_frames += len(frames)

    async def wait_below(self, limit: int) -> None:
        """Wait until fewer than ``limit`` (at least 1) frames are pending, or the stream is closed.

        Raises :class:`VoiceActivityError` when the service fails.
        """
        while self.pending_frames >= limit and not self._closed:
            if self._service.failure is not None:
                raise VoiceActivityError(self._service.failure)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((limit, waiter))
            await waiter

    def close(self) -> None:
        """Leave: nothing is delivered any more. Idempotent."""
        if not self._closed:
            self._closed = True
            self._service.leave(self)
            self.wake()

    def deliver(self, frame: VoiceFrame) -> None:
        """Called by the service, once per frame."""
        if self._closed:
            return
        self.pending_frames -= 1
        try:
            self._on_frame(frame)
        except Exception:
            logger.exception("A voice-activity callback failed; its session gets no more frames")
            self.close()
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        """Let waiters look again."""
        over, pending = self._closed or self._service.failure, self.pending_frames
        ready = [w for limit, w in self._waiters if pending < limit or over]
        self._waiters = [(limit, w) for limit, w in self._waiters if w not in ready and not w.done()]
        for waiter in ready:
            if not waiter.done():
                waiter.set_result(None)
