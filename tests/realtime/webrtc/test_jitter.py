"""The jitter buffer on a scripted clock: what is held, for how long, and what is said about what did not come."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rtp_line import FRAME_S, Line

from duologue.realtime.webrtc.jitter import (
    FILL_LIMIT_S,
    FRAME_TICKS,
    MOST_ALLOWANCE_S,
    RTP_RATE,
    STALL_S,
    Lost,
    Silence,
)


def test_in_order_nothing_is_held_through_both_wraps() -> None:
    line = Line()
    for n in range(200):
        line.arrive(n, n * FRAME_S)
        assert line.given_at(n) == pytest.approx(n * FRAME_S)
    assert line.heard() == list(range(200))
    assert not line.of(Lost) + line.of(Silence)


def test_FC_147_after_one_lost_packet_the_hold_is_nominal_again() -> None:
    line = Line()
    holds = []
    for n in range(1000):
        if n != 500:
            line.arrive(n, n * FRAME_S)
    for n in range(1000):
        if n != 500:
            holds.append(line.given_at(n) - n * FRAME_S)
    assert max(holds) <= 0.020
    assert max(holds[510:]) < 1e-9
    lost = line.of(Lost)
    assert [(piece.ticks, piece.following) for _, piece in lost] == [(FRAME_TICKS, (501).to_bytes(4, "big"))]
    assert line.ticks() == 1000 * FRAME_TICKS
    assert line.buffer.stats.lost == 1


def test_a_swap_within_the_deadline_is_put_right() -> None:
    line = Line()
    for n in range(50):
        line.arrive(n, n * FRAME_S)
    line.arrive(51, 50 * FRAME_S + 0.015)
    line.arrive(50, 50 * FRAME_S + 0.018)
    assert line.heard() == list(range(52))
    assert not line.of(Lost)


def test_a_packet_after_its_deadline_or_twice_is_not_heard() -> None:
    line = Line()
    for n in [*range(20), *range(21, 40)]:
        line.arrive(n, n * FRAME_S)
    line.arrive(20, 0.8)
    line.arrive(39, 0.8)
    assert line.heard() == [*range(20), *range(21, 40)]
    assert line.buffer.stats.late == 2


def test_a_burst_drains_at_once_and_its_surplus_is_taken_from_the_next_silence() -> None:
    line = Line()
    for n in range(50):
        line.arrive(n, n * FRAME_S)
    resumed = 50 * FRAME_S + 0.4
    for n in range(50, 70):
        line.arrive(n, resumed)
        assert line.given_at(n) == pytest.approx(resumed)
    stalls = line.of(Lost)
    assert stalls[0][0] >= 50 * FRAME_S + STALL_S
    filled = sum(piece.ticks for _, piece in stalls)
    assert 0.1 * RTP_RATE < filled <= 0.4 * RTP_RATE
    assert line.ticks() == 70 * FRAME_TICKS + filled
    line.arrive(70, 70 * FRAME_S)
    # One second of silence: the sender skips no number.
    line.arrive(71, 71 * FRAME_S, payload=b"\x08")
    line.arrive(72, 122 * FRAME_S, timestamp=122 * FRAME_TICKS)
    assert line.ticks() == pytest.approx(123 * FRAME_TICKS, abs=FRAME_TICKS)


def test_silence_is_filled_while_it_lasts() -> None:
    line = Line()
    for n in range(20):
        line.arrive(n, n * FRAME_S)
    line.arrive(20, 20 * FRAME_S, payload=b"\x08")
    for second in range(1, 6):
        line.wait_until(1000.0 + 20 * FRAME_S + second * 0.08)
        assert line.ticks() == pytest.approx((20 * FRAME_S + second * 0.08) * RTP_RATE, abs=4 * FRAME_TICKS)
    line.arrive(21, 41 * FRAME_S, timestamp=41 * FRAME_TICKS)
    assert line.ticks() == 42 * FRAME_TICKS
    assert not line.of(Lost)
    assert line.buffer.stats.lost == 0


def test_a_sender_that_is_gone_is_not_filled_for_ever() -> None:
    line = Line()
    for n in range(20):
        line.arrive(n, n * FRAME_S, payload=b"\x08" if n == 19 else None)
    line.wait_until(1000.0 + 300)
    assert line.ticks() / RTP_RATE < 0.4 + FILL_LIMIT_S + 0.1


def test_a_long_loss_leaves_its_time_but_no_more_than_a_second() -> None:
    line = Line()
    for n in [*range(50), *range(80, 100)]:
        line.arrive(n, n * FRAME_S)
    assert line.heard() == [*range(50), *range(80, 100)]
    assert line.ticks() == 100 * FRAME_TICKS
    assert line.buffer.stats.lost == 30
    line.arrive(600, 600 * FRAME_S)
    line.wait_until(1000 + 601 * FRAME_S)
    assert line.heard()[-1] == 600


def test_FC_107_a_fast_or_slow_clock_neither_fills_nor_empties() -> None:
    for rate in (48_010, 47_990):
        line = Line()
        for n in range(90_000):
            line.arrive(n, n * FRAME_S * 48_000 / rate)
            if len(line.pieces) > 100:
                at, _ = line.pieces[-1]
                assert at == pytest.approx(n * FRAME_S * 48_000 / rate, abs=1e-6)
                line.pieces.clear()
        assert line.buffer.stats.lost == line.buffer.stats.stall_ticks == line.buffer.stats.silence_ticks == 0


@pytest.mark.parametrize("rate", [48_010, 47_990])
def test_FC_107_a_clock_is_followed_through_jitter_too(rate: int) -> None:
    line, frames, ticks = Line(), 90_000, 0
    late = random.Random(3)
    sent = ((n * FRAME_S * 48_000 / rate + late.random() * 0.020, n) for n in range(frames))
    for at, n in sent:  # the jitter is that of a frame, so that none overtakes another
        line.arrive(n, at)
        if len(line.pieces) > 100:
            ticks += line.ticks()
            line.pieces.clear()
    stats = line.buffer.stats
    assert ticks + line.ticks() == frames * FRAME_TICKS
    assert (stats.lost, stats.late, stats.silence_ticks, stats.stall_ticks) == (0, 0, 0, 0)
    assert stats.most_held_s == 0.0


def test_a_sender_that_starts_anew_is_followed() -> None:
    line = Line()
    for n in range(50):
        line.arrive(n, n * FRAME_S)
    line.number, line.timestamp = 20_000 - 50, 77
    for n in range(50, 60):
        line.arrive(n, n * FRAME_S)
    # One stray packet would prove nothing; from the second one on it is heard.
    assert line.heard() == [*range(50), *range(51, 60)]
    assert line.buffer.stats.lost == 0


def test_timestamps_that_stop_in_a_pause_do_not_confuse_the_clock() -> None:
    line = Line()
    for n in range(50):
        line.arrive(n, n * FRAME_S)
    for n in range(50, 80):
        line.arrive(n, 60 + n * FRAME_S)
        assert line.given_at(n) == pytest.approx(60 + n * FRAME_S)
    line.wait_until(1000 + 60 + 80 * FRAME_S)
    assert line.ticks() / RTP_RATE < 80 * FRAME_S + FILL_LIMIT_S + 0.2


@pytest.mark.parametrize("jitter_ms", [20, 60])
def test_jitter_is_learnt_so_that_reordered_packets_are_not_lost(jitter_ms: int) -> None:
    rng = random.Random(1)
    line = Line()
    arrivals = sorted((n * FRAME_S + rng.uniform(0, jitter_ms / 1000), n) for n in range(2000))
    for at, n in arrivals:
        line.arrive(n, at)
    line.wait_until(1000 + 2000 * FRAME_S + 0.2)
    assert line.buffer.stats.lost < 12
    came = {n: at for at, n in arrivals}
    holds = [line.given_at(n) - came[n] for n in line.heard()]
    assert sum(holds) / len(holds) < jitter_ms / 1000 / 2
    assert line.heard() == sorted(line.heard())


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.floats(0, 0.25), st.sampled_from(["once", "once", "once", "twice", "never"])),
        min_size=1,
        max_size=80,
    ),
    st.integers(0, 65_535),
    st.integers(0, (1 << 32) - 1),
)
def test_whatever_the_line_does_order_time_and_bounds_hold(
    fates: list[tuple[float, str]], number: int, timestamp: int
) -> None:
    line = Line(number=number, timestamp=timestamp)
    arrivals = [(n * FRAME_S + delay, n) for n, (delay, fate) in enumerate(fates) if fate != "never"]
    arrivals += [(n * FRAME_S + delay + 0.01, n) for n, (delay, fate) in enumerate(fates) if fate == "twice"]
    first: dict[int, float] = {}
    for at, n in sorted(arrivals):
        first.setdefault(n, at)
        line.arrive(n, at)
    line.wait_until(1000 + len(fates) * FRAME_S + 1)
    heard = line.heard()
    assert all(one < two for one, two in itertools.pairwise(heard))
    assert line.buffer.deadline is None
    for n in heard:
        assert line.given_at(n) - first[n] <= MOST_ALLOWANCE_S + 0.001
    missing = [n for n in first if n not in heard]
    assert len(missing) <= line.buffer.stats.late
    stats = line.buffer.stats
    assert line.ticks() >= len(heard) * FRAME_TICKS
    # Time that was given out never runs ahead of the wall by more than late packets and their filling explain.
    assert line.ticks() <= (len(fates) * FRAME_S + 1 + 0.3) * RTP_RATE + stats.stall_ticks
