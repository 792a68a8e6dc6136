"""Real recordings in noise, with and without noise reduction: the floor between words, the words, the false starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from missing import need_package
from numpy.typing import NDArray

from duologue.codecs.levels import dbfs
from duologue.codecs.noise_suppression import MakeSuppressor, load_noise_suppression
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.engine.silero import CONTEXT, FRAME, STATE, SileroModel
from duologue.engine.words import WordErrors, word_errors
from duologue.sessions.timebase import VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Started
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

pytestmark = pytest.mark.models
RATE = 24_000
SNR_DB = 10.0
LEAD_S, TAIL_S = 2.0, 1.0
"""Noise alone before the words, in which it is learnt, and behind them."""
NOISES = ("white", "fan", "hum")
Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def make() -> MakeSuppressor:
    need_package("livekit")
    return load_noise_suppression()


def noise(kind: str, seconds: float) -> Samples:
    """RMS 1, mono at ``RATE``."""
    count = round(seconds * RATE)
    time, rng = np.arange(count) / RATE, np.random.default_rng(1)
    wave = rng.standard_normal(count)
    if kind == "hum":
        wave = np.sum([np.sin(2 * np.pi * 50 * k * time + k) / k for k in range(1, 7)], axis=0)
    elif kind == "fan":  # air, falling by 3 dB an octave, and the blades
        frequency = np.fft.rfftfreq(count, 1 / RATE)
        wave = np.fft.irfft(np.fft.rfft(wave) / np.sqrt(np.maximum(frequency, 20)), count)
        wave = wave / wave.std() + 0.3 * np.sin(2 * np.pi * 110 * time)
    return (wave / wave.std()).astype(np.float32)


def cleaned(make: MakeSuppressor, samples: Samples) -> Samples:
    """As long as ``samples``: the last few milliseconds stay as they came."""
    suppressor = make(RATE)
    assert suppressor is not None
    return pcm16_to_float(suppressor.process(float_to_pcm16(samples)) + suppressor.held)


def in_noise(recording: Samples, kind: str) -> Samples:
    speech = resample(recording, 16_000, RATE)
    scene = np.concatenate(
        [np.zeros(round(LEAD_S * RATE), np.float32), speech, np.zeros(round(TAIL_S * RATE), np.float32)]
    )
    level = 10 ** ((dbfs(speech) - SNR_DB) / 20)
    return (scene + level * noise(kind, len(scene) / RATE)[: len(scene)]).astype(np.float32)


@pytest.fixture(scope="module")
def sentences(recordings) -> dict[str, tuple[Samples, str]]:
    """The recordings that are whole sentences."""
    return {name: found for name, found in recordings.items() if name.startswith(("librivox", "jfk", "goforward"))}


@pytest.mark.parametrize("kind", NOISES)
def test_the_noise_floor_behind_the_words_falls_by_ten_decibels(make, sentences, kind: str) -> None:
    for name, (recording, _) in sentences.items():
        noisy = in_noise(recording, kind)
        clean = cleaned(make, noisy)
        assert len(clean) == len(noisy)
        behind = slice(len(noisy) - round(0.7 * RATE), len(noisy) - round(0.05 * RATE))
        assert dbfs(noisy[behind]) - dbfs(clean[behind]) >= 10, name


def test_no_more_words_are_misheard_than_without(make, sentences, transcribe) -> None:
    """Over all the noises: by one noise alone a word more or less is chance."""
    without, with_it = WordErrors(0, 0), WordErrors(0, 0)
    for recording, spoken in sentences.values():
        for kind in NOISES:
            noisy = in_noise(recording, kind)
            words = slice(round((LEAD_S - 0.3) * RATE), len(noisy))
            without += word_errors(spoken, transcribe(resample(noisy[words], RATE, 16_000)))
            with_it += word_errors(spoken, transcribe(resample(cleaned(make, noisy)[words], RATE, 16_000)))
    print(f"{SNR_DB:.0f} dB: {without.errors} of {without.words} words misheard without, {with_it.errors} with")
    assert with_it.errors <= without.errors
    assert with_it.rate <= 0.10


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("level_db", [-40.0, -20.0])
def test_noise_alone_starts_no_turn(make: MakeSuppressor, silero_path: Path, kind: str, level_db: float) -> None:
    sound = noise(kind, 10.0) * np.float32(10 ** (level_db / 20))
    assert starts(silero_path, cleaned(make, sound)) <= starts(silero_path, sound) == 0


def starts(silero_path: Path, samples: Samples) -> int:
    """Turns that a sensitive detector sees begin."""
    model, state = SileroModel(silero_path), np.zeros((2, 1, STATE), np.float32)
    policy, found = SilencePolicy(SilenceSettings(threshold=0.3)), 0
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), resample(samples, RATE, 16_000)])
    for index in range((len(padded) - CONTEXT) // FRAME):
        probability, state = model.step(padded[index * FRAME : index * FRAME + CONTEXT + FRAME][None], state)
        signals = policy.frame(index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS, float(probability[0]))
        found += sum(isinstance(signal, Started) for signal in signals)
    return found
