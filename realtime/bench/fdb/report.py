"""The report of a run: the scores of its sets, written beside the raw record, printed for people."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from duologue.realtime.bench.fdb.artifacts import RESULT_FILE, Result, WordSource, write_json
from duologue.realtime.bench.fdb.dataset import REFERENCE_FILE, Task, load_annotation, read_json
from duologue.realtime.bench.fdb.judge import Judge, Verdicts
from duologue.realtime.bench.fdb.recognised import RecogniseWords, recognise_sample
from duologue.realtime.bench.fdb.run import RUN_FILE, RunInfo, read_run, write_outputs
from duologue.realtime.bench.fdb.score import SCORES_FILE, Intervals, Scorer, SetScores, Sounds
from duologue.realtime.bench.fdb.speech import silero_probabilities

REPORT_FILE: Final = "bench.json"
FORMULAS: Final = {
    "tor": "share of samples with a take-over: 1 s or more of words, or more than 3 words",
    "latency": "end of the user's turn (turn_taking) or of the interruption -> first word; over take-overs, at least 0",
    "frequency": "backchannels / seconds of output.wav",
    "jsd": "sqrt of the Jensen-Shannon divergence (nats) of backchannels and reference over windows of 0.2 s",
    "stop_latency": "length of each stretch in which user and server both speak (v1.5)",
    "response_latency": "end of user speech -> next start of the server's speech strictly after it (v1.5)",
    "false_starts": "speech_started spans that touch no turn of the user, per hour outside turns",
}
CLOCK: Final = "input clock: seconds since the first sample of input.wav was due"


class FdbReport(msgspec.Struct, frozen=True):
    """Everything about a run."""

    run: RunInfo
    sets: list[SetScores]
    pacing_lag_p99_ms: float | None
    """The worst p99 of all replays. Above 20 ms the machine was too busy."""
    formulas: dict[str, str] = msgspec.field(default_factory=lambda: dict(FORMULAS))
    clock: str = CLOCK
    schema: str = "duologue.bench.fdb/1"


def load_sounds() -> Sounds:
    """The packaged voice-activity model, fetched if it is not here. Raises ``ModelUnavailable``."""
    from duologue.engine.models import pull

    return Sounds(silero_probabilities(pull("silero-vad")))


def score_run(
    run: Path,
    sounds: Sounds,
    *,
    judge: Judge | None = None,
    quirks: bool = False,
    recognise: RecogniseWords | None = None,
    on_set: Callable[[str], None] = lambda name: None,
) -> FdbReport:
    """Score every set of a run and write the report. ``recognise``: take the words from the recordings first.

    Raises ``OSError`` or ``msgspec.DecodeError`` for a folder that is no run, :class:`ScoreError`.
    """
    info = read_run(run)
    sets = []
    for item in info.sets:
        on_set(item.name)
        folder = run / item.name
        if recognise is not None:
            recognise_set(folder, item.task, item.samples, recognise)
        scorer = Scorer(folder, item.task, sounds, Verdicts(judge), quirks=quirks, settings=info.settings)
        scores = scorer.score(item.samples, item.excluded)
        write_json(folder / SCORES_FILE, scores)
        sets.append(scores)
    lags = [
        read_json(run / item.name / sample / RESULT_FILE, Result).pacing_lag.p99
        for item in info.sets
        for sample in item.samples
    ]
    report = FdbReport(info, sets, max((lag for lag in lags if lag is not None), default=None))
    write_json(run / REPORT_FILE, report)
    return report


def score_folder(
    folder: Path,
    task: Task,
    sounds: Sounds,
    *,
    judge: Judge | None = None,
    quirks: bool = False,
    recognise: RecogniseWords | None = None,
    reference: Path | None = None,
) -> SetScores:
    """Score a folder of one set, of whatever origin: ``{ID}/output.wav``, ``output.json`` and annotations."""
    if recognise is not None:
        recognise_set(folder, task, [path.name for path in sorted(folder.iterdir()) if path.is_dir()], recognise)
    scores = Scorer(folder, task, sounds, Verdicts(judge), quirks=quirks, reference=reference).score()
    write_json(folder / SCORES_FILE, scores)
    return scores


def recognise_set(folder: Path, task: Task, samples: Sequence[str], recognise: RecogniseWords) -> None:
    for sample in samples:
        recognise_sample(folder / sample, task, load_annotation(folder / sample, task), recognise)


def recompute(run: Path, sounds: Sounds) -> FdbReport:
    """Outputs and scores again from the logs, the recognised words and the judge's verdicts of a run."""
    quirks = read_json(run / REPORT_FILE, _Quirks).quirks if (run / REPORT_FILE).is_file() else False
    write_outputs(run, read_run(run))
    return score_run(run, sounds, quirks=quirks)


class _SetQuirks(msgspec.Struct, frozen=True):
    quirks: bool


class _Quirks(msgspec.Struct, frozen=True):
    """What of a report its recomputation must know."""

    sets: list[_SetQuirks]

    @property
    def quirks(self) -> bool:
        return any(item.quirks for item in self.sets)


def prepare(run: Path, words: WordSource | None, reference: Path | None) -> None:
    """Before a run is scored anew: where its words come from now, and what its backchannels are compared with."""
    info = read_run(run)
    if words is not None and words != info.words:
        info = msgspec.structs.replace(info, words=words)
        write_json(run / RUN_FILE, info)
        if words == "server":
            write_outputs(run, info)
    for item in info.sets:
        if item.task == "backchannel" and reference is not None:
            shutil.copyfile(reference, run / item.name / REFERENCE_FILE)


# -- for people --------------------------------------------------------------------------------------------------------


def print_report(report: FdbReport, console: Console) -> None:
    """Print all sets as tables."""
    info = report.run
    console.print(
        f"[bold]bench full-duplex[/bold] {info.url} · {info.settings.turn_mode} · {info.concurrency} at once"
        f" · words: {info.words} · {info.machine.get('cores')} cores"
    )
    print_scores(report.sets, console)
    if report.pacing_lag_p99_ms is not None and report.pacing_lag_p99_ms > 20:
        console.print(
            f"The recordings were sent up to {report.pacing_lag_p99_ms:.0f} ms late (p99): this machine was too busy "
            "for these figures to be trusted."
        )


def print_scores(sets: Sequence[SetScores], console: Console) -> None:
    """One table for all sets; below it what the table has no room for."""
    table = Table(
        title="scores (times in s)", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in ("set", "n", "TOR", "latency", "stop", "response", "freq.", "JSD", "rating", "false"):
        table.add_column(heading, justify="left" if heading == "set" else "right", no_wrap=True)
    for scores in sets:
        table.add_row(*_cells(scores))
    console.print(table)
    console.print(
        "latency: mean. stop, response: p50 at the annotated event, of all intervals where none is annotated. "
        "false: starts of speech per hour where the user did not speak.",
        style="dim",
    )
    for scores in sets:
        if scores.behaviour:
            labels = ", ".join(f"{label} {share:.2f}" for label, share in scores.behaviour.items())
            console.print(f"{scores.name}: {labels} (judge {scores.judge})")
        if scores.failed or scores.excluded:
            console.print(f"{scores.name}: {scores.failed} failed, {scores.excluded} left out", style="yellow")
        for sample, reason in list(scores.reasons.items())[:5]:
            console.print(f"  {scores.name}/{sample}: {reason}", style="dim")


def _cells(scores: SetScores) -> tuple[str, ...]:
    starts = scores.false_starts
    return (
        scores.name + (" (quirks)" if scores.quirks else ""),
        f"{scores.n}/{scores.attempted}",
        _number(scores.tor),
        _number(scores.latency_s.mean),
        _number(_middle(scores.stop_latency_s)),
        _number(_middle(scores.response_latency_s)),
        _number(scores.frequency),
        _number(scores.jsd),
        _number(scores.rating.mean if scores.rating else None),
        f"{starts.per_hour:.0f}/h" if starts and starts.per_hour is not None else "-",
    )


def _middle(intervals: Intervals) -> float | None:
    return (intervals.event if intervals.event.n else intervals.all).p50


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
