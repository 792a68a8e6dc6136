"""uvicorn without its clock: the server sleeps until something happens.

uvicorn's main loop wakes ten times a second, to look whether it should leave and to write a fresh ``Date`` header. On
an idle gateway that is most of the processor time there is. Here the wish to leave is an event, and the header is made
when a response needs it, at most once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from duologue.realtime import wire
from duologue.realtime.ws_protocol import RealtimeWebSocketProtocol

Headers = list[tuple[bytes, bytes]]


class DatedState(ServerState):
    """The state that connections share; its default headers hold the present date whenever they are read."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config = config
        self._second = -1
        self._headers: Headers = []
        super().__init__()

    @property
    def default_headers(self) -> Headers:  # type: ignore[override]
        second = int(time.time())
        if second != self._second:
            self._second = second
            date = [(b"date", formatdate(second, usegmt=True).encode())] if self._config.date_header else []
            self._headers = date + self._config.encoded_headers
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: Headers) -> None:
        """What uvicorn sets, at its start and at each tick, is what is computed here anyway."""


class HttpServer(uvicorn.Server):
    """uvicorn without signal handling (the signals mean a drain first, and are handled by ``serve``) and without ticks.

    ``should_exit`` is set on the event loop.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self._leave = asyncio.Event()
        super().__init__(config)
        self.server_state = DatedState(config)

    @property
    def should_exit(self) -> bool:
        return self._leave.is_set()

    @should_exit.setter
    def should_exit(self, wanted: bool) -> None:
        (self._leave.set if wanted else self._leave.clear)()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wait until the server should leave. Options of uvicorn that need its ticks get them."""
        if self.config.limit_max_requests is not None or self.config.callback_notify is not None:
            await super().main_loop()
        else:
            await self._leave.wait()


def http_server(
    app: Starlette,
    ping_interval_s: float = 20.0,
    ping_timeout_s: float = 40.0,
    certificate: Path | None = None,
    private_key: Path | None = None,
) -> HttpServer:
    """The HTTP server for an application, to be run with ``serve(sockets=[listener])``.

    With ``certificate`` (PEM, with its key unless that is in ``private_key``) it speaks https.
    """
    return HttpServer(
        uvicorn.Config(
            app,
            http="httptools",
            ws=RealtimeWebSocketProtocol,
            ws_max_size=wire.MAX_FRAME_BYTES,
            ws_ping_interval=ping_interval_s,
            ws_ping_timeout=ping_timeout_s,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
    )
