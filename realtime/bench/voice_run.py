"""Running ``duologue bench voice``: the callers, the watch over the server, and the files they leave."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from duologue.engine.models import ModelUnavailable, pull
from duologue.realtime.bench.caller import Caller, CallerSettings
from duologue.realtime.bench.clock import Clock, MonotonicClock
from duologue.realtime.bench.intelligibility import packaged_recogniser, recognise_replies
from duologue.realtime.bench.server_process import ServerWatch, own_server
from duologue.realtime.bench.utterances import Library, Utterance, plan
from duologue.realtime.bench.voice_report import (
    CALLS,
    REPLIES,
    REPORT,
    RESULTS,
    RUN,
    SERVER,
    UTTERANCES,
    BenchReport,
    PlannedCall,
    RunInfo,
    compute,
    write_lines,
)
from duologue.realtime.client import ClientError, RealtimeClient
from duologue.realtime.event_log import EventLog

BASELINE = ("--no-async-chunk", "--speculation", "off")
"""A cascade as it is often built: each stage begins when the one before is done, the first when the turn is over."""
IDLE_S = 5.0
"""How long the idle server is watched before the run."""
LONGEST_PAUSE_SHARE = 0.7
"""Recordings whose longest inner pause exceeds this share of the silence window are left out: they may be two turns."""


class VoiceOptions(msgspec.Struct, frozen=True):
    """What to run; see ``duologue bench voice --help``."""

    out: Path
    url: str | None = None
    """``None`` starts a server of our own."""
    model: str | None = None
    api_key: str | None = None
    utterances: int = 200
    barge_ins: int = 20
    sessions: int = 1
    turns_per_call: int = 10
    speech: Path | None = None
    seed: int = 0
    recognise: int = 50
    recogniser: str = "whisper-base"
    deploy_config: Path | None = None
    server_pid: int | None = None
    idle_s: float = IDLE_S
    settings: CallerSettings = CallerSettings()
    baseline: bool = False
    """Whether the server that is started does nothing in advance; see :data:`BASELINE`."""
    goodput: dict[str, float] = {}


def plan_calls(utterances: Sequence[Utterance], sessions: int, turns_per_call: int) -> list[PlannedCall]:
    """Deal the utterances to the callers in turn, and each caller's over calls of ``turns_per_call``."""
    calls = []
    for session in range(sessions):
        own = [utterance.id for utterance in utterances[session::sessions]]
        for index, first in enumerate(range(0, len(own), turns_per_call)):
            calls.append(PlannedCall(f"s{session:02d}-c{index:03d}", session, own[first : first + turns_per_call]))
    return calls


async def run_voice(
    options: VoiceOptions,
    *,
    on_said: Callable[[Utterance], None] = lambda utterance: None,
    on_phase: Callable[[str], None] = lambda text: None,
    clock: Clock | None = None,
) -> BenchReport:
    """Run the benchmark and return its report, which is computed from the files that it has written to ``out``.

    Raises :class:`~duologue.realtime.client.ClientError` if there is no server, ``ValueError`` for impossible options.
    """
    library = Library(options.speech)
    pause_s = options.settings.silence_ms / 1000 * LONGEST_PAUSE_SHARE
    utterances = await asyncio.to_thread(
        plan, options.utterances, options.barge_ins, library, seed=options.seed, longest_pause_s=pause_s
    )
    on_phase("synthesising what the callers will say")
    await asyncio.to_thread(_prepare, library, utterances)
    not_measured = await _fetch_recogniser(options, on_phase)
    options.out.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        url, pid, ready_s = options.url, options.server_pid, None
        if url is None:
            on_phase("starting a server")
            log, more = options.out / "server.log", BASELINE if options.baseline else ()
            server = await stack.enter_async_context(own_server(options.deploy_config, log, more=more))
            url, pid, ready_s = server.url, server.pid, server.ready_s
        info = _run_info(options, url, ready_s, library, utterances, not_measured)
        (options.out / RUN).write_bytes(msgspec.json.format(msgspec.json.encode(info)))
        write_lines(options.out / UTTERANCES, utterances)
        watch = ServerWatch(pid) if pid is not None else None
        if watch:
            on_phase(f"watching the idle server for {options.idle_s:g} s")
            watch.take("idle_start")
            await asyncio.sleep(options.idle_s)
            watch.take("idle_end")
        on_phase(f"{options.sessions} caller(s) talking to {url}")
        await _talk(options, info, library, utterances, watch, on_said, clock or MonotonicClock())
        if watch:
            write_lines(options.out / SERVER, watch.samples)
    if info.recogniser:
        on_phase("recognising the answers again")
        await asyncio.to_thread(_recognise, options)
    return write_report(options.out)


async def _fetch_recogniser(options: VoiceOptions, on_phase: Callable[[str], None]) -> dict[str, str]:
    """Pull the recogniser before the run; why its figure will be missing if it cannot be had."""
    if not options.recognise:
        return {}
    on_phase(f"fetching {options.recogniser}")
    try:
        await asyncio.to_thread(pull, options.recogniser)
    except ModelUnavailable as error:
        return {"intelligibility": str(error)}
    return {}


def _run_info(
    options: VoiceOptions,
    url: str,
    ready_s: float | None,
    library: Library,
    utterances: Sequence[Utterance],
    not_measured: dict[str, str],
) -> RunInfo:
    return RunInfo(
        url=url,
        own_server=options.url is None,
        sessions=options.sessions,
        utterances=options.utterances,
        barge_ins=options.barge_ins,
        seed=options.seed,
        speech=options.speech.name if options.speech else None,
        left_out=library.left_out,
        settings=options.settings,
        calls=plan_calls(utterances, options.sessions, options.turns_per_call),
        ready_s=ready_s,
        machine=machine(),
        model=options.model,
        baseline=options.baseline,
        recogniser=options.recogniser if options.recognise and not not_measured else None,
        not_measured=not_measured,
        goodput=options.goodput,
    )


async def _talk(
    options: VoiceOptions,
    info: RunInfo,
    library: Library,
    utterances: Sequence[Utterance],
    watch: ServerWatch | None,
    on_said: Callable[[Utterance], None],
    clock: Clock,
) -> None:
    by_id = {utterance.id: utterance for utterance in utterances}

    async def caller(session: int) -> None:
        for call in info.calls:
            if call.session == session:
                said = [by_id[id_] for id_ in call.utterance_ids]
                await _call(options, info.url, options.out / CALLS / call.name, said, library, on_said, clock)

    sampling = None
    if watch:
        watch.take("run_start")
        sampling = asyncio.create_task(watch.sample(), name="server-watch")
    try:
        async with asyncio.TaskGroup() as callers:
            for session in range(options.sessions):
                callers.create_task(caller(session), name=f"caller-{session}")
    finally:
        if watch and sampling:
            watch.take("run_end")
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)


async def _call(
    options: VoiceOptions,
    url: str,
    folder: Path,
    utterances: Sequence[Utterance],
    library: Library,
    on_said: Callable[[Utterance], None],
    clock: Clock,
) -> None:
    """One connection from dialling to hanging up; its log is written whatever happens."""
    log = EventLog()
    try:
        client = await RealtimeClient.connect(
            url, model=options.model, api_key=options.api_key, log=log, clock=clock.now
        )
        async with client:
            await Caller(client, library, clock, options.settings, on_said).run(utterances)
    except ClientError as error:
        log.note({"type": "connection.lost", "message": str(error)}, clock.now())
    finally:
        await asyncio.to_thread(log.save, folder)


def write_report(run: Path) -> BenchReport:
    """Compute a run's figures from its files and write them beside the raw record."""
    report, scores = compute(run)
    write_lines(run / RESULTS, [result for score in scores for result in score.results])
    (run / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return report


def _prepare(library: Library, utterances: Sequence[Utterance]) -> None:
    """Read and synthesise everything beforehand: during the run the processor belongs to the server."""
    for utterance in utterances:
        library.sound(utterance.source, utterance.name)
        if utterance.interruption:
            library.sound("synthesised", utterance.interruption)


def _recognise(options: VoiceOptions) -> None:
    calls = sorted(path for path in (options.out / CALLS).iterdir() if path.is_dir())
    replies = recognise_replies(calls, options.recognise, packaged_recogniser(options.recogniser))
    write_lines(options.out / REPLIES, replies)


def machine() -> dict[str, Any]:
    """What a run was made on."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "cores": len(cores),
        "processor": _processor(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "duologue": version("duologue"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
