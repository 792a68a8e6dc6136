"""Recordings cut into sentences: where the text ends one and the speaker is silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import write_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.turns_clips import LEAD_S, TAIL_S, read_clips
from duologue.realtime.bench.turns_score import Turn
from duologue.realtime.bench.turns_sentences import GUARD_S, LONGEST_SENTENCE_S, cut_recording, sentences

RUNS = [(0.5, 1.5), (2.0, 3.0), (3.1, 4.0), (5.0, 6.0), (6.5, 7.0)]
WORDS = [
    TimedWord("First,", 0.5, 1.4),
    TimedWord("this.", 2.0, 4.1),  # one sentence, with a pause, and a gap too short for one
    TimedWord("Then", 4.3, 5.9),  # the recogniser stretches it into the silence before
    TimedWord("that!", 6.4, 7.0),
]


def test_a_sentence_ends_where_the_text_ends_it_and_nobody_speaks() -> None:
    assert sentences(RUNS, WORDS) == [Turn(0.5, 4.0, ((1.5, 2.0),)), Turn(5.0, 7.0, ((6.0, 6.5),))]


@pytest.mark.parametrize("last", ["that", "that,", "that...", "that…"])
def test_a_text_that_breaks_off_is_no_sentence(last: str) -> None:
    assert sentences(RUNS, [*WORDS[:-1], TimedWord(last, 6.4, 7.0)]) == [Turn(0.5, 4.0, ((1.5, 2.0),))]


def test_a_full_stop_without_silence_is_no_end() -> None:
    assert sentences([(0.0, 4.0)], [TimedWord("One.", 0.0, 1.0), TimedWord("Two.", 1.1, 4.0)]) == [Turn(0.0, 4.0)]


def test_words_without_times_and_no_words_end_nothing() -> None:
    assert sentences(RUNS, []) == []
    assert sentences(RUNS, [TimedWord("Hm.", None, None)]) == []


def test_a_sound_without_a_word_of_its_own_is_no_sentence() -> None:
    """A breath after the last word, or a click: the text before it ends a sentence, but not this one."""
    assert sentences([*RUNS, (8.0, 8.2)], WORDS) == sentences(RUNS, WORDS)
    late = [*WORDS[:2], TimedWord("Then", 4.9, 5.9), WORDS[3]]
    assert sentences([*RUNS[:3], (4.3, 4.5), *RUNS[3:]], late) == sentences(RUNS, WORDS), "nor does it begin the next"


def test_what_goes_on_for_too_long_is_left_out() -> None:
    runs = [(0.0, LONGEST_SENTENCE_S + 1), (LONGEST_SENTENCE_S + 2, LONGEST_SENTENCE_S + 3)]
    words = [TimedWord("No.", 0.0, 1.0), TimedWord("Yes.", LONGEST_SENTENCE_S + 2, LONGEST_SENTENCE_S + 3)]
    assert sentences(runs, words) == [Turn(*runs[1])]


def test_the_sound_of_a_sentence_is_that_of_the_recording_with_the_silence_after_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    samples = (rng.standard_normal(8 * SAMPLE_RATE) * 1e-4).astype(np.float32)
    for start, end in RUNS:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] *= 1000
    write_wav(tmp_path / "talk.wav", float_to_pcm16(samples), SAMPLE_RATE)
    out = tmp_path / "out"
    out.mkdir()
    assert cut_recording(tmp_path / "talk.wav", lambda audio: WORDS, out, "it") == 2
    first, second = read_clips(out)
    assert (first.name, second.name) == ("talk-00", "talk-01")
    assert first.truth.language == second.truth.language == "it"
    (turn,) = first.truth.turns
    assert (turn.start, turn.end) == pytest.approx((LEAD_S, LEAD_S + 3.5), abs=0.02)
    assert turn.pauses[0] == pytest.approx((LEAD_S + 1.0, LEAD_S + 1.5), abs=0.02)
    assert first.truth.duration == pytest.approx(LEAD_S + 4.5 - GUARD_S + TAIL_S, abs=0.02)
    begin, length = round(LEAD_S * SAMPLE_RATE), round(4.4 * SAMPLE_RATE)
    np.testing.assert_allclose(
        first.samples[begin : begin + length], samples[SAMPLE_RATE // 2 : SAMPLE_RATE // 2 + length], atol=1e-4
    )
    assert np.abs(first.samples[begin + round(3.6 * SAMPLE_RATE) :]).max() < 0.01, "the next sentence is not heard"


def test_a_silent_recording_has_no_sentences(tmp_path: Path) -> None:
    write_wav(tmp_path / "silence.wav", bytes(2 * SAMPLE_RATE), SAMPLE_RATE)
    assert cut_recording(tmp_path / "silence.wav", lambda audio: WORDS, tmp_path) == 0
