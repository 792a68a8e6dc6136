"""The playout queue: pieces of any length become frames of 20 ms, and nothing of them is lost, repeated or moved."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.codecs.pcm import PCM16
from duologue.realtime.webrtc.playout_queue import FRAME_BYTES, FRAME_SAMPLES, PlayoutQueue


class Reports:
    """What the queue says."""

    def __init__(self) -> None:
        self.played: dict[str, int] = {}
        self.said: list[tuple[str, str]] = []

    def on_started(self, response_id: str) -> None:
        self.said.append(("started", response_id))

    def on_played(self, item_id: str, samples: int) -> None:
        self.played[item_id] = self.played.get(item_id, 0) + samples

    def on_stopped(self, response_id: str) -> None:
        self.said.append(("stopped", response_id))

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        self.said.append(("cleared", response_id))


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 3)), min_size=1, max_size=30))
def test_FC_155_pieces_of_any_length_are_cut_into_frames(pieces: list[tuple[int, int]]) -> None:
    """``pieces``: how many samples come, and how many frames are taken before the next."""
    reports, heard = Reports(), []
    queue = PlayoutQueue(reports)
    samples = np.arange(1, 1 + sum(count for count, _ in pieces)).astype(PCM16)
    at = 0
    for count, takes in pieces:
        queue.push("r", "i", samples[at : at + count].tobytes())
        at += count
        heard += [queue.take() for _ in range(takes)]
    queue.finish("r")
    while queue.playing:
        heard.append(queue.take())
    frames = [frame for frame in heard if frame is not None]
    assert all(len(frame) == FRAME_BYTES for frame in frames)
    assert len(frames) == -(-len(samples) // FRAME_SAMPLES)
    played = np.frombuffer(b"".join(frames), PCM16)
    assert np.array_equal(played[: len(samples)], samples)
    assert not played[len(samples) :].any()
    assert reports.played.get("i", 0) == len(samples)
    assert reports.said == ([("started", "r"), ("stopped", "r")] if len(samples) else [])
    assert queue.queued_bytes == 0


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=8), st.integers(1, 400))
def test_FC_155_pieces_of_several_items_are_counted_each_for_itself(lengths: list[int], step: int) -> None:
    reports = Reports()
    queue = PlayoutQueue(reports)
    for number, length in enumerate(lengths):
        for first in range(0, length, step):
            queue.push("r", f"i{number}", bytes(2 * min(step, length - first)))
    queue.finish("r")
    while queue.playing:
        queue.take()
    assert reports.played == {f"i{number}": length for number, length in enumerate(lengths)}
