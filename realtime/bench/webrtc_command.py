"""``duologue bench webrtc``: run, tables, JSON."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from duologue.realtime.bench.summary import Metric
from duologue.realtime.client import ClientError

if TYPE_CHECKING:
    from duologue.realtime.bench.webrtc_av import AvReport
    from duologue.realtime.bench.webrtc_load import CallLoad, LoadReport
    from duologue.realtime.bench.webrtc_lossy import LossyRow, Side
    from duologue.realtime.bench.webrtc_run import WebRtcReport
    from duologue.realtime.bench.webrtc_voice import Voice, VoiceReport

_MISSING = "duologue bench: calls need the package {}: pip install 'duologue[webrtc]'"


class Part(StrEnum):
    """What is measured."""

    all = "all"
    load = "load"
    link = "link"
    voice = "voice"
    av = "av"


def webrtc(
    part: Annotated[Part, typer.Option(help="One part of it only.")] = Part.all,
    calls: Annotated[int, typer.Option(min=1, help="Calls at once while costs are measured.")] = 6,
    seconds: Annotated[float, typer.Option(min=1, help="How long each measurement of load and link takes.")] = 6.0,
    ramp: Annotated[bool, typer.Option(help="Look for the most calls that the server holds.")] = True,
    turns: Annotated[int, typer.Option(min=1, help="Answers and interruptions on each transport.")] = 15,
    seed: Annotated[int, typer.Option(help="Fate of the packets on the bad links.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long sound and picture are watched.")] = 1.0,
    media_workers: Annotated[
        int, typer.Option(min=0, max=64, help="Media workers of the gateway whose load is measured.")
    ] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Measure calls: cost beside a bare aiortc echo, sound over a bad network, time to answer beside a WebSocket,
    sound beside picture."""
    try:
        from duologue.realtime.bench.webrtc_run import WebRtcOptions, run_webrtc
    except ModuleNotFoundError as error:
        typer.echo(_MISSING.format(error.name), err=True)
        raise typer.Exit(1) from error
    options = WebRtcOptions(part.value, calls, seconds, ramp, turns, seed, minutes, media_workers)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=None)
        try:
            report = asyncio.run(run_webrtc(options, lambda text: progress.update(task, description=text)))
        except (ClientError, ImportError) as error:
            typer.echo(f"duologue bench: {error}", err=True)
            raise typer.Exit(1) from error
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, Console())


def _print(report: WebRtcReport, console: Console) -> None:
    if report.load is not None:
        _print_load(report.load, console)
    if report.link is not None:
        _print_link(report.link, console)
    if report.voice is not None:
        _print_voice(report.voice, console)
    if report.av is not None:
        _print_av(report.av, console)


def _print_load(report: LoadReport, console: Console) -> None:
    table = Table(title="What a call costs the server", caption=_on_cores(report))
    for heading in ("server", "calls", "CPU % per call", "us per 20 ms", "KiB per call", "gap p99", "held"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for load in (*report.costs, *report.steps):
        table.add_row(*_load_row(load))
    console.print(table)
    if report.ratio is not None:
        console.print(f"processor time per 20 ms, bare echo over our gateway both ways: {report.ratio:.2f}")
    if not all(load.held for load in report.costs):
        console.print("Not every server held: this machine was too busy for these figures to be trusted.")
    for server, calls in report.calls_held.items():
        console.print(f"calls held: {calls} ({server})")
    if any(load.callers_cpu_percent > 80 for load in (*report.costs, *report.steps)):
        console.print("The callers were busy themselves: this machine has too few cores for the larger steps.")


def _on_cores(report: LoadReport) -> str:
    numbers = ", ".join(map(str, report.server_cores)) or "of all"
    gateway = f", the gateway with {report.media_workers} media workers" if report.media_workers else ""
    return f"server on cores {numbers}{gateway}; the callers on the others"


def _load_row(load: CallLoad) -> tuple[str, ...]:
    figures = (f"{load.cpu_percent_per_call:.2f}", f"{load.cpu_us_per_frame:.0f}", f"{load.memory_kib_per_call:,.0f}")
    gap = _ms(load.gap.p99) if load.answers else "-"
    return (load.server, str(load.calls), *figures, gap, "yes" if load.held else "no")


def _print_link(rows: list[LossyRow], console: Console) -> None:
    table = Table(title="Hold of sound over a bad network, ms", caption="mean / p95")
    for heading in ("loss", "jitter", "receiver", "hold", "after a loss", "last second", "unheard", "clicks"):
        table.add_column(heading, justify="left" if heading == "receiver" else "right")
    for row in rows:
        network = (f"{row.loss:.0%}", f"{row.jitter_ms} ms")
        table.add_row(*network, "duologue", *_side(row.duologue))
        table.add_row("", "", "aiortc", *_side(row.aiortc))
    console.print(table)


def _side(side: Side) -> tuple[str, ...]:
    def pair(metric: Metric) -> str:
        return "-" if metric.mean is None else f"{metric.mean:.0f} / {metric.p95:.0f}"

    last = "-" if side.last_second_ms is None else f"{side.last_second_ms:.0f}"
    return (pair(side.hold), pair(side.after_loss), last, str(side.unheard), str(side.clicks))


def _print_voice(report: VoiceReport, console: Console) -> None:
    table = Table(title="Answered and silent, ms", caption="silence window (500 ms) included, no models")
    for heading in ("transport", "answered p50", "p95", "silent p50", "p95", "turns", "missed"):
        table.add_column(heading, justify="left" if heading == "transport" else "right")
    for voice in (report.websocket, report.webrtc):
        table.add_row(*_voice_row(voice))
    console.print(table)
    if report.added_p50_ms is not None:
        console.print(f"a call is answered {report.added_p50_ms:+.1f} ms later than a WebSocket (median)")


def _print_av(report: AvReport, console: Console) -> None:
    offset = report.offset
    table = Table(title="Picture less sound", caption=f"{report.minutes:g} minutes, by sender reports")
    for heading in ("bursts", "mean", "p50", "p99", "least", "most", "outside", "unpaired", "drift", "held"):
        table.add_column(heading, justify="right")
    times = map(_ms, (offset.mean, offset.p50, offset.p99, offset.min, offset.max))
    counts = (str(report.outside), str(report.unpaired))
    table.add_row(str(offset.n), *times, *counts, _ms(report.drift_ms), "yes" if report.held else "no")
    console.print(table)


def _voice_row(voice: Voice) -> tuple[str, ...]:
    times = (voice.answered.p50, voice.answered.p95, voice.silent.p50, voice.silent.p95)
    return (voice.transport, *map(_ms, times), str(voice.answered.n), str(voice.missed))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
