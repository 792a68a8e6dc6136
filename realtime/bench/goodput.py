"""Goodput: how many answers kept to every limit that was set, and how many of them a second there were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from duologue.realtime.bench.measures import LIMITED
from duologue.realtime.bench.voice_score import CallScore, Delivery, UtteranceResult


class Goodput(msgspec.Struct, frozen=True):
    """Of all that were to be answered, those that were answered rightly and within ``limits`` (by measure)."""

    limits: dict[str, float]
    attempted: int
    good: int
    share: float | None
    per_s: float | None
    """Good answers per second of the run."""


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """Limits out of ``NAME:LIMIT``, each in its measure's unit. Raises ``ValueError`` for one that cannot be kept."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        if name not in LIMITED:
            raise ValueError(f"goodput: there is no measure '{name}'; there are {', '.join(LIMITED)}")
        if name in limits:
            raise ValueError(f"goodput: '{name}' is given twice")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not 0 <= limit < math.inf:
            raise ValueError(f"goodput: '{text}' must be {name}:LIMIT with a limit in {LIMITED[name]}, at least 0")
        limits[name] = limit
    return limits


def goodput(
    limits: Mapping[str, float], answers: Sequence[UtteranceResult], scores: Sequence[CallScore], seconds: float
) -> Goodput:
    """``answers``: what became of the utterances that were to be answered; ``seconds``: how long the run took."""
    deliveries = {(score.call, delivery.response_id): delivery for score in scores for delivery in score.deliveries}
    good = sum(
        answer.outcome == "answered"
        and all(
            (value := _measured(name, answer, deliveries)) is not None and value <= limit
            for name, limit in limits.items()
        )
        for answer in answers
    )
    share = round(good / len(answers), 4) if answers else None
    return Goodput(dict(limits), len(answers), good, share, round(good / seconds, 4) if seconds else None)


def run_seconds(sessions: Mapping[str, int], scores: Iterable[CallScore]) -> float:
    """How long the caller talked that talked longest. ``sessions``: the caller of each call."""
    seconds: Counter[int] = Counter()
    for score in scores:
        seconds[sessions[score.call]] += score.duration_s  # type: ignore[assignment]
    return max(seconds.values(), default=0.0)


def _measured(name: str, answer: UtteranceResult, deliveries: Mapping[tuple[str, str], Delivery]) -> float | None:
    if name not in ("audio_ttfp", "audio_underrun"):
        value: float | None = getattr(answer.split, f"{name}_ms", None)
        return value
    delivery = deliveries.get((answer.call, answer.response_id or ""))
    if delivery is None:
        return None
    # What came in one piece cannot starve.
    return delivery.ttfp_ms if name == "audio_ttfp" else delivery.underrun_s or 0.0
