"""How much of a sound is an echo of another, on sound that is no voice and on real voices."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.echo import echo_share
from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav

RATE = 24_000
WINDOW, LONGEST = RATE // 5, RATE * 2 // 5


def shaped(seed: int, seconds: float = 2.0) -> np.ndarray:
    """Noise below 2 kHz with syllables."""
    rng = np.random.default_rng(seed)
    spectrum = np.fft.rfft(rng.standard_normal(round(seconds * RATE)))
    spectrum[np.fft.rfftfreq(round(seconds * RATE), 1 / RATE) > 2_000] = 0
    sound = np.fft.irfft(spectrum) * (1 + np.sin(2 * np.pi * 4 * np.arange(round(seconds * RATE)) / RATE))
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)


def share(near: np.ndarray, far: np.ndarray, near_rate: int = RATE) -> float:
    end = len(far)
    near_pcm = float_to_pcm16(near[-near_rate // 5 :])
    return echo_share(near_pcm, near_rate, float_to_pcm16(far[end - WINDOW - LONGEST :]), RATE)


@pytest.mark.parametrize("delay_ms", [0, 7, 80, 200, 380])
@pytest.mark.parametrize("gain", [1.0, 0.1])
def test_a_delayed_copy_is_an_echo(delay_ms: int, gain: float) -> None:
    far = shaped(0)
    near = np.concatenate([np.zeros(RATE * delay_ms // 1000, np.float32), far])[: len(far)] * np.float32(gain)
    assert share(near, far) > 0.9


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_the_rates_may_differ(rate: int) -> None:
    far = shaped(1)
    near = resample(np.concatenate([np.zeros(RATE // 10, np.float32), far])[: len(far)], RATE, rate)
    assert share(near, far, rate) > 0.8


def test_unrelated_sound_silence_and_nothing_are_none() -> None:
    far = shaped(2)
    assert share(shaped(3), far) < 0.5
    assert share(np.zeros_like(far), far) == 0.0
    assert share(shaped(3), np.zeros_like(far)) == 0.0
    assert echo_share(b"", RATE, float_to_pcm16(far), RATE) == 0.0
    assert echo_share(float_to_pcm16(far), RATE, float_to_pcm16(far), RATE) == 0.0, "no room for a delay"


def test_real_voices_over_an_echo_are_told_from_it(speech_dir: Path) -> None:
    """Every 200 ms in which both are loud: the echo alone is one, the user over an echo 10 dB softer is none."""
    sounds = [resample(samples, rate, RATE) for samples, rate in map(read_wav, sorted(speech_dir.glob("*.wav"))[3:8])]
    alone, double = [], []
    for far, user in itertools.pairwise(sounds):
        length = min(len(far), len(user))
        far, user = (0.6 * s[:length] / np.abs(s).max() for s in (far, user))
        echo = np.concatenate([np.zeros(RATE * 120 // 1000), far])[:length] * 0.1
        for end in range(RATE, length, RATE // 3):
            window = slice(end - WINDOW, end)
            if echo[window].std() > 0.005 and user[window].std() > 0.03:
                alone.append(share(echo[:end].astype(np.float32), far[:end]))
                double.append(share((echo + 0.3 * user)[:end].astype(np.float32), far[:end]))
    assert len(alone) >= 10
    assert min(alone) > 0.7
    assert np.percentile(double, 90) < 0.7
