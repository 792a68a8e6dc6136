"""The kept sound of an item, piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.sessions import conversation
from duologue.sessions.config import Limits
from duologue.sessions.conversation import MAX_PIECES, Conversation, Entry, Recording
from duologue.sessions.items import MessageItem

STEPS = st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 300), st.none()), max_size=3 * MAX_PIECES)


@given(st.binary(max_size=4), STEPS)
def test_it_is_its_pieces_one_after_the_other_whenever_it_is_read_or_cut(start: bytes, steps: list) -> None:
    recording, expected = Recording(start), start
    for step in steps:
        match step:
            case bytes():
                recording.add(step)
                expected += step
            case int():
                recording.cut(step)
                expected = expected[:step]
            case None:
                assert recording.pcm == expected
        assert recording.size == len(expected)
    assert recording.pcm == expected


def test_many_pieces_are_few_objects() -> None:
    recording = Recording()
    for _ in range(10 * MAX_PIECES + 3):
        recording.add(b"ab")
    assert len(recording._pieces) <= 1 + 10 + 3


def test_an_item_keeps_no_more_than_retrieve_can_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_AUDIO_PER_ITEM", 10)
    kept, entry = Conversation(Limits()), Entry(MessageItem(id="i", role="assistant", content=(), status="completed"))
    kept.insert(entry)
    for piece in (b"0123", b"4567", b"89ab", b"cdef"):
        kept.keep_audio(entry, piece)
    assert entry.recording is not None
    assert entry.recording.pcm == b"0123456789"
