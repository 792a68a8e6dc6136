"""Tells a steady sound from speech: hum, buzz and comfort noise must not pass for somebody who goes on speaking.

Speech rises and falls by 20 dB and more within every second or two, its gaps included; a sound whose level has moved by
less than :data:`RANGE_DB` over :data:`WINDOW_S` is none, whatever a speech detector thinks of its timbre. Levels are
those of what lies above :data:`HIGH_PASS_HZ`, so that mains hum and rumble count for nothing beside it. (Movement
measured over 2 s: recordings of speech 30 dB and more, music 10 dB and more; air noise at most 6 dB, hum 2 dB.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

WINDOW_S: Final = 2.0
RANGE_DB: Final = 8.0
HIGH_PASS_HZ: Final = 200.0
_SILENCE: Final = 1e-10
"""Power of what is taken for silence: -100 dBFS."""


class SteadySound:
    """Recent levels of many streams, one row each."""

    def __init__(self, slots: int, frame: int, sample_rate: int) -> None:
        """``frame``: samples of a frame at ``sample_rate`` hertz."""
        self._window = round(WINDOW_S * sample_rate / frame)
        self._levels = np.zeros((slots, self._window), np.float32)
        self._seen = np.zeros(slots, np.int64)
        self._first_bin = int(np.ceil(HIGH_PASS_HZ * frame / sample_rate))
        self._window_function = np.hanning(frame + 1)[:-1].astype(np.float32)
        self._scale = 2 / (frame * float(np.sum(np.square(self._window_function))))

    def reset(self, slot: int) -> None:
        """A new stream begins in that row."""
        self._seen[slot] = 0

    def levels(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Level of each of ``frames [batch, frame]`` above the high-pass, in dBFS ``[batch]``. Changes nothing.

        The high-pass is that of a Hann-windowed spectrum: without state, so that a frame's level depends on it alone.
        """
        spectrum = np.fft.rfft(frames * self._window_function)
        parts = spectrum.view(np.float32)[:, 2 * self._first_bin :]  # real, imaginary, and so on
        power = np.einsum("ij,ij->i", parts, parts) * self._scale
        return np.asarray(10 * np.log10(power + _SILENCE), np.float32)

    def update(self, slots: Sequence[int], levels: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Take the next level of each of ``slots`` (no slot twice); whether each is in a steady sound by now."""
        rows = np.asarray(slots, np.intp)
        self._levels[rows, self._seen[rows] % self._window] = levels
        self._seen[rows] += 1
        recent = self._levels[rows]
        steady = recent.max(axis=1) - recent.min(axis=1) < RANGE_DB
        return np.asarray(steady & (self._seen[rows] >= self._window))
