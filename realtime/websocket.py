"""A WebSocket as a transport of one session: frames, close codes, and peers that vanish."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from itertools import chain
from typing import Literal

from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.realtime import metrics
from duologue.realtime.dialects import GA, Dialect
from duologue.realtime.ws_frames import EXTENSION, DirectProtocol
from duologue.realtime.ws_protocol import ABNORMAL
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import Inlet
from duologue.sessions.server_events import ErrorBody, ErrorEvent, ServerEvent

NORMAL, GOING_AWAY, POLICY, INTERNAL, TRY_AGAIN_LATER = 1000, 1001, 1008, 1011, 1013
"""Close codes in use; above the frame limit the protocol itself closes with 1009."""

CLOSE_TIMEOUT_S = 2.0
"""How long a close frame may wait behind what a slow peer has not read yet."""

_MAX_REASON_BYTES = 123
"""A close frame holds 125 bytes: the code takes two."""


class WebSocketTransport:
    """The session's transport (:class:`duologue.sessions.interfaces.Transport`) over an accepted WebSocket.

    One reader and one writer at a time. ``send`` waits while the peer is slow to read: the transport holds at most one
    frame beyond the socket's own buffers.
    """

    def __init__(self, websocket: WebSocket, dialect: Dialect = GA) -> None:
        self._websocket = websocket
        self._direct: DirectProtocol | None = websocket.scope.get("extensions", {}).get(EXTENSION, {}).get("protocol")
        self.dialect = dialect
        self._gone = False
        self._closed = False
        self.lost = False
        """True once the connection has ended without a close frame from either side."""

    @property
    def over(self) -> bool:
        """Nothing can be sent any more."""
        return self._gone or self._closed

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        """The next event, in order; None once the connection is over, from whichever side."""
        if self._gone:
            return None
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._gone = True
            self.lost = message.get("code") == ABNORMAL and not self._closed
            return None
        text = message.get("text")
        return self.counted(_binary_refused() if text is None else self.dialect.decode(text))

    def deliver_to(self, inlet: Inlet | None) -> None:
        """See :class:`~duologue.sessions.interfaces.DirectTransport`."""
        if self._direct is not None:
            self._direct.deliver_to(None if inlet is None else _Decoding(self, inlet))

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        """See :class:`~duologue.sessions.interfaces.DirectTransport`."""
        if self._direct is None or self._gone or self._closed or not self._direct.may_write():
            return False
        encode = self.dialect.encode
        self._direct.write_text([*chain.from_iterable(map(encode, events))])
        return True

    def counted(self, event: ClientEvent | InvalidEvent) -> ClientEvent | InvalidEvent:
        """The same event; an invalid one is counted."""
        if isinstance(event, InvalidEvent):
            metrics.invalid_events.labels(code=event.error.code).inc()
        return event

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Send events in order, as text frames. Does nothing once the connection is over."""
        for event in events:
            for frame in self.dialect.encode(event):
                await self.send_frame(frame)

    async def send_frame(self, frame: bytes) -> None:
        """Send an event that is encoded already. Does nothing once the connection is over."""
        if self._gone or self._closed:
            return
        try:
            await self._websocket.send({"type": "websocket.send", "text": frame.decode()})
        except WebSocketDisconnect:
            self._gone = True

    async def refuse(self, error: ProtocolError, code: int) -> None:
        """Say why in an event that any client shows, then close with the same words as reason."""
        await self.send([edge_error(error, "invalid_request_error" if code == POLICY else "server_error")])
        await self.close(code, error.message)

    async def close(self, code: int = NORMAL, reason: str = "", timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the connection; harmless if it is over. The reason is cut to what a close frame holds."""
        if self._gone or self._closed:
            return
        self._closed = True
        cut = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        try:
            async with asyncio.timeout(timeout_s):
                await self._websocket.close(code, cut)
        except (WebSocketDisconnect, TimeoutError):
            # the peer is gone, or reads nothing; the protocol cuts it off when the endpoint returns
            self._gone = True


class _Decoding:
    """Decodes text frames on their short way to a session."""

    def __init__(self, transport: WebSocketTransport, inlet: Inlet) -> None:
        self.ready = inlet.ready
        self._decode, self._counted, self._take = transport.dialect.decode, transport.counted, inlet.take

    def take(self, payload: bytes) -> None:
        """See :class:`~duologue.realtime.ws_frames.Sink`."""
        event = self._decode(payload)
        self._take(event if type(event) is not InvalidEvent else self._counted(event))


def edge_event_id() -> str:
    """An id for an event that the edge itself makes."""
    return f"event_{uuid.uuid4().hex}"


def edge_error(error: ProtocolError, kind: Literal["invalid_request_error", "server_error"]) -> ErrorEvent:
    """An ``error`` event that no session has made."""
    body = ErrorBody(type=kind, code=error.code, message=error.message, param=error.param)
    return ErrorEvent(event_id=edge_event_id(), error=body)


def _binary_refused() -> InvalidEvent:
    return InvalidEvent(
        error=ProtocolError("invalid_event", "Binary frames are not accepted; send events as JSON in text frames.")
    )
