"""``duologue bench gateway``: run, table, JSON."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from duologue.realtime.bench.gateway_long import LongReport, Sample, run_long
from duologue.realtime.bench.gateway_run import PACED_MS, GatewayOptions, GatewayReport, Load, run_gateway
from duologue.realtime.bench.summary import Metric
from duologue.realtime.client import ClientError

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]


def gateway(
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions for the costs; default 100, with --minutes 1.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each measurement takes.")] = 5.0,
    ramp: Annotated[bool, typer.Option(help="Look for the most sessions that stay in real time.")] = True,
    max_sessions: Annotated[int, typer.Option(min=1, help="Where the search ends.")] = 400,
    clients: Annotated[int, typer.Option(min=1, help="Client processes.")] = 1,
    echo: Annotated[bool, typer.Option(help="Measure a bare echo server with the same clients too.")] = True,
    in_step: Annotated[
        bool, typer.Option("--in-step", help="All turns begin in the same 20 ms, and all end in the same.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Instead of all that: talk for so long and see whether memory grows.")
    ] = None,
    json: _Json = False,
) -> None:
    """Measure what a session costs: server on one core, clients on the others, no models."""
    options = GatewayOptions(sessions or 100, seconds, ramp, max_sessions, clients, echo, in_step)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting the server", total=None)
        report: GatewayReport | LongReport
        try:
            if minutes is None:
                report = asyncio.run(run_gateway(options, lambda text: progress.update(task, description=text)))
            else:

                def sampled(share: float, sample: Sample) -> None:
                    text = f"{sample.rss_kib / 1024:.1f} MiB, {sample.threads} threads"
                    progress.update(task, total=1.0, completed=share, description=text)

                options = GatewayOptions(sessions or 1, max_sessions=sessions or 1)
                report = asyncio.run(run_long(minutes, sessions or 1, options, sampled))
        except ClientError as error:
            typer.echo(f"duologue bench: {error}", err=True)
            raise typer.Exit(1) from error
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    elif isinstance(report, LongReport):
        _print_long(report, Console())
    else:
        _print(report, Console())
    if isinstance(report, LongReport) and not report.plateau:
        raise typer.Exit(1)


def _print(report: GatewayReport, console: Console) -> None:
    cores = (
        f"server and scripted engine on core {_cores(report.server_cores)}, clients on {_cores(report.client_cores)}"
    )
    build = "compiled" if report.compiled else "not compiled"
    table = Table(title=f"20 ms chunks in real time, sessions {build}", caption=cores)
    for heading in ("load", "sessions", "CPU", "us per 20 ms", "p99 sound", "p99 turn", "held"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    one_way: list[tuple[str, Load | None]] = [("sound in", report.incoming), ("sound out", report.outgoing)]
    both = [("both ways", report.both), *(("both ways", step) for step in report.steps), ("bare echo", report.echo)]
    rows = [(name, load) for name, load in [*one_way, *both] if load is not None]
    for name, load in rows:
        # Only sound both ways can be held.
        held = "-" if name in dict(one_way) else "yes" if load.held else "no"
        table.add_row(name, *_figures(load), held)
    console.print(table)
    memory = report.memory
    console.print(
        f"memory per session: {memory.idle_kib:,.0f} KiB idle, {memory.streaming_kib:,.0f} KiB streaming; "
        f"{memory.sessions} idle sessions use {report.idle_cpu_share:.2%} of a core"
    )
    if report.sessions_per_core is not None:
        echo = "" if report.echo_sessions_per_core is None else f"; bare echo: {report.echo_sessions_per_core}"
        console.print(f"sessions per core: {report.sessions_per_core}{echo}")
    late = [load for _, load in rows if (load.pacing_lag.p99 or 0) > PACED_MS]
    if late:
        console.print("The clients were late themselves: this machine was too busy for these figures to be trusted.")


def _figures(load: Load) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    def late(metric: Metric) -> str:
        return "-" if metric.p99 is None else f"{metric.p99:.1f} ms"

    times = (late(load.added_sound), late(load.added_decision))
    return (str(load.sessions), f"{load.cpu_share:.0%}", number(load.cpu_us), *times)


def _print_long(report: LongReport, console: Console) -> None:
    answers = ", ".join(f"{count} {status}" for status, count in sorted(report.answers.items())) or "none"
    console.print(
        f"{report.minutes:g} minutes, {report.sessions} session(s): {report.turns} turns; answers: {answers}; "
        f"{report.truncated} truncated, {report.deleted} deleted, {report.retrieved} retrieved, "
        f"{len(report.errors)} errors"
    )
    console.print(
        f"memory {report.rss_kib_after_warm_up / 1024:.1f} MiB after the warm-up, "
        f"{report.rss_kib_at_end / 1024:.1f} MiB at the end ({report.kib_per_minute:+.1f} KiB a minute); "
        f"threads {report.threads[0]} and {report.threads[1]}, files {report.files[0]} and {report.files[1]}; "
        f"CPU {report.cpu_percent:.1f} %"
    )
    console.print("no growth" if report.plateau else "it grew")


def _cores(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores)) or "any"
