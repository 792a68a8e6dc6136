"""What a run of the turn benchmark found: as data, as a table, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from duologue.realtime.bench.turns_score import TurnScores


class Setting(msgspec.Struct, frozen=True):
    """A setting that a client can ask for."""

    name: str
    scores: TurnScores


class CurvePoint(msgspec.Struct, frozen=True):
    """One point of a curve: a window of silence alone, or a wait of the model."""

    setting: dict[str, float]
    cuts: float | None
    """Pause cut rate."""
    mean_ms: float | None
    """Mean end delay, missed ends counted as the whole window."""
    p50_ms: float | None
    missed: float | None


class Comparison(msgspec.Struct, frozen=True):
    """A window of silence alone, beside the model's curve."""

    window_ms: float
    cuts: float
    mean_ms: float
    p50_ms: float | None
    semantic_ms: float | None
    """Least mean delay of the model's points with no more cuts."""
    semantic_p50_ms: float | None
    """Median delay of that point."""
    semantic_cuts: float | None
    """Fewest cuts of the model's points with no longer mean delay."""

    @property
    def better(self) -> bool:
        """Whether one of the model's points is better in one and no worse in the other."""
        faster = self.semantic_ms is not None and self.semantic_ms < self.mean_ms
        return faster or (self.semantic_cuts is not None and self.semantic_cuts < self.cuts)


class NoiseResult(msgspec.Struct, frozen=True):
    """A room without speech."""

    name: str
    minutes: float
    false_starts: int
    per_hour: float | None
    loudest_frame: float
    """Highest speech probability of a frame."""


class TurnsReport(msgspec.Struct, frozen=True):
    """A whole run."""

    data: str | None
    clips: int
    hours: float
    answer_ms: float
    """Stated time of the model's answer, in every end delay of ``semantic_vad``."""
    words: bool
    """Whether the words of the turns count."""
    questions: int
    """Different questions to the model."""
    settings: tuple[Setting, ...]
    silence: tuple[CurvePoint, ...]
    semantic: tuple[CurvePoint, ...]
    compared: tuple[Comparison, ...]
    noises: tuple[NoiseResult, ...]


def compared(silence: Sequence[CurvePoint], semantic: Sequence[CurvePoint]) -> tuple[Comparison, ...]:
    """Every window of silence alone beside the best of the model's curve."""
    measured = [(p.cuts, p.mean_ms, p.p50_ms) for p in semantic if p.cuts is not None and p.mean_ms is not None]
    found = []
    for point in silence:
        cuts, mean_ms = point.cuts, point.mean_ms
        if cuts is None or mean_ms is None:
            continue
        fastest = min(((ms, p50) for rate, ms, p50 in measured if rate <= cuts), default=(None, None))
        found.append(
            Comparison(
                window_ms=point.setting["window_ms"],
                cuts=cuts,
                mean_ms=mean_ms,
                p50_ms=point.p50_ms,
                semantic_ms=fastest[0],
                semantic_p50_ms=fastest[1],
                semantic_cuts=min((rate for rate, ms, _ in measured if ms <= mean_ms), default=None),
            )
        )
    return tuple(found)


def frontier(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points to which no other is better in both, from the shortest delay on."""
    best: list[CurvePoint] = []
    measured = [point for point in points if point.cuts is not None and point.mean_ms is not None]
    for point in sorted(measured, key=lambda p: (p.mean_ms, p.cuts)):
        if not best or (point.cuts or 0.0) < (best[-1].cuts or 0.0):
            best.append(point)
    return best


def print_report(report: TurnsReport, console: Console) -> None:
    """The tables of a run."""
    if report.settings:
        first = report.settings[0].scores
        console.print(
            f"{report.data}: {first.turns} turns with {first.pauses} pauses in {report.clips} clips; the turn model "
            f"answers after {report.answer_ms:.0f} ms, " + ("words count" if report.words else "words do not count")
        )
        console.print(_settings_table(report.settings))
    if report.compared:
        console.print(_comparison_table(report.compared))
        console.print(_frontier_table(frontier(report.semantic)))
    if report.noises:
        console.print(_noise_table(report.noises))


def _settings_table(settings: Sequence[Setting]) -> Table:
    table = Table(title="settings of a session")
    for heading in ("", "turns cut", "pauses cut", "missed", "end delay p50", "p95", "clipped start", "onset p50"):
        table.add_column(heading, justify="left" if not heading else "right")
    for setting in settings:
        s = setting.scores
        table.add_row(
            setting.name,
            _percent(s.premature_cut_rate),
            _percent(s.pause_cut_rate),
            _percent(s.missed_end_rate),
            _ms(s.end_delay_p50_ms),
            _ms(s.end_delay_p95_missed_ms),
            _ms(s.clipped_start_p95_ms),
            _ms(s.onset_delay_p50_ms),
        )
    return table


def _comparison_table(rows: Sequence[Comparison]) -> Table:
    table = Table(title="silence alone, and the model's curve beside it")
    headings = (
        "silence",
        "pauses cut",
        "mean delay",
        "p50",
        "model: mean at no more cuts",
        "p50",
        "cuts at no more mean",
    )
    for heading in (*headings, ""):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            _ms(row.window_ms),
            _percent(row.cuts),
            _ms(row.mean_ms),
            _ms(row.p50_ms),
            _ms(row.semantic_ms),
            _ms(row.semantic_p50_ms),
            _percent(row.semantic_cuts),
            "better" if row.better else "not better",
        )
    return table


def _frontier_table(points: Sequence[CurvePoint]) -> Table:
    table = Table(title="the model's curve, by the wait for an undecided turn")
    for heading in ("wait", "pauses cut", "missed", "mean delay", "p50"):
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(
            _ms(point.setting["wait_ms"]),
            _percent(point.cuts),
            _percent(point.missed),
            _ms(point.mean_ms),
            _ms(point.p50_ms),
        )
    return table


def _noise_table(noises: Sequence[NoiseResult]) -> Table:
    table = Table(title="rooms in which nobody speaks")
    for heading in ("", "minutes", "false starts", "an hour", "highest probability"):
        table.add_column(heading, justify="left" if not heading else "right")
    for noise in noises:
        per_hour = "" if noise.per_hour is None else f"{noise.per_hour:.0f}"
        table.add_row(noise.name, f"{noise.minutes:g}", str(noise.false_starts), per_hour, f"{noise.loudest_frame:.2f}")
    return table


def draw(report: TurnsReport, path: Path) -> None:
    """The curves as a PNG. Raises ``ImportError`` where matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for label, points, style in (
        ("silence alone, by window", frontier(report.silence), "o-"),
        ("turn model, by wait", frontier(report.semantic), "s-"),
    ):
        axes.plot([p.mean_ms for p in points], [100 * (p.cuts or 0.0) for p in points], style, label=label)
    for setting in report.settings:
        scores = setting.scores
        if setting.name.startswith("semantic") and scores.pause_cut_rate is not None:
            place = scores.end_delay_mean_missed_ms or 0.0, 100 * scores.pause_cut_rate
            axes.plot(*place, "k^")
            axes.annotate(setting.name.removeprefix("semantic_vad "), place, (6, 4), textcoords="offset points")
    axes.set_xlabel("mean end delay, ms (missed ends as 3 s)")
    axes.set_ylabel("pauses cut, %")
    axes.set_title(f"{report.data}: {report.clips} clips")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
