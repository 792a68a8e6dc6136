"""Frames are gathered while they are many; by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duologue.realtime.receive_coalescing import FEW, MANY, PERIOD_S, ReceiveCoalescing


class Loop:
    """A turn runs what has been asked for before it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self._soon: list[Callable[[], None]] = []
        self.coalescing = ReceiveCoalescing(lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self._soon.append(lambda: call(*args))

    def receive(self, rate: float, seconds: float) -> list[float]:
        """Frames evenly; the loop's turns take no time, and there is one when something has come or is to be run.
        Returns the times of those turns."""
        turns: list[float] = []
        start, taken = self.now, 0
        while self.now < start + seconds:
            if not self._soon:
                self.now = max(self.now, start + (taken + 1) / rate)
            come = int((self.now - start) * rate + 1e-6)
            for _ in range(come - taken):
                self.coalescing.note(self)  # type: ignore[arg-type]
            taken = come
            turns.append(self.now)
            soon, self._soon = self._soon, []
            for call in soon:
                call()
        return turns


def test_few_frames_are_taken_as_they_come() -> None:
    loop = Loop()
    turns = loop.receive(0.9 * MANY, 3.0)
    assert not loop.slept
    assert len(turns) == pytest.approx(0.9 * MANY * 3.0, rel=0.01)


def test_many_are_taken_every_two_milliseconds() -> None:
    loop = Loop()
    loop.receive(2 * MANY, 0.1)
    assert loop.coalescing.gathers
    turns = loop.receive(2 * MANY, 3.0)
    assert len(turns) == pytest.approx(3.0 / PERIOD_S, rel=0.01)
    assert max(loop.slept) <= PERIOD_S * 1.001


def test_a_turn_that_was_long_is_followed_by_the_next_at_once() -> None:
    loop = Loop()
    loop.receive(2 * MANY, 0.2)
    loop.now += 5 * PERIOD_S
    loop.slept.clear()
    assert len(loop.receive(2 * MANY, PERIOD_S / 100)) == 2
    assert loop.slept == pytest.approx([PERIOD_S]), "the second turn rests, the first did not"


def test_it_ends_when_frames_are_few_and_the_loop_is_left_alone() -> None:
    loop = Loop()
    loop.receive(2 * MANY, 1.0)
    loop.receive(1.2 * FEW, 1.0)
    assert loop.coalescing.gathers, "or it would begin and end all the time"
    loop.receive(0.8 * FEW, 0.3)
    assert not loop.coalescing.gathers
    loop.slept.clear()
    loop.receive(0.8 * FEW, 1.0)
    assert not loop.slept
    loop.receive(2 * MANY, 0.2)
    assert loop.coalescing.gathers


def test_a_burst_after_silence_is_not_many() -> None:
    loop = Loop()
    loop.now += 60
    loop.receive(100 * MANY, 127 / (100 * MANY))
    loop.now += 60
    loop.receive(1.0, 5.0)
    assert not loop.slept
