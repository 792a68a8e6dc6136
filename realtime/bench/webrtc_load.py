"""What a call costs a server: its processor time per call, and how many calls it holds.

The server is alone on its core (with media workers the gateway has one more for each); the callers live in this
process, on the others, and cost little: their packets are made beforehand. Every caller talks without end and is talked
to without end, but where it says otherwise.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from duologue.realtime.bench.cpu_clock import cpu_seconds
from duologue.realtime.bench.gateway_caller import TURN_DETECTION
from duologue.realtime.bench.gateway_run import SERVER as GATEWAY
from duologue.realtime.bench.server_process import OwnServer, own_server
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.webrtc_peer import LeanPeer, post_offer, turn_packets
from duologue.realtime.bench.webrtc_server import SERVER
from duologue.realtime.webrtc.media_clock import FRAME_S

WARM_S: Final = 2.0
MOST_GAP_MS: Final = 60.0
"""Most time between two packets of a call, p99, that still counts as real time: what a browser's buffer bridges."""
SETTLED: Final = 0.12
MOST_CALLS: Final = 400
ANSWER_S: Final = 600.0

OnPhase = Callable[[str], None]


@dataclass(frozen=True)
class _Server:
    """One of the servers that are compared."""

    name: str
    program: str
    path: str = ""
    packets: Callable[[], list[bytes] | None] = lambda: None
    events: tuple[dict[str, Any], ...] = ()
    answers: bool = True
    """Whether it sends as much as it gets."""
    gateway: bool = True
    """Whether it may have media workers."""


_SESSION: Final = {
    "type": "session.update",
    "session": {"type": "realtime", "audio": {"input": {"turn_detection": TURN_DETECTION}}},
}
_ASK: Final = {
    "type": "conversation.item.create",
    "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": str(ANSWER_S)}]},
}
_CALLS: Final = "/v1/realtime/calls"

ECHO: Final = _Server("aiortc, bare echo", SERVER.format("aiortc"), gateway=False)
MEDIA: Final = _Server("duologue, media alone, echo", SERVER.format("media"), gateway=False)
BOTH: Final = _Server(
    "duologue, gateway, both ways", GATEWAY, _CALLS, turn_packets, (_SESSION, _ASK, {"type": "response.create"})
)
LISTENING: Final = _Server("duologue, gateway, listening", GATEWAY, _CALLS, turn_packets, (_SESSION,), answers=False)


class CallLoad(msgspec.Struct, frozen=True):
    """One measurement with so many calls."""

    server: str
    calls: int
    seconds: float
    cpu_percent_per_call: float
    cpu_us_per_frame: float
    """Per 20 ms of a call that came through, both directions together: a server that lags does less than it should."""
    memory_kib_per_call: float
    sent: int
    received: int
    gap: Metric
    """Between two packets of a call on their way back."""
    callers_cpu_percent: float
    """Of this process: near 100 the callers are what is measured."""
    answers: bool

    @property
    def held(self) -> bool:
        """Whether this is real time."""
        due = self.calls * self.seconds / FRAME_S
        came = not self.answers or (self.received >= 0.98 * due and (self.gap.p99 or 0.0) <= MOST_GAP_MS)
        return came and self.sent >= 0.98 * due


class LoadReport(msgspec.Struct, frozen=True):
    """Each server's cost, and the most calls that its cores held (None: not looked for)."""

    server_cores: tuple[int, ...]
    """Those of the gateway; the others have the first of them. Empty: all are shared with the callers."""
    media_workers: int
    costs: list[CallLoad]
    steps: list[CallLoad]
    calls_held: dict[str, int]
    ratio: float | None
    """Processor time of the bare echo over that of our gateway, both ways, for the same 20 ms. Only worth something if
    both held."""


async def run_load(
    calls: int, seconds: float, ramp: bool, media_workers: int = 0, on_phase: OnPhase = lambda text: None
) -> LoadReport:
    """Measure every server with ``calls`` calls; with ``ramp`` find the most that the echo and our gateway hold.

    ``media_workers``: of the gateway.
    """
    costs, steps, most = [], [], {}
    with _cores(1 + media_workers) as server_cores:
        for server in (ECHO, MEDIA, BOTH, LISTENING):
            cores = server_cores if server.gateway else server_cores[:1]
            async with _serving(server, cores, media_workers) as fleet:
                on_phase(f"{server.name}: {calls} calls")
                await fleet.grow_to(calls)
                costs.append(await fleet.measure(seconds))
                if ramp and server in (ECHO, BOTH):
                    found = await _most(fleet, costs[-1], seconds, on_phase)
                    steps += found
                    most[server.name] = max((load.calls for load in [costs[-1], *found] if load.held), default=0)
    by_name = {load.server: load.cpu_us_per_frame for load in costs}
    ratio = round(by_name[ECHO.name] / by_name[BOTH.name], 2) if by_name[BOTH.name] else None
    return LoadReport(server_cores, media_workers, costs, steps, most, ratio)


async def _most(fleet: _Fleet, first: CallLoad, seconds: float, on_phase: OnPhase) -> list[CallLoad]:
    """From what the processor time promises, up while it holds and down while it does not, then halving the gap."""
    steps: list[CallLoad] = []
    good, bad = (first.calls, None) if first.held else (0, first.calls)
    promised = round(90 / first.cpu_percent_per_call)
    while bad is None or bad - good > max(1, SETTLED * bad):
        higher = promised if promised > good else round(good * 1.25) + 1
        probe = higher if bad is None else (good + bad) // 2
        if probe > MOST_CALLS:
            break
        on_phase(f"{first.server}: {probe} calls")
        await fleet.grow_to(probe)
        steps.append(await fleet.measure(seconds))
        good, bad = (probe, bad) if steps[-1].held else (good, probe)
    return steps


class _Fleet:
    """The callers of one server."""

    def __init__(self, server: _Server, own: OwnServer) -> None:
        self._server = server
        self._url = own.url if not server.path else own.url.replace("ws://", "http://").split("/v1/")[0] + server.path
        process = psutil.Process(own.pid)
        self._processes = [process, *process.children()]
        self._empty = 0
        self._callers: list[LeanPeer] = []

    async def grow_to(self, calls: int) -> None:
        """So many callers in all; fewer hang up."""
        if not self._empty:
            # What is loaded with the first call belongs to no call.
            await self._call()
            await self._callers.pop().hang_up()
            self._empty = self._memory()
        while len(self._callers) < calls:
            await self._call()
        while len(self._callers) > calls:
            await self._callers.pop().hang_up()

    async def _call(self) -> None:
        caller = LeanPeer(self._server.packets(), self._server.events)
        await caller.call(partial(post_offer, self._url))
        self._callers.append(caller)

    async def measure(self, seconds: float) -> CallLoad:
        await asyncio.sleep(WARM_S)
        for caller in self._callers:
            caller.mark()
        before, own_before, began = self._cpu(), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        took, used = time.monotonic() - began, self._cpu() - before
        own = time.process_time() - own_before
        calls = len(self._callers)
        sent, received = (sum(getattr(caller, name) for caller in self._callers) for name in ("sent", "received"))
        frames = (sent + received) / 2 if self._server.answers else sent
        gaps = np.concatenate([np.array(caller.gaps) for caller in self._callers])
        return CallLoad(
            server=self._server.name,
            calls=calls,
            seconds=round(took, 2),
            cpu_percent_per_call=round(100 * used / took / calls, 3),
            cpu_us_per_frame=round(1e6 * used / max(1, frames), 1),
            memory_kib_per_call=round((self._memory() - self._empty) / 1024 / calls, 1),
            sent=sent,
            received=received,
            gap=metric(1000 * gaps, "ms", "between packets of a call that came back"),
            callers_cpu_percent=round(100 * own / took, 1),
            answers=self._server.answers,
        )

    def _cpu(self) -> float:
        return sum(cpu_seconds(process) for process in self._processes)

    def _memory(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    async def close(self) -> None:
        for caller in self._callers:
            await caller.hang_up()


@asynccontextmanager
async def _serving(server: _Server, cores: tuple[int, ...], media_workers: int) -> AsyncIterator[_Fleet]:
    program = server.program.format(f"{MOST_CALLS + 8}, {media_workers}") if server.gateway else server.program
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        log = Path(folder) / "server.log"
        async with own_server(None, log, cores=cores, program=program) as own:
            fleet = _Fleet(server, own)
            try:
                yield fleet
            finally:
                await fleet.close()


@contextmanager
def _cores(wanted: int) -> Iterator[tuple[int, ...]]:
    """So many cores for the server, fewer where none would be left for us, where the machine has two and lets us
    choose."""
    if not hasattr(os, "sched_getaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield ()
        return
    server = min(wanted, len(cores) - 1)
    os.sched_setaffinity(0, cores[server:])
    try:
        yield tuple(cores[:server])
    finally:
        os.sched_setaffinity(0, cores)
