"""The HTTP server sleeps while nothing happens, and its Date header is right all the same."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate, parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from duologue.realtime import http_server as module
from duologue.realtime.websocket import WebSocketTransport


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    await transport.receive()


async def test_an_idle_server_has_no_timer(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(idle) as edge, edge.http() as http:
        await http.get("/health")
        loop = asyncio.get_running_loop()
        began: list[float] = []
        original = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda delay, *rest, **k: began.append(delay) or original(delay, *rest))
        at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda when, *rest, **k: began.append(when) or at(when, *rest))
        for _ in range(3):
            await asyncio.to_thread(time.sleep, 0.1)  # three of the ticks that uvicorn would take
        assert not began


async def test_the_date_is_that_of_the_response(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(idle) as edge, edge.http() as http:
        for second in (1_700_000_000, 1_700_000_001, 1_700_003_600):
            monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda second=second: second + 0.5))
            answer = await http.get("/health")
            assert answer.headers.get_list("date") == [formatdate(second, usegmt=True)]


async def test_a_websocket_handshake_has_the_date_too(serve: Any) -> None:
    async with serve(idle) as edge, edge.connect() as connection:
        assert abs(time.time() - parsedate_to_datetime(connection.response.headers["date"]).timestamp()) < 5
