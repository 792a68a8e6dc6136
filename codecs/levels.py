"""Loudness of speech, and where it becomes audible.

Audible, as the benchmarks define it: RMS over frames of 10 ms; a frame is audible at -50 dBFS or more; sound begins at
the first of three consecutive audible frames and ends with the last frame that belongs to such a run. A frame that is
not complete does not count.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

AUDIBLE_DBFS: Final = -50.0
FRAMES_PER_SECOND: Final = 100
_RUN: Final = 3


def dbfs(samples: NDArray[np.float32]) -> float:
    """RMS level of ``samples`` ``[n]`` in decibels of full scale (a square wave of +-1 is 0); silence is ``-inf``."""
    if not len(samples):
        return -math.inf
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    return 10 * math.log10(power) if power else -math.inf


def first_audible_sample(samples: NDArray[np.float32], rate: int) -> int | None:
    """Index of the first audible sample of mono ``samples`` ``[n]`` at ``rate`` hertz; ``None`` if all is silence."""
    runs = _audible_runs(samples, rate)
    return int(runs[0]) * _frame_length(rate) if len(runs) else None


def last_audible_sample(samples: NDArray[np.float32], rate: int) -> int | None:
    """Index after the last audible sample of mono ``samples`` ``[n]`` at ``rate`` hertz; ``None`` if all is silence."""
    runs = _audible_runs(samples, rate)
    return (int(runs[-1]) + _RUN) * _frame_length(rate) if len(runs) else None


def _frame_length(rate: int) -> int:
    return max(1, round(rate / FRAMES_PER_SECOND))


def _audible_runs(samples: NDArray[np.float32], rate: int) -> NDArray[np.intp]:
    """Indices of the frames that begin three consecutive audible ones."""
    length = _frame_length(rate)
    frames = samples[: len(samples) - len(samples) % length].reshape(-1, length)
    power = np.mean(np.square(frames, dtype=np.float64), axis=1)
    audible = power >= 10 ** (AUDIBLE_DBFS / 10)
    if len(audible) < _RUN:
        return np.empty(0, np.intp)
    return np.flatnonzero(audible[:-2] & audible[1:-1] & audible[2:])
