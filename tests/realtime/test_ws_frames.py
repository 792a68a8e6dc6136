"""The short way for text frames gives the application and the peer exactly what the long way gives them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_socket import UPGRADE, ScriptedLoop, ScriptedTransport
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from duologue.realtime.ws_frames import EXTENSION, DirectProtocol
from duologue.realtime.ws_protocol import RealtimeWebSocketProtocol

MAX_SIZE = 1000


class LongWay(RealtimeWebSocketProtocol):
    """The same without the short way."""

    def data_received(self, data: bytes) -> None:
        WebSocketsSansIOProtocol.data_received(self, data)


class Peer:
    """A connection and everything its application was given, in order."""

    def __init__(self, kind: type[WebSocketsSansIOProtocol]) -> None:
        self.loop, self.transport = ScriptedLoop(), ScriptedTransport()
        self.got: list[Any] = []
        self.accept = True
        self.released = asyncio.Event()
        config = uvicorn.Config(self._app, interface="asgi3", ws_max_size=MAX_SIZE, ws_per_message_deflate=False)
        self.protocol = kind(config, ServerState(), {}, _loop=self.loop)  # type: ignore[arg-type]
        self.scope: Any = None

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        await receive()
        await send({"type": "websocket.accept"})
        await self.released.wait()

    async def open(self, tail: bytes = b"") -> Peer:
        self.protocol.connection_made(self.transport)
        self.protocol.data_received(UPGRADE + tail)
        for _ in range(3):
            await asyncio.sleep(0)
        self.transport.written = b""
        return self

    def feed(self, data: bytes) -> None:
        if self.transport.state in ("closing", "aborted"):
            return
        self.protocol.data_received(data)
        while not self.protocol.queue.empty():
            message = self.protocol.queue.get_nowait()
            self.got.append(message.get("text", message.get("bytes", message.get("code"))))
        self.protocol.read_paused = False

    async def end(self) -> None:
        self.released.set()
        await asyncio.gather(*self.protocol.tasks)

    # -- Sink

    def ready(self) -> bool:
        return self.accept

    def take(self, payload: bytes) -> None:
        self.got.append(payload.decode())


def frame(first: int, payload: bytes, mask: bytes | None) -> bytes:
    """A frame with any first byte; the length is encoded in the shortest way."""
    size, bit = len(payload), 0 if mask is None else 0x80
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65536:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


PAYLOADS = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=200).map(str.encode),
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=40),
    st.sampled_from([b"", b"x" * 125, b"x" * 126, b"x" * MAX_SIZE, b"x" * (MAX_SIZE + 1), b"\xff"]),
)
MASKS = st.binary(min_size=4, max_size=4)
TEXT = st.builds(frame, st.just(0x81), PAYLOADS, MASKS)
FRAGMENTED = st.builds(
    lambda kind, parts, mask: b"".join(
        frame((kind if n == 0 else 0) | (0x80 if n == len(parts) - 1 else 0), part, mask)
        for n, part in enumerate(parts)
    ),
    st.sampled_from([1, 2]),
    st.lists(st.binary(max_size=20).map(lambda b: bytes(x & 127 for x in b)), min_size=2, max_size=3),
    MASKS,
)
CONTROL = st.builds(frame, st.sampled_from([0x89, 0x8A]), st.binary(max_size=20), MASKS)
CLOSE = st.builds(frame, st.just(0x88), st.sampled_from([b"", b"\x03\xe8", b"\x03\xe8bye", b"\x00"]), MASKS)
WRONG = st.builds(
    frame, st.sampled_from([0x81, 0x91, 0x83, 0x80, 0x01, 0x09]), st.binary(max_size=20), st.none() | MASKS
)
FRAMES = st.lists(st.one_of(TEXT, TEXT, TEXT, FRAGMENTED, CONTROL, st.one_of(CLOSE, WRONG)), max_size=8)


async def compare(frames: Sequence[bytes], cuts: Sequence[int], ready: Sequence[bool]) -> tuple[Peer, Peer]:
    """The long way gets every frame by itself: a frame that breaks a rule voids what came with it in one piece."""
    short, long = await Peer(RealtimeWebSocketProtocol).open(), await Peer(LongWay).open()
    short.scope["extensions"][EXTENSION]["protocol"].deliver_to(short)
    stream = b"".join(frames)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        short.accept = ready[number % len(ready)]
        short.feed(stream[start:end])
    for whole in frames:
        long.feed(whole)
    states = (short.transport.state, long.transport.state)
    for peer, state in zip((short, long), states, strict=True):
        await peer.end()
        peer.transport.state = state
    return short, long


NO_MASK = bytes(4)


@settings(max_examples=150, deadline=None)
@example([frame(0x81, b"\x80", NO_MASK), frame(0x89, b"", NO_MASK), frame(0x88, b"\0", NO_MASK)], [], [False])
@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=12), st.lists(st.booleans(), min_size=1, max_size=5))
def test_any_stream_cut_anywhere_means_the_same_on_both_ways(
    frames: list[bytes], cuts: list[int], ready: list[bool]
) -> None:
    short, long = asyncio.run(compare(frames, cuts, ready))
    assert short.got == long.got
    assert short.transport.written == long.transport.written
    assert short.transport.state == long.transport.state


async def test_whole_ascii_text_takes_the_short_way_and_nothing_else_does() -> None:
    peer = await Peer(RealtimeWebSocketProtocol).open()
    peer.scope["extensions"][EXTENSION]["protocol"].deliver_to(peer)
    taken: list[bytes] = []
    peer.take = taken.append  # type: ignore[method-assign]
    mask = b"\x01\x02\x03\x04"
    peer.feed(frame(0x81, b"short", mask) + frame(0x81, "lång".encode(), mask) + frame(0x82, b"bytes", mask))
    assert (taken, peer.got) == ([b"short"], ["lång", b"bytes"])
    peer.protocol.deliver_to(None)  # type: ignore[attr-defined]
    peer.feed(frame(0x81, b"again", mask))
    assert peer.got[-1] == "again"


async def test_text_inside_a_fragmented_message_breaks_the_rules_on_both_ways() -> None:
    mask = b"\x01\x02\x03\x04"
    short, long = await compare([frame(0x01, b"begun", mask), frame(0x81, b"between", mask)], [], [True])
    assert short.got == long.got == [1002]


async def test_a_client_that_sends_before_it_is_let_in_goes_the_long_way() -> None:
    early = frame(0x81, b"early", b"\x01\x02\x03\x04")
    peer = await Peer(RealtimeWebSocketProtocol).open(early[:4])
    assert isinstance(peer.protocol, DirectProtocol)
    peer.protocol.deliver_to(peer)
    peer.feed(early[4:])
    assert peer.got == ["early"]


async def test_an_empty_line_in_a_frame_is_not_taken_for_the_end_of_the_request() -> None:
    """What follows it looks like the beginning of a masked frame."""
    early = frame(0x81, "head\r\n\r\nété".encode(), NO_MASK)
    peer = await Peer(RealtimeWebSocketProtocol).open(early[:4])
    assert isinstance(peer.protocol, DirectProtocol)
    peer.protocol.deliver_to(peer)
    cut = early.index("été".encode())
    peer.feed(early[4:cut])
    peer.feed(early[cut:] + frame(0x81, b"second", NO_MASK))
    assert peer.got == ["head\r\n\r\nété", "second"]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
async def test_what_is_written_at_once_is_read_back(size: int) -> None:
    peer = await Peer(RealtimeWebSocketProtocol).open()
    assert isinstance(peer.protocol, DirectProtocol)
    assert peer.protocol.may_write()
    peer.protocol.write_text([b"a" * size, b"second"])
    client = Protocol(CLIENT)
    client.receive_data(peer.transport.written)
    assert client.events_received() == [Frame(Opcode.TEXT, b"a" * size), Frame(Opcode.TEXT, b"second")]


async def test_nothing_is_written_at_once_to_a_slow_or_closed_peer() -> None:
    peer = await Peer(RealtimeWebSocketProtocol).open()
    assert isinstance(peer.protocol, DirectProtocol)
    peer.protocol.pause_writing()
    assert not peer.protocol.may_write()
    peer.protocol.resume_writing()
    peer.feed(frame(0x88, b"\x03\xe8", b"\x01\x02\x03\x04"))
    assert not peer.protocol.may_write()
