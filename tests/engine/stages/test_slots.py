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


def test_no_slots():
    with pytest.raises(ValueError, match="at least 1"):
        SlotTable(0)
