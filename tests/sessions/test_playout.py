"""The playout ledger: played <= sent <= projected <= generated, and what counts as heard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.requests import OUTPUT_SAMPLE_RATE as RATE
from duologue.sessions.playout import PlayoutLedger

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["generate", "project", "send", "wait", "report", "interrupt", "settle", "truncate", "stop"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3 * RATE),
    ),
    max_size=40,
)


def made(ledger: PlayoutLedger, item_id: str, samples: int) -> None:
    ledger.generated(item_id, samples)
    ledger.projected(item_id, samples)


@given(STEPS)
def test_the_five_facts_stay_in_order_and_never_go_back(steps: list[tuple[str, str, int]]) -> None:
    ledger, now = PlayoutLedger(), 0.0
    before: dict[str, tuple[int, int, int]] = {}
    for what, item_id, amount in steps:
        match what:
            case "generate":
                ledger.generated(item_id, amount)
            case "project":
                ledger.projected(item_id, amount)
            case "report":
                ledger.report(item_id, amount, amount // 2, now)
            case "settle":
                ledger.settle()
            case "send":
                ledger.sent(item_id, amount, now)
            case "wait":
                now += amount / RATE
            case "interrupt":
                ledger.interrupt(now)
            case "truncate":
                assert ledger.truncate(item_id, amount, now) <= ledger.item(item_id).sent
            case "stop":
                ledger.stop(item_id)
        for name in ("a", "b"):
            item = ledger.item(name)
            assert 0 <= item.played(now) <= item.sent <= item.projected <= item.generated
            facts = (item.sent, item.projected, item.generated)
            assert facts >= before.get(name, (0, 0, 0))
            before[name] = facts


def test_sound_is_played_one_after_the_other() -> None:
    ledger = PlayoutLedger()
    for item_id in ("a", "b"):
        made(ledger, item_id, RATE)
        ledger.sent(item_id, RATE, 10.0)
    assert [ledger.item(item_id).played(10.5) for item_id in ("a", "b")] == [RATE // 2, 0]
    assert [ledger.item(item_id).played(11.25) for item_id in ("a", "b")] == [RATE, RATE // 4]
    assert ledger.queue_ends_at == 12.0


def test_a_gap_in_delivery_is_not_time_played() -> None:
    ledger = PlayoutLedger()
    made(ledger, "a", 2 * RATE)
    ledger.sent("a", RATE, 10.0)
    ledger.sent("a", RATE, 15.0)
    assert ledger.item("a").played(15.5) == RATE + RATE // 2


def test_what_was_not_sent_was_not_heard() -> None:
    ledger = PlayoutLedger()
    made(ledger, "a", 2 * RATE)
    ledger.sent("a", RATE, 10.0)
    ledger.stop("a")
    assert ledger.heard("a") == RATE
    assert ledger.heard("never seen") is None


def test_an_interruption_stops_what_is_queued_behind_as_well() -> None:
    ledger = PlayoutLedger()
    for item_id in ("a", "b"):
        made(ledger, item_id, RATE)
        ledger.sent(item_id, RATE, 10.0)
    ledger.interrupt(10.5)
    assert [ledger.heard(item_id) for item_id in ("a", "b")] == [RATE // 2, 0]
    assert not ledger.unplayed(10.5)


def test_fc_005_sound_that_was_sent_is_not_played_beyond_the_last_report() -> None:
    ledger = PlayoutLedger()
    made(ledger, "a", 4 * RATE)
    ledger.sent("a", 4 * RATE, 10.0)
    ledger.report("a", RATE, RATE, 12.0)
    assert ledger.item("a").played(13.5) == RATE
    assert ledger.queue_ends_at == 15.0, "3 s are left at 12.0"
    ledger.interrupt(13.5)
    assert ledger.heard("a") == RATE


def test_fc_005_a_report_that_comes_late_corrects_the_cut_until_it_is_settled() -> None:
    ledger = PlayoutLedger()
    made(ledger, "a", 4 * RATE)
    ledger.sent("a", 4 * RATE, 10.0)
    ledger.report("a", RATE, RATE, 11.2)
    ledger.interrupt(12.0)
    assert ledger.report("a", 2 * RATE, 3 * RATE // 2, 12.3)
    assert ledger.heard("a") == 3 * RATE // 2, "what is committed counts"
    assert not ledger.report("a", RATE, RATE, 12.4), "nothing is unheard again"
    ledger.settle()
    assert not ledger.report("a", 2 * RATE, 2 * RATE, 13.0)
    assert ledger.heard("a") == 3 * RATE // 2


def test_a_report_moves_what_is_queued_behind() -> None:
    ledger = PlayoutLedger()
    for item_id in ("a", "b"):
        made(ledger, item_id, 2 * RATE)
        ledger.sent(item_id, 2 * RATE, 10.0)
    ledger.report("a", RATE, RATE, 12.0)  # a second late
    assert ledger.item("b").played(13.5) == RATE // 2
    assert ledger.queue_ends_at == 15.0
    ledger.report("a", 2 * RATE, 2 * RATE, 13.4)  # the last report, late itself: nothing to learn from it
    assert ledger.queue_ends_at == 15.0


def test_an_interruption_says_whose_sound_has_not_left() -> None:
    ledger = PlayoutLedger()
    for item_id in ("a", "b"):
        ledger.begin(item_id, f"resp_{item_id}")
        made(ledger, item_id, RATE)
    ledger.sent("a", RATE, 10.0)
    ledger.sent("b", RATE // 2, 10.0)
    assert ledger.unplayed(20.0), "half of b is on its way"
    assert ledger.interrupt(20.0) == ["resp_b"]
    assert [ledger.heard(item_id) for item_id in ("a", "b")] == [None, RATE // 2]
    assert ledger.interrupt(20.1) == []


def test_what_was_stopped_can_still_be_interrupted_in_what_was_sent() -> None:
    ledger = PlayoutLedger()
    made(ledger, "a", 4 * RATE)
    ledger.sent("a", 2 * RATE, 10.0)
    ledger.stop("a")
    assert ledger.heard("a") == 2 * RATE
    ledger.interrupt(11.0)
    assert ledger.heard("a") == RATE
