"""Background sound for utterances: loops of noise at a stated signal-to-noise ratio."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

NoiseKind = Literal["none", "white", "pink", "hum"]
LOOP_S = 2.0


def noise_loop(kind: NoiseKind, rate: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Two seconds that repeat without a seam, RMS 1 (``none``: zeros). ``hum`` is mains hum: 50 Hz and harmonics."""
    count = round(LOOP_S * rate)
    match kind:
        case "none":
            return np.zeros(count, np.float32)
        case "white":
            wave = rng.standard_normal(count)
        case "pink":
            # Power falls with 1/f from 20 Hz on; made in the frequency domain, so that it is periodic.
            spectrum = np.fft.rfft(rng.standard_normal(count))
            frequency = np.fft.rfftfreq(count, 1 / rate)
            wave = np.fft.irfft(np.where(frequency < 20, 0, spectrum / np.sqrt(np.maximum(frequency, 20))), count)
        case "hum":
            time = np.arange(count) / rate
            phases = rng.uniform(0, 2 * np.pi, 6)
            wave = sum(np.sin(2 * np.pi * 50 * k * time + phases[k - 1]) / k for k in range(1, 7))
    return (wave / np.sqrt(np.mean(np.square(wave)))).astype(np.float32)
