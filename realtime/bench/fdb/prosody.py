"""How an answer is spoken before and after an overlap, and without it (``benchmarks`` section 2.3): pure.

Pitch by normalised autocorrelation of windows of 40 ms (Rabiner, IEEE ASSP 25(1), 1977), level as RMS of frames of
10 ms. Differences are tested with Student's t on pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from duologue.codecs.levels import AUDIBLE_DBFS
from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.levels import frame_levels

LOWEST_HZ: Final = 60
HIGHEST_HZ: Final = 500
WINDOW_S: Final = 0.04
HOP_S: Final = 0.01
BLOCK: Final = 500
"""So many windows at a time, to bound memory."""
VOICED: Final = 0.6
"""A window is voiced if it repeats itself so well after one period."""
SAME_PEAK: Final = 0.9
"""The shortest lag nearly as good as the best one is the period; the best may be two periods."""


class Spoken(msgspec.Struct, frozen=True):
    """One stretch of an answer; ``None`` where there is nothing to measure."""

    words_per_minute: float | None = None
    pitch_hz: float | None = None
    pitch_deviation_hz: float | None = None
    level_db: float | None = None
    level_deviation_db: float | None = None


class Around(msgspec.Struct, frozen=True):
    """An answer before and after the end of an overlap, and the one without it."""

    before: Spoken
    after: Spoken
    clean: Spoken


class PairedT(msgspec.Struct, frozen=True):
    """Means of two measurements of the same samples, and how likely a difference like theirs is by chance."""

    n: int
    mean_a: float | None = None
    mean_b: float | None = None
    t: float | None = None
    p: float | None = None


def around(
    words: Sequence[TimedWord],
    audio: NDArray[np.float32],
    clean_words: Sequence[TimedWord],
    clean_audio: NDArray[np.float32],
    rate: int,
    at_s: float,
) -> Around:
    """Measure an answer around ``at_s``; audio mono float32 ``[n]`` at ``rate``."""
    before, after = split_words(words, at_s)
    starts = [word.start for word in after if word.start is not None]
    cut = round(min(starts, default=at_s) * rate)
    return Around(
        spoken(before, audio[:cut], rate), spoken(after, audio[cut:], rate), spoken(clean_words, clean_audio, rate)
    )


def split_words(words: Iterable[TimedWord], at_s: float) -> tuple[list[TimedWord], list[TimedWord]]:
    """Words before and after ``at_s``; one that is being said then is after."""
    timed = [word for word in words if word.start is not None]
    before = [word for word in timed if (word.end if word.end is not None else word.start or 0.0) <= at_s]
    return before, timed[len(before) :]


def spoken(words: Sequence[TimedWord], audio: NDArray[np.float32], rate: int) -> Spoken:
    pitch, levels = pitches(audio, rate), frame_levels(audio, rate)
    levels = levels[levels >= AUDIBLE_DBFS]
    return Spoken(words_per_minute(words), _mean(pitch), _deviation(pitch), _mean(levels), _deviation(levels))


def words_per_minute(words: Sequence[TimedWord]) -> float | None:
    """Words over the time from the first one's start to the last one's end."""
    if not words or words[0].start is None or words[-1].end is None or words[-1].end <= words[0].start:
        return None
    return round(len(words) / (words[-1].end - words[0].start) * 60, 3)


def pitches(audio: NDArray[np.float32], rate: int) -> NDArray[np.float64]:
    """Fundamental frequency in hertz of the voiced windows, one each 10 ms."""
    window, hop = round(WINDOW_S * rate), round(HOP_S * rate)
    if len(audio) < window:
        return np.zeros(0)
    frames = sliding_window_view(audio, window)[::hop]
    blocks = [frames[first : first + BLOCK].astype(np.float64) for first in range(0, len(frames), BLOCK)]
    return np.concatenate([_pitches(block, rate) for block in blocks])


def _pitches(frames: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Of ``frames`` ``[n, window]``, the pitch of those that have one."""
    frames = frames[np.sqrt(np.mean(np.square(frames), axis=1)) >= 10 ** (AUDIBLE_DBFS / 20)]
    similar = _similarity(frames - frames.mean(axis=1, keepdims=True), rate // LOWEST_HZ)
    low = rate // HIGHEST_HZ
    found = []
    for row in similar[:, low:]:
        best = row.max()
        if best >= VOICED:
            # The first lag near the best, then up to the top of its peak.
            lag = int(np.argmax(row >= SAME_PEAK * best))
            while lag + 1 < len(row) and row[lag + 1] > row[lag]:
                lag += 1
            found.append(rate / (low + lag))
    return np.array(found, np.float64)


def _similarity(frames: NDArray[np.float64], largest: int) -> NDArray[np.float64]:
    """Autocorrelation of each frame at lags ``[0, largest]``, over the energy of the two parts that overlap."""
    window = frames.shape[1]
    spectrum = np.fft.rfft(frames, 2 * window, axis=1)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, : largest + 1]
    energy = np.cumsum(np.square(frames), axis=1)
    lags = np.arange(largest + 1)
    head = energy[:, window - 1 - lags]
    tail = energy[:, -1:] - np.where(lags > 0, energy[:, lags - 1], 0.0)
    similar: NDArray[np.float64] = correlation / np.sqrt(np.maximum(head * tail, 1e-20))
    return similar


def paired_t(pairs: Iterable[tuple[float | None, float | None]]) -> PairedT:
    """Two-sided t test on pairs; ``t`` and ``p`` are ``None`` below two pairs or if all differences are the same."""
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return PairedT(0)
    a, b = (np.array(side, np.float64) for side in zip(*known, strict=True))
    means = (round(float(a.mean()), 6), round(float(b.mean()), 6))
    difference = a - b
    spread = float(difference.std(ddof=1)) if len(known) > 1 else 0.0
    if spread == 0.0:
        return PairedT(len(known), *means)
    t = float(difference.mean()) / (spread / math.sqrt(len(known)))
    return PairedT(len(known), *means, round(t, 6), round(_two_sided(t, len(known) - 1), 6))


def _two_sided(t: float, freedom: int) -> float:
    """Probability of a larger ``|t|``: the density in ``atan(t / sqrt(freedom))`` integrated by Simpson's rule."""
    angle = np.linspace(math.atan(abs(t) / math.sqrt(freedom)), math.pi / 2, 2001)
    density = np.cos(angle) ** (freedom - 1)
    step = angle[1] - angle[0]
    area = step / 3 * (density[0] + density[-1] + 4 * density[1:-1:2].sum() + 2 * density[2:-1:2].sum())
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * scale * float(area))


def _mean(values: NDArray[np.float64]) -> float | None:
    return round(float(values.mean()), 3) if len(values) else None


def _deviation(values: NDArray[np.float64]) -> float | None:
    return round(float(values.std(ddof=1)), 3) if len(values) > 1 else None
