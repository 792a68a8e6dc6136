"""What every worker process does: it logs through the gateway, and ends when the gateway says so or is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from duologue.engine.executors.wire import Channel, Log


class _ChannelHandler(logging.Handler):
    """Sends log records to the gateway, which logs them as its own."""

    def __init__(self, channel: Channel[Any]) -> None:
        super().__init__()
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        entry = Log(record.levelno, record.name, self.format(record))
        self._loop.call_soon_threadsafe(self._channel.send, [entry])


def log_to(channel: Channel[Any], level: int) -> None:
    """Send this process's log over ``channel`` from ``level`` on. On the event loop."""
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(_ChannelHandler(channel))


def run_worker(
    run: Callable[[int], Coroutine[Any, Any, bool]],
    fd: int,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> NoReturn:
    """Do ``run(fd)`` on an event loop and exit: with status 0 if it returns True, else 1.

    Threads that do not come back are not waited for.
    """
    os.set_inheritable(fd, False)
    # The terminal or the service manager signals everybody; the gateway decides, after its drain. A handler and not
    # SIG_IGN, which processes that a stage starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    clean = asyncio.Runner(loop_factory=loop_factory).run(run(fd))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if clean else 1)
