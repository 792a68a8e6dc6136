"""Scores of turn detection: pure functions of where turns were and when a detector decided. Seconds throughout.

A *decision* is the moment at which ``speech_stopped`` (or a commit) was received, not the position that it names. A
turn whose end is not decided within ``W``, or before the next turn begins if that is earlier, is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

WINDOW_S: Final = 3.0
"""``W``: how long a decision is waited for."""
WIDENED_S: Final = 0.1
"""A start so near to a turn still belongs to it."""
PAUSE_S: Final = (0.2, 5.0)
"""Silences of such lengths inside a turn are pauses."""


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a speaker, from its first to its last sample of speech."""

    start: float
    end: float
    pauses: tuple[tuple[float, float], ...] = ()


class Truth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What there is in a clip."""

    turns: tuple[Turn, ...]
    duration: float
    language: str = "en"
    """ISO 639-1 code of what is spoken."""


class Heard(msgspec.Struct, frozen=True):
    """What a detector made of a clip."""

    starts: tuple[float, ...]
    """``speech_started``: positions, prefix padding included."""
    decisions: tuple[float, ...]
    onsets: tuple[float, ...] = ()
    """When each of ``starts`` was known."""


class TurnScores(msgspec.Struct, frozen=True):
    """Scores over many clips. None: nothing there that could be scored."""

    turns: int
    pauses: int
    premature_cut_rate: float | None
    """Turns with a decision between their start and their end, of all turns."""
    pause_cut_rate: float | None
    """Pauses with a decision inside, of all pauses: the false cut-offs of other benchmarks."""
    missed_end_rate: float | None
    end_delay_p50_ms: float | None
    end_delay_mean_ms: float | None
    end_delay_p95_ms: float | None
    """Of turns that have a decision, the cut ones too."""
    end_delay_mean_missed_ms: float | None
    end_delay_p95_missed_ms: float | None
    """The same with missed ends counted as ``W``."""
    clipped_start_mean_ms: float | None
    clipped_start_p95_ms: float | None
    clipped_share: float | None
    onset_delay_p50_ms: float | None
    false_starts: int
    idle_hours: float
    """Audio outside of turns."""
    false_starts_per_hour: float | None


def score(clips: Sequence[tuple[Truth, Heard]]) -> TurnScores:
    """All measures over ``clips``."""
    cut = missed = pauses = pauses_cut = turns = false_starts = 0
    delays: list[float] = []
    clipped: list[float] = []
    onsets: list[float] = []
    idle_s = 0.0
    for truth, heard in clips:
        idle_s += truth.duration - sum(turn.end - turn.start for turn in truth.turns)
        spans = _spans(heard)
        false_starts += sum(not any(_touches(span, turn, WIDENED_S) for turn in truth.turns) for span in spans)
        for index, turn in enumerate(truth.turns):
            turns += 1
            cut += any(turn.start < decision < turn.end for decision in heard.decisions)
            real = [(s, e) for s, e in turn.pauses if PAUSE_S[0] <= round(e - s, 6) <= PAUSE_S[1]]
            pauses += len(real)
            pauses_cut += sum(any(s < decision < e for decision in heard.decisions) for s, e in real)
            latest = turn.end + WINDOW_S
            if index + 1 < len(truth.turns):
                latest = min(latest, truth.turns[index + 1].start)
            end = next((decision for decision in heard.decisions if turn.end <= decision <= latest), None)
            if end is None:
                missed += 1
            else:
                delays.append((end - turn.end) * 1000)
            own = next((number for number, span in enumerate(spans) if _touches(span, turn)), None)
            if own is not None:
                clipped.append(max(0.0, (heard.starts[own] - turn.start) * 1000))
                onsets += [(heard.onsets[own] - turn.start) * 1000] if heard.onsets else []
    with_missed = delays + [WINDOW_S * 1000] * missed
    return TurnScores(
        turns=turns,
        pauses=pauses,
        premature_cut_rate=_share(cut, turns),
        pause_cut_rate=_share(pauses_cut, pauses),
        missed_end_rate=_share(missed, turns),
        end_delay_p50_ms=_percentile(delays, 50),
        end_delay_mean_ms=float(np.mean(delays)) if delays else None,
        end_delay_p95_ms=_percentile(delays, 95),
        end_delay_mean_missed_ms=float(np.mean(with_missed)) if with_missed else None,
        end_delay_p95_missed_ms=_percentile(with_missed, 95),
        clipped_start_mean_ms=float(np.mean(clipped)) if clipped else None,
        clipped_start_p95_ms=_percentile(clipped, 95),
        clipped_share=_share(sum(ms > 0 for ms in clipped), len(clipped)),
        onset_delay_p50_ms=_percentile(onsets, 50),
        false_starts=false_starts,
        idle_hours=idle_s / 3600,
        false_starts_per_hour=false_starts / (idle_s / 3600) if idle_s > 0 else None,
    )


def _spans(heard: Heard) -> list[tuple[float, float]]:
    """From each start to the decision that belongs to it; a start without one is a point.

    The padding of a start may reach back to before the decision about the turn before it was known.
    """
    spans = []
    known = heard.onsets or heard.starts
    for index, start in enumerate(heard.starts):
        following = known[index + 1] if index + 1 < len(known) else np.inf
        stop = next((decision for decision in heard.decisions if decision > start), np.inf)
        spans.append((start, stop if stop <= following else start))
    return spans


def _touches(span: tuple[float, float], turn: Turn, widened_s: float = 0.0) -> bool:
    return span[0] <= turn.end + widened_s and span[1] >= turn.start - widened_s


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
