"""What the levels of a sound tell of speech, beside what a model says of its timbre.

*Steady.* Speech rises and falls by 20 dB and more within every second or two, its gaps included; a sound whose level
has moved by less than :data:`RANGE_DB` over :data:`WINDOW_S` is none, whatever a speech detector thinks of it: hum,
buzz and comfort noise must not pass for somebody who goes on speaking. (Movement measured over 2 s: recordings of
speech 30 dB and more, music 10 dB and more; air noise at most 6 dB, hum 2 dB.)

*Quiet.* A model holds the fading end of a word for speech, some 80 ms of it. The level knows sooner that nothing is
said: what is not :data:`ABOVE_NOISE_DB` louder than the quietest frame of the last :data:`WINDOW_S`, or is
:data:`BELOW_PEAK_DB` softer than the loudest, is not heard.

Levels are those of what lies above :data:`HIGH_PASS_HZ`, so that mains hum and rumble count for nothing beside speech.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import pcm16_to_float

WINDOW_S: Final = 2.0
RANGE_DB: Final = 8.0
HIGH_PASS_HZ: Final = 200.0
ABOVE_NOISE_DB: Final = 10.0
BELOW_PEAK_DB: Final = 32.0
AUDIBLE_DBFS: Final = -65.0
PARTS: Final = 2
"""A frame's level is taken in so many parts."""
PART_MS: Final = 16
"""How long each of them is, for frames of 32 ms."""
_SILENCE: Final = 1e-10
"""Power of what is taken for silence: -100 dBFS."""
LONGEST_QUIET_MS: Final = 60_000
_ROWS: Final = 32
"""Frames in one product: few enough that it stays on one thread."""


class SoundLevels:
    """Recent levels of many streams, one row each."""

    def __init__(self, slots: int, frame: int, sample_rate: int) -> None:
        """``frame``: samples of a frame at ``sample_rate`` hertz."""
        self._window = round(WINDOW_S * sample_rate / frame)
        self._recent = np.full((slots, self._window), np.nan, np.float32)
        """Powers of the last frames; NaN: not that many have been seen."""
        self._seen = np.zeros(slots, np.int64)
        self._quiet_ms = np.zeros(slots, np.int64)
        part = frame // PARTS
        self._part_ms = part * 1000 // sample_rate
        self._power = _HighPassedPower(part, sample_rate)

    def reset(self, slot: int) -> None:
        """A new stream begins in that row."""
        self._seen[slot] = self._quiet_ms[slot] = 0
        self._recent[slot] = np.nan

    def powers(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Power of the parts of each of ``frames [batch, frame]`` above the high-pass, ``[batch, parts]``.

        Changes nothing: a frame's level depends on it alone.
        """
        # An array of parts need not be copied, whatever lies between the frames.
        parts = frames.reshape(len(frames), PARTS, -1)
        power = np.empty((len(frames), PARTS), np.float32)
        for first in range(0, len(parts), _ROWS):
            power[first : first + _ROWS] = self._power.of(parts[first : first + _ROWS])
        return power

    def update(
        self, slots: Sequence[int] | NDArray[np.intp], powers: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float32]]:
        """Take the powers of the next frame of each of ``slots`` (no slot twice).

        Returns, ``[batch]`` each, whether it is in a steady sound by now, for how many milliseconds at the frame's
        end nothing has been heard (at most ``LONGEST_QUIET_MS``), and the power from which on something is.
        """
        rows = np.asarray(slots, np.intp)
        # The reductions by their ufuncs: what np.mean and the like do around them takes longer than a small batch.
        seen = self._seen.take(rows)
        self._recent[rows, seen % self._window] = np.add.reduce(powers, axis=1) / PARTS
        seen += 1
        self._seen[rows] = seen
        recent = self._recent.take(rows, axis=0)
        loudest, quietest = np.fmax.reduce(recent, axis=1), np.fmin.reduce(recent, axis=1)
        steady = (loudest < quietest * _RANGE) & (seen >= self._window)
        heard_from = np.maximum(np.maximum(quietest * _ABOVE_NOISE, loudest * _BELOW_PEAK), _AUDIBLE)
        quiet_ms = self._quiet_ms.take(rows)
        for soft in (powers < heard_from[:, None]).T:
            quiet_ms += self._part_ms
            quiet_ms *= soft
        np.minimum(quiet_ms, LONGEST_QUIET_MS, out=quiet_ms)
        self._quiet_ms[rows] = quiet_ms
        return steady, quiet_ms, heard_from


def heard(pcm: bytes, sample_rate: int, heard_from: float) -> bool:
    """Whether anything is heard in mono PCM16 of 16 to 32 ms, a frame that may be shorter than others: its first or its
    last 16 ms have the power ``heard_from``. Of less than 16 ms that is not known, and so True."""
    part = sample_rate * PART_MS // 1000
    samples = pcm16_to_float(pcm)
    if len(samples) < part:
        return True
    parts = np.stack((samples[:part], samples[-part:]))
    return bool((_part_power(sample_rate).of(parts) >= heard_from).any())


@lru_cache(maxsize=16)
def _part_power(sample_rate: int) -> _HighPassedPower:
    return _HighPassedPower(sample_rate * PART_MS // 1000, sample_rate)


class _HighPassedPower:
    """Power of short parts of a sound above the high-pass; 1 is that of a full-scale square wave.

    The high-pass is that of a Hann-windowed spectrum, without state. By Parseval's theorem that is the power of the
    windowed part less what it has in the lower bins: no transform.
    """

    def __init__(self, part: int, sample_rate: int) -> None:
        """``part``: samples at ``sample_rate`` hertz."""
        self._window_function = np.hanning(part + 1)[:-1].astype(np.float32)
        self._scale = 1 / float(np.sum(np.square(self._window_function)))
        phase = 2 * np.pi / part * np.outer(np.arange(part), np.arange(np.ceil(HIGH_PASS_HZ * part / sample_rate)))
        low = np.concatenate((np.cos(phase), np.sin(phase[:, 1:])), axis=1)
        self._low = (low / np.linalg.norm(low, axis=0)).astype(np.float32)
        """The bins below the high-pass as an orthonormal basis ``[part, 2 * bins - 1]``."""

    def of(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        """Power ``[...]`` of ``parts [..., part]``."""
        high = parts * self._window_function
        flat = high.reshape(-1, high.shape[-1])
        flat -= (flat @ self._low) @ self._low.T
        power: NDArray[np.float32] = np.vecdot(high, high)
        power *= self._scale
        power += _SILENCE
        return power


def _ratio(decibels: float) -> np.float32:
    """Of powers that lie so far apart."""
    return np.float32(10 ** (decibels / 10))


_RANGE: Final = _ratio(RANGE_DB)
_ABOVE_NOISE: Final = _ratio(ABOVE_NOISE_DB)
_BELOW_PEAK: Final = _ratio(-BELOW_PEAK_DB)
_AUDIBLE: Final = _ratio(AUDIBLE_DBFS)
