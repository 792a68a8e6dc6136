"""Formulas of Full-Duplex-Bench v1 (arXiv 2503.04721) and v1.5 (arXiv 2507.23159): pure, times in seconds.

``benchmarks`` section 2 restates them. ``quirks`` (section 2.4) gives what the published scripts give, for comparison
with published tables; without it the formulas are what their descriptions say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

TAKEOVER_S = 1.0
TAKEOVER_WORDS = 3
"""What is shorter than this and has at most so many words is an acknowledgement, not a turn."""
LONG_SEGMENT_S = 3.0
BACKCHANNEL_WORDS = 2
WINDOW_MS = 200
USER_GAP_S = 0.6
MODEL_GAP_S = 0.5
TURN_MARGIN_S = 0.1
EVENT_MARGIN_S = 0.2

Span = tuple[float, float]
"""Half-open stretch of time ``[start, end)``."""


class TimedWord(msgspec.Struct, frozen=True):
    """A word and when it sounded; ``None`` where a recogniser gave no time."""

    text: str
    start: float | None
    end: float | None


class Backchannels(NamedTuple):
    """What the speech of one answer is under the backchannel task."""

    tor: int
    kept: list[Span]
    """Segments that count for frequency and distribution."""


def takeover(words: Sequence[TimedWord]) -> int:
    """TOR of one sample: whether what was said is a turn (1) or nothing or an acknowledgement (0)."""
    timed = [word for word in words if word.start is not None]
    if not timed:
        return 0
    last = timed[-1]
    end = last.end if last.end is not None else last.start
    length = round((end or 0.0) - (timed[0].start or 0.0), 6)
    return 0 if length < TAKEOVER_S and len(timed) <= TAKEOVER_WORDS else 1


def first_word_latency(words: Sequence[TimedWord], since: float) -> float | None:
    """From ``since`` to the first word; negative counts as 0. ``None`` without words."""
    start = next((word.start for word in words if word.start is not None), None)
    return None if start is None else max(0.0, start - since)


def backchannels(segments: Sequence[Span], words: Sequence[TimedWord]) -> Backchannels:
    """Judge the speech ``segments`` of an answer in order; the last of them decides, a long one at once."""
    tor = 0
    kept: list[Span] = []
    for start, end in segments:
        if end - start > LONG_SEGMENT_S:
            return Backchannels(1, kept)
        kept.append((start, end))
        count = sum(_overlaps(word, start, end) for word in words)
        short = end - start < TAKEOVER_S and count <= BACKCHANNEL_WORDS
        tor = 0 if short else 1
    return Backchannels(tor, kept)


def _overlaps(word: TimedWord, start: float, end: float) -> bool:
    if word.start is None:
        return False
    last = word.end if word.end is not None else word.start
    return last > start and word.start <= end and last >= word.start


def backchannel_jsd(
    kept: Sequence[Span], duration: float, reference: Sequence[float], *, quirks: bool = False
) -> float:
    """Distance of when backchannels came from when they come: square root of the Jensen-Shannon divergence in nats.

    Each segment of ``kept`` adds one to every window of 0.2 s that it touches; ``reference`` is stretched to as many
    windows. 1 if nothing was kept; else at most ``sqrt(ln 2)`` = 0.8326. Raises ``ValueError`` for a reference that is
    no distribution.
    """
    if not kept:
        return 1.0
    expected = np.asarray(reference, np.float64)
    if not len(expected) or (expected < 0).any() or not expected.sum() > 0:
        raise ValueError("reference: a list of numbers >= 0, one of them positive, expected")
    windows = _window(duration, quirks) + 1
    counts = np.zeros(windows)
    for start, end in kept:
        counts[_window(start, quirks) : _window(end, quirks) + 1] += 1
    counts += 1e-10
    stretched = np.interp(np.linspace(0, 1, windows), np.linspace(0, 1, len(expected)), expected)
    return _jensen_shannon(counts / counts.sum(), stretched / stretched.sum())


def _window(time_s: float, quirks: bool) -> int:
    """The window that a time lies in. In floating point 0.6 / 0.2 is less than 3."""
    return int(time_s / (WINDOW_MS / 1000)) if quirks else round(time_s * 1000) // WINDOW_MS


def _jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    middle = (p + q) / 2

    def divergence(a: np.ndarray) -> float:
        inside = a > 0
        return float(np.sum(a[inside] * np.log(a[inside] / middle[inside])))

    return float(np.sqrt(max(0.0, (divergence(p) + divergence(q)) / 2)))


# -- v1.5 --------------------------------------------------------------------------------------------------------------


def merge(segments: Iterable[Span], gap_s: float) -> list[Span]:
    """Join segments that are at most ``gap_s`` apart (to the millisecond)."""
    merged: list[Span] = []
    for start, end in sorted(segments):
        if merged and round(start - merged[-1][1], 3) <= gap_s:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def stop_intervals(user: Sequence[Span], model: Sequence[Span]) -> list[Span]:
    """Where both speak, in order of end; of two with the same end the shorter."""
    by_end: dict[int, Span] = {}
    for user_start, user_end in user:
        for model_start, model_end in model:
            start, end = max(user_start, model_start), min(user_end, model_end)
            if end <= start:
                continue
            known = by_end.get(round(end * 1000))
            if known is None or start > known[0]:
                by_end[round(end * 1000)] = (round(start, 3), round(end, 3))
    return [by_end[end] for end in sorted(by_end)]


def response_intervals(user: Sequence[Span], model: Sequence[Span]) -> list[Span]:
    """From the end of user speech to the next start of the model's strictly after it, in order of that start.

    Of several user segments with the same next start, the latest counts.
    """
    starts = sorted(start for start, _ in model)
    by_start: dict[float, float] = {}
    for _, end in user:
        start = next((start for start in starts if start > end), None)
        if start is not None:
            by_start[start] = max(end, by_start.get(start, end))
    return [(round(by_start[start], 3), round(start, 3)) for start in sorted(by_start)]


def touching(intervals: Iterable[Span], event: Span) -> list[Span]:
    """The intervals that touch ``event``; a detector's ends of speech lie up to 0.2 s beside the true ones."""
    first, last = event[0] - EVENT_MARGIN_S, event[1] + EVENT_MARGIN_S
    return [(start, end) for start, end in intervals if start <= last and end >= first]


# -- what is said where nothing should be ------------------------------------------------------------------------------


def false_starts(heard: Iterable[Span], turns: Sequence[Span]) -> list[Span]:
    """What the server took for speech though it touches no turn of the user, each turn widened by 0.1 s."""
    return [
        (start, end)
        for start, end in heard
        if not any(start <= b + TURN_MARGIN_S and end >= a - TURN_MARGIN_S for a, b in turns)
    ]


def per_hour(count: int, turns: Sequence[Span], duration: float) -> float | None:
    """Count per hour of what lies outside the turns; ``None`` if nothing does."""
    outside = duration - sum(end - start for start, end in turns)
    return count / outside * 3600 if outside > 0 else None
