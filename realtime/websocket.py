"""``GET /v1/realtime``: the handshake, and the WebSocket as a transport of one session."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.realtime import metrics
from duologue.realtime.auth import SCOPE_SECRET, SUBPROTOCOL
from duologue.realtime.client_secrets import ClientSecret
from duologue.realtime.dialects import BETA, GA, Dialect
from duologue.realtime.gateway import Gateway
from duologue.realtime.http_errors import error_response
from duologue.realtime.ws_frames import EXTENSION, DirectProtocol
from duologue.sessions.actor import Inlet
from duologue.sessions.client_events import AnyClientEvent, InvalidEvent
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import CapacityError, Opening
from duologue.sessions.server_events import ErrorBody, ErrorEvent, ServerEvent

logger = logging.getLogger(__name__)

NORMAL, GOING_AWAY, POLICY, INTERNAL, TRY_AGAIN_LATER = 1000, 1001, 1008, 1011, 1013
"""Close codes in use; above the frame limit the protocol itself closes with 1009."""

CLOSE_TIMEOUT_S = 2.0
"""How long a close frame may wait behind what a slow peer has not read yet."""

_MAX_REASON_BYTES = 123
"""A close frame holds 125 bytes: the code takes two."""


class WebSocketTransport:
    """The session's transport (:class:`duologue.sessions.actor.Transport`) over an accepted WebSocket.

    One reader and one writer at a time. ``send`` waits while the peer is slow to read: the transport holds at most one
    frame beyond the socket's own buffers.
    """

    def __init__(self, websocket: WebSocket, dialect: Dialect = GA) -> None:
        self._websocket = websocket
        self._direct: DirectProtocol | None = websocket.scope.get("extensions", {}).get(EXTENSION)
        self._dialect = dialect
        self._gone = False
        self._closed = False

    async def receive(self) -> AnyClientEvent | InvalidEvent | None:
        """The next event, in order; None once the connection is over, from whichever side."""
        if self._gone:
            return None
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._gone = True
            return None
        text = message.get("text")
        return self._counted(_binary_refused()) if text is None else self.decoded(text)

    def deliver_to(self, inlet: Inlet | None) -> None:
        """See :class:`~duologue.sessions.actor.DirectTransport`."""
        if self._direct is not None:
            self._direct.deliver_to(None if inlet is None else _Decoding(self, inlet))

    def decoded(self, payload: str | bytes) -> AnyClientEvent | InvalidEvent:
        """The event in a text frame, counted if it is invalid."""
        return self._counted(self._dialect.decode(payload))

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        """See :class:`~duologue.sessions.actor.DirectTransport`."""
        if self._direct is None or self._gone or self._closed or not self._direct.may_write():
            return False
        encode = self._dialect.encode
        self._direct.write_text([text.encode() for event in events for text in encode(event)])
        return True

    def _counted(self, event: AnyClientEvent | InvalidEvent) -> AnyClientEvent | InvalidEvent:
        if isinstance(event, InvalidEvent):
            metrics.invalid_events.labels(code=event.error.code).inc()
        return event

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Send events in order, as text frames. Does nothing once the connection is over."""
        try:
            for event in events:
                if self._gone or self._closed:
                    return
                for text in self._dialect.encode(event):
                    await self._websocket.send({"type": "websocket.send", "text": text})
        except WebSocketDisconnect:
            self._gone = True

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
        self._decoded, self._take = transport.decoded, inlet.take

    def take(self, payload: bytes) -> None:
        """See :class:`~duologue.realtime.ws_frames.Sink`."""
        self._take(self._decoded(payload))


async def realtime_endpoint(websocket: WebSocket) -> None:
    """One connection from its upgrade to its end."""
    gateway: Gateway = websocket.app.state.gateway
    if (refusal := gateway.refusal()) is not None:
        metrics.connections_refused.labels(reason=refusal.code).inc()
        await websocket.send_denial_response(error_response(503, refusal.message, refusal.code, headers=_RETRY))
        return
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
    transport = WebSocketTransport(websocket, _dialect(websocket))
    try:
        model, opening = _requested(websocket, gateway)
    except ProtocolError as error:
        metrics.connections_refused.labels(reason=error.code).inc()
        await _refuse(transport, error, POLICY)
        return
    try:
        await gateway.sessions.serve(transport, model, opening)
    except CapacityError as error:
        metrics.connections_refused.labels(reason="duologue.capacity").inc()
        await _refuse(transport, ProtocolError("duologue.capacity", str(error)), TRY_AGAIN_LATER)
    except asyncio.CancelledError:
        # Cut off by a drain that could wait no longer. This is the outermost code of the connection's task, so the
        # cancellation ends here, as it should: with a close frame.
        await transport.close(GOING_AWAY, "The server is shutting down.", timeout_s=0.5)
    except Exception:
        logger.exception("session failed")
        fault = ProtocolError("duologue.internal_error", "The session failed because of a fault in the server.")
        await _refuse(transport, fault, INTERNAL)
    else:
        await transport.close(NORMAL)


_RETRY = {"Retry-After": "5"}


def _dialect(websocket: WebSocket) -> Dialect:
    """The dialect that the handshake asks for."""
    beta = (
        "realtime=v1" in websocket.headers.get("openai-beta", "")
        or "openai-beta.realtime-v1" in websocket.scope["subprotocols"]
        or websocket.query_params.get("dialect") == "beta"
    )
    return BETA if beta else GA


def _requested(websocket: WebSocket, gateway: Gateway) -> tuple[str | None, Opening]:
    """The model that the URL names (None: the session binds it later), and what the session is for.

    Raises ``ProtocolError`` for a model that is not served, and for an intent that is not.
    """
    query = websocket.query_params
    intent, model = query.get("intent", "realtime"), query.get("model") or None
    if intent not in ("realtime", "transcription"):
        message = f"Unsupported intent '{intent}'. Supported: realtime, transcription."
        raise ProtocolError("duologue.unsupported_intent", message, "intent")
    if "call_id" in query:
        raise ProtocolError("duologue.unsupported_transport", "There are no calls to attach to.", "call_id")
    secret: ClientSecret | None = websocket.scope.get(SCOPE_SECRET)
    if secret is not None:
        return None, _of_secret(secret, model, query.get("intent"), gateway)
    transcribes = intent == "transcription"
    if not transcribes:
        return model and _served(gateway, "models", model), Opening()
    if model is not None:
        _served(gateway, "transcription_models", model)
    return model, Opening(type="transcription")


def _served(gateway: Gateway, kind: Literal["models", "transcription_models"], name: str) -> str:
    """The served name of a model. Raises ``ProtocolError`` with the known ones."""
    try:
        return gateway.names.resolve(kind, name, "model")
    except ProtocolError as error:
        raise ProtocolError("model_not_found", error.message, error.param) from error


def _of_secret(secret: ClientSecret, model: str | None, intent: str | None, gateway: Gateway) -> Opening:
    """What a client secret is bound to. Raises ``ProtocolError`` where the URL says something else."""
    opening = secret.opening
    if intent is not None and intent != opening.type:
        message = f"The client secret is for a session of type '{opening.type}'."
        raise ProtocolError("duologue.unsupported_intent", message, "intent")
    if model is None or opening.type == "transcription":
        return opening
    bound = opening.config.get("model", model)
    if _served(gateway, "models", model) != _served(gateway, "models", bound):
        raise ProtocolError("model_not_found", f"The client secret is for the model '{bound}'.", "model")
    return replace(opening, config={**opening.config, "model": bound})


async def _refuse(transport: WebSocketTransport, error: ProtocolError, code: int) -> None:
    """Say why in an event that any client shows, then close with the same words as reason."""
    body = ErrorBody(
        type="invalid_request_error" if code == POLICY else "server_error",
        code=error.code,
        message=error.message,
        param=error.param,
    )
    await transport.send([ErrorEvent(event_id=f"event_{uuid.uuid4().hex}", error=body)])
    await transport.close(code, error.message)


def _binary_refused() -> InvalidEvent:
    return InvalidEvent(
        error=ProtocolError("invalid_event", "Binary frames are not accepted; send events as JSON in text frames.")
    )
