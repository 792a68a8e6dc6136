"""A socket by hand: the clock, the timers and the transport of a protocol, and a request to upgrade."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Timer:
    def __init__(self, when: float, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.when, self.callback, self.arguments, self.cancelled = when, callback, arguments, False

    def cancel(self) -> None:
        self.cancelled = True


class ScriptedLoop:
    """A clock that moves when told to, and the timers on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(self.now + delay, callback, arguments))
        return self.timers[-1]

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if not timer.cancelled and timer.when <= end]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = timer.when
            timer.callback(*timer.arguments)
        self.now = end


class ScriptedTransport(asyncio.Transport):
    """Remembers what was written; ``unsent`` bytes wait in its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.state = "open"

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.state = "half closed"

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.state in ("closing", "aborted")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        if self.state != "aborted":
            self.state = "closing"

    def abort(self) -> None:
        self.state = "aborted"


UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
