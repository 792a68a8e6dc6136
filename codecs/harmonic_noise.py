"""Speech from acoustic frames, in chunks: harmonic-plus-noise synthesis, sample for sample equal to one-shot.

An acoustic model predicts, for each frame of 12.5 ms, a filter on a train of pulses at the pitch, the level of a noise,
and a third component of free phase. With Z complex white noise, all per frame and frequency bin::

    S = exp(lh) e^{i pi tanh(theta)} STFT(pulses(f0)) + exp(ln) Z + exp(lr) e^{i phi}

and the sound is the inverse STFT of S (24 kHz, FFT of 1,200, hop of 300, periodic Hann window both ways).

Source of the formula and of its constants: ``hibari-tts`` 0.2.1, ``hibari/dsp.py`` (Apache-2.0), which turns a whole
sentence at a time; with the noise switched off, the two agree within float32 rounding.

A chunk costs what its own frames cost. Carried from one to the next are the phase of the pulses (a float64 sum), the
pulses and the overlap-added tail of the inverse STFT. The first sample of a frame needs the spectra of the two frames
after it (``LOOK_AHEAD``), so the first chunk costs two frames more than it returns.

Nothing depends on how frames are grouped: every sum runs over one frame, or from the oldest frame to the newest, and
the noise is drawn frame by frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

SAMPLE_RATE: Final = 24_000
FFT_LENGTH: Final = 1200
HOP: Final = 300
"""Samples per frame."""
BINS: Final = FFT_LENGTH // 2 + 1
LOOK_AHEAD: Final = FFT_LENGTH // HOP // 2
"""Frames after a frame that its samples depend on."""

_OVERLAP: Final = FFT_LENGTH // HOP
_HALF: Final = FFT_LENGTH // 2
_BLOCK: Final = 32
"""Most frames worked on at once, so that the buffers stay in the processor's cache."""

_LOWEST_PITCH: Final = np.float32(40.0)
_HIGHEST_HARMONIC: Final = np.float32(11_000.0)
_HIGHEST_LOG: Final = np.float32(7.0)
_PI: Final = np.float32(np.pi)

_WINDOW: Final = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_LENGTH) / FFT_LENGTH)).astype(np.float32)
_PULSE_WINDOW: Final = _WINDOW / np.float32(FFT_LENGTH / 4)
"""Scaled so that a harmonic of amplitude 1 has magnitude 1 in the STFT: ``exp(lh)`` is its level."""


@dataclass(frozen=True, eq=False)
class AcousticFrames:
    """What the acoustic model predicts for a clause: ``[frames, 601]`` float32 each, ``f0`` ``[frames]`` in hertz.

    Logarithms are natural. Frames where ``f0`` is 40 Hz or less have no pulses. Any memory layout will do (such as a
    transposed view of the model's output). Raises ``ValueError`` for arrays whose shapes do not fit together.
    """

    log_harmonic: NDArray[np.float32]
    harmonic_phase: NDArray[np.float32]
    """Before the tanh that limits it to (-pi, pi)."""
    log_noise: NDArray[np.float32]
    log_residual: NDArray[np.float32]
    residual_phase: NDArray[np.float32]
    """In radians."""
    f0: NDArray[np.float32]

    def __post_init__(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            shape = (len(self),) if field.name == "f0" else (len(self), BINS)
            if array.shape != shape or array.dtype != np.float32:
                raise ValueError(f"{field.name}: float32 {shape} expected, not {array.dtype} {array.shape}")

    def __len__(self) -> int:
        return len(self.f0)


class HarmonicNoiseSynthesiser:
    """Turns the frames of one clause into sound, as many at a time as the caller wants.

    ``seed`` fixes the noise: the same frames and seed give the same samples, however they are cut into chunks.
    """

    def __init__(self, frames: AcousticFrames, seed: int) -> None:
        self._frames: Final = frames
        self._spectra: Final = _Spectra(frames, seed)
        self._returned = 0
        self._analysed = 0
        # Rows of HOP samples that analysed frames reach into and later ones will add to. Frame k adds to rows k to
        # k + 3, and its own sound is row k + LOOK_AHEAD: the window is centred on a frame's first sample.
        self._tail = np.zeros((_OVERLAP - 1, HOP), np.float32)

    @property
    def frames_left(self) -> int:
        """Frames whose sound has not been returned yet."""
        return len(self._frames) - self._returned

    @property
    def finished(self) -> bool:
        """True once all of the clause's sound has been returned."""
        return self.frames_left == 0

    def synthesise(self, n_frames: int) -> NDArray[np.float32]:
        """The sound of the next ``n_frames`` frames, or of those that are left: float32 ``[300 * frames]``.

        Not clipped. Raises ``ValueError`` for a negative number.
        """
        if n_frames < 0:
            raise ValueError(f"n_frames: {n_frames} is negative")
        first, end = self._returned, min(self._returned + n_frames, len(self._frames))
        if first == end:
            return np.empty(0, np.float32)
        start, analysed = self._analysed, min(end + LOOK_AHEAD, len(self._frames))
        rows = np.zeros((analysed - start + len(self._tail), HOP), np.float32)
        rows[: len(self._tail)] = self._tail
        for a, b in _blocks(start, analysed):
            windowed = self._spectra.inverse(a, b).reshape(b - a, _OVERLAP, HOP)
            for row in reversed(range(_OVERLAP)):  # oldest frame first, as it is from one chunk to the next
                rows[a - start + row : b - start + row] += windowed[:, row]
        self._returned, self._analysed = end, analysed
        self._tail = rows[analysed - start :].copy()
        return self._normalised(rows[first + LOOK_AHEAD - start : end + LOOK_AHEAD - start], first)

    def _normalised(self, rows: NDArray[np.float32], first: int) -> NDArray[np.float32]:
        """The sound of the frames from ``first`` on: overlap-added ``rows`` over the sum of their squared windows."""
        total = len(self._frames)
        sound = rows * _gain(1, _OVERLAP - 2)
        for frame in {0, total - 2, total - 1}:
            if 0 <= frame - first < len(rows):
                gain = _gain(min(frame, 1), min(total - 1 - frame, _OVERLAP - 2))
                sound[frame - first] = rows[frame - first] * gain
        return sound.reshape(-1)


class _Spectra:
    """The frames' spectra and, of these, the windowed inverse transforms, a block of frames at a time, in order."""

    def __init__(self, frames: AcousticFrames, seed: int) -> None:
        self._frames: Final = frames
        self._pulses: Final = _Pulses(frames.f0)
        self._noise: Final = np.random.Generator(np.random.PCG64(seed))
        block = min(len(frames), _BLOCK)
        self._spectrum: Final = np.empty((block, BINS), np.complex64)
        self._part: Final = np.empty((block, BINS), np.complex64)
        self._magnitude: Final = np.empty((block, BINS), np.float32)
        self._angle: Final = np.empty((block, BINS), np.float32)
        self._wave: Final = np.empty((block, FFT_LENGTH), np.float32)

    def inverse(self, start: int, end: int) -> NDArray[np.float32]:
        """Windowed inverse transform of frames ``start`` to ``end``: ``[frames, 1200]``, good until the next call."""
        count, frames = end - start, self._frames
        spectrum, part, wave = self._spectrum[:count], self._part[:count], self._wave[:count]
        angle = self._angle[:count]
        np.multiply(self._pulses.windows(start, end), _PULSE_WINDOW, out=wave)
        np.fft.rfft(wave, axis=1, out=cast(Any, spectrum))  # numpy's stubs know double precision only
        np.copyto(angle, frames.harmonic_phase[start:end])
        np.tanh(angle, out=angle)
        angle *= _PI
        self._polar(frames.log_harmonic[start:end], angle)
        spectrum *= part
        self._noise.standard_normal(dtype=np.float32, out=part.view(np.float32))
        part *= self._level(frames.log_noise[start:end])
        spectrum += part
        np.copyto(angle, frames.residual_phase[start:end])
        self._polar(frames.log_residual[start:end], angle)
        spectrum += part
        np.fft.irfft(spectrum, FFT_LENGTH, axis=1, out=cast(Any, wave))
        wave *= _WINDOW
        return wave

    def _polar(self, log_magnitude: NDArray[np.float32], angle: NDArray[np.float32]) -> None:
        """``_part`` = exp(log_magnitude) e^{i angle}."""
        part, level = self._part[: len(angle)], self._level(log_magnitude)
        np.multiply(np.cos(angle), level, out=part.real)
        np.multiply(np.sin(angle), level, out=part.imag)

    def _level(self, log_magnitude: NDArray[np.float32]) -> NDArray[np.float32]:
        """exp(log_magnitude), limited against overflow; good until the next call."""
        # Copied first: numpy's vectorised functions may round differently on other memory layouts.
        level = self._magnitude[: len(log_magnitude)]
        np.copyto(level, log_magnitude)
        np.minimum(level, _HIGHEST_LOG, out=level)
        return np.exp(level, out=level)


class _Pulses:
    """Band-limited pulse train at the pitch, made as far as it is asked for.

    All harmonics up to 11 kHz at amplitude 1: sum_{h<=H} cos(h t) = sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2.
    """

    def __init__(self, f0: NDArray[np.float32]) -> None:
        self._frames: Final = len(f0)
        self._f0: Final = np.pad(f0, 1, mode="edge") if len(f0) else f0
        self._padded: Final = np.empty(len(f0) * HOP + 2 * _HALF, np.float32)
        self._made = 0
        self._phase_sum = 0.0

    def windows(self, start: int, end: int) -> NDArray[np.float32]:
        """View ``[end - start, 1200]`` of the samples under the windows of these frames, reflected at both ends."""
        self._make(min(end + 2, self._frames))
        samples = self._padded[start * HOP : (end - 1) * HOP + FFT_LENGTH]
        return sliding_window_view(samples, FFT_LENGTH)[::HOP]

    def _make(self, end: int) -> None:
        for a, b in _blocks(self._made, end):
            self._padded[_HALF + a * HOP : _HALF + b * HOP] = self._block(a, b)
        if self._made < end == self._frames <= 2:  # shorter than what is reflected: numpy does that back and forth
            self._padded[:] = np.pad(self._padded[_HALF:-_HALF], _HALF, mode="reflect")
        elif self._made < end:
            if self._made == 0:
                self._padded[:_HALF] = self._padded[2 * _HALF : _HALF : -1]
            if end == self._frames:
                self._padded[-_HALF:] = self._padded[-_HALF - 2 : -2 * _HALF - 2 : -1]
        self._made = max(self._made, end)

    def _block(self, start: int, end: int) -> NDArray[np.float32]:
        """The pulses of frames ``start`` to ``end``: ``[300 * frames]``; in order, as the phase runs on."""
        pitch = self._pitch(start, end)
        voiced = pitch > _LOWEST_PITCH
        np.maximum(pitch, _LOWEST_PITCH, out=pitch)
        turns = np.empty(len(pitch) + 1, np.float64)
        turns[0], turns[1:] = self._phase_sum, pitch
        np.cumsum(turns, out=turns)
        self._phase_sum = float(turns[-1])
        turns *= 1 / SAMPLE_RATE
        phase = ((turns[1:] % 1.0) * (2 * np.pi)).astype(np.float32)
        harmonics = np.floor(_HIGHEST_HARMONIC / pitch)
        harmonics += np.float32(0.5)
        divisor = np.sin(phase * np.float32(0.5))
        divisor *= np.float32(2)
        at_pulse = np.abs(divisor) <= np.float32(2e-3)
        divisor[at_pulse] = 1
        phase *= harmonics
        pulses: NDArray[np.float32] = np.sin(phase, out=phase)
        pulses /= divisor
        pulses[at_pulse] = harmonics[at_pulse]
        pulses -= np.float32(0.5)
        pulses[~voiced] = 0
        return pulses

    def _pitch(self, start: int, end: int) -> NDArray[np.float32]:
        """Pitch per sample, linear between the middles of the frames: ``[300 * frames]``."""
        rising, falling = _interpolation()
        before, here, after = (self._f0[start + i : end + i, None] for i in range(3))
        pitch = np.empty((end - start, HOP), np.float32)
        half = HOP // 2
        pitch[:, :half] = before * falling[:half] + here * rising[:half]
        pitch[:, half:] = here * falling[half:] + after * rising[half:]
        return pitch.reshape(-1)


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of at most ``_BLOCK`` frames that make up ``start`` to ``end``."""
    for a in range(start, end, _BLOCK):
        yield a, min(a + _BLOCK, end)


@lru_cache(maxsize=1)
def _interpolation() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights ``[300]`` of the later and of the earlier of the two frames whose middles enclose a sample."""
    rising = (((np.arange(HOP) + 0.5) / HOP - 0.5) % 1.0).astype(np.float32)
    return rising, np.float32(1) - rising


@lru_cache(maxsize=8)
def _gain(before: int, after: int) -> NDArray[np.float32]:
    """1 / sum of squared windows over a frame's samples, with so many frames before (up to 1) and after (up to 2)."""
    squared = (_WINDOW * _WINDOW).reshape(_OVERLAP, HOP)
    gain: NDArray[np.float32] = np.float32(1) / squared[LOOK_AHEAD - after : LOOK_AHEAD + before + 1].sum(axis=0)
    return gain
