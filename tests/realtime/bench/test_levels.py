"""Where a user's speech begins and ends, whatever the room's noise."""

from __future__ import annotations

import numpy as np
import pytest

from duologue.realtime.bench.levels import speech_bounds, user_speech, without_rumble

RATE = 16_000


def bursts(*spans: tuple[float, float], seconds: float = 3.0, noise_db: float | None = None) -> np.ndarray:
    """A tone at -12 dBFS in the given spans of seconds, over noise."""
    time = np.arange(round(seconds * RATE)) / RATE
    audio = np.zeros(len(time))
    for start, end in spans:
        inside = (time >= start) & (time < end)
        audio[inside] = 0.25 * np.sqrt(2) * np.sin(2 * np.pi * 300 * time[inside])
    if noise_db is not None:
        audio += np.random.default_rng(1).standard_normal(len(time)) * 10 ** (noise_db / 20)
    return audio.astype(np.float32)


@pytest.mark.parametrize("noise_db", [None, -60.0, -45.0, -35.0])
def test_bounds_do_not_depend_on_the_noise_floor(noise_db: float | None):
    bounds = speech_bounds(bursts((0.5, 1.2), (1.5, 2.3), noise_db=noise_db), RATE)
    assert (bounds.start / RATE, bounds.end / RATE) == (0.5, 2.3)
    assert bounds.longest_pause / RATE == pytest.approx(0.3)


def test_a_click_is_not_speech():
    bounds = speech_bounds(bursts((0.5, 1.0), (2.0, 2.02)), RATE)
    assert bounds.end / RATE == 1.0


def test_a_breath_on_the_microphone_after_the_last_word_is_not_speech():
    rng = np.random.default_rng(2)
    breath = np.convolve(rng.standard_normal(3 * RATE), np.hanning(RATE // 50), "same")  # below 100 Hz
    breath *= 0.1 / breath.std()
    breath[: round(1.2 * RATE)] = breath[round(1.4 * RATE) :] = 0.0
    audio = bursts((0.5, 1.2)) + breath.astype(np.float32)
    assert speech_bounds(audio, RATE).end / RATE == pytest.approx(1.4, abs=0.02)
    assert user_speech(audio, RATE).end / RATE == pytest.approx(1.2, abs=0.02)
    assert user_speech(audio, RATE).start == speech_bounds(audio, RATE).start


@pytest.mark.parametrize("noise_db", [None, -45.0])
def test_without_breath_speech_is_where_it_is_heard(noise_db: float | None):
    audio = bursts((0.5, 1.2), (1.5, 2.3), noise_db=noise_db)
    assert user_speech(audio, RATE) == speech_bounds(audio, RATE)
    assert user_speech(np.zeros(RATE, np.float32), RATE) is None


def test_what_speech_needs_passes_where_it_was():
    time = np.arange(RATE) / RATE
    for hertz, passed in ((50, 0.0), (120, 0.0), (300, 1.0), (4000, 1.0)):
        tone = np.sin(2 * np.pi * hertz * time).astype(np.float32)
        np.testing.assert_allclose(without_rumble(tone, RATE), passed * tone, atol=1e-3)


def test_the_end_before_a_position():
    bounds = speech_bounds(bursts((0.5, 1.2), (1.5, 2.3)), RATE)
    assert bounds.last_end_before(round(1.4 * RATE)) / RATE == 1.2
    assert bounds.last_end_before(round(1.6 * RATE)) / RATE == 1.6
    assert bounds.last_end_before(round(2.9 * RATE)) / RATE == 2.3
    assert bounds.last_end_before(100) is None


@pytest.mark.parametrize("audio", [np.zeros(RATE, np.float32), np.zeros(10, np.float32)])
def test_silence_has_no_bounds(audio: np.ndarray):
    assert speech_bounds(audio, RATE) is None
