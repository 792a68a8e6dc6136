"""How late the event loop is. Sampled only while there is work, so that an idle engine has no timer."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from duologue.engine.metrics import loop_lag_s

EVERY_S: Final = 0.1


class LoopLag:
    """Asks to be called at a time and notes how much later that was. Lives on the event loop."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin to sample. Harmless when it has begun."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._due = time.monotonic() + EVERY_S
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._ring)

    def _ring(self) -> None:
        loop_lag_s.observe(max(0.0, time.monotonic() - self._due))
        self._set()
