"""The playback model: goldens of ``benchmarks`` section 0.3 and 3.2, and what must hold for any arrivals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.realtime.bench.playback import ClientPlayback, Player, underrun
from duologue.realtime.client import ErrorView, Received, ResponseView, ServerMessage, SessionView

RATE = 24_000


def three_seconds() -> Player:
    player = Player()
    for at in (5.012, 5.2, 5.3):
        player.receive("R", "I", RATE, at)
    return player


def test_golden_flush():
    player = three_seconds()
    assert [(s.start_s, s.end_s) for s in player.segments] == [
        (pytest.approx(start), pytest.approx(start + 1)) for start in (5.012, 6.012, 7.012)
    ]
    (cut,) = player.flush(7.180)
    assert [segment.samples for segment in player.segments] == [RATE, RATE, 4032]
    assert cut.heard_ms == 2168
    assert player.heard_samples("R") == 2 * RATE + 4032


def test_audio_after_a_flush_is_late_and_never_heard():
    player = three_seconds()
    player.flush(7.180)
    assert player.receive("R", "I", 2400, 7.2) is None
    assert player.late_samples == {"R": 2400}
    assert player.heard_samples("R") == 2 * RATE + 4032


def test_a_flush_before_anything_sounded_leaves_nothing_and_frees_the_queue():
    player = Player(buffer_s=0.5)
    player.receive("R", "I", RATE, 1.0)
    (cut,) = player.flush(1.2)
    assert (cut.heard_samples, player.segments) == (0, [])
    assert player.receive("S", "J", RATE, 1.3).start_s == pytest.approx(1.8)


def test_a_flush_of_one_response_leaves_the_other():
    player = Player()
    player.receive("R", "I", RATE, 0.0)
    player.receive("S", "J", RATE, 0.1)
    (cut,) = player.flush(0.5, {"R"})
    assert (cut.item_id, cut.heard_ms) == ("I", 500)
    assert player.heard_samples("S") == RATE


def test_the_queue_ends_where_the_flush_ended_it():
    player = Player()
    player.receive("R", "I", 2 * RATE, 0.0)
    player.flush(0.5)
    assert player.receive("S", "J", RATE, 0.6).start_s == pytest.approx(0.6)


def test_a_played_response_is_not_cut():
    player = three_seconds()
    assert player.flush(9.0) == []


def test_an_item_is_cut_once_and_counts_only_its_own_audio():
    player = Player()
    player.receive("R", "I", RATE, 0.0)
    player.receive("R", "J", RATE, 0.0)
    player.receive("R", "J", RATE, 0.0)
    (cut,) = player.flush(1.25)
    assert (cut.item_id, cut.heard_ms) == ("J", 250)


def test_the_buffer_delays_only_the_first_segment_after_silence():
    player = Player(buffer_s=0.2)
    starts = [player.receive("R", "I", RATE, at).start_s for at in (1.0, 1.1, 9.0)]
    assert starts == [pytest.approx(t) for t in (1.2, 2.2, 9.2)]


def test_golden_s2_underrun():
    arrivals, durations = [0.5, 0.7, 1.1, 1.5], [0.2] * 4
    after_three = underrun(arrivals[:3], durations[:3])
    assert (after_three.seconds, after_three.stalls) == (pytest.approx(0.2), 1)
    after_four = underrun(arrivals, durations)
    assert (after_four.seconds, after_four.stalls, after_four.longest_s) == (pytest.approx(0.4), 2, pytest.approx(0.2))
    buffered = underrun(arrivals, durations, 0.25)
    assert (buffered.seconds, buffered.stalls, buffered.longest_s) == (pytest.approx(0.15), 1, pytest.approx(0.15))


def test_one_delta_cannot_starve():
    assert underrun([1.0], [0.2]) is None


# -- policies ----------------------------------------------------------------------------------------------------------


def audio(at: float, samples: int = RATE, response: str = "R", item: str = "I") -> Received:
    message = ServerMessage(type="response.output_audio.delta", response_id=response, item_id=item, delta="")
    return Received(at, message, samples * 2)


SPEECH = "input_audio_buffer.speech_started"


def test_obey_stops_on_speech():
    playback = ClientPlayback("obey")
    playback.handle(audio(0.0))
    (cut,) = playback.handle(Received(0.25, ServerMessage(type=SPEECH)))
    assert (cut.item_id, cut.heard_ms) == ("I", 250)


def test_obey_does_not_stop_when_the_session_does_not_interrupt():
    playback = ClientPlayback("obey")
    detection = {"type": "server_vad", "interrupt_response": False}
    session = SessionView(audio={"input": {"turn_detection": detection}})
    playback.handle(Received(0.0, ServerMessage(type="session.updated", session=session)))
    playback.handle(audio(0.0))
    assert playback.handle(Received(0.25, ServerMessage(type=SPEECH))) == []
    assert playback.player.heard_samples("R") == RATE


def test_obey_has_nothing_to_truncate_when_all_was_played():
    playback = ClientPlayback("obey")
    playback.handle(audio(0.0))
    assert playback.handle(Received(1.5, ServerMessage(type=SPEECH))) == []


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_only_a_cancelled_response_is_flushed(status: str):
    playback = ClientPlayback("obey")
    playback.handle(audio(0.0))
    done = ServerMessage(type="response.done", response=ResponseView("R", status))
    assert playback.handle(Received(0.2, done)) == []
    done = ServerMessage(type="response.done", response=ResponseView("R", "cancelled"))
    assert [cut.heard_ms for cut in playback.handle(Received(0.3, done))] == [300]


def test_deaf_plays_everything():
    playback = ClientPlayback("deaf")
    playback.handle(audio(0.0))
    cancelled = ServerMessage(type="response.done", response=ResponseView("R", "cancelled"))
    for event in (ServerMessage(type=SPEECH), cancelled, ServerMessage(type="error", error=ErrorView())):
        assert playback.handle(Received(0.2, event)) == []
    assert playback.player.heard_samples("R") == RATE


# -- invariants --------------------------------------------------------------------------------------------------------

DELTAS = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, RATE)), min_size=1, max_size=20)


def filled(deltas: list[tuple[float, int]], split: int = 1) -> Player:
    player, at = Player(), 0.0
    for gap, samples in deltas:
        at += gap
        for part in range(split):
            share = samples // split + (samples % split if part == 0 else 0)
            if share:
                player.receive("R", "I", share, at)
    return player


@given(DELTAS, st.floats(0, 20))
def test_heard_is_never_more_than_received_and_segments_never_overlap(deltas: list[tuple[float, int]], flush: float):
    player = filled(deltas)
    received = player.heard_samples("R")
    cuts = player.flush(flush)
    assert player.heard_samples("R") <= received == sum(samples for _, samples in deltas)
    assert bool(cuts) == (player.heard_samples("R") < received)
    for earlier, later in zip(player.segments, player.segments[1:], strict=False):
        assert later.start_s >= earlier.end_s - 1e-9
    assert all(segment.start_s >= segment.received_s for segment in player.segments)
    assert player.unplayed_s(flush) <= 1 / RATE + 1e-6


@given(DELTAS, st.integers(2, 5), st.floats(0, 20))
def test_splitting_a_delta_at_one_arrival_time_changes_nothing(
    deltas: list[tuple[float, int]], split: int, flush: float
):
    whole, parts = filled(deltas), filled(deltas, split)
    for player in (whole, parts):
        player.flush(flush)
    assert abs(whole.heard_samples("R") - parts.heard_samples("R")) <= 1  # a boundary may be rounded to either side
    for sample in range(0, whole.heard_samples("R") - 1, 5000):
        assert whole.time_of("R", sample) == pytest.approx(parts.time_of("R", sample), abs=1e-6)


@given(DELTAS, st.floats(0, 0.5))
def test_underrun_is_the_stall_of_a_player_that_waits(deltas: list[tuple[float, int]], buffer_s: float):
    player, at = Player(buffer_s=0.0), 0.0
    arrivals = []
    for gap, _ in deltas:
        at += gap
        arrivals.append(at)
    durations = [samples / RATE for _, samples in deltas]
    for arrival, (_, samples) in zip(arrivals, deltas, strict=True):
        player.receive("R", "I", samples, arrival)
    starved = underrun(arrivals, durations)
    if len(deltas) < 2:
        assert starved is None
        return
    silence = sum(max(0.0, b.start_s - a.end_s) for a, b in zip(player.segments, player.segments[1:], strict=False))
    assert starved.seconds == pytest.approx(silence, abs=1e-5)
    assert starved.longest_s <= starved.seconds + 1e-9
    assert underrun(arrivals, durations, buffer_s).seconds <= starved.seconds + 1e-9
