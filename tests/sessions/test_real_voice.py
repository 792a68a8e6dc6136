"""The turn policy on the real detector: hum, quiet speech, and how the audio was cut, with real recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.codecs.wav import read_wav
from duologue.engine.silero import CONTEXT, FRAME, STATE, SileroModel
from duologue.sessions.config import ServerVad
from duologue.sessions.timebase import VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

pytestmark = pytest.mark.models
RATE = 16_000
Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(silero_path: Path) -> SileroModel:
    return SileroModel(silero_path)


@pytest.fixture(scope="module")
def recording(speech_dir: Path) -> Samples:
    samples, rate = read_wav(speech_dir / "librivox-austen-0880.wav")
    assert rate == RATE
    return samples


def signals(model: SileroModel, samples: Samples, detection: ServerVad | None = None) -> list[TurnSignal]:
    """What the policy makes of a whole signal."""
    policy = SilencePolicy(SilenceSettings.of(detection or ServerVad(), 120.0))
    state = np.zeros((2, 1, STATE), np.float32)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    found: list[TurnSignal] = []
    for index in range((len(padded) - CONTEXT) // FRAME):
        frame = padded[index * FRAME : index * FRAME + CONTEXT + FRAME]
        probability, state = model.step(frame[None], state)
        start = index * VAD_FRAME_TICKS
        found += policy.frame(start, start + VAD_FRAME_TICKS, float(probability[0]))
    return [signal for signal in found if isinstance(signal, Started | Stopped)]


def quiet(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def hum(seconds: float, hertz: float, dbfs: float) -> Samples:
    t = np.arange(round(seconds * RATE)) / RATE
    return (np.sqrt(2) * 10 ** (dbfs / 20) * np.sin(2 * np.pi * hertz * t)).astype(np.float32)


@pytest.mark.parametrize("hertz", [50.0, 120.0])
def test_fc_043_speech_in_hum_is_kept_and_hum_alone_closes_the_turn(
    model: SileroModel, recording: Samples, hertz: float
) -> None:
    clean = np.concatenate([quiet(1), recording, quiet(3)])
    started, stopped = signals(model, clean + hum(len(clean) / RATE, hertz, -20.0))
    reference_start, reference_stop = signals(model, clean)
    assert isinstance(started, Started)
    assert isinstance(reference_start, Started)
    assert isinstance(stopped, Stopped)
    assert isinstance(reference_stop, Stopped)
    assert abs(started.start - reference_start.start) <= 6 * VAD_FRAME_TICKS
    assert abs(stopped.end - reference_stop.end) <= 10 * VAD_FRAME_TICKS


def test_fc_044_quiet_speech_is_heard_with_a_lower_threshold(model: SileroModel, recording: Samples) -> None:
    level = 20 * np.log10(np.sqrt(np.mean(recording**2)))
    faint = recording * np.float32(10 ** ((-45.0 - level) / 20))
    found = signals(model, np.concatenate([quiet(1), faint, quiet(2)]), ServerVad(threshold=0.3))
    assert [type(signal) for signal in found] == [Started, Stopped]


@pytest.mark.parametrize("dbfs", [-50.0, -30.0])
def test_noise_without_speech_starts_nothing(model: SileroModel, dbfs: float) -> None:
    noise = np.random.default_rng(0).standard_normal(10 * RATE).astype(np.float32) * np.float32(10 ** (dbfs / 20))
    assert signals(model, noise) == []
