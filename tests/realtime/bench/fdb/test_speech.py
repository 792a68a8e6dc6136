"""Frames to segments: the rule at its edges, and the packaged model on speech at known places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.resample import resample
from duologue.realtime.bench.fdb.speech import SpeechRule, silero_probabilities, speech_segments
from duologue.realtime.bench.utterances import Library

FRAME_S = 0.032
BARE = SpeechRule(pad_ms=0)


def frames(*runs: tuple[float, int]) -> list[float]:
    return [probability for probability, count in runs for _ in range(count)]


def segments(probabilities: list[float], rule: SpeechRule = BARE) -> list[tuple[float, float]]:
    return speech_segments(probabilities, len(probabilities) * 512, rule)


def test_speech_ends_where_the_silence_began():
    assert segments(frames((0.0, 10), (0.9, 20), (0.0, 10))) == [(10 * FRAME_S, 30 * FRAME_S)]


def test_between_the_two_thresholds_nothing_changes():
    assert segments(frames((0.4, 10), (0.9, 10), (0.4, 10), (0.9, 10), (0.0, 10))) == [(10 * FRAME_S, 40 * FRAME_S)]


def test_a_dip_shorter_than_the_shortest_silence_is_speech():
    assert segments(frames((0.9, 10), (0.0, 3), (0.9, 10), (0.0, 10))) == [(0.0, 23 * FRAME_S)]
    assert len(segments(frames((0.9, 10), (0.0, 6), (0.9, 10), (0.0, 10)))) == 2


def test_a_click_is_no_speech():
    assert segments(frames((0.0, 5), (0.9, 7), (0.0, 10))) == []
    assert len(segments(frames((0.0, 5), (0.9, 8), (0.0, 10)))) == 1


def test_speech_at_the_end_lasts_to_the_end():
    assert segments(frames((0.0, 5), (0.9, 10))) == [(5 * FRAME_S, 15 * FRAME_S)]


def test_padding_stays_in_the_recording_and_off_the_neighbour():
    padded = segments(frames((0.9, 10), (0.0, 6), (0.9, 10)), SpeechRule(pad_ms=500))
    assert padded == [(0.0, 13 * 512 / 16_000), (13 * 512 / 16_000, 26 * 512 / 16_000)]
    (one,) = segments(frames((0.0, 10), (0.9, 10), (0.0, 10)), SpeechRule())
    assert one == (pytest.approx(0.32 - 0.03), pytest.approx(0.64 + 0.03))


def test_the_packaged_model_finds_the_packaged_voice(silero_path: Path):
    audio, bounds = Library(None).sound("synthesised", "What is the capital of France?")
    silence = np.zeros(24_000, np.float32)
    recording = resample(np.concatenate([silence, audio[bounds.start : bounds.end], silence]), 24_000, 16_000)
    probabilities = silero_probabilities(silero_path)(recording)
    assert len(probabilities) == -(-len(recording) // 512)
    (found,) = speech_segments(probabilities.tolist(), len(recording))
    assert found[0] == pytest.approx(1.0, abs=0.15)
    assert found[1] == pytest.approx(1.0 + (bounds.end - bounds.start) / 24_000, abs=0.15)
