"""Many frames for one turn of the event loop, once they come so fast that each would have a turn of its own.

A turn that finds a single readable socket pays for the wait, the wake-up and all that a turn does besides, and so
costs about as much as the frame. Network cards have met this before: under load they gather what comes for a moment
before they interrupt (interrupt moderation, Mogul and Ramakrishnan, 1997). So does the loop here. While frames are few
it sleeps until one comes, as ever; while they are many it lets the thread rest for what is left of 2 ms after each
turn. What is late by that is all that the loop does, and by no more than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 0.002
"""Between two turns, if they are shorter."""
MANY: Final = 4000
"""Frames a second that are gathered: two in a turn are seldom at half of that, and usual at twice as much."""
FEW: Final = 2400
"""Frames a second at which it ends."""
_COUNTED: Final = 128
"""Frames after which the clock is looked at."""
_LOOKED_AT_S: Final = 0.1
"""How often it is asked, while frames are gathered, whether they are still many."""


class ReceiveCoalescing:
    """Counts the frames of all connections of a server, and slows its loop down while they are many."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.gathers = False
        """Whether the loop is slowed down now."""
        self._clock = clock
        self._sleep = sleep
        self._frames = 0
        self._since = clock()
        self._due = 0.0

    def note(self, loop: asyncio.AbstractEventLoop) -> None:
        """Something has come in on a connection."""
        self._frames += 1
        if self._frames >= _COUNTED and not self.gathers and self._faster_than(MANY, self._clock()):
            self.gathers = True
            self._due = self._since
            loop.call_soon(self._rest, loop)

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once in each turn. The thread sleeps, not the process: others have the interpreter meanwhile."""
        now = self._clock()
        if self._due > now:
            self._sleep(self._due - now)
        self._due = max(self._due, now) + PERIOD_S
        if now - self._since < _LOOKED_AT_S or self._faster_than(FEW, now):
            loop.call_soon(self._rest, loop)
        else:
            self.gathers = False

    def _faster_than(self, rate: float, now: float) -> bool:
        fast = self._frames > rate * (now - self._since)
        self._frames, self._since = 0, now
        return fast
