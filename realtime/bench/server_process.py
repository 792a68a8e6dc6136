"""A server of our own for a benchmark: started in a child process, watched from outside, stopped at the end."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from duologue.realtime.bench.cpu_clock import cpu_seconds
from duologue.realtime.client import ServerUnreachable

READY = "duologue ready "
STOP_S = 10.0
SERVE = "from duologue.realtime.cli import main; main()"
ECHO = "from duologue.realtime.bench.gateway_echo import main; main()"

Phase = Literal["idle_start", "idle_end", "run_start", "run_end", "sample"]


class ServerSample(msgspec.Struct, frozen=True):
    """CPU seconds used so far and resident memory of the server, all its processes together."""

    phase: Phase
    t_s: float
    cpu_s: float
    rss_bytes: int
    stolen_s: float | None = None
    """Seconds of each core, on the average, that the host of this virtual machine has given to others so far; None: it
    does not say."""


class ServerWatch:
    """Reads a process tree's CPU time and memory. ``samples`` is the raw record."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.samples: list[ServerSample] = []

    def take(self, phase: Phase) -> None:
        """Append one sample. A server that is gone leaves none."""
        cpu, memory = 0.0, 0
        try:
            for process in (self._process, *self._process.children(recursive=True)):
                cpu += cpu_seconds(process)
                memory += process.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.samples.append(ServerSample(phase, round(time.monotonic(), 6), round(cpu, 6), memory, _stolen_s()))

    async def sample(self, every_s: float = 1.0) -> None:
        """Sample until cancelled, so that the largest memory is seen."""
        while True:
            self.take("sample")
            await asyncio.sleep(every_s)


def _stolen_s() -> float | None:
    stolen: float | None = getattr(psutil.cpu_times(), "steal", None)  # Linux knows
    return None if stolen is None else round(stolen / (psutil.cpu_count() or 1), 6)


class OwnServer(msgspec.Struct, frozen=True):
    url: str
    pid: int
    ready_s: float
    """From starting the process to its ready line."""


@asynccontextmanager
async def own_server(
    deploy_config: Path | None,
    log: Path,
    timeout_s: float = 300.0,
    cores: Collection[int] = (),
    program: str = SERVE,
    more: Sequence[str] = (),
) -> AsyncIterator[OwnServer]:
    """Run ``duologue serve`` on a free port, on ``cores`` if any are given, with ``more`` arguments. Its standard error
    goes to ``log``.

    Raises :class:`ServerUnreachable` with the server's own last line if it does not become ready.
    """
    arguments = ["serve", "--port", "0", *(("--deploy-config", str(deploy_config)) if deploy_config else ()), *more]
    started = time.monotonic()
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            on_cores(cores, program),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    draining: asyncio.Task[bytes] | None = None
    try:
        try:
            async with asyncio.timeout(timeout_s):
                url = await _ready_url(process.stdout)
        except TimeoutError:
            url = None
        if url is None:
            raise ServerUnreachable(f"the server did not start: {_last_line(log) or 'no output'} (log: {log})")
        draining = asyncio.create_task(process.stdout.read(), name="server-stdout")
        yield OwnServer(url, process.pid, round(time.monotonic() - started, 3))
    finally:
        await _stop(process)
        if draining is not None:
            await draining


def on_cores(cores: Collection[int], program: str) -> str:
    """A program that first moves to the given cores, so that every thread of it is born there."""
    return f"import os; os.sched_setaffinity(0, {sorted(cores)})\n{program}" if cores else program


async def _ready_url(stdout: asyncio.StreamReader) -> str | None:
    """The address of the server's ready line; ``None`` if its output ends before."""
    async for line in stdout:
        text = line.decode(errors="replace").strip()
        if text.startswith(READY):
            return text.removeprefix(READY).split()[0]
    return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
