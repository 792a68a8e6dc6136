"""Whether sound comes in time: a simulated player that plays what it gets, the moment it gets it."""

from __future__ import annotations

from typing import Final

_ROUNDING_S: Final = 1e-7
"""Durations are sums of quotients; a difference below this is none."""


class RealTimePlayer:
    """A loudspeaker without a buffer (or with one of ``buffer_s``) that starts with the first chunk.

    Its silence between chunks, in all, equals the worst deficit of a player that does not wait:
    ``max over i > 0 of (arrival_i - arrival_0 - buffer) - sound received before i``, at least 0.
    """

    __slots__ = ("_buffer_s", "_started", "chunks", "longest_s", "sound_s", "stalls", "underrun_s")

    def __init__(self, buffer_s: float = 0.0) -> None:
        self._buffer_s = buffer_s
        self._started = 0.0
        self.chunks = 0
        self.sound_s = 0.0
        """Seconds of sound received."""
        self.underrun_s = 0.0
        """Seconds of silence between chunks."""
        self.stalls = 0
        self.longest_s = 0.0

    def receive(self, at: float, seconds: float) -> None:
        """A chunk of that length has arrived; times on any one clock."""
        if not self.chunks:
            self._started = at + self._buffer_s
        stall = at - self._started - self.sound_s - self.underrun_s
        if self.chunks and stall > _ROUNDING_S:
            self.underrun_s += stall
            self.longest_s = max(self.longest_s, stall)
            self.stalls += 1
        self.chunks += 1
        self.sound_s += seconds
