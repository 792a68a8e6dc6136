"""The control connection: frames come out whole however the bytes arrive."""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.connectors.shared_memory import Packed
from duologue.engine.executors.base import Consumed, Done, Failed, Released
from duologue.engine.executors.wire import Abort, Channel, EndSession, Grant, Log, Push, Sent, down_decoder, up_decoder

UP = [
    [Sent("r", Packed(b"\0" * 300), 1.5), Consumed("r", 3, 0.25)],
    [Done("r")],
    [Failed("r", "no"), Released("r", 0.5), Log(20, "duologue", "text")],
]


class Sink:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def written(frames: list[list[Any]]) -> bytes:
    channel: Channel[Any] = Channel(up_decoder, lambda messages: None, lambda: None)
    sink = Sink()
    channel.connection_made(sink)
    for frame in frames:
        channel.send(frame)
    return sink.written


@given(cuts=st.lists(st.integers(0, len(written(UP))), max_size=12))
def test_frames_come_out_whole_however_they_are_cut(cuts: list[int]) -> None:
    got: list[Any] = []
    channel: Channel[Any] = Channel(up_decoder, got.append, lambda: None)
    data = written(UP)
    borders = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(borders):
        channel.data_received(data[start:end])
    assert got == UP


async def test_messages_cross_a_connection_and_its_end_is_told_once() -> None:
    got: list[Any] = []
    ends = 0
    over = asyncio.Event()

    def lost() -> None:
        nonlocal ends
        ends += 1
        over.set()

    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    left: Channel[Any] = Channel(up_decoder, got.append, lambda: None)
    right: Channel[Any] = Channel(down_decoder, got.extend, lost)
    await loop.create_unix_connection(lambda: left, sock=ours)
    await loop.create_unix_connection(lambda: right, sock=theirs)
    sent = [Push("r", None), Grant("r", 40), Push("r", Packed(None, "name", 7)), Abort("r"), EndSession("s")]
    for message in sent:
        left.send([message])
    left.close()
    await asyncio.wait_for(over.wait(), 20)
    assert got == sent
    right.send([Abort("late")])  # dropped
    assert ends == 1


@pytest.mark.parametrize("body", [b"\xc1", b"\x93\x01\x02\x03", b"\x91\x91\xa7Unknown"])
async def test_what_is_no_message_ends_the_connection(body: bytes, caplog: Any) -> None:
    over = asyncio.Event()
    ours, theirs = socket.socketpair()
    channel: Channel[Any] = Channel(up_decoder, lambda messages: None, over.set)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    with theirs:
        theirs.sendall(len(body).to_bytes(4, "little") + body)
        await asyncio.wait_for(over.wait(), 20)
