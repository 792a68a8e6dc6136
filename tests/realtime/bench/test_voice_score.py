"""Figures from logs: each outcome, each part, each barge-in measure, on logs written by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from duologue.realtime.bench.goodput import goodput, parse_limits
from duologue.realtime.bench.utterances import Utterance
from duologue.realtime.bench.voice_score import CallScore, score_call
from duologue.realtime.event_log import LogEntry

RATE = 24_000
UTTERANCE = Utterance("u0", "answer", "synthesised", "Ten of clubs.", "Ten of clubs.", 0.0, "none", 0.0, 0, 0)
BARGE_IN = Utterance(
    "b0", "barge_in", "synthesised", "Tell me.", "Tell me.", 0.0, "none", 0.0, 0, 0, "Stop.", barge_in_after_s=1.0
)


class Log:
    """Writes a log and the audio that goes with it."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.audio: list[np.ndarray] = []

    def got(self, t_s: float, type_: str, **fields: Any) -> Log:
        self.entries.append(LogEntry("s2c", t_s, {"type": type_, **fields}))
        return self

    def note(self, t_s: float, type_: str, **fields: Any) -> Log:
        self.entries.append(LogEntry("note", t_s, {"type": type_, **fields}))
        return self

    def said(self, t_s: float, type_: str, id_: str, onset_s: float, stop_s: float) -> Log:
        return self.note(t_s, type_, id=id_, onset_sample=round(onset_s * RATE), stop_sample=round(stop_s * RATE))

    def turn(self, item: str, started_s: float, stopped_s: float, text: str) -> Log:
        self.got(started_s, "input_audio_buffer.speech_started", item_id=item, audio_start_ms=0)
        self.got(stopped_s, "input_audio_buffer.speech_stopped", item_id=item, audio_end_ms=0)
        self.got(stopped_s, "input_audio_buffer.committed", item_id=item, previous_item_id=None)
        return self.got(
            stopped_s + 0.01,
            "conversation.item.input_audio_transcription.completed",
            item_id=item,
            content_index=0,
            transcript=text,
        )

    def created(self, t_s: float, response: str) -> Log:
        return self.got(t_s, "response.created", response={"id": response, "status": "in_progress"})

    def delta(self, t_s: float, response: str, sound: np.ndarray, item: str = "a0") -> Log:
        self.audio.append(sound.astype(np.float32))
        place = {"response_id": response, "item_id": item}
        return self.got(t_s, "response.output_audio.delta", bytes=2 * len(sound), **place)

    def text(self, t_s: float, response: str, delta: str, item: str = "a0") -> Log:
        place = {"response_id": response, "item_id": item}
        return self.got(t_s, "response.output_audio_transcript.delta", delta=delta, **place)

    def done(self, t_s: float, response: str, status: str = "completed") -> Log:
        return self.got(t_s, "response.done", response={"id": response, "status": status})

    def score(self, utterance: Utterance = UTTERANCE) -> CallScore:
        audio = np.concatenate(self.audio) if self.audio else np.zeros(0, np.float32)
        return score_call("s00-c000", [utterance], self.entries, audio)


def loud(seconds: float) -> np.ndarray:
    return np.full(round(seconds * RATE), 0.3)


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE))


def spoken(text: str = "Ten of clubs.") -> Log:
    """An utterance whose last audible sample is at 4.2 s, heard as ``text``; no answer yet."""
    return Log().said(2.0, "utterance", "u0", 2.5, 4.2).turn("i0", 2.6, 4.72, text)


def test_golden_s5_voice_to_voice_with_leading_silence():
    log = spoken().created(4.73, "r0").text(4.9, "r0", "Well,")
    log.delta(5.012, "r0", np.concatenate([quiet(0.06), loud(1.0)])).done(5.2, "r0")
    (result,) = log.score().results
    assert result.outcome == "answered"
    split = result.split
    assert split.v2v_ms == pytest.approx(872, abs=0.001)
    parts = {
        "silence_window_ms": 520,
        "recogniser_tail_ms": 10,
        "first_clause_ms": 170,
        "first_audio_ms": 112,
        "leading_silence_ms": 60,
    }
    assert {name: getattr(split, name) for name in parts} == {
        name: pytest.approx(value, abs=0.001) for name, value in parts.items()
    }
    assert sum(parts.values()) == 872


def test_a_part_whose_end_was_not_seen_is_null_and_the_total_is_not():
    log = spoken().created(4.73, "r0").delta(5.012, "r0", loud(1.0)).done(5.2, "r0")
    split = log.score().results[0].split
    assert (split.first_clause_ms, split.first_audio_ms) == (None, None)
    assert split.v2v_ms == pytest.approx(812, abs=0.001)


def test_text_before_the_transcript_gives_a_negative_part():
    log = spoken().created(4.70, "r0").text(4.71, "r0", "Well,").delta(5.012, "r0", loud(1.0)).done(5.2, "r0")
    assert log.score().results[0].split.first_clause_ms == pytest.approx(-20, abs=0.001)


def test_wrong_words():
    log = spoken("Men are cups.").created(4.73, "r0").delta(5.0, "r0", loud(1.0)).done(5.2, "r0")
    (result,) = log.score().results
    assert (result.outcome, result.word_errors, result.words) == ("wrong_words", 3, 3)


def test_one_wrong_word_of_three_is_still_understood():
    log = spoken("Ten of cups.").created(4.73, "r0").delta(5.0, "r0", loud(1.0)).done(5.2, "r0")
    assert log.score().results[0].outcome == "answered"


def test_a_turn_that_ended_inside_the_utterance_is_early_even_if_answered_later():
    log = Log().said(2.0, "utterance", "u0", 2.5, 4.2).turn("i0", 2.6, 3.9, "Ten of").created(3.95, "r0")
    log.turn("i1", 4.0, 4.7, "clubs.").created(4.8, "r1").delta(5.0, "r1", loud(1.0)).done(5.2, "r1")
    (result,) = log.score().results
    assert (result.outcome, result.split) == ("early", None)
    assert result.reason == "turn ended 300 ms before the true end"
    assert result.transcript == "Ten of clubs."


def before_the_user() -> Log:
    """Noise is taken for a turn before the utterance."""
    return Log().said(2.0, "utterance", "u0", 2.8, 4.2).turn("i0", 2.2, 2.5, "")


def test_a_turn_over_before_the_user_spoke_is_a_false_start_and_the_utterance_counts_as_usual():
    log = before_the_user().turn("i1", 2.9, 4.5, "Ten of clubs.").created(4.5, "r1").delta(5.0, "r1", loud(1.0))
    (result,) = log.done(5.2, "r1").score().results
    assert (result.outcome, result.response_id, result.false_starts) == ("answered", "r1", 1)


def test_a_false_start_that_is_answered_is_early():
    log = before_the_user().created(2.5, "r0").delta(2.6, "r0", loud(1.0)).done(2.9, "r0")
    (result,) = log.turn("i1", 2.9, 4.5, "Ten of clubs.").score().results
    assert (result.outcome, result.false_starts) == ("early", 0)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (Log().said(2.0, "utterance", "u0", 2.5, 4.2), "no turn ended"),
        (spoken(), "no audible answer (responses: none)"),
        (spoken().created(4.8, "r0").done(5.0, "r0", "failed"), "no audible answer (responses: failed)"),
        (
            spoken().created(4.8, "r0").delta(5.0, "r0", quiet(1.0)).done(5.2, "r0"),
            "no audible answer (responses: completed)",
        ),
    ],
)
def test_unanswered(log: Log, reason: str):
    (result,) = log.score().results
    assert (result.outcome, result.reason) == ("unanswered", reason)


def test_what_a_broken_connection_prevented_is_failed_and_not_dropped():
    log = Log().note(1.0, "connection.lost", message="gone")
    assert [(r.outcome, r.reason) for r in log.score().results] == [("failed", "gone")]
    log = spoken().note(5.0, "connection.lost", message="gone")
    assert [(r.outcome, r.reason) for r in log.score().results] == [("failed", "gone")]
    assert [r.outcome for r in score_call("c", [UTTERANCE], [], np.zeros(0, np.float32)).results] == ["failed"]


def test_what_is_said_next_belongs_to_the_next_utterance():
    log = spoken().created(4.73, "r0").delta(5.0, "r0", loud(1.0)).done(5.2, "r0")
    log.said(7.0, "utterance", "u1", 7.5, 8.0).turn("i1", 7.6, 8.5, "Seven of clubs.")
    log.created(8.6, "r1").delta(8.8, "r1", loud(1.0), "a1").done(9.0, "r1")
    later = msgspec.structs.replace(UTTERANCE, id="u1", words="Seven of clubs.")
    score = score_call("c", [UTTERANCE, later], log.entries, np.concatenate(log.audio))
    assert [(r.outcome, r.transcript, r.response_id) for r in score.results] == [
        ("answered", "Ten of clubs.", "r0"),
        ("answered", "Seven of clubs.", "r1"),
    ]
    assert score.results[1].split.v2v_ms == pytest.approx(800, abs=0.001)


# -- barge-in ----------------------------------------------------------------------------------------------------------


def interrupted(flush: bool = True) -> Log:
    """The answer of the playback golden, interrupted: onset 7.000, detected 7.180, last old delta 7.150 (S6)."""
    log = Log().said(2.0, "utterance", "b0", 2.5, 4.2).turn("i0", 2.6, 4.72, "Tell me.").created(4.73, "r0")
    for at in (5.012, 5.2):
        log.delta(at, "r0", loud(1.0))
    log.said(6.99, "interruption", "b0", 7.0, 7.9)
    log.delta(7.150, "r0", loud(1.0))
    if flush:
        log.got(7.180, "input_audio_buffer.speech_started", item_id="i1", audio_start_ms=0)
        log.delta(7.2, "r0", loud(0.04)).done(7.21, "r0", "cancelled")
    return log


def test_golden_s6_stop_latency():
    (result,) = interrupted().score(BARGE_IN).results
    barge_in = result.barge_in
    assert barge_in.overlapping
    # Third delta sounds from 7.150 on; the last whole 10 ms frame before 7.180 ends there.
    assert barge_in.stop_latency_ms == pytest.approx(180, abs=0.1)
    assert barge_in.detect_ms == pytest.approx(180, abs=0.001)
    assert barge_in.server_stop_ms == pytest.approx(200, abs=0.001)
    assert barge_in.late_audio_ms == pytest.approx(40, abs=0.001)
    assert result.outcome == "answered"


def test_an_interruption_that_nobody_noticed_is_measured_to_the_end_of_the_sound():
    barge_in = interrupted(flush=False).score(BARGE_IN).results[0].barge_in
    assert barge_in.stop_latency_ms == pytest.approx(1150, abs=0.1)
    assert barge_in.detect_ms is None


def test_nothing_to_interrupt_is_counted_apart():
    log = Log().said(2.0, "utterance", "b0", 2.5, 4.2).turn("i0", 2.6, 4.72, "Tell me.").created(4.73, "r0")
    log.delta(5.0, "r0", loud(1.0)).done(5.1, "r0").said(6.99, "interruption", "b0", 7.0, 7.9)
    barge_in = log.score(BARGE_IN).results[0].barge_in
    assert (barge_in.overlapping, barge_in.stop_latency_ms) == (False, None)


def test_an_interruption_that_was_never_said_is_none():
    assert spoken().score(BARGE_IN).results[0].barge_in is None


# -- delivery ----------------------------------------------------------------------------------------------------------


def test_underruns_are_those_of_a_player_that_starts_at_once():
    log = spoken().created(4.73, "r0")
    for at in (5.0, 5.2, 5.6, 6.0):
        log.delta(at, "r0", loud(0.2))
    (delivery,) = log.done(6.1, "r0").score().deliveries
    assert (delivery.underrun_s, delivery.stalls, delivery.longest_stall_s) == (
        pytest.approx(0.4),
        2,
        pytest.approx(0.2),
    )
    assert delivery.first_to_done_s == pytest.approx(1.1)


def test_a_stopped_playback_does_not_make_the_answer_shorter_than_it_was_sent():
    log = spoken().created(4.73, "r0").text(4.8, "r0", "Well, ").text(4.9, "r0", "yes.").delta(5.0, "r0", loud(2.0))
    score = log.done(5.1, "r0").note(5.5, "playback.stop").score()
    assert score.deliveries[0].audio_s == pytest.approx(2.0)
    assert score.replies == {"r0": "Well, yes."}


def test_pacing_lag_is_read_from_the_sent_chunks():
    log = spoken()
    log.entries.insert(0, LogEntry("c2s", 0.0213, {"type": "input_audio_buffer.append", "bytes": 960}, 0.02))
    assert log.score().pacing_lags_ms == [pytest.approx(1.3)]


def test_fc_173_an_answer_is_good_if_it_keeps_to_every_limit():
    quick = spoken().created(4.73, "r0").delta(5.0, "r0", loud(0.5)).delta(5.9, "r0", loud(0.5)).done(6.5, "r0").score()
    silent = spoken().score()
    wrong = spoken("Men are cups.").created(4.73, "r0").delta(4.8, "r0", loud(1.0)).done(5.2, "r0").score()

    def good(**limits: float) -> int:
        scores = [quick, silent, wrong]
        counted = goodput(limits, [score.results[0] for score in scores], scores[:1], 10.0)
        assert (counted.attempted, counted.per_s) == (3, counted.good / 10)
        return counted.good

    assert good(audio_ttfp=270.0) == good(v2v=800.0, silence_window=520.0) == good(audio_underrun=0.4) == 1
    assert good(audio_ttfp=269.9) == good(v2v=799.9, silence_window=520.0) == good(audio_underrun=0.39) == 0
    assert good(first_clause=1e9) == 0, "what was not measured was not kept to"


def test_fc_173_a_limit_given_twice_is_refused():
    assert parse_limits(["v2v:1000", "audio_ttfp:0.5"]) == {"v2v": 1000.0, "audio_ttfp": 0.5}
    with pytest.raises(ValueError, match="'v2v' is given twice"):
        parse_limits(["v2v:1000", "v2v:500"])
