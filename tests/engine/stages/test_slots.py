import pytest

from duologue.engine.stages.slots import SlotTable


def test_a_session_comes_back_to_its_slot():
    table = SlotTable(2)
    a, b = table.acquire("a"), table.acquire("b")
    assert a != b
    table.release(a)
    table.release(b)
    assert table.acquire("a") == a
    assert table.acquire("a") == a, "a second request of the session waits in the same slot"


def test_the_session_that_was_idle_for_longest_gives_way():
    table = SlotTable(2)
    a, b = table.acquire("a"), table.acquire("b")
    table.release(a)
    table.release(b)
    table.release(table.acquire("a"))
    assert table.acquire("c") == b
    table.release(b)
    assert table.acquire("b") == a, "b has lost its slot, and a was idle for longer than c"


def test_a_busy_session_is_passed_over():
    table = SlotTable(2)
    table.acquire("a")
    b = table.acquire("b")
    table.release(b)
    assert table.acquire("c") == b
    assert table.acquire("d") in (0, 1), "all busy: one is shared"


def test_the_slot_of_a_session_that_has_ended_is_the_next_to_be_given():
    table = SlotTable(3)
    slots = {name: table.acquire(name) for name in "ab"}
    for slot in slots.values():
        table.release(slot)
    table.end_session("b")
    table.end_session("b")
    table.end_session("unknown")
    assert table.acquire("c") == slots["b"], "and neither the untouched one nor that of a, who is idle for longest"
    assert table.acquire("d") not in slots.values()
    assert table.acquire("a") == slots["a"]


def test_a_slot_is_free_when_the_last_request_of_its_session_is_over():
    table = SlotTable(2)
    a, b = table.acquire("a"), table.acquire("b")
    assert table.acquire("a") == a
    table.end_session("a")
    table.release(b)
    assert table.acquire("c") == b, "that of a is still in use"
    table.release(a)
    table.release(b)
    table.release(a)
    assert table.acquire("d") == a
    assert table.acquire("e") == b, "given once"


def test_a_slot_that_was_taken_from_a_session_is_not_freed_with_it():
    table = SlotTable(1)
    table.acquire("a")
    table.acquire("b")
    table.release(0)
    table.release(0)
    table.end_session("a")
    assert table.acquire("b") == 0
    table.end_session("b")
    table.release(0)
    assert [table.acquire("c"), table.acquire("d")] == [0, 0]


def test_no_slots():
    with pytest.raises(ValueError, match="at least 1"):
        SlotTable(0)
