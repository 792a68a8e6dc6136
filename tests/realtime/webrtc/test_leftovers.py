"""What calls leave behind when they are over: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import aioice.ice
import httpx2
import impatient_media_worker
import psutil
import pytest
from live_sessions import MESSAGE, manager_of
from msgspec.structs import replace
from rtc_client import RtcClient, tone
from scripted_engine import ScriptedEngine

from duologue.engine.requests import AudioDelta, TextDelta
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc import media_workers

CALLS, AT_ONCE = 100, 10


def held() -> dict[str, int]:
    own = psutil.Process()
    processes = [own, *own.children()]
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": sum(process.num_fds() for process in processes),
        "ports": sum(len(process.net_connections("udp")) for process in processes),
        "threads": threading.active_count(),
    }


async def one_call(http: Any, engine: ScriptedEngine, number: int) -> None:
    """A call that is made and dropped: before it connects, when it is open, or while the server speaks."""
    client = RtcClient()
    try:
        if number % 5 == 0:
            sdp = {"content": await client.offer(), "headers": {"Content-Type": "application/sdp"}}
            assert (await http.post("/v1/realtime/calls", **sdp)).status_code == 201
            return
        await client.call(http)
        await client.until("session.created")
        if number % 5 in (1, 2):
            client.send(MESSAGE, {"type": "response.create"})
            await client.until("response.created")
        if number % 5 in (2, 3):
            client.vanish()
        elif number % 5 == 4:
            await http.post(f"{client.location}/hangup")
    finally:
        await client.close()


async def fill_executor() -> None:
    """Have the loop's executor start every thread that it may have."""
    together = threading.Barrier(min(32, (os.cpu_count() or 1) + 4))
    await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(together.parties)))


async def speak(engine: ScriptedEngine) -> None:
    """Begin an answer to whoever asks, and never end it."""
    while True:
        (await engine.opened()).give(TextDelta(text="Once upon a time"), AudioDelta(pcm=tone(2000)))


async def test_fc_140_a_hundred_calls_made_and_dropped_leave_nothing(
    serve: Any, settings: EdgeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 0.1)
    monkeypatch.setattr(media_workers, "PROGRAM", impatient_media_worker.__name__)
    engine = ScriptedEngine()
    monkeypatch.setattr("scripted_engine.TIMEOUT_S", 600.0)
    hurried = EdgeSettings(webrtc=replace(settings.webrtc, connect_timeout_s=2))
    # an idle connection of the HTTP client would be closed some seconds later
    no_idle = httpx2.Limits(max_keepalive_connections=0)
    async with serve(manager_of(engine), settings=hurried) as edge, edge.http(limits=no_idle, timeout=30) as http:
        speaking = asyncio.create_task(speak(engine))
        await fill_executor()
        for _ in range(2):  # what is made with the first calls and kept
            await asyncio.gather(*(one_call(http, engine, number) for number in range(AT_ONCE)))
        await over(edge)
        before = held()
        for first in range(0, CALLS, AT_ONCE):
            await asyncio.gather(*(one_call(http, engine, first + number) for number in range(AT_ONCE)))
        await over(edge, before)
        assert grown(before) == {}
        assert edge.sessions.open_sessions == len(edge.gateway.calls) == 0
        assert all(stream.aborted for stream in engine.streams)
        speaking.cancel()


def grown(before: dict[str, int]) -> dict[str, int]:
    """What there is more of than before. Of some things there may be less: the HTTP client drops idle connections."""
    return {name: count for name, count in held().items() if count > before[name]}


async def over(edge: Any, before: dict[str, int] | None = None) -> None:
    """Wait until every call is over, and what was held is let go of."""
    for _ in range(200):
        gc.collect()
        if not edge.gateway.desk()._tasks and (before is None or not grown(before)):
            return
        await asyncio.sleep(0.05)
