"""Whether a worker that is alive still answers.

Whatever it sends is a sign of life. Only when nothing came for a whole period it is asked, and when it leaves
``MISSED`` periods unanswered it counts as hung. Periods and not seconds: a gateway that was itself held up for long has
missed one of its own beats, not several of the worker's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

BUSY_PERIOD_S: Final = 2.0
IDLE_PERIOD_S: Final = 30.0
"""With no request open: an idle gateway is to use no processor time worth mentioning."""
MISSED: Final = 5


class Heartbeat:
    """Watches one worker. Used on the event loop; ``hung`` is called once at most, after which it has stopped."""

    def __init__(
        self,
        ask: Callable[[], None],
        hung: Callable[[], None],
        busy: Callable[[], bool],
        stuck: Callable[[], bool] = lambda: False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``ask`` makes the worker say something; ``busy``: it has work; ``stuck``: it answers, and yet hangs."""
        self._ask = ask
        self._hung = hung
        self._busy = busy
        self._stuck = stuck
        self._loop = loop or asyncio.get_running_loop()
        self._heard = True
        self._missed: int | None = None
        """Periods since it was asked; None: it need not be."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The worker is ready."""
        self._heard, self._missed = True, None
        self._schedule()

    def heard(self) -> None:
        """The worker has sent something."""
        self._heard, self._missed = True, None

    def work(self) -> None:
        """The worker was given work: beat at the pace of a busy one from now on."""
        if self._timer is not None and self._timer.when() - self._loop.time() > BUSY_PERIOD_S:
            self._schedule()

    def stop(self) -> None:
        """The worker is gone. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self.stop()
        quick = self._busy() or self._missed is not None
        self._timer = self._loop.call_later(BUSY_PERIOD_S if quick else IDLE_PERIOD_S, self._beat)

    def _beat(self) -> None:
        if self._missed is not None:
            self._missed += 1
        elif not self._heard:
            self._missed = 0
            self._ask()
        if (self._missed or 0) >= MISSED or self._stuck():
            self.stop()
            self._hung()
            return
        self._heard = False
        self._schedule()
