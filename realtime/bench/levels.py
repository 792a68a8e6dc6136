"""Where the speech of a recording begins and ends, for recordings that have a noise floor of their own.

``benchmarks`` section 0.3 calls a 10 ms frame audible at -50 dBFS. Real rooms are often louder than that, and then all
of a recording would be speech. For *user* audio the threshold therefore rises with the recording's floor: to 35 % of
the way, in decibels, from its 5th to its 95th percentile of frame levels. For clean audio nothing changes.

Breath that blows on the microphone after the last word may be as loud, and is no speech: :func:`user_speech`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FRAME_S = 0.01
AUDIBLE_DBFS = -50.0
HIGH_PASS_HZ = (150.0, 250.0)
"""Nothing passes below, everything above; telephones begin at 300."""
RUN = 3
"""So many audible frames in a row make sound."""


@dataclass(frozen=True)
class SpeechBounds:
    """Runs of audible frames as half-open sample ranges, in order."""

    runs: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.runs[0][0]

    @property
    def end(self) -> int:
        """First sample after the last audible one."""
        return self.runs[-1][1]

    @property
    def longest_pause(self) -> int:
        """Samples of the longest silence between two runs."""
        return max((later[0] - earlier[1] for earlier, later in pairwise(self.runs)), default=0)

    def until(self, sample: int) -> SpeechBounds:
        """What of it lies before ``sample``."""
        return SpeechBounds(tuple((start, min(end, sample)) for start, end in self.runs if start < sample))

    def last_end_before(self, sample: int) -> int | None:
        """End of the sound that precedes ``sample``; within a run, ``sample`` itself."""
        ends = [min(end, sample) for start, end in self.runs if start < sample]
        return ends[-1] if ends else None


def frame_levels(audio: NDArray[np.float32], rate: int) -> NDArray[np.float64]:
    """RMS of each whole 10 ms frame in dBFS, shape ``[frames]``."""
    size = round(rate * FRAME_S)
    frames = audio[: len(audio) // size * size].reshape(-1, size).astype(np.float64)
    return 10.0 * np.log10(np.mean(frames**2, axis=1) + 1e-20)


def user_speech(audio: NDArray[np.float32], rate: int) -> SpeechBounds | None:
    """As :func:`speech_bounds`, but what follows the last sound above :data:`HIGH_PASS_HZ` is not speech."""
    bounds, above = speech_bounds(audio, rate), speech_bounds(without_rumble(audio, rate), rate)
    return bounds if bounds is None or above is None else bounds.until(above.end)


def without_rumble(audio: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """``audio [n]`` less what is lower than speech needs: hum, wind and breath on the microphone. Without delay."""
    spectrum = np.fft.rfft(audio)
    low, high = HIGH_PASS_HZ
    passed = np.clip((np.fft.rfftfreq(len(audio), 1 / rate) - low) / (high - low), 0.0, 1.0)
    return np.fft.irfft(spectrum * np.sin(np.pi / 2 * passed) ** 2, len(audio)).astype(np.float32)


def speech_bounds(audio: NDArray[np.float32], rate: int) -> SpeechBounds | None:
    """The sounding parts of a user's recording; ``None`` if nothing in it is audible."""
    levels = frame_levels(audio, rate)
    if not len(levels):
        return None
    floor, peak = np.percentile(levels, (5, 95))
    audible = levels >= max(AUDIBLE_DBFS, floor + 0.35 * (peak - floor))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], audible, [False])).astype(np.int8)))
    size = round(rate * FRAME_S)
    runs = tuple(
        (int(first) * size, int(last) * size)
        for first, last in zip(edges[::2], edges[1::2], strict=True)
        if last - first >= RUN
    )
    return SpeechBounds(runs) if runs else None
