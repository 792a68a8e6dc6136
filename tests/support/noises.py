"""Sounds in which nobody speaks: hum, fan, clicks, music, breath. At 16 kHz, of effective value 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
Samples = NDArray[np.float64]


def noises(seconds: float, seed: int = 0) -> dict[str, Samples]:
    """By name; the same for the same ``seed``."""
    rng = np.random.default_rng(seed)
    n = round(seconds * RATE)
    t = np.arange(n) / RATE
    swell = np.clip(np.sin(2 * np.pi * 0.7 * t), 0, 1) ** 2
    sounds = {
        "hum 50 Hz": _harmonics(t, 50, (1, 0.3, 0.2)),
        "hum 120 Hz": _harmonics(t, 120, (1, 0.4, 0.2)),
        "white": rng.standard_normal(n),
        "fan": _shaped(rng, n, lambda f: 1 / np.maximum(f, 30)) * 30 + 0.2 * np.sin(2 * np.pi * 87 * t),
        "hiss": _shaped(rng, n, lambda f: f > 3000),
        "breath": _shaped(rng, n, lambda f: (f > 300) & (f < 3000)) * swell,
        "low breath": _shaped(rng, n, lambda f: (f > 100) & (f < 1500)) * swell,
        "high breath": _shaped(rng, n, lambda f: (f > 1000) & (f < 6000)) * swell,
        "clicks": _clicks(rng, n, 2),
        "typing": _clicks(rng, n, 8),
        "chords": _notes(t, [(261.6, 329.6, 392), (220, 261.6, 329.6), (174.6, 220, 261.6)], 0.8),
        "melody": _notes(t, [(440,), (494,), (523,), (587,), (659,), (587,)], 0.3),
        "siren": np.sin(2 * np.pi * np.cumsum(600 + 300 * np.sin(np.pi * t)) / RATE),
    }
    return {name: sound / np.sqrt(np.mean(sound**2)) for name, sound in sounds.items()}


def at_dbfs(sound: Samples, level: float) -> NDArray[np.float32]:
    """A sound of effective value 1 at a level, clipped where it has to be."""
    return np.clip(sound * 10 ** (level / 20), -1, 1).astype(np.float32)


def _harmonics(t: Samples, hertz: float, amplitudes: tuple[float, ...]) -> Samples:
    return np.sum([a * np.sin(2 * np.pi * hertz * k * t) for k, a in enumerate(amplitudes, 1)], axis=0)


def _shaped(rng: np.random.Generator, n: int, gain) -> Samples:  # type: ignore[no-untyped-def]
    spectrum = np.fft.rfft(rng.standard_normal(n)) * gain(np.fft.rfftfreq(n, 1 / RATE))
    return np.fft.irfft(spectrum, n)


def _clicks(rng: np.random.Generator, n: int, per_second: int) -> Samples:
    samples = 0.001 * rng.standard_normal(n)
    for start in rng.integers(0, n - 400, n * per_second // RATE):
        length = int(rng.integers(60, 300))
        decay = np.exp(-np.arange(length) / (length / 4))
        samples[start : start + length] += rng.uniform(0.1, 0.6) * rng.standard_normal(length) * decay
    return samples


def _notes(t: Samples, chords: list[tuple[float, ...]], seconds: float) -> Samples:
    """One chord after the other, plucked."""
    number, since = np.divmod(t, seconds)
    sound = np.zeros(len(t))
    for index, chord in enumerate(chords):
        tone = np.sum([_harmonics(since, hertz, (1, 1 / 2, 1 / 3, 1 / 4)) for hertz in chord], axis=0)
        sound += np.where(number % len(chords) == index, tone * np.exp(-2 * since), 0)
    return sound
