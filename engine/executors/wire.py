"""The control connection between the gateway and a worker process: framed, typed MessagePack both ways.

A frame is its length (32 bit, little-endian) and an array of messages. Payloads above the connector's threshold are
not in it, only the names of their segments.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from duologue.engine.connectors.shared_memory import Packed
from duologue.engine.executors.base import Consumed, Done, Failed, Released, Working
from duologue.engine.executors.build import StageBuild
from duologue.engine.stage import Taker

_LENGTH: Final = struct.Struct("<I")


class Wire(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Base of what only the connection knows."""


# -- to the worker -----------------------------------------------------------------------------------------------------


class Launch(Wire):
    """The first message: what to run."""

    stage: str
    build: StageBuild
    slots: int
    run: str
    """Name of the run in shared memory, and this worker's number in it."""
    worker: int
    folder: str
    threshold_bytes: int
    types: list[str]
    """Piece types beyond those that every pipeline has."""
    log_level: int


class WarmUp(Wire):
    pass


class Open(Wire):
    request: Packed


class Push(Wire):
    request_id: str
    piece: Packed | None
    """None: the request's own payload, which the worker has already."""


class EndInput(Wire):
    request_id: str


class Grant(Wire):
    request_id: str
    total: int


class Abort(Wire):
    request_id: str


class EndSession(Wire):
    session_id: str


class Ping(Wire):
    """To be answered with :class:`Pong`."""


class Close(Wire):
    pass


Down = Launch | WarmUp | Open | Push | EndInput | Grant | Abort | EndSession | Ping | Close

# -- to the gateway ----------------------------------------------------------------------------------------------------


class Ready(Wire):
    """The last step asked for (load, then warm-up) is done."""


class NotReady(Wire):
    """The step failed."""

    kind: str
    """Name of the exception's class."""
    error: str


class Pong(Wire):
    """The worker's event loop is alive."""


class Sent(Wire):
    """``Emitted``, packed."""

    request_id: str
    piece: Packed
    at: float
    to: Taker = "all"


class Log(Wire):
    """A record of the worker's log."""

    level: int
    name: str
    text: str


Up = Ready | NotReady | Pong | Sent | Log | Consumed | Working | Done | Failed | Released

M = TypeVar("M")

down_decoder: msgspec.msgpack.Decoder[list[Down]] = msgspec.msgpack.Decoder(list[Down])
up_decoder: msgspec.msgpack.Decoder[list[Up]] = msgspec.msgpack.Decoder(list[Up])
_encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.Protocol, Generic[M]):
    """One end of the connection. Calls ``on_messages`` for each frame, and ``on_lost`` once, at the end."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[M]],
        on_messages: Callable[[list[M]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, messages: Sequence[Wire | msgspec.Struct]) -> None:
        """Send one frame; dropped once the connection is lost. Does not wait: credit bounds what can be under way."""
        if self._transport is not None:
            body = _encoder.encode(messages)
            self._transport.write(_LENGTH.pack(len(body)) + body)

    @property
    def unsent_bytes(self) -> int:
        """What the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Send what waits and close."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self._buffer += data
        start, size = 0, len(self._buffer)
        while size - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if end > size:
                break
            # A copy, so that what is decoded may outlive the buffer.
            messages = self._decoder.decode(bytes(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
            self._on_messages(messages)
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = None
        self._on_lost()
