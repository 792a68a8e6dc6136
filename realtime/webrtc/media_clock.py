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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
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
            clock = _clocks[loop] = cls(loop)
        return clock

    def join(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(now)`` from about 20 ms from now on, every 20 ms. Again: begin anew from now."""
        self.leave(subscriber)
        now = time.monotonic()
        if self._timer is None:
            self._step, self._began = 0, now
            self._timer = self._loop.call_later(STEP_S, self._tick)
        # The phase that is due now comes again in a whole frame.
        self._phases[round((now - self._began) / STEP_S) % PHASES][subscriber] = None

    def leave(self, subscriber: Subscriber) -> None:
        """Call it no more, but for a call that is due this instant. Harmless for one that is not here."""
        for phase in self._phases:
            phase.pop(subscriber, None)
        if self._timer is not None and not any(self._phases):
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = time.monotonic()
        # After a stall the steps that were missed are made up for: a subscriber sees by the time what it owes.
        missed = max(int((now - self._began) / STEP_S) - self._step, 1)
        due = range(self._step + 1, self._step + 1 + min(missed, PHASES))
        self._step += missed
        self._timer = self._loop.call_later(self._began + (self._step + 1) * STEP_S - now, self._tick)
        for step in due:
            for subscriber in self._phases[step % PHASES]:
                # A callback of its own each: what one raises goes to the loop's handler and leaves the rest alone.
                self._loop.call_soon(subscriber, now)
