"""Sending audio at the pace of a microphone, by absolute deadlines (``benchmarks`` section 0.2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

Pacing = Literal["mic", "ahead"]
SAMPLE_RATE = 24_000
SAMPLE_BYTES = 2


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""

    async def sleep_until(self, at: float) -> None:
        """Return at ``at`` or as soon after it as possible; at once if it is past."""


class MonotonicClock:
    """The real clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.monotonic()))


class AudioSource(Protocol):
    def take(self, samples: int) -> bytes | None:
        """The next ``samples`` samples as PCM16 (fewer at the end), or ``None`` when there are no more."""


class PacedSender:
    """Hands a source's audio to ``send`` chunk by chunk, each at its own deadline.

    Chunk k covers ``[k*c, (k+1)*c)`` of the input clock. ``mic``: it is due at its end, because a microphone cannot
    deliver a sample before it happened. ``ahead``: due at its start. A late chunk is sent at once; none is skipped.
    """

    def __init__(
        self,
        send: Callable[[bytes, float], Awaitable[None]],
        clock: Clock,
        *,
        chunk_ms: int = 20,
        pacing: Pacing = "mic",
        on_start: Callable[[float], None] = lambda t0: None,
    ) -> None:
        self._send = send
        self._clock = clock
        self._chunk_s = chunk_ms / 1000
        self._chunk_samples = SAMPLE_RATE * chunk_ms // 1000
        self._on_start = on_start
        self._first_due = 1 if pacing == "mic" else 0
        self.lags: list[float] = []
        """``pacing_lag`` of each chunk in seconds: how long after its due time it was handed to the transport."""
        self.t0: float | None = None
        """Zero of the input clock, on the given clock."""

    async def run(self, source: AudioSource) -> None:
        """Send until the source ends. ``send`` is given the chunk and its due time."""
        self.t0 = self._clock.now()
        self._on_start(self.t0)
        index = 0
        while True:
            due = self.t0 + (index + self._first_due) * self._chunk_s
            await self._clock.sleep_until(due)
            chunk = source.take(self._chunk_samples)
            if chunk is None:
                return
            self.lags.append(max(0.0, self._clock.now() - due))
            await self._send(chunk, due)
            index += 1
