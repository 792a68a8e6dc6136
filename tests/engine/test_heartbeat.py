"""The heartbeat's rules on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duologue.engine.executors.heartbeat import BUSY_PERIOD_S, IDLE_PERIOD_S, MISSED, Heartbeat


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a heartbeat uses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + delay, call))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        """Timers run one after another, each at its time."""
        until = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.at <= until]:
            timer = min(due, key=Timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = until

    def jump(self, seconds: float) -> None:
        """The loop itself was held up: what was due runs once, late."""
        self.now += seconds
        for timer in [t for t in self.timers if not t.cancelled and t.at <= self.now]:
            self.timers.remove(timer)
            timer.call()


class Watched:
    def __init__(self, answers: bool = True, busy: bool = False) -> None:
        self.loop = Loop()
        self.answers, self.busy, self.stuck = answers, busy, False
        self.asked = self.hung = 0
        self.heartbeat = Heartbeat(self._ask, self._on_hung, lambda: self.busy, lambda: self.stuck, self.loop)  # type: ignore[arg-type]
        self.heartbeat.start()

    def _ask(self) -> None:
        self.asked += 1
        if self.answers:
            self.heartbeat.heard()

    def _on_hung(self) -> None:
        self.hung += 1


def test_an_idle_worker_that_answers_is_asked_rarely_and_never_hung() -> None:
    watched = Watched()
    watched.loop.advance(100 * IDLE_PERIOD_S)
    assert watched.hung == 0
    assert 0 < watched.asked <= 100


def test_a_worker_that_talks_is_never_asked() -> None:
    watched = Watched(busy=True, answers=False)
    for _ in range(200):
        watched.loop.advance(BUSY_PERIOD_S / 2)
        watched.heartbeat.heard()
    assert (watched.asked, watched.hung) == (0, 0)


@pytest.mark.parametrize("busy", [True, False])
def test_a_silent_worker_is_hung_once_and_within_its_bound(busy: bool) -> None:
    watched = Watched(answers=False, busy=busy)
    watched.loop.advance(2 * (BUSY_PERIOD_S if busy else IDLE_PERIOD_S) + MISSED * BUSY_PERIOD_S)
    assert (watched.asked, watched.hung) == (1, 1)
    watched.loop.advance(1000)
    assert (watched.asked, watched.hung) == (1, 1), "it has stopped"


def test_work_after_a_long_idle_time_is_watched_at_once() -> None:
    watched = Watched(answers=False)
    watched.loop.advance(1)
    watched.busy = True
    watched.heartbeat.work()
    watched.loop.advance((2 + MISSED) * BUSY_PERIOD_S)
    assert watched.hung == 1


def test_a_stream_of_new_work_does_not_put_the_beat_off() -> None:
    watched = Watched(answers=False, busy=True)
    for _ in range(200):
        watched.heartbeat.work()
        watched.loop.advance(0.1)
    assert watched.hung == 1


def test_a_late_answer_counts() -> None:
    watched = Watched(answers=False, busy=True)
    watched.loop.advance((1 + MISSED) * BUSY_PERIOD_S)
    assert (watched.asked, watched.hung) == (1, 0)
    watched.heartbeat.heard()
    watched.loop.advance(BUSY_PERIOD_S)
    assert watched.hung == 0


def test_a_gateway_that_was_held_up_does_not_blame_the_worker() -> None:
    watched = Watched(answers=False, busy=True)
    watched.loop.advance(2 * BUSY_PERIOD_S)
    assert watched.asked == 1
    watched.loop.jump(1000.0)
    assert watched.hung == 0
    watched.heartbeat.heard()  # the answer that lay in the socket
    watched.loop.advance(BUSY_PERIOD_S)
    assert watched.hung == 0


def test_a_stuck_worker_is_hung_though_it_answers() -> None:
    watched = Watched(busy=True)
    watched.loop.advance(3 * BUSY_PERIOD_S)
    watched.stuck = True
    watched.loop.advance(BUSY_PERIOD_S)
    assert watched.hung == 1


def test_nothing_happens_after_stop() -> None:
    watched: Any = Watched(answers=False, busy=True)
    watched.heartbeat.stop()
    watched.heartbeat.stop()
    watched.heartbeat.work()
    watched.loop.advance(1000)
    assert (watched.asked, watched.hung) == (0, 0)
