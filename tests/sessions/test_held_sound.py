"""Sound held in pieces is the same bytes as sound in one buffer, whatever is done with it."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.sessions.held_sound import JOINED_BYTES, HeldSound

Step = tuple[str, int, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "drop", "cut", "write", "clear"]),
        st.integers(0, 3) | st.integers(0, 2 * JOINED_BYTES),
        st.integers(0, 3) | st.integers(0, 2 * JOINED_BYTES),
    ),
    max_size=40,
)


@settings(max_examples=500)
@given(STEPS, st.binary(max_size=5))
def test_it_is_one_buffer_to_whoever_looks(steps: list[Step], begun_with: bytes) -> None:
    held, buffer, number = HeldSound(begun_with), bytearray(begun_with), 0
    for step, a, b in steps:
        first = min(a, len(buffer))
        last = min(first + b, len(buffer))
        match step:
            case "add":
                data = bytes((number + i) % 256 for i in range(a))
                held.add(data)
                buffer += data
                number += a
            case "drop":
                held.drop(a)
                del buffer[:a]
            case "cut":
                assert held.cut(first, last) == buffer[first:last]
            case "write":
                data = bytes(last - first)
                held.write(first, data)
                buffer[first:last] = data
            case "clear":
                held.clear()
                buffer.clear()
        assert held.size == len(buffer)
        assert held.cut(0, held.size) == buffer


def test_many_small_pieces_take_little_more_room_than_one() -> None:
    held = HeldSound()
    for _ in range(50_000):
        held.add(b"ab")
    pieces = held._pieces
    assert sum(map(sys.getsizeof, pieces)) < 1.2 * held.size


def test_an_end_before_the_start_gives_nothing() -> None:
    held: Any = HeldSound(b"abcdef")
    held.add(b"ghi")
    assert held.cut(5, 2) == held.cut(8, 7) == b""
