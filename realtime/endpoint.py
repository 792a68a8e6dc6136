"""``GET /v1/realtime``: one connection from its upgrade to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress

from starlette.websockets import WebSocket

from duologue.realtime import metrics
from duologue.realtime.auth import SUBPROTOCOL
from duologue.realtime.calls import LiveSession
from duologue.realtime.dialects import TRANSLATION
from duologue.realtime.gateway import Gateway
from duologue.realtime.handshake import JoinCall, NewSession, ResumeSession, dialect, requested, translation
from duologue.realtime.http_errors import error_response
from duologue.realtime.resume import ResumableTransport, unknown_token
from duologue.realtime.sideband import SharedTransport
from duologue.realtime.websocket import (
    GOING_AWAY,
    INTERNAL,
    NORMAL,
    POLICY,
    TRY_AGAIN_LATER,
    WebSocketTransport,
    edge_error,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import SessionHandle, Transport
from duologue.sessions.manager import CapacityError

logger = logging.getLogger(__name__)

_RETRY = {"Retry-After": "5"}


async def realtime_endpoint(websocket: WebSocket) -> None:
    """Refuse the upgrade where the server is the reason; else accept, and do what the URL asks for."""
    gateway: Gateway = websocket.app.state.gateway
    joins = not {"call_id", "resume"}.isdisjoint(websocket.query_params)
    if not await admitted(websocket, gateway.closed() if joins else gateway.refusal()):
        return
    transport = WebSocketTransport(websocket, dialect(websocket))
    try:
        match requested(websocket, gateway):
            case NewSession() as wanted:
                await _begin(gateway, transport, wanted)
            case JoinCall(call_id=call_id):
                await _join(gateway, transport, call_id)
            case ResumeSession() as wanted:
                await _resume(gateway, transport, wanted)
    except ProtocolError as error:
        await refuse(transport, error)


async def translation_endpoint(websocket: WebSocket) -> None:
    """``GET /v1/realtime/translations``: one translation session."""
    gateway: Gateway = websocket.app.state.gateway
    if not await admitted(websocket, gateway.refusal()):
        return
    transport = WebSocketTransport(websocket, TRANSLATION)
    try:
        model, opening = translation(websocket, gateway)
        await watched(transport, gateway.sessions.translate(transport, model, opening))
    except ProtocolError as error:
        await refuse(transport, error)


async def refuse(transport: WebSocketTransport, error: ProtocolError) -> None:
    """Close a connection that asks for what is not served."""
    metrics.connections_refused.labels(reason=error.code).inc()
    await transport.refuse(error, TRY_AGAIN_LATER if error.code == "duologue.capacity" else POLICY)


async def admitted(websocket: WebSocket, refusal: ProtocolError | None) -> bool:
    """Accept the upgrade, or refuse it with 503; says which."""
    if refusal is None:
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
        return True
    metrics.connections_refused.labels(reason=refusal.code).inc()
    await websocket.send_denial_response(error_response(503, refusal.message, refusal.code, headers=_RETRY))
    return False


async def _begin(gateway: Gateway, connection: WebSocketTransport, wanted: NewSession) -> None:
    """Run a new session to its end."""
    own: WebSocketTransport | ResumableTransport = connection
    if wanted.resumable:
        own = ResumableTransport(connection, gateway.settings.resume_window_s, gateway.settings.bounds)
        gateway.resumables.add(own)
    shared = SharedTransport(own, gateway.settings.bounds)
    filed: list[str] = []

    def begun(handle: SessionHandle) -> None:
        gateway.calls.file(handle.session.id, LiveSession(shared, handle))
        filed.append(handle.session.id)

    try:
        await watched(shared, gateway.sessions.serve(shared, wanted.model, wanted.opening, begun))
    finally:
        for call_id in filed:
            gateway.calls.remove(call_id)
        if isinstance(own, ResumableTransport):
            gateway.resumables.remove(own)
        shared.end()


async def watched(transport: Transport, session: Awaitable[None]) -> None:
    """Run a session; however it ends, the connection closes with the code that says so.

    Raises ``ProtocolError`` for a session that could not begin.
    """
    try:
        await session
    except CapacityError as error:
        raise ProtocolError("duologue.capacity", str(error)) from error
    except ProtocolError:
        raise
    except asyncio.CancelledError:
        # Cut off by a drain that could wait no longer. This is the outermost code of the connection's task, so the
        # cancellation ends here, as it should: with a close frame.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await transport.close(GOING_AWAY, "The server is shutting down.")
    except Exception:
        logger.exception("session failed")
        fault = ProtocolError("duologue.internal_error", "The session failed because of a fault in the server.")
        with suppress(ConnectionError):
            await transport.send([edge_error(fault, "server_error")])
        await transport.close(INTERNAL, fault.message)
    else:
        await transport.close(NORMAL, "")


async def _join(gateway: Gateway, transport: WebSocketTransport, call_id: str) -> None:
    """Take part in a session until it, or this connection, is over."""
    match gateway.calls.find(call_id):
        case LiveSession(transport=shared, handle=handle):
            await shared.serve(transport, handle)
        case _:
            raise ProtocolError("duologue.call_not_accepted", "The call has not been taken yet.", "call_id")


async def _resume(gateway: Gateway, connection: WebSocketTransport, wanted: ResumeSession) -> None:
    """Carry a session on whose connection broke, until this connection is over too."""
    resumable = gateway.resumables.find(wanted.token)
    if resumable is None:
        raise unknown_token()
    connection.dialect = resumable.dialect
    await resumable.resume(connection, wanted.after)
