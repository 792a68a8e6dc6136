"""From the first audible sample of an interruption to the moment at which a client is told to be silent.

Real recordings at known offsets over an answer, the real detector; the clock is that of the samples, so what is
measured is what no faster machine would change. ``duologue bench voice`` measures the rest.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from echo_room import EchoRoom, Samples
from session_driver import RATE

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.engine.silero import SileroModel
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import AbortRequest

pytestmark = pytest.mark.models
TARGET_S = 0.25


@pytest.fixture(scope="module")
def model(silero_path: Path) -> SileroModel:
    return SileroModel(silero_path)


@pytest.fixture(scope="module")
def recordings(speech_dir: Path) -> list[Samples]:
    read = (read_wav(path) for path in sorted(speech_dir.glob("*.wav")))
    return [resample(samples, rate, RATE)[: 3 * RATE] for samples, rate in read]


def onset_of(samples: Samples) -> int:
    """Where the voice begins: the first three frames of 10 ms within 20 dB of the loudest. Some of the recordings have
    noise above the benchmarks' -50 dBFS before it."""
    frames = samples[: len(samples) // 240 * 240].reshape(-1, 240)
    level = 10 * np.log10(np.mean(np.square(frames), axis=1) + 1e-12)
    loud = level >= level.max() - 20
    return int(np.flatnonzero(loud[:-2] & loud[1:-1] & loud[2:])[0]) * 240


def interrupted_at(model: SileroModel, user: Samples, offset_s: float, chunk: int) -> tuple[float, EchoRoom]:
    """Seconds from the answer's beginning to ``speech_started``, by the end of the chunk that brought it."""
    room = EchoRoom(model, itertools.repeat(0.0), gain=0.0)
    request_id = room.ask()
    room.say_aloud(request_id, np.full(20 * RATE, 0.1, np.float32))
    heard = np.concatenate([np.zeros(round(offset_s * RATE), np.float32), user])
    noise = np.random.default_rng(0).standard_normal(len(heard)).astype(np.float32) * np.float32(10 ** (-65 / 20))
    pcm = float_to_pcm16(heard + noise)
    for first in range(0, len(pcm), chunk * 2):
        piece = pcm[first : first + chunk * 2]
        room.now += len(piece) / 2 / RATE
        room.do(client.InputAudioAppend(audio=piece))
        if room.all(events.SpeechStarted):
            return (first + len(piece)) / 2 / RATE, room
    raise AssertionError("never heard")


def test_fc_015_from_onset_to_silence_within_the_target(model: SileroModel, recordings: list[Samples]) -> None:
    late = []
    for index, user in enumerate(recordings):
        offset_s = 0.5 + 0.137 * index
        at, room = interrupted_at(model, user, offset_s, RATE // 50)
        late.append(at - offset_s - onset_of(user) / RATE)
        done = room.last(events.ResponseDone).response
        assert done.status_details is not None
        assert done.status_details.reason == "turn_detected"
        assert room.effects_of(AbortRequest), "the engine is told in the same step"
    print("onset to speech_started, ms:", [round(1000 * value) for value in late])
    assert np.percentile(late, 95) <= TARGET_S


@pytest.mark.parametrize("chunk", [1, RATE // 100, RATE * 85 // 1000, RATE // 5])
def test_fc_015_the_chunks_change_nothing_but_when_the_last_has_come(
    model: SileroModel, recordings: list[Samples], chunk: int
) -> None:
    user = recordings[0][:RATE]
    at, room = interrupted_at(model, user, 0.2, chunk)
    expected_at, expected = interrupted_at(model, user, 0.2, RATE // 50)
    assert room.last(events.SpeechStarted).audio_start_ms == expected.last(events.SpeechStarted).audio_start_ms
    assert at <= expected_at + max(0.02, chunk / RATE)
