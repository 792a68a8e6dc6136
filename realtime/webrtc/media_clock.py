"""One timer for the sound of all calls: each is called every 20 ms, a quarter of them at a time."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Final

FRAME_S: Final = 0.020
PHASES: Final = 4
"""Calls take turns within a frame, so that many of them do not keep the loop from everything else in one go."""

STEP_S: Final = FRAME_S / PHASES

Subscriber = Callable[[float], None]

_clocks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, MediaClock] = weakref.WeakKeyDictionary()


class MediaClock:
    """Calls its subscribers every :data:`FRAME_S` with ``time.monotonic()``. Runs while it has any.

    (Not the loop's own time: uvloop reads that once per turn and in whole milliseconds.)
    """

    def __init__(self) -> None:
        self._phases: list[dict[Subscriber, None]] = [{} for _ in range(PHASES)]
        self._timer: asyncio.TimerHandle | None = None
        self._step = 0
        self._began = 0.0

    @classmethod
    def of_loop(cls) -> MediaClock:
        """The one clock of the running event loop."""
        loop = asyncio.get_running_loop()
        clock = _clocks.get(loop)
        if clock is None:
            clock = _clocks[loop] = cls()
        return clock

    def join(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(now)`` from about 20 ms from now on, every 20 ms. Again: begin anew from now."""
        self.leave(subscriber)
        now = time.monotonic()
        if self._timer is None:
            self._step, self._began = 0, now
        # The phase that is due now comes again in a whole frame.
        self._phases[round((now - self._began) / STEP_S) % PHASES][subscriber] = None
        self._wind(now)

    def leave(self, subscriber: Subscriber) -> None:
        """Call it no more, but for a call that is due this instant. Harmless for one that is not here."""
        for phase in self._phases:
            phase.pop(subscriber, None)
        if self._timer is not None and not any(self._phases):
            self._timer.cancel()
            self._timer = None

    def _wind(self, now: float) -> None:
        """Set the timer to the next step that somebody waits for."""
        if self._timer is not None:
            self._timer.cancel()
        ahead = next(n for n in range(1, PHASES + 1) if self._phases[(self._step + n) % PHASES])
        delay = max(0.0, self._began + (self._step + ahead) * STEP_S - now)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick, self._step + ahead)

    def _tick(self, step: int) -> None:
        now, loop = time.monotonic(), asyncio.get_running_loop()
        # After a stall the steps that were missed are made up for: a subscriber sees by the time what it owes.
        reached = max(int((now - self._began) / STEP_S), step)
        due = [self._phases[n % PHASES] for n in range(max(self._step, reached - PHASES) + 1, reached + 1)]
        self._step = reached
        self._wind(now)
        for phase in due:
            for subscriber in phase:
                # A callback of its own each: what one raises goes to the loop's handler and leaves the rest alone.
                loop.call_soon(subscriber, now)
