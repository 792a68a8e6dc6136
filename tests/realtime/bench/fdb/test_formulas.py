"""Goldens of ``benchmarks`` section 2 for the formulas of Full-Duplex-Bench, and what must hold for any input."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.realtime.bench.fdb.formulas import (
    TimedWord,
    backchannel_jsd,
    backchannels,
    false_starts,
    first_word_latency,
    merge,
    per_hour,
    response_intervals,
    stop_intervals,
    takeover,
    touching,
)


def words(count: int, length: float, start: float = 2.3) -> list[TimedWord]:
    """``count`` words that last ``length`` seconds together."""
    step = length / count if count else 0.0
    return [TimedWord("w", start + i * step, start + (i + 1) * step) for i in range(count)]


@pytest.mark.parametrize(("count", "length", "tor"), [(0, 0.0, 0), (3, 0.9, 0), (4, 0.9, 1), (3, 1.0, 1), (1, 1.2, 1)])
def test_golden_takeover(count: int, length: float, tor: int):
    assert takeover(words(count, length)) == tor


def test_a_last_word_without_an_end_ends_where_it_starts():
    said = [TimedWord("a", 1.0, 1.2), TimedWord("b", 1.9, None)]
    assert takeover(said) == 0
    assert takeover([*said[:1], TimedWord("b", 2.0, None)]) == 1


@pytest.mark.parametrize(("first", "latency"), [(5.35, 0.35), (4.8, 0.0)])
def test_golden_latency(first: float, latency: float):
    assert first_word_latency([TimedWord("yes", first, first + 1)], 5.0) == pytest.approx(latency)


def test_without_words_there_is_no_latency():
    assert first_word_latency([], 5.0) is None


@pytest.mark.parametrize(
    ("duration", "kept", "reference", "distance"),
    [
        (2.0, [(0.5, 0.9)], [1, 2, 3, 2, 1], 0.577058),
        (2.0, [(0.5, 0.9), (1.3, 1.5)], [1, 1], 0.491374),
        (2.0, [(0.0, 2.0)], [1, 1], 0.0),
        (2.0, [], [1, 1], 1.0),
    ],
)
def test_golden_distance(duration: float, kept: list, reference: list, distance: float):
    assert backchannel_jsd(kept, duration, reference) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize(("time", "window", "with_quirks"), [(0.6, 3, 2), (1.2, 6, 5), (1.4, 7, 6)])
def test_golden_windows_by_milliseconds_and_by_floating_division(time: float, window: int, with_quirks: int):
    """A segment that begins in a window puts its mass there: told by a reference that is all in that window."""

    def distance(index: int, quirks: bool) -> float:
        reference = [float(i == index) for i in range(11)]
        return backchannel_jsd([(time, time)], 2.0, reference, quirks=quirks)

    assert distance(window, quirks=False) == pytest.approx(0.0, abs=1e-3)
    assert distance(with_quirks, quirks=True) == pytest.approx(0.0, abs=1e-3)
    assert distance(window, quirks=True) > 0.8


def test_the_distance_is_never_more_than_the_root_of_ln_2():
    reference = [0.0] * 10 + [1.0]
    assert backchannel_jsd([(0.0, 0.1)], 2.0, reference) == pytest.approx(math.sqrt(math.log(2)), abs=1e-4)


@pytest.mark.parametrize("reference", [[], [0, 0], [1, -1]])
def test_a_reference_that_is_no_distribution_is_refused(reference: list):
    with pytest.raises(ValueError, match="reference"):
        backchannel_jsd([(0.0, 0.1)], 2.0, reference)


def test_backchannels_are_judged_in_order_and_the_last_decides():
    yes = [TimedWord("yes", 1.0, 1.3)]
    many = [TimedWord("w", 5.0 + i / 10, 5.1 + i / 10) for i in range(4)]
    assert backchannels([], yes) == (0, [])
    assert backchannels([(1.0, 1.4)], yes) == (0, [(1.0, 1.4)])
    assert backchannels([(1.0, 1.4), (5.0, 5.5)], yes + many) == (1, [(1.0, 1.4), (5.0, 5.5)])
    assert backchannels([(5.0, 5.5), (8.0, 8.4)], many) == (0, [(5.0, 5.5), (8.0, 8.4)])
    assert backchannels([(1.0, 2.0)], yes).tor == 1  # a second is not short
    three = many[:3]
    assert backchannels([(5.0, 5.5)], three).tor == 1  # three words are not few


def test_a_long_segment_is_a_turn_is_not_kept_and_ends_the_judgement():
    assert backchannels([(1.0, 1.4), (2.0, 5.1), (8.0, 8.4)], []) == (1, [(1.0, 1.4)])


def test_words_without_times_do_not_count():
    unheard = [TimedWord("a", None, 1.2)] * 4
    assert backchannels([(1.0, 1.4)], unheard).tor == 0
    backwards = [TimedWord("a", 1.3, 1.1)] * 4
    assert backchannels([(1.0, 1.4)], backwards).tor == 0
    no_end = [TimedWord("a", 1.2, None)] * 4
    assert backchannels([(1.0, 1.4)], no_end).tor == 1


def test_golden_merge():
    assert merge([(0, 1), (1.6, 2), (2.7, 3)], 0.6) == [(0, 2), (2.7, 3)]


@pytest.mark.parametrize(
    ("user", "model", "stop", "response"),
    [
        ([(1, 3), (6, 8)], [(3.4, 6.5), (9.1, 10)], [(6.0, 6.5)], [(3.0, 3.4), (8.0, 9.1)]),
        ([(1, 3), (3.7, 4)], [(4.4, 6.5)], [], [(4.0, 4.4)]),
        ([(1, 3)], [(2.5, 6.5)], [(2.5, 3.0)], []),
        ([(2, 4)], [(1, 2.8), (3, 4)], [(2.0, 2.8), (3.0, 4.0)], []),
    ],
)
def test_golden_intervals(user: list, model: list, stop: list, response: list):
    assert stop_intervals(user, model) == stop
    assert response_intervals(user, model) == response


def test_of_two_overlaps_with_the_same_end_the_shorter_counts():
    assert stop_intervals([(1.0, 5.0)], [(2.0, 5.0002), (4.0, 5.0)]) == [(4.0, 5.0)]


def test_intervals_at_the_event_touch_it():
    assert touching([(0.0, 0.7), (0.5, 0.9), (1.0, 2.0), (2.3, 3.0), (2.5, 3.0)], (1.0, 2.2)) == [
        (0.5, 0.9),
        (1.0, 2.0),
        (2.3, 3.0),
    ]


def test_golden_false_starts():
    turns = [(1.0, 3.0), (6.0, 9.0), (12.0, 13.0)]
    heard = [(0.8, 3.55), (6.12, 7.4), (10.5, 11.0), (12.0, 13.5)]
    assert false_starts(heard, turns) == [(10.5, 11.0)]
    assert per_hour(1, turns, 15.0) == pytest.approx(400.0)
    assert per_hour(0, [(0.0, 5.0)], 5.0) is None


spans = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 3_000)), max_size=8).map(
    lambda pairs: merge([(a / 1000, (a + n) / 1000) for a, n in pairs], 0.0)
)


@given(spans, spans)
def test_overlaps_lie_in_both_and_responses_begin_after_the_user(user: list, model: list):
    for start, end in stop_intervals(user, model):
        assert any(a <= start and end <= b for a, b in user)
        assert any(a <= start and end <= b for a, b in model)
    for end, start in response_intervals(user, model):
        assert end < start
        assert end in {b for _, b in user}
        assert start in {a for a, _ in model}


@given(spans, st.integers(0, 1000))
def test_merged_segments_are_apart_and_cover_the_same(segments: list, gap_ms: int):
    merged = merge(segments, gap_ms / 1000)
    assert all(round(b[0] - a[1], 3) > gap_ms / 1000 for a, b in pairwise(merged))
    assert all(any(a <= start and end <= b for a, b in merged) for start, end in segments)
