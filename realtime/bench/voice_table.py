"""The report of ``duologue bench voice`` as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from duologue.realtime.bench.goodput import Goodput
from duologue.realtime.bench.measures import LIMITED, PARTS
from duologue.realtime.bench.summary import Metric
from duologue.realtime.bench.voice_report import BenchReport

LABELS = {
    "v2v": "voice to voice",
    "silence_window": "  silence window",
    "recogniser_tail": "  recogniser tail",
    "first_clause": "  first clause",
    "first_audio": "  first audio",
    "leading_silence": "  leading silence",
}


def print_report(report: BenchReport, console: Console) -> None:
    """Print what a person wants to know first: how long, how often right, how smooth, how costly."""
    info = report.run
    console.print(
        f"[bold]bench voice[/bold] {info.url} · {info.sessions} session(s) · {info.utterances} utterances"
        f" · silence window {info.settings.silence_ms} ms · {info.machine.get('cores')} cores"
    )
    console.print(_latency_table(report))
    console.print(_answers_table(report))
    if report.answers.reasons:
        for reason, count in report.answers.reasons.items():
            console.print(f"  {count} x {reason}", style="dim")
    for part, reason in info.not_measured.items():
        console.print(f"  {part} not measured: {reason}", style="dim")
    for error, count in report.server_errors.items():
        console.print(f"  {count} x server error {error}", style="yellow")


def _latency_table(report: BenchReport) -> Table:
    table = Table(title="time, ms (answered utterances)", title_justify="left")
    for name, justify in (("", "left"), ("n", "right"), ("p50", "right"), ("p95", "right"), ("max", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("v2v", *PARTS):
        table.add_row(LABELS[name], *_cells(report.metrics[name]))
    table.add_row("barge-in stop", *_cells(report.barge_in.stop_latency))
    table.add_row("speech detected", *_cells(report.barge_in.detect))
    table.add_row("client pacing lag", *_cells(report.metrics["pacing_lag"]))
    return table


def _answers_table(report: BenchReport) -> Table:
    answers, barge_in, server, underrun = report.answers, report.barge_in, report.server, report.underrun
    table = Table(title="the rest", title_justify="left", show_header=False)
    table.add_row(
        "answered, right words",
        f"{answers.answered} of {answers.attempted} ({_percent(answers.answered_share)})",
    )
    table.add_row(
        "wrong words, early, unanswered, failed",
        f"{answers.wrong_words}, {answers.early}, {answers.unanswered}, {answers.failed}",
    )
    table.add_row("false starts", str(answers.false_starts))
    within = ", ".join(f"{_percent(share)} in {seconds} s" for seconds, share in answers.within.items())
    table.add_row("of all, answered rightly", within or "not measured")
    if report.goodput is not None:
        table.add_row(f"goodput ({_limits(report.goodput)})", _goodput(report.goodput))
    for group, words in report.recognition.items():
        table.add_row(f"word error rate, {group}", f"{_percent(words.wer)} of {words.words}")
    table.add_row(
        "barge-ins measured, too late, failed",
        f"{barge_in.measured}, {barge_in.not_overlapping}, {barge_in.failed}"
        f" (not stopped in 2 s: {barge_in.not_stopped_in_2_s})",
    )
    table.add_row(
        "underrun", f"{_number(underrun.total_s, ' s')} in {underrun.starved or 0} of {underrun.responses} responses"
    )
    table.add_row(
        "answers recognised again",
        f"{_percent(report.intelligibility.words_kept)} of words in {report.intelligibility.replies} replies",
    )
    table.add_row("server CPU s per session s", _number(server.cpu_s_per_session_s))
    table.add_row("server idle, share of one core", _percent(server.idle_cpu_share))
    memory = server.rss_max_bytes / 2**20 if server.rss_max_bytes is not None else None
    table.add_row("server resident memory, largest", _number(memory, " MiB"))
    table.add_row("cores, share taken by the host", _percent(server.stolen_share))
    table.add_row("server ready after", _number(server.ready_s, " s"))
    return table


def _limits(goodput: Goodput) -> str:
    return ", ".join(f"{name} <= {limit:g} {LIMITED[name]}" for name, limit in goodput.limits.items())


def _goodput(goodput: Goodput) -> str:
    rate = _number(goodput.per_s)
    return f"{goodput.good} of {goodput.attempted} ({_percent(goodput.share)}), {rate} a second"


def _cells(metric: Metric) -> tuple[str, str, str, str]:
    return str(metric.n), _number(metric.p50), _number(metric.p95), _number(metric.max)


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "not measured"
    return (f"{value:.3f}" if abs(value) < 10 and value != int(value) else f"{value:.0f}") + unit


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{share * 100:.1f} %"


def print_series(runs: Sequence[tuple[str, BenchReport]], console: Console) -> None:
    """Several runs beside each other, one a column."""
    table = Table(title="voice to voice, ms (the silence window is in it)", title_justify="left")
    table.add_column("")
    for name, _ in runs:
        table.add_column(name, justify="right")
    for label, cell in SERIES.items():
        table.add_row(label, *(cell(report) for _, report in runs))
    console.print(table)


def _within(seconds: str) -> Callable[[BenchReport], str]:
    return lambda report: _percent(report.answers.within.get(seconds))


def _of_metric(name: str) -> Callable[[BenchReport], str]:
    return lambda report: " / ".join(_number(value) for value in (report.metrics[name].p50, report.metrics[name].p95))


SERIES: dict[str, Callable[[BenchReport], str]] = {
    "voice to voice, p50 / p95": _of_metric("v2v"),
    **{f"{LABELS[name].strip()}, p50 / p95": _of_metric(name) for name in PARTS},
    **{f"of all, answered rightly in {seconds} s": _within(seconds) for seconds in ("0.5", "1", "2", "4")},
    "answered / wrong words / early / unanswered / failed": lambda r: (
        f"{r.answers.answered} / {r.answers.wrong_words} / {r.answers.early} / {r.answers.unanswered}"
        f" / {r.answers.failed}"
    ),
    "goodput": lambda r: "-" if r.goodput is None else _goodput(r.goodput),
    "false starts": lambda r: str(r.answers.false_starts),
    "answers with a gap of 0.1 s, longest gap": lambda r: (
        f"{_percent(None if r.underrun.continuity is None else 1 - r.underrun.continuity)}, "
        f"{_number(r.underrun.longest_s, ' s')}"
    ),
    "barge-in stop, p50 / p95": lambda r: " / ".join(
        _number(value) for value in (r.barge_in.stop_latency.p50, r.barge_in.stop_latency.p95)
    ),
    "server CPU s per session s": lambda r: _number(r.server.cpu_s_per_session_s),
    "client pacing lag, p50 / p95": _of_metric("pacing_lag"),
}
"""What is said of each run of a series."""
