"""Waiting for something that changes with the events of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duologue.realtime.bench.clock import Clock


class Changes:
    """Told of every change by one task; others wait until what they look for has come true."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()

    async def until(self, predicate: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``predicate`` holds; false if it does not by ``deadline``."""
        while not predicate():
            self._changed.clear()
            left = deadline - self._clock.now()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return True
