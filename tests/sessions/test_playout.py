"""The playout ledger: played <= sent <= projected <= generated, and what counts as heard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.requests import OUTPUT_SAMPLE_RATE as RATE
from duologue.sessions.playout import PlayoutLedger

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["generate", "send", "wait", "interrupt", "truncate", "stop"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3 * RATE),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_five_facts_stay_in_order_and_never_go_back(steps: list[tuple[str, str, int]]) -> None:
    ledger, now = PlayoutLedger(), 0.0
    before: dict[str, tuple[int, int, int]] = {}
    for what, item_id, amount in steps:
        match what:
            case "generate":
                ledger.generated(item_id, amount)
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
        ledger.generated(item_id, RATE)
        ledger.sent(item_id, RATE, 10.0)
    assert [ledger.item(item_id).played(10.5) for item_id in ("a", "b")] == [RATE // 2, 0]
    assert [ledger.item(item_id).played(11.25) for item_id in ("a", "b")] == [RATE, RATE // 4]
    assert ledger.queue_ends_at == 12.0


def test_a_gap_in_delivery_is_not_time_played() -> None:
    ledger = PlayoutLedger()
    ledger.generated("a", 2 * RATE)
    ledger.sent("a", RATE, 10.0)
    ledger.sent("a", RATE, 15.0)
    assert ledger.item("a").played(15.5) == RATE + RATE // 2


def test_what_was_not_sent_was_not_heard() -> None:
    ledger = PlayoutLedger()
    ledger.generated("a", 2 * RATE)
    ledger.sent("a", RATE, 10.0)
    ledger.stop("a")
    assert ledger.heard("a") == RATE
    assert ledger.heard("never seen") is None


def test_an_interruption_stops_what_is_queued_behind_as_well() -> None:
    ledger = PlayoutLedger()
    for item_id in ("a", "b"):
        ledger.generated(item_id, RATE)
        ledger.sent(item_id, RATE, 10.0)
    ledger.interrupt(10.5)
    assert [ledger.heard(item_id) for item_id in ("a", "b")] == [RATE // 2, 0]
    assert not ledger.unplayed(10.5)
