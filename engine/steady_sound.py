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
_ROWS: Final = 32
"""Frames in one product: few enough that it stays on one thread."""


class SteadySound:
    """Recent levels of many streams, one row each."""

    def __init__(self, slots: int, frame: int, sample_rate: int) -> None:
        """``frame``: samples of a frame at ``sample_rate`` hertz."""
        self._window = round(WINDOW_S * sample_rate / frame)
        self._levels = np.zeros((slots, self._window), np.float32)
        self._seen = np.zeros(slots, np.int64)
        self._window_function = np.hanning(frame + 1)[:-1].astype(np.float32)
        self._scale = 1 / float(np.sum(np.square(self._window_function)))
        phase = 2 * np.pi / frame * np.outer(np.arange(frame), np.arange(np.ceil(HIGH_PASS_HZ * frame / sample_rate)))
        low = np.concatenate((np.cos(phase), np.sin(phase[:, 1:])), axis=1)
        self._low = (low / np.linalg.norm(low, axis=0)).astype(np.float32)
        """The bins below the high-pass as an orthonormal basis ``[frame, 2 * bins - 1]``."""

    def reset(self, slot: int) -> None:
        """A new stream begins in that row."""
        self._seen[slot] = 0

    def levels(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Level of each of ``frames [batch, frame]`` above the high-pass, in dBFS ``[batch]``. Changes nothing.

        The high-pass is that of a Hann-windowed spectrum: without state, so that a frame's level depends on it alone.
        By Parseval's theorem that is the power of the windowed frame without its part in the lower bins: no transform.
        """
        power = np.empty(len(frames), np.float32)
        for first in range(0, len(frames), _ROWS):
            high = frames[first : first + _ROWS] * self._window_function
            high -= (high @ self._low) @ self._low.T
            np.einsum("ij,ij->i", high, high, out=power[first : first + _ROWS])
        return np.asarray(10 * np.log10(power * self._scale + _SILENCE), np.float32)

    def update(self, slots: Sequence[int], levels: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Take the next level of each of ``slots`` (no slot twice); whether each is in a steady sound by now."""
        rows = np.asarray(slots, np.intp)
        self._levels[rows, self._seen[rows] % self._window] = levels
        self._seen[rows] += 1
        recent = self._levels[rows]
        steady = recent.max(axis=1) - recent.min(axis=1) < RANGE_DB
        return np.asarray(steady & (self._seen[rows] >= self._window))
