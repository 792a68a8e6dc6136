"""``duologue bench recogniser``: run, tables, JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from duologue.engine.models import ModelUnavailable
from duologue.realtime.bench.recogniser import RecogniserReport, run_recogniser, share
from duologue.realtime.bench.summary import Metric


def recogniser(
    speech: Annotated[
        Path,
        typer.Option(
            exists=True,
            file_okay=False,
            envvar="DUOLOGUE_TEST_SPEECH",
            help="Folder of recordings with known words (transcripts.tsv: file<TAB>words).",
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Whisper model, pulled if missing; may be repeated. Sessions are measured with the first."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Measure word errors and time of the recogniser, by padding and model, and what reading along costs and brings."""
    err = Console(stderr=True)
    try:
        with err.status("loading") as status:
            report = run_recogniser(speech, model or ["whisper-tiny.en"], status.update)
    except (ModelUnavailable, ValueError) as error:
        typer.echo(f"duologue bench: {error}", err=True)
        raise typer.Exit(1) from error
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, Console())


def _print(report: RecogniserReport, console: Console) -> None:
    table = Table(title=f"{report.recordings} recordings, {report.speech_s:g} s; one thread", title_justify="left")
    for heading in ("model", "padded to", "word errors", "wall ms, p50 / p95", "processor ms, p50 / p95"):
        table.add_column(heading, justify="left" if heading in ("model", "padded to") else "right")
    for row in report.paddings:
        errors = f"{share(row.word_errors, row.words)} of {row.words}"
        table.add_row(row.model, row.padding, errors, _p50_p95(row.wall), _p50_p95(row.cpu))
    console.print(table)
    table = Table(title="a transcription session", title_justify="left")
    for heading in ("", "word errors", "requests", "processor s per s of speech"):
        table.add_column(heading, justify="right" if heading else "left")
    for heading in ("first words ms, p50 / p95", "a word ms, p50 / p95", "last words ms, p50 / p95"):
        table.add_column(heading, justify="right")
    for session in report.sessions:
        table.add_row(
            "reading along" if session.read_along else "at the end",
            f"{share(session.word_errors, session.words)} of {session.words}",
            str(session.requests),
            f"{session.cpu_s_per_speech_s:.2f}",
            _p50_p95(session.first_words),
            _p50_p95(session.word_delay),
            _p50_p95(session.final_delay),
        )
    console.print(table)


def _p50_p95(metric: Metric) -> str:
    return "-" if metric.p50 is None else f"{metric.p50:,.0f} / {metric.p95:,.0f}"
