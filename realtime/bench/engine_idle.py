"""What a gateway costs while nobody speaks: processor time of the whole process tree."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from duologue.realtime.bench.server_process import ServerWatch, own_server
from duologue.realtime.client import RealtimeClient

SETTLE_S = 2.0
"""After the last connection, before the measurement."""


class Idle(msgspec.Struct, frozen=True):
    sessions: int
    seconds: float
    cpu_percent: float
    """Processor seconds over seconds, 100 is one core busy all the time."""
    rss_mib: float


async def measure_idle(sessions: tuple[int, ...], seconds: float) -> list[Idle]:
    """Start ``duologue serve`` with the packaged pipeline and watch it with so many sessions open that say nothing."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        deploy = Path(folder) / "deploy.yaml"
        deploy.write_text(f"duplex_session: {{max_sessions: {max(*sessions, 1)}}}\n")
        async with own_server(deploy, Path(folder) / "server.log") as server, AsyncExitStack() as stack:
            watch, found, connected = ServerWatch(server.pid), [], 0
            for count in sorted(sessions):
                for _ in range(count - connected):
                    await stack.enter_async_context(await RealtimeClient.connect(server.url))
                connected = count
                await asyncio.sleep(SETTLE_S)
                watch.take("idle_start")
                await asyncio.sleep(seconds)
                watch.take("idle_end")
                before, after = watch.samples[-2:]
                took = after.t_s - before.t_s
                percent = 100 * (after.cpu_s - before.cpu_s) / took
                found.append(Idle(count, round(took, 2), round(percent, 3), round(after.rss_bytes / 2**20, 1)))
            return found
