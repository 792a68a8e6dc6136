"""A list that grows while a test runs, and a way to wait for what comes next in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

PATIENCE_S = 60.0
"""Longest wait for anything. Only a broken server comes near it."""

T = TypeVar("T")


class Log(Generic[T]):
    """Things in the order in which they happened."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._read = 0
        self._grown = asyncio.Event()

    def add(self, item: T) -> None:
        self.items.append(item)
        self._grown.set()

    async def next(self, fits: Callable[[T], bool]) -> T:
        """The next item that fits after the one found last, as soon as it is there. Raises ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for index in range(self._read, len(self.items)):
                    if fits(self.items[index]):
                        self._read = index + 1
                        return self.items[index]
                self._grown.clear()
                await self._grown.wait()

    def rewind(self) -> None:
        """Let the next wait begin at the start."""
        self._read = 0
