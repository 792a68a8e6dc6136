"""A jitter buffer at the end of a line, on a scripted clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from duologue.realtime.webrtc.jitter import FRAME_TICKS, JitterBuffer, Piece, Received

FRAME_S: Final = 0.020
TICK_S: Final = 0.020


@dataclass
class Line:
    """A buffer at the end of a line. Packet ``n`` is ``n`` encoded in four bytes, sent at ``n * 20 ms``."""

    number: int = 65_500
    timestamp: int = (1 << 32) - 96_000
    buffer: JitterBuffer = field(default_factory=JitterBuffer)
    pieces: list[tuple[float, Piece]] = field(default_factory=list)
    now: float = 1000.0
    next_tick: float = 1000.0

    def wait_until(self, now: float) -> None:
        """Let the clock run: a tick of 20 ms, and the deadline of a hole."""
        while True:
            at = min(self.next_tick, self.buffer.deadline or self.next_tick)
            if at > now:
                break
            self.now = max(at, self.now)
            self._take(self.buffer.poll(self.now))
            if at == self.next_tick:
                self.next_tick += TICK_S
        self.now = now

    def arrive(self, n: int, at: float, *, timestamp: int | None = None, payload: bytes | None = None) -> None:
        """Packet ``n`` comes ``at`` seconds after the first was sent."""
        self.wait_until(1000.0 + at)
        ticks = n * FRAME_TICKS if timestamp is None else timestamp
        self._take(
            self.buffer.add(
                (self.number + n) & 0xFFFF,
                (self.timestamp + ticks) & 0xFFFFFFFF,
                FRAME_TICKS,
                n.to_bytes(4, "big") if payload is None else payload,
                self.now,
            )
        )

    def _take(self, pieces: list[Piece]) -> None:
        self.pieces += [(self.now - 1000.0, piece) for piece in pieces]

    def heard(self) -> list[int]:
        return [int.from_bytes(piece.payload, "big") for _, piece in self.pieces if isinstance(piece, Received)]

    def given_at(self, n: int) -> float:
        payload = n.to_bytes(4, "big")
        return next(at for at, piece in self.pieces if isinstance(piece, Received) and piece.payload == payload)

    def ticks(self) -> int:
        return sum(FRAME_TICKS if isinstance(piece, Received) else piece.ticks for _, piece in self.pieces)

    def of(self, kind: type) -> list[tuple[float, Piece]]:
        return [(at, piece) for at, piece in self.pieces if isinstance(piece, kind)]


def sent_over(line: Line, packets: Sequence[bytes], *, seed: int, loss: float, jitter_s: float, frames: int) -> None:
    """``packets``, round and round, ``frames`` of them; after the first second ``loss`` of them are lost, each of the
    others is late by up to ``jitter_s``."""
    fate = random.Random(seed)
    arrivals = []
    for n in range(frames):
        lost, late = fate.random() < loss, fate.random() * jitter_s
        if n < 50:
            lost, late = False, 0.0
        if not lost:
            arrivals.append((n * FRAME_S + late, n))
    for at, n in sorted(arrivals):
        line.arrive(n, at, payload=packets[n % len(packets)])
    line.wait_until(line.now + 0.15)
