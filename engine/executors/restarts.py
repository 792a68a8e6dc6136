"""Starting a worker again that was lost: after a pause that grows, and not without end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
MAX_RESTARTS: Final = 8
"""Restarts in a row; one that lived for ``HEALTHY_S`` starts the count anew."""
HEALTHY_S: Final = 60.0


class WorkerError(RuntimeError):
    """A worker could not start; ``kind`` is the class of what its stage raised, if it raised."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Restarts:
    """The restarts of one worker."""

    def __init__(self, who: str) -> None:
        """``who``: what the log calls the worker, as the beginning of a sentence."""
        self._who = who
        self._count = 0
        self._ready_at = 0.0

    def ready(self) -> None:
        """The worker is at work now."""
        self._ready_at = time.monotonic()

    async def run(self, start: Callable[[], Awaitable[object]], reap: Callable[[], Awaitable[object]]) -> bool:
        """Start a worker that was lost again; False once it is given up.

        ``reap`` frees what the one before, or a start that failed, has left; ``start`` raises :class:`WorkerError` or
        ``OSError`` for a start that fails.
        """
        await reap()
        if time.monotonic() - self._ready_at >= HEALTHY_S:
            self._count = 0
        while self._count < MAX_RESTARTS:
            pause = min(FIRST_PAUSE_S * 2**self._count, LONGEST_PAUSE_S)
            self._count += 1
            logger.error("%s lost its process; the next starts in %g s.", self._who, pause)
            await asyncio.sleep(pause)
            try:
                await start()
            except (WorkerError, OSError) as error:
                logger.error("%s could not start again: %s", self._who, error)
                await reap()
            else:
                return True
        logger.error("%s is given up after %d restarts.", self._who, MAX_RESTARTS)
        return False
