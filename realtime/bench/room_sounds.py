"""Sounds of rooms in which nobody speaks, made from a seed: hum, a fan, a keyboard, music.

All are mono float32 at any rate, as long as asked for, and scaled so that their RMS level over the whole length is the
one asked for (for the keyboard too, so that its strokes are far above it).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

RoomSound = Literal["hum", "fan", "comfort_noise", "keyboard", "music"]
ROOM_SOUNDS: tuple[RoomSound, ...] = get_args(RoomSound)

Samples = NDArray[np.float32]
_BEAT_S = 0.5
_CHORDS = ((0, 4, 7), (-3, 0, 4), (-7, -3, 0), (-5, -1, 2))
"""Semitones above the tonic: I, vi, IV, V."""
_TUNE = (12, 14, 16, 19, 16, 14, 12, 7)


def room_sound(kind: RoomSound, seconds: float, rate: int, dbfs: float, seed: int = 0) -> Samples:
    """``seconds`` of a sound ``[n]`` at ``rate`` hertz whose RMS level is ``dbfs``."""
    rng = np.random.default_rng(seed)
    count = round(seconds * rate)
    match kind:
        case "hum":
            wave = _hum(count, rate, rng)
        case "fan":
            wave = _fan(count, rate, rng)
        case "comfort_noise":
            wave = _shaped_noise(count, rate, rng, lambda f: 1 / (1 + (f / 1000) ** 2))
        case "keyboard":
            wave = _keyboard(count, rate, rng)
        case "music":
            wave = _music(count, rate, rng)
    level = 10 ** (dbfs / 20) / np.sqrt(np.mean(np.square(wave, dtype=np.float64)))
    return np.asarray(wave * level, np.float32)


def _hum(count: int, rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Mains at 50 Hz with falling harmonics, as a bad cable picks it up."""
    time = np.arange(count) / rate
    phases = rng.uniform(0, 2 * np.pi, 12)
    return sum(np.sin(2 * np.pi * 50 * k * time + phases[k - 1]) / k for k in range(1, 13))  # type: ignore[return-value]


def _fan(count: int, rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Air noise that falls with frequency, beating with the blades (23 Hz), over the tone of a motor (115 Hz)."""
    time = np.arange(count) / rate
    air = _shaped_noise(count, rate, rng, lambda f: 1 / np.maximum(f, 60))
    air /= np.std(air)
    return air * (1 + 0.2 * np.sin(2 * np.pi * 23 * time)) + 0.3 * np.sin(2 * np.pi * 115 * time)


def _keyboard(count: int, rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Five strokes a second on average, in words of two to nine: press, then release 60 to 120 ms later."""
    wave = np.zeros(count + rate)
    position = 0.0
    while position * rate < count:
        for _ in range(int(rng.integers(2, 10))):
            for offset, loudness in ((0.0, 1.0), (rng.uniform(0.06, 0.12), 0.4)):
                start = round((position + offset) * rate)
                stroke = _stroke(rate, rng) * loudness * rng.uniform(0.6, 1.0)
                end = min(start + len(stroke), len(wave))
                wave[start:end] += stroke[: max(0, end - start)]
            position += rng.uniform(0.08, 0.25)
        position += rng.uniform(0.2, 1.5)
    return wave[:count]


def _stroke(rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A click of 30 ms: noise and the resonances of a key and of the desk under it."""
    time = np.arange(round(0.03 * rate)) / rate
    click = rng.standard_normal(len(time)) * np.exp(-time / 0.003)
    key = np.sin(2 * np.pi * rng.uniform(1800, 3200) * time) * np.exp(-time / 0.004)
    desk = np.sin(2 * np.pi * rng.uniform(180, 320) * time) * np.exp(-time / 0.010)
    return click + 0.7 * key + 0.5 * desk


def _music(count: int, rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Plucked chords, a tune above them and a drum on each beat, 120 beats a minute, in a key chosen by the seed."""
    tonic = 220 * 2 ** (int(rng.integers(0, 12)) / 12)
    beat = round(_BEAT_S * rate)
    wave = np.zeros(count + 4 * beat)
    time = np.arange(4 * beat) / rate
    for index in range(count // beat + 1):
        start = index * beat
        wave[start : start + beat] += _drum(beat, rate, rng)
        notes = [_TUNE[int(rng.integers(0, len(_TUNE)))]]
        if index % 4 == 0:
            notes += _CHORDS[index // 4 % len(_CHORDS)]
        for note in notes:
            pitch = tonic * 2 ** (note / 12)
            tone = sum(np.sin(2 * np.pi * pitch * k * time) / k**1.5 for k in range(1, 7))
            wave[start : start + 4 * beat] += tone * np.exp(-time / 0.6) * np.minimum(1, time / 0.005)
    return wave[:count]


def _drum(length: int, rate: int, rng: np.random.Generator) -> NDArray[np.float64]:
    time = np.arange(length) / rate
    return 2 * np.sin(2 * np.pi * 60 * time) * np.exp(-time / 0.08) + 0.3 * rng.standard_normal(length) * np.exp(
        -time / 0.02
    )


def _shaped_noise(count: int, rate: int, rng: np.random.Generator, power: object) -> NDArray[np.float64]:
    """Gaussian noise whose power spectrum is ``power(hertz)``."""
    assert callable(power)
    spectrum = np.fft.rfft(rng.standard_normal(count))
    return np.fft.irfft(spectrum * np.sqrt(power(np.fft.rfftfreq(count, 1 / rate))), count)
