"""What a caller has heard, by marks and by the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from duologue.realtime.telephony.marks import PIECE_SAMPLES, MarkedPlayout, Message
from duologue.sessions.effects import AudioSent, PlayoutCleared, PlayoutReport, PlayoutStarted, PlayoutStopped

TENTH = bytes(PIECE_SAMPLES * 2)


def taken(playout: MarkedPlayout) -> list[PlayoutReport]:
    reports = list(playout.reports)
    playout.reports.clear()
    return reports


def marks(messages: Sequence[Message]) -> list[str]:
    return [message.mark for message in messages if message.mark]


def test_a_piece_counts_as_played_when_its_mark_comes_back() -> None:
    playout = MarkedPlayout()
    first, second, third = marks(playout.play("r", "i", TENTH * 2 + TENTH[: len(TENTH) // 2], 0.0))
    assert taken(playout) == [PlayoutStarted("r")]
    playout.reached(first, 0.1)
    assert taken(playout) == [AudioSent("i", 2400)]
    playout.reached(third, 0.25)  # marks that were lost in between are implied
    assert taken(playout) == [AudioSent("i", 2400), AudioSent("i", 1200)]
    (end,) = marks(playout.finish("r", 0.25))
    assert taken(playout) == []
    playout.reached(end, 0.3)
    assert taken(playout) == [PlayoutStopped("r")]
    playout.reached(second, 0.3)
    assert (taken(playout), playout.queued_bytes) == ([], 0)


def test_what_was_heard_of_a_piece_that_is_cleared_is_told_by_the_clock_and_its_mark_is_void() -> None:
    playout = MarkedPlayout()
    sent = marks(playout.play("r", "i", TENTH * 3, 0.0))
    playout.reached(sent[0], 0.1)
    taken(playout)
    assert playout.clear(0.14) == [Message()]
    assert taken(playout) == [AudioSent("i", 960), PlayoutCleared("r")]
    for mark in sent:  # the provider returns the marks of what it has dropped
        playout.reached(mark, 0.15)
    assert taken(playout) == []


def test_nothing_to_clear_is_nothing_to_say() -> None:
    assert MarkedPlayout().clear(0.0) == []


def test_a_response_whose_sound_was_played_before_its_end_is_cleared_not_forgotten() -> None:
    playout = MarkedPlayout()
    (mark,) = marks(playout.play("r", "i", TENTH, 0.0))
    playout.reached(mark, 0.1)
    taken(playout)
    playout.clear(0.2)
    assert taken(playout) == [PlayoutCleared("r")]
    assert playout.finish("r", 0.3) == []


def test_a_provider_that_returns_no_marks_is_judged_by_the_clock() -> None:
    playout = MarkedPlayout()
    playout.play("r", "i", TENTH, 0.0)
    playout.finish("r", 0.0)
    taken(playout)
    playout.settle(0.06)
    assert taken(playout) == [AudioSent("i", 1440)]
    playout.settle(2.0)
    assert taken(playout) == [AudioSent("i", 960)]
    playout.settle(2.2)
    assert taken(playout) == [PlayoutStopped("r")]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("play"), st.integers(0, 2), st.integers(1, 6000)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("mark"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 4000), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_never_more_is_played_than_was_sent_and_every_start_has_one_end(steps: list[tuple[str, int, int]]) -> None:
    playout, now, sent = MarkedPlayout(), 0.0, list[str]()
    given_samples: Counter[str] = Counter()
    played: Counter[str] = Counter()
    playing: str | None = None
    finished = set[int]()
    for step, which, size in [*steps, ("clear", 0, 0)]:
        now += 0.01
        match step:
            case "play" if which not in finished:
                given_samples[f"i{which}"] += size
                sent += marks(playout.play(f"r{which}", f"i{which}", bytes(2 * size), now))
            case "finish" if which not in finished:
                finished.add(which)
                sent += marks(playout.finish(f"r{which}", now))
            case "mark":
                playout.reached(sent[which % len(sent)] if sent else "none", now)
            case "clear":
                playout.clear(now)
            case "wait":
                now += which / 1000
                playout.settle(now)
        for report in taken(playout):
            match report:
                case AudioSent(item_id=item, samples=samples):
                    assert playing == f"r{item[1:]}"
                    played[item] += samples
                case PlayoutStarted(response_id=response):
                    assert playing is None
                    playing = response
                case PlayoutStopped(response_id=response) | PlayoutCleared(response_id=response):
                    assert playing == response
                    playing = None
        assert all(played[item] <= given_samples[item] for item in played)
    assert playing is None
    assert playout.queued_bytes == 0
