"""``duologue trace``: where the time of one request went, stage by stage."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from duologue.engine.deploy import DeployError, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.executors.base import HOST_CLOCK
from duologue.engine.metering import EVENTS, RequestTrace, trace_logger
from duologue.engine.models import ModelUnavailable
from duologue.engine.pipeline import PipelineError
from duologue.engine.requests import ChatMessage, Converse, EngineRequest

QUESTION = "What is the capital of France?"


class TraceError(Exception):
    """There is no trace to show; the message is one line."""


def trace(
    text: Annotated[str, typer.Argument(help="What is said to the model.")] = QUESTION,
    log: Annotated[
        Path | None,
        typer.Option(help="Read a JSON log of 'duologue serve --log-format json --log-traces' instead; - reads stdin."),
    ] = None,
    request: Annotated[str | None, typer.Option(help="With --log: which request; default: the last one.")] = None,
    deploy_config: Annotated[Path | None, typer.Option(help="Deploy file; default: the packaged one.")] = None,
    text_only: Annotated[bool, typer.Option("--text-only", help="Ask for no speech.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Run one request in this process (or find one in a server's log) and show the first events of each edge.

    All times are milliseconds since the request was opened, on one clock.
    """
    try:
        if log is not None:
            with nullcontext(sys.stdin) if str(log) == "-" else log.open(encoding="utf-8") as lines:
                found = from_log(lines, request)
        else:
            found = asyncio.run(run_one(text, deploy_config, text_only))
    except (TraceError, OSError, DeployError, PipelineError, ModelUnavailable) as error:
        typer.echo(f"duologue trace: {error}", err=True)
        raise typer.Exit(1) from None
    if json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        show(found, Console())


def from_log(lines: Iterable[str], request_id: str | None = None) -> RequestTrace:
    """The trace of a request, by default the last one, in the lines of a JSON log. Raises :class:`TraceError`."""
    found: RequestTrace | None = None
    for line in lines:
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError:
            continue  # a line that is not of the log, or has no trace
        if request_id is None or entry.trace.request_id == request_id:
            found = entry.trace
    if found is None:
        which = "of any request" if request_id is None else f"of request '{request_id}'"
        raise TraceError(f"the log has no trace {which}; serve with --log-format json --log-traces")
    return found


class _Line(msgspec.Struct):
    trace: RequestTrace


async def run_one(text: str, deploy_config: Path | None = None, text_only: bool = False) -> RequestTrace:
    """Start the engine, warm, run one request on it, and stop it. Raises what the start raises."""
    engine = Engine(load_deploy(deploy_config))
    payload = Converse(
        messages=(ChatMessage(role="user", text=text),), modalities=("text",) if text_only else ("text", "audio")
    )
    await engine.start()
    try:
        with next_trace() as trace:
            await engine.collect(EngineRequest(request_id="traced", session_id="trace", payload=payload))
            return await trace
    finally:
        await engine.close()


@contextmanager
def next_trace(request_id: str | None = None) -> Iterator[asyncio.Future[RequestTrace]]:
    """The next trace that is logged, or that of one request; what is logged goes nowhere else.

    A request that has just given its last delta may be traced a moment later: where others come before, name yours.
    """
    found: asyncio.Future[RequestTrace] = asyncio.get_running_loop().create_future()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trace = msgspec.convert(record.trace, RequestTrace)  # type: ignore[attr-defined]
            if not found.done() and request_id in (None, trace.request_id):
                found.set_result(trace)

    handler, level, passed_on = Keep(), trace_logger.level, trace_logger.propagate
    trace_logger.addHandler(handler)
    trace_logger.setLevel(logging.DEBUG)
    trace_logger.propagate = False
    try:
        yield found
    finally:
        trace_logger.removeHandler(handler)
        trace_logger.setLevel(level)
        trace_logger.propagate = passed_on


def show(found: RequestTrace, console: Console) -> None:
    """Print the trace as a table."""
    console.print(f"{found.kind} {found.request_id}: {found.failure or found.reason}", highlight=False)
    table = Table(caption="milliseconds since the request was opened")
    for heading in ("from", "to"):
        table.add_column(heading)
    for heading in EVENTS:
        table.add_column(heading, justify="right")
    for edge in found.edges:
        cells = []
        for event in EVENTS:
            seconds = edge.since(found.opened, event)
            elsewhere = getattr(edge, event) is not None and edge.clock_of(event) != HOST_CLOCK
            cells.append(f"{seconds * 1000:.1f}" if seconds is not None else edge.clock_of(event) if elsewhere else "-")
        table.add_row(edge.source, edge.target, *cells)
    console.print(table)
    for stage, seconds in found.busy_s.items():
        through = (found.released[stage] - found.opened) * 1000
        console.print(f"{stage}: {seconds * 1000:.1f} ms of work, through at {through:.1f} ms", highlight=False)
