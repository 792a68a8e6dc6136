"""From worker threads to the event loop: one queue, one coalesced wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Many threads put, one task takes.

    However many items are put before the loop gets to run, it is woken once. The queue needs no bound of its own:
    what is put is bounded by the credit of the requests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, batch: int = 256) -> None:
        self._loop = loop
        self._batch = batch
        self._items: deque[T] = deque()
        self._waking = False
        self._filled = asyncio.Event()

    def put(self, item: T) -> None:
        """Thread-safe. An item put after the loop has closed is dropped: no one is left to read it."""
        self._items.append(item)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._filled.set)
            except RuntimeError:
                self._items.clear()

    async def take(self) -> list[T]:
        """Wait for items and return them in order, at most ``batch`` at once."""
        while not self._items:
            # Lowered before the last look, so that an item put from here on either is seen or wakes us.
            self._filled.clear()
            self._waking = False
            if not self._items:
                await self._filled.wait()
        return [self._items.popleft() for _ in range(min(len(self._items), self._batch))]
