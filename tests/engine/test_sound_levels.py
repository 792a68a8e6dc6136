"""Steady sounds are no speech, however they sound; speech never is steady."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import read_wav
from duologue.engine.silero import FRAME, SileroModel
from duologue.engine.sound_levels import HIGH_PASS_HZ, RANGE_DB, WINDOW_S, SoundLevels, heard
from duologue.engine.voice_activity import SAMPLE_RATE, VoiceActivityService, VoiceFrame

Samples = NDArray[np.float32]
WINDOW_FRAMES = round(WINDOW_S * SAMPLE_RATE / FRAME)


def tone(hertz: float, dbfs: float, seconds: float) -> Samples:
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (np.sqrt(2) * 10 ** (dbfs / 20) * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def frames_of(samples: Samples) -> Samples:
    return samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)


def steady(samples: Samples) -> list[bool]:
    detector = SoundLevels(1, FRAME, SAMPLE_RATE)
    return [bool(detector.update([0], powers[None])[0][0]) for powers in detector.powers(frames_of(samples))]


@pytest.mark.parametrize("dbfs", [-60.0, -20.0])
def test_the_level_is_that_of_what_lies_above_the_high_pass(dbfs: float) -> None:
    detector = SoundLevels(1, FRAME, SAMPLE_RATE)
    np.testing.assert_allclose(10 * np.log10(detector.powers(frames_of(tone(1000, dbfs, 0.5)))), dbfs, atol=0.5)
    for hum in (50.0, 60.0, 100.0, 120.0):
        assert hum < HIGH_PASS_HZ
        assert np.all(10 * np.log10(detector.powers(frames_of(tone(hum, dbfs, 0.5)))) < dbfs - 30)


def test_a_tone_is_steady_after_the_window_and_not_before() -> None:
    found = steady(tone(440, -30, WINDOW_S + 1))
    assert found.index(True) == WINDOW_FRAMES - 1
    assert all(found[WINDOW_FRAMES - 1 :])


def test_hum_under_what_moves_changes_nothing() -> None:
    swell = tone(1000, -30, 5) * np.repeat(np.tile([1.0, 0.1], 25), SAMPLE_RATE // 10).astype(np.float32)
    assert not any(steady(swell))
    assert not any(steady(swell + tone(50, -20, 5)))


def test_rows_do_not_mix_and_a_new_stream_starts_afresh() -> None:
    detector = SoundLevels(3, FRAME, SAMPLE_RATE)
    for index in range(WINDOW_FRAMES):
        mask, *_ = detector.update([2, 0], powers(-30, -30 - 2 * RANGE_DB * (index % 2)))
    assert mask.tolist() == [True, False]
    detector.reset(2)
    assert detector.update([2], powers(-30))[0].tolist() == [False]


def test_quiet_is_counted_in_halves_of_a_frame_from_the_last_that_was_heard() -> None:
    detector = SoundLevels(2, FRAME, SAMPLE_RATE)

    def quiet(*halves: float) -> list[int]:
        return detector.update([1], power(np.array([halves])))[1].tolist()

    assert quiet(-70, -70) == [32], "below what anybody hears"
    assert quiet(-70, -25) == [0]
    assert quiet(-25, -62) == [16], "softer than the loudest by more than speech is"
    assert quiet(-62, -62) == [48]
    assert quiet(-61, -62) == [80]
    assert quiet(-62, -50) == [0], "a word's soft end is heard"
    detector.reset(1)
    assert quiet(-30, -30) == [32], "what a stream begins with may be noise"
    assert quiet(-30, -18) == [0]


def test_what_is_heard_stands_out_of_the_noise_and_in_hum_of_the_rest() -> None:
    detector = SoundLevels(1, FRAME, SAMPLE_RATE)
    noise = np.random.default_rng(3).standard_normal(2 * SAMPLE_RATE).astype(np.float32) * np.float32(10**-2.5)
    noise += tone(50, -20, 2)
    noise[SAMPLE_RATE : SAMPLE_RATE + FRAME * 10] += tone(700, -32, 10 * FRAME / SAMPLE_RATE)
    found = [int(detector.update([0], power[None])[1][0]) for power in detector.powers(frames_of(noise))]
    first = SAMPLE_RATE // FRAME
    assert found[first - 1] == first * 32
    assert found[first + 1 : first + 10] == [0] * 9
    assert found[-1] >= (len(found) - first - 11) * 32


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000, 48_000])
@pytest.mark.parametrize("ms", [16, 19, 31])
def test_what_is_heard_in_a_piece_of_a_frame_is_what_would_be_in_the_frame(rate: int, ms: int) -> None:
    time = np.arange(rate * ms // 1000) / rate
    voice, hum = (np.sin(2 * np.pi * hertz * time) for hertz in (1000, 50))
    half = len(time) // 2
    mean = float(power(np.float32(-40.0)))
    for amplitude, expected in ((np.sqrt(2) * 0.014, True), (np.sqrt(2) * 0.007, False)):  # -37 and -43 dBFS
        assert heard(float_to_pcm16((amplitude * voice).astype(np.float32)), rate, mean) is expected
    assert not heard(float_to_pcm16((0.1 * hum).astype(np.float32)), rate, mean)
    for burst in (slice(None, half), slice(half, None)):
        somewhere = np.zeros(len(time), np.float32)
        somewhere[burst] = 0.2 * voice[burst]
        assert heard(float_to_pcm16(somewhere), rate, mean)


def test_of_less_than_a_part_nothing_is_known() -> None:
    assert heard(bytes(2 * 255), 16_000, 1.0)
    assert not heard(bytes(2 * 256), 16_000, 1.0)


def test_what_is_heard_lies_above_the_noise_and_not_far_below_the_loudest() -> None:
    detector = SoundLevels(1, FRAME, SAMPLE_RATE)

    def heard_from(dbfs: float) -> float:
        return float(10 * np.log10(detector.update([0], powers(dbfs))[2][0]))

    assert heard_from(-90) == pytest.approx(-65), "the least that anybody hears"
    assert heard_from(-20) == pytest.approx(-52)
    assert heard_from(-60) == pytest.approx(-52)


def power(dbfs: Samples) -> Samples:
    return np.asarray(10 ** (dbfs / 10), np.float32)


def powers(*dbfs: float) -> Samples:
    """Of frames that are equally loud in both halves."""
    return power(np.repeat(np.array(dbfs)[:, None], 2, axis=1))


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
    got: list[VoiceFrame] = []
    stream = service.open(got.append)
    stream.feed(np.concatenate([voice[:30_000], buzz]))
    async with asyncio.timeout(60):
        await stream.wait_below(1)
    stream.close()
    assert all(10**-6.5 <= frame.heard_from < 1 for frame in got)
    sure = [frame.probability > 0.5 for frame in got]
    begins = 30_000 // FRAME
    assert sum(sure[begins : begins + WINDOW_FRAMES]) > 0.9 * WINDOW_FRAMES
    assert not any(sure[begins + WINDOW_FRAMES + 1 :])
    assert len(got) - begins > 2 * WINDOW_FRAMES
