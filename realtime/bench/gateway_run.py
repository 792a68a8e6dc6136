"""What a session costs the gateway: everything in real time, the clients on other cores."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import psutil

from duologue.realtime.bench.gateway_caller import Command, Reply
from duologue.realtime.bench.gateway_signal import CHUNK_S, LOOP_S, decisions
from duologue.realtime.bench.server_process import ECHO, on_cores, own_server
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.client import ServerUnreachable
from duologue.realtime.compiled import is_compiled

CALLER: Final = "from duologue.realtime.bench.gateway_caller import main; main()"
SERVER: Final = "from duologue.realtime.bench.gateway_server import main; main({})"
LIMIT_MS: Final = 20.0
"""Most added latency, p99, that still counts as real time: one chunk."""
PACED_MS: Final = 20.0
"""A run in which the clients sent later than this (p99) measures the clients."""
WHOLE_RUN_S: Final = 600.0
WARM_S: Final = LOOP_S + 1.5
"""Until every session sends, and things have settled."""
SETTLED: Final = 0.1
"""The search ends when the largest number that held and the smallest that did not are this close."""

OnPhase = Callable[[str], None]


@dataclass(frozen=True)
class GatewayOptions:
    """``sessions``: how many stream while costs are measured; ``seconds``: how long each measurement takes;
    ``in_step``: all turns begin in the same 20 ms, and all end in the same."""

    sessions: int = 100
    seconds: float = 5.0
    ramp: bool = True
    max_sessions: int = 400
    clients: int = 1
    echo: bool = True
    in_step: bool = False
    server_cores: tuple[int, ...] = ()
    client_cores: tuple[int, ...] = ()

    @property
    def send(self) -> Command:
        """Everybody speaks: each in a loop of its own, or all in step."""
        return Command(do="send", seconds=CHUNK_S if self.in_step else LOOP_S)


class Usage(msgspec.Struct, frozen=True):
    """Processor seconds of the server's process, and its memory."""

    at: float
    cpu_s: float
    memory: int


class Load(msgspec.Struct, frozen=True):
    """One measurement with so many sessions streaming."""

    sessions: int
    seconds: float
    chunks_in: int
    chunks_out: int
    cpu_share: float
    """Processor time of the server per second: 1 is a whole core."""
    cpu_us: float | None
    """Processor time per 20 ms of a session (in and out where both flow), all in."""
    added_sound: Metric
    """From a 20 ms chunk leaving the scripted engine to its arrival at the client."""
    added_decision: Metric
    """From sending the chunk that lets the server decide on a turn to the arrival of its announcement."""
    pacing_lag: Metric
    lost: int
    unexpected: int
    errors: list[str]

    @property
    def held(self) -> bool:
        """Whether this is real time: nothing lost, nothing fell behind, and the worse of the two p99 in its limit."""
        due = self.sessions * self.seconds / CHUNK_S
        worst = max((m.p99 or 0.0) for m in (self.added_sound, self.added_decision))
        return not self.lost and self.chunks_out >= 0.99 * due and self.chunks_in >= 0.99 * due and worst <= LIMIT_MS


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of the server's process in KiB per session."""

    sessions: int
    idle_kib: float
    streaming_kib: float


class GatewayReport(msgspec.Struct, frozen=True):
    """Everything that was measured; None: it was left out."""

    compiled: bool
    """Whether the server's sessions are a compiled build's."""
    server_cores: tuple[int, ...]
    client_cores: tuple[int, ...]
    memory: Memory
    idle_cpu_share: float
    incoming: Load
    outgoing: Load
    both: Load
    steps: list[Load]
    sessions_per_core: int | None
    echo: Load | None
    echo_sessions_per_core: int | None


async def run_gateway(options: GatewayOptions, on_phase: OnPhase = lambda text: None) -> GatewayReport:
    """Start a server with the scripted engine, and measure it. Raises ``ServerUnreachable``."""
    options = with_cores(options)
    expected = decisions(WHOLE_RUN_S / 4)
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as name:
        folder = Path(name)
        slots = 2 * max(options.max_sessions, options.sessions) + 8  # some may be leaving while others come
        on_phase("starting the server")
        async with (
            own_server(None, folder / "server.log", cores=options.server_cores, program=SERVER.format(slots)) as server,
            _fleet(server.url, options) as fleet,
        ):
            measured = await _measure(fleet, server.pid, options, expected, on_phase)
        echo, most = await _measure_echo(folder, options, on_phase) if options.echo else (None, None)
    return GatewayReport(
        compiled=is_compiled(),
        server_cores=options.server_cores,
        client_cores=options.client_cores,
        echo=echo,
        echo_sessions_per_core=most,
        **measured,
    )


async def _measure(
    fleet: Fleet, pid: int, options: GatewayOptions, expected: list[Any], on_phase: OnPhase
) -> dict[str, Any]:
    """The fields of the report that come of the real server."""
    count = options.sessions
    await fleet.tell(Command(do="connect", count=8, decisions=expected))
    await fleet.tell(Command(do="hang_up", count=8))
    await asyncio.sleep(0.5)
    empty = usage(pid)
    on_phase(f"{count} idle sessions")
    await fleet.connect(count)
    await asyncio.sleep(0.5)
    idle = usage(pid)
    await asyncio.sleep(options.seconds / 2)
    rested = usage(pid)
    on_phase(f"{count} sessions, sound in")
    await fleet.tell(options.send)
    incoming = await fleet.measure(pid, options.seconds)
    await fleet.tell(Command(do="rest"))
    on_phase(f"{count} sessions, sound out")
    await fleet.tell(Command(do="answer", seconds=WHOLE_RUN_S))
    outgoing = await fleet.measure(pid, options.seconds)
    on_phase(f"{count} sessions, both ways")
    await fleet.tell(options.send)
    both = await fleet.measure(pid, options.seconds)
    streaming = usage(pid)
    memory = Memory(count, _kib(empty, idle, count), _kib(empty, streaming, count))
    idle_share = round((rested.cpu_s - idle.cpu_s) / (rested.at - idle.at), 4)
    steps, best = await _ramp(fleet, pid, options, both, on_phase) if options.ramp else ([], None)
    return {
        "memory": memory,
        "idle_cpu_share": idle_share,
        "incoming": incoming,
        "outgoing": outgoing,
        "both": both,
        "steps": steps,
        "sessions_per_core": best,
    }


async def _ramp(
    fleet: Fleet, pid: int, options: GatewayOptions, first: Load, on_phase: OnPhase, echo: bool = False
) -> tuple[list[Load], int]:
    """The most sessions that are in real time: half as many again until it fails, then halving the gap."""
    steps: list[Load] = []
    good, bad = (first.sessions, None) if first.held else (0, first.sessions)
    while (bad is None and good < options.max_sessions) or (bad is not None and bad - good > SETTLED * bad):
        probe = min(options.max_sessions, good * 3 // 2) if bad is None else (good + bad) // 2
        on_phase(f"{probe} sessions, {'bare echo' if echo else 'both ways'}")
        if bad is not None:  # what a server owes to too many callers, it would still owe to fewer
            await fleet.tell(Command(do="hang_up", count=fleet.sessions))
        more = probe - fleet.sessions
        await fleet.connect(more)
        if not echo:
            await fleet.tell(Command(do="answer", seconds=WHOLE_RUN_S, count=more))
        await fleet.tell(options.send)
        load = await fleet.measure(pid, options.seconds)
        steps.append(load)
        good, bad = (probe, bad) if load.held else (good, probe)
    return steps, good


async def _measure_echo(folder: Path, options: GatewayOptions, on_phase: OnPhase) -> tuple[Load, int | None]:
    on_phase(f"{options.sessions} sessions, bare echo")
    async with (
        own_server(None, folder / "echo.log", cores=options.server_cores, program=ECHO) as server,
        _fleet(server.url, options) as fleet,
    ):
        await fleet.connect(options.sessions)
        await fleet.tell(options.send)
        load = await fleet.measure(server.pid, options.seconds)
        _, most = await _ramp(fleet, server.pid, options, load, on_phase, echo=True) if options.ramp else ([], None)
        return load, most


# -- parts -------------------------------------------------------------------------------------------------------------


def with_cores(options: GatewayOptions) -> GatewayOptions:
    """One core for the server, the others for everything else, where the machine has two and lets us choose."""
    if options.server_cores or not hasattr(os, "sched_getaffinity"):
        return options
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return options
    return replace(options, server_cores=(cores[0],), client_cores=tuple(cores[1:]))


def usage(pid: int) -> Usage:
    """What a process has used so far."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    return Usage(time.monotonic(), times.user + times.system, process.memory_info().rss)


def _kib(before: Usage, after: Usage, sessions: int) -> float:
    return round((after.memory - before.memory) / 1024 / sessions, 1)


class Fleet:
    """The client processes."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self.sessions = 0

    async def connect(self, count: int) -> None:
        """So many more sessions, dealt to the processes."""
        each, rest = divmod(count, len(self._processes))
        commands = [Command(do="connect", count=each + (n < rest)) for n in range(len(self._processes))]
        self._count(await asyncio.gather(*map(self._ask, self._processes, commands)))

    async def tell(self, command: Command) -> list[Reply]:
        """Give every process the same command; ``count`` is dealt out."""
        each, rest = divmod(command.count, len(self._processes))
        commands = [msgspec.structs.replace(command, count=each + (n < rest)) for n in range(len(self._processes))]
        replies = list(await asyncio.gather(*map(self._ask, self._processes, commands)))
        self._count(replies)
        return replies

    async def measure(self, pid: int, seconds: float) -> Load:
        """Count for so long, after a moment for things to settle."""
        await asyncio.sleep(WARM_S)
        await self.tell(Command(do="mark"))
        before = usage(pid)
        await asyncio.sleep(seconds)
        after = usage(pid)
        return _load(self.sessions, before, after, await self.tell(Command(do="report")))

    def _count(self, replies: Sequence[Reply]) -> None:
        self.sessions = sum(reply.sessions for reply in replies)

    async def _ask(self, process: asyncio.subprocess.Process, command: Command) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(command) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise ServerUnreachable("a client process of the benchmark ended early; its own words are above")
        return msgspec.json.decode(line, type=Reply)


def _load(sessions: int, before: Usage, after: Usage, replies: Sequence[Reply]) -> Load:
    def joined(name: Literal["sound_us", "decision_us", "pacing_lag_us"]) -> list[float]:
        return [value / 1000 for reply in replies for value in getattr(reply, name)]

    took = after.at - before.at
    sent, received = sum(r.sent for r in replies), sum(r.received for r in replies)
    cpu_s = after.cpu_s - before.cpu_s
    chunks = max(sent, received)
    return Load(
        sessions=sessions,
        seconds=round(took, 2),
        chunks_in=sent,
        chunks_out=received,
        cpu_share=round(cpu_s / took, 4),
        cpu_us=round(1e6 * cpu_s / chunks, 2) if chunks else None,
        added_sound=metric(joined("sound_us"), "ms", "received by the client - left the scripted engine"),
        added_decision=metric(joined("decision_us"), "ms", "announcement received - deciding chunk sent"),
        pacing_lag=metric(joined("pacing_lag_us"), "ms", "handed to the transport - due"),
        lost=sum(r.lost for r in replies),
        unexpected=sum(r.unexpected for r in replies),
        errors=[error for r in replies for error in r.errors],
    )


@asynccontextmanager
async def _fleet(url: str, options: GatewayOptions) -> AsyncIterator[Fleet]:
    """Start the client processes; stop them by closing their input."""
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(_caller(url, options, n)) for n in range(options.clients)]
        yield Fleet(processes)


@asynccontextmanager
async def _caller(url: str, options: GatewayOptions, number: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        on_cores(options.client_cores, CALLER),
        url,
        str(number),
        str(options.clients),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**28,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
