"""The short way for text frames: in one step from the socket to the session, and from the session to the socket.

uvicorn's protocol parses every frame with ``websockets``, queues what it holds as an ASGI message, and wakes a task
that waits for it; on the way out a message crosses two coroutines. For fifty frames a second each way and session that
costs as much as what the session does with them. Here a whole, unfragmented, masked text frame of ASCII is unmasked and
handed to whoever has asked for it, at once, and text is framed and written at once. All else goes the long way: control
frames, fragments, frames in pieces that are long, anything that is not ASCII (the long way checks UTF-8), anything that
breaks a rule. Both ways meet at frame boundaries only, so ``websockets`` still sees a correct stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import apply_mask  # type: ignore[attr-defined]
from websockets.http11 import Request
from websockets.protocol import OPEN

EXTENSION = "duologue.direct"
"""Among the ASGI extensions of a connection's scope: ``protocol`` is its :class:`DirectProtocol`."""

MAX_HELD = 64 * 1024
"""Longest frame that is held until it is complete; a longer one goes to the parser as it comes."""


class Sink(Protocol):
    """Who wants the payloads of text frames."""

    def ready(self) -> bool:
        """Whether a frame can be taken now; otherwise it goes the long way."""

    def take(self, payload: bytes) -> None: ...


_FIN, _MASKED, _TEXT, _CONTROL = 0x80, 0x80, 0x81, 0x08


class DirectProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with the short way beside it."""

    received = 0
    """Bytes that have come in."""
    _longest = MAX_HELD
    _sink: Sink | None = None
    _splitting = False
    """Whether the stream is cut at frame boundaries here; from the end of the request on, until a rule is broken."""
    _held = b""
    """The beginning of a frame."""
    _passing = 0
    """Bytes still to come of a frame that goes to the parser in pieces."""
    _fragmented = False
    """Between the first and the last fragment of a message."""

    # -- in ------------------------------------------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.handshake_initiated and getattr(self, "scope", None) is not None:
            extensions = self.scope.get("extensions")
            assert extensions is not None
            extensions[EXTENSION] = {"protocol": self}

    def deliver_to(self, sink: Sink | None) -> None:
        """From now on text frames go to ``sink``; None: the long way again."""
        self._sink = sink

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self._splitting:
            self._split(data)
            return
        over = self.handshake_initiated
        super().data_received(data)
        self._splitting = self.handshake_initiated and not over and data.endswith(b"\r\n\r\n")
        self._longest = min(MAX_HELD, self.config.ws_max_size)

    def _split(self, data: bytes) -> None:
        if self._passing:
            piece = data[: self._passing]
            self._passing -= len(piece)
            super().data_received(piece)
            data = data[len(piece) :]
        if self._held:
            data, self._held = self._held + data, b""
        start, size = 0, len(data)
        while size - start >= 2:
            first, length, body = data[start], data[start + 1], start + 6
            if not length & _MASKED:
                self._splitting = False
                super().data_received(data[start:])
                return
            length &= 0x7F
            if length > 125:
                body = start + (8 if length == 126 else 14)
                length = int.from_bytes(data[start + 2 : body - 4], "big")
            end = body + length
            if end > size or body > size:
                if body <= size and length > self._longest:
                    self._note_fragments(first)
                    self._passing = end - size
                    super().data_received(data[start:])
                    return
                break
            if not (first == _TEXT and length <= self._longest and self._taken(data, body, end)):
                self._note_fragments(first)
                super().data_received(data[start:end])
            start = end
        self._held = data[start:]

    def _taken(self, data: bytes, body: int, end: int) -> bool:
        """Offer a text frame to the sink."""
        sink = self._sink
        if sink is None or self._fragmented or self.conn.state is not OPEN:
            return False
        if not self.queue.empty() or not sink.ready():
            return False
        payload = apply_mask(data[body:end], data[body - 4 : body])
        if not payload.isascii():
            return False
        sink.take(payload)
        return True

    def _note_fragments(self, first: int) -> None:
        if not first & _CONTROL:
            self._fragmented = not first & _FIN

    # -- out -----------------------------------------------------------------------------------------------------------

    def may_write(self) -> bool:
        """Whether text can be written without waiting, and reaches the peer."""
        return self.writable.is_set() and self.conn.state is OPEN and not self.close_sent and not self.disconnected

    def write_text(self, payloads: Sequence[bytes]) -> None:
        """Send text frames in one write. Only while :meth:`may_write`."""
        pieces: list[bytes] = []
        for payload in payloads:
            length = len(payload)
            if length < 126:
                head = bytes((_TEXT, length))
            elif length < 65536:
                head = b"\x81\x7e" + length.to_bytes(2, "big")
            else:
                head = b"\x81\x7f" + length.to_bytes(8, "big")
            pieces += (head, payload)
        self.transport.write(b"".join(pieces))
