"""The formulas of the turn benchmark."""

from __future__ import annotations

import pytest

from duologue.realtime.bench.turns_score import Heard, Truth, Turn, score

TRUTH = Truth(turns=(Turn(1, 3), Turn(6, 9, ((7.0, 7.6),)), Turn(12, 13)), duration=15)


def test_the_worked_example() -> None:
    scores = score([(TRUTH, Heard(starts=(0.8, 6.12, 10.5, 12.0), decisions=(3.55, 7.4, 9.6)))])
    assert (scores.turns, scores.pauses) == (3, 1)
    assert scores.premature_cut_rate == pytest.approx(1 / 3)
    assert scores.pause_cut_rate == 1
    assert scores.missed_end_rate == pytest.approx(1 / 3)
    assert scores.end_delay_p50_ms == pytest.approx(575)
    assert scores.end_delay_p95_ms == pytest.approx(597.5)
    assert scores.clipped_start_mean_ms == pytest.approx(40)
    assert scores.clipped_share == pytest.approx(1 / 3)
    assert scores.false_starts == 1
    assert scores.false_starts_per_hour == pytest.approx(400)


def test_a_missed_end_counts_as_the_whole_window_in_the_stricter_percentile() -> None:
    scores = score([(TRUTH, Heard(starts=(1, 6, 12), decisions=(3.5, 9.5)))])
    assert scores.missed_end_rate == pytest.approx(1 / 3)
    assert scores.end_delay_p95_ms == pytest.approx(500)
    assert scores.end_delay_p95_missed_ms == pytest.approx(2750)


def test_a_decision_after_the_next_turn_began_is_too_late() -> None:
    truth = Truth(turns=(Turn(1, 2), Turn(2.5, 4)), duration=6)
    scores = score([(truth, Heard(starts=(1, 2.5), decisions=(2.6, 4.2)))])
    assert scores.missed_end_rate == 0.5
    assert scores.premature_cut_rate == 0.5, "for the second turn it came too early"


def test_silences_that_are_no_pauses_are_not_counted() -> None:
    truth = Truth(turns=(Turn(1, 12, ((2, 2.1), (3, 8.5), (9, 9.2))),), duration=13)
    scores = score([(truth, Heard(starts=(1,), decisions=(9.1, 12.4)))])
    assert scores.pauses == 1
    assert scores.pause_cut_rate == 1


def test_what_was_not_measured_is_none() -> None:
    scores = score([(Truth((), 3600.0), Heard((), ()))])
    assert scores.false_starts_per_hour == 0
    assert scores.premature_cut_rate is scores.end_delay_p50_ms is scores.clipped_share is None


def test_padding_that_reaches_back_before_a_decision_clips_nothing() -> None:
    truth = Truth(turns=(Turn(1, 5, ((2, 3),)),), duration=8)
    scores = score([(truth, Heard(starts=(0.7, 2.8), decisions=(2.9, 5.6), onsets=(1.1, 3.1)))])
    assert scores.clipped_share == 0
    assert scores.false_starts == 0
