"""Rate, pitch and level around an overlap, on sounds whose values are known."""

from __future__ import annotations

import numpy as np
import pytest

from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.fdb.prosody import around, paired_t, pitches, split_words, words_per_minute
from duologue.realtime.bench.utterances import Library

RATE = 24_000


def voice(frequency: float, seconds: float, level: float = 0.1) -> np.ndarray:
    """A buzz with harmonics, as a voice has."""
    time = np.arange(round(seconds * RATE)) / RATE
    return (level * sum(np.sin(2 * np.pi * frequency * k * time) / k for k in range(1, 8))).astype(np.float32)


@pytest.mark.parametrize("frequency", [80.0, 120.0, 210.0, 400.0])
def test_the_pitch_of_a_buzz(frequency: float):
    found = pitches(voice(frequency, 1.0), RATE)
    assert len(found) > 90
    assert found == pytest.approx(frequency, rel=0.02)


def test_silence_and_noise_have_no_pitch():
    assert len(pitches(np.zeros(RATE, np.float32), RATE)) == 0
    assert len(pitches(np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32), RATE)) < 5
    assert len(pitches(np.zeros(10, np.float32), RATE)) == 0


def test_the_packaged_voice_speaks_at_the_pitch_of_a_woman():
    audio, _ = Library(None).sound("synthesised", "What is the capital of France?")
    assert 150 < float(np.median(pitches(audio, RATE))) < 260


def test_the_word_that_is_being_said_comes_after():
    said = [TimedWord("a", 0.0, 1.0), TimedWord("b", 1.0, 2.0), TimedWord("c", 2.5, None)]
    before, after = split_words(said, 1.5)
    assert ([w.text for w in before], [w.text for w in after]) == (["a"], ["b", "c"])
    assert [w.text for w in split_words(said, 2.2)[1]] == ["c"]
    assert split_words(said, 9.0)[1] == []


def test_words_per_minute():
    assert words_per_minute([TimedWord("a", 1.0, 1.4), TimedWord("b", 1.5, 2.0)]) == 120.0
    assert words_per_minute([]) is None
    assert words_per_minute([TimedWord("a", 1.0, None)]) is None


def test_an_answer_before_after_and_without():
    audio = np.concatenate([voice(100, 2.0), voice(200, 2.0, 0.05)])
    said = [TimedWord("a", 0.0, 1.0), TimedWord("b", 1.0, 2.0), TimedWord("c", 2.0, 3.0)]
    measured = around(said, audio, said[:2], voice(100, 2.0), RATE, 1.9)
    assert measured.before.pitch_hz == pytest.approx(100, rel=0.02)
    assert measured.after.words_per_minute == pytest.approx(60)
    assert measured.clean.pitch_hz == pytest.approx(measured.before.pitch_hz, abs=1)
    assert measured.before.words_per_minute == 60.0
    later = around(said, audio, [], np.zeros(0, np.float32), RATE, 2.0)
    assert later.after.pitch_hz == pytest.approx(200, rel=0.02)
    assert later.before.level_db - later.after.level_db == pytest.approx(6.02, abs=0.2)
    assert later.clean.pitch_hz is None


def test_golden_of_students_t():
    """Against tables: t = 2.776 at 4 degrees of freedom and t = 2.262 at 9 are the 5 % limits."""
    same = paired_t([(1.0, 2.0), (2.0, 3.0)])
    assert (same.n, same.t) == (2, None)
    for freedom, limit in ((4, 2.776), (9, 2.262), (1, 12.706)):
        n = freedom + 1
        # Differences with mean m and deviation s such that t is the limit.
        offsets = np.arange(n) - freedom / 2
        mean = limit * offsets.std(ddof=1) / np.sqrt(n)
        result = paired_t([(float(offset + mean), 0.0) for offset in offsets])
        assert result.t == pytest.approx(limit, abs=1e-4)
        assert result.p == pytest.approx(0.05, abs=2e-4)
    assert paired_t([(1.0, None)]).n == 0
