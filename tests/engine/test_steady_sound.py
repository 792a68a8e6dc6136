"""Steady sounds are no speech, however they sound; speech never is steady."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.codecs.wav import read_wav
from duologue.engine.silero import FRAME, SileroModel
from duologue.engine.steady_sound import HIGH_PASS_HZ, RANGE_DB, WINDOW_S, SteadySound
from duologue.engine.voice_activity import SAMPLE_RATE, VoiceActivityService

Samples = NDArray[np.float32]
WINDOW_FRAMES = round(WINDOW_S * SAMPLE_RATE / FRAME)


def tone(hertz: float, dbfs: float, seconds: float) -> Samples:
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (np.sqrt(2) * 10 ** (dbfs / 20) * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def frames_of(samples: Samples) -> Samples:
    return samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)


def steady(samples: Samples) -> list[bool]:
    detector = SteadySound(1, FRAME, SAMPLE_RATE)
    return [bool(detector.update([0], level[None])[0]) for level in detector.levels(frames_of(samples))]


@pytest.mark.parametrize("dbfs", [-60.0, -20.0])
def test_the_level_is_that_of_what_lies_above_the_high_pass(dbfs: float) -> None:
    detector = SteadySound(1, FRAME, SAMPLE_RATE)
    np.testing.assert_allclose(detector.levels(frames_of(tone(1000, dbfs, 0.5))), dbfs, atol=0.5)
    for hum in (50.0, 60.0, 100.0, 120.0):
        assert hum < HIGH_PASS_HZ
        assert np.all(detector.levels(frames_of(tone(hum, dbfs, 0.5))) < dbfs - 30)


def test_a_tone_is_steady_after_the_window_and_not_before() -> None:
    found = steady(tone(440, -30, WINDOW_S + 1))
    assert found.index(True) == WINDOW_FRAMES - 1
    assert all(found[WINDOW_FRAMES - 1 :])


def test_hum_under_what_moves_changes_nothing() -> None:
    swell = tone(1000, -30, 5) * np.repeat(np.tile([1.0, 0.1], 25), SAMPLE_RATE // 10).astype(np.float32)
    assert not any(steady(swell))
    assert not any(steady(swell + tone(50, -20, 5)))


def test_rows_do_not_mix_and_a_new_stream_starts_afresh() -> None:
    detector = SteadySound(3, FRAME, SAMPLE_RATE)
    still, moving = np.float32(-30), np.float32(-30)
    for index in range(WINDOW_FRAMES):
        moving = np.float32(-30 - 2 * RANGE_DB * (index % 2))
        mask = detector.update([2, 0], np.array([still, moving]))
    assert mask.tolist() == [True, False]
    detector.reset(2)
    assert detector.update([2], np.array([still])).tolist() == [False]


@pytest.mark.models
def test_no_recording_of_speech_is_steady(speech_dir: Path) -> None:
    for path in sorted(speech_dir.glob("*.wav")):
        samples, _ = read_wav(path)
        assert not any(steady(np.asarray(samples, np.float32))), path.name


@pytest.fixture
async def service(silero_path: Path, no_thread_left: None) -> AsyncIterator[VoiceActivityService]:
    service = VoiceActivityService(lambda: SileroModel(silero_path), 2)
    await service.start()
    yield service
    await service.close()


@pytest.mark.models
async def test_fc_051_a_buzz_that_the_model_takes_for_speech_cannot_hold_a_turn_open(
    service: VoiceActivityService, speech_dir: Path
) -> None:
    """64 ms of a voice, over and over: the model is sure of it for ever."""
    voice, _ = read_wav(speech_dir / "librivox-austen-0870.wav")
    buzz = np.tile(voice[30_000:31_024], 100)
    got: list[float] = []
    stream = service.open(got.append)
    stream.feed(np.concatenate([voice[:30_000], buzz]))
    async with asyncio.timeout(60):
        await stream.wait_below(1)
    stream.close()
    sure = [probability > 0.5 for probability in got]
    begins = 30_000 // FRAME
    assert sum(sure[begins : begins + WINDOW_FRAMES]) > 0.9 * WINDOW_FRAMES
    assert not any(sure[begins + WINDOW_FRAMES + 1 :])
    assert len(got) - begins > 2 * WINDOW_FRAMES
