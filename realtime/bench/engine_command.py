"""``duologue bench engine``: run, table, JSON."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from duologue.realtime.bench.engine_run import EngineReport, ray_installed, run_engine
from duologue.realtime.bench.summary import Metric
from duologue.realtime.serve import share_interpreter


def engine(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each hop is measured.")] = 4.0,
    idle_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="How long an idle server is watched (a ping goes to each session every 20 s); 0 leaves that out.",
        ),
    ] = 40.0,
    answers: Annotated[
        int,
        typer.Option(
            min=0, help="Long answers with and without async chunk, and five times as many aborted; 0 leaves them out."
        ),
    ] = 3,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Measure what the engine itself costs: an idle server, hops between stages, routing, aborts, and what async chunk
    and event-driven routing save."""
    if not ray_installed():
        typer.echo("Ray is not installed, so its hops are left out: pip install 'duologue[ray]'", err=True)
    share_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # both as in a server
        report = runner.run(run_engine(seconds, idle_seconds, answers))
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, Console())


def _print(report: EngineReport, console: Console) -> None:
    table = Table(title="one hop, stage to stage")
    for heading in ("executor", "payload by", "bytes", "a second", "n", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading in ("executor", "payload by") else "right")
    for hop in report.hops:
        where = (hop.executor, hop.connector, f"{hop.payload_bytes:,}", str(hop.per_second))
        table.add_row(*where, *_figures(hop.latency))
    console.print(table)
    for idle in report.idle:
        console.print(f"idle with {idle.sessions} sessions: {idle.cpu_percent:.3f} % CPU, {idle.rss_mib:,.0f} MiB")
    for routing in report.routing:
        console.print(f"routing, {routing.executor}: {routing.per_second:,.0f} pieces/s ({routing.streams} streams)")
    for aborts in report.aborts:
        n, p50, p99 = _figures(aborts.until_stopped)
        console.print(
            f"abort until three stages with steps of {aborts.step_ms:g} ms have stopped, {aborts.executor}: "
            f"p50 {p50} ms, p99 {p99} ms (n = {n})"
        )
    for loop in report.loops:
        n, p50, p99 = _figures(loop.first_audio)
        console.print(
            f"routing by {loop.loop}: {loop.idle_cpu_percent:.3f} % CPU when idle; first audio of {loop.concurrency} "
            f"callers p50 {p50} ms, p99 {p99} ms (n = {n})"
        )
    for chunked in report.async_chunk:
        console.print(
            f"async chunk {'on' if chunked.async_chunk else 'off'}, an answer of {chunked.audio_s:.1f} s: first audio "
            f"p50 {chunked.first_audio.p50} ms, whole answer p50 {chunked.end_to_end.p50} ms "
            f"(n = {chunked.end_to_end.n})"
        )
    for stage in report.stage_aborts:
        n, p50, p99 = _figures(stage.until_stopped)
        console.print(f"abort until the {stage.stage} has stopped: p50 {p50} ms, p99 {p99} ms (n = {n})")


def _figures(metric: Metric) -> tuple[str, str, str]:
    return str(metric.n), f"{metric.p50:.2f}", f"{metric.p99:.2f}"
