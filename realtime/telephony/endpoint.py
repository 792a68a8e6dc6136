"""``/v1/telephony/media-stream``: a provider's WebSocket, from its upgrade to the end of the call.

Providers cannot set headers, and their TwiML takes no query either; so the key comes as the custom parameter ``key`` of
the stream's first messages. Until it has been seen a connection holds a socket, for ten seconds at most.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any, Final

from msgspec.structs import replace
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.realtime import metrics
from duologue.realtime.auth import ApiKeys
from duologue.realtime.calls import LiveSession
from duologue.realtime.endpoint import admitted, watched
from duologue.realtime.gateway import Gateway
from duologue.realtime.sideband import SharedTransport
from duologue.realtime.telephony import messages
from duologue.realtime.telephony.callbacks import CallNotice, notify
from duologue.realtime.telephony.line import PhoneLine, received
from duologue.realtime.websocket import POLICY, TRY_AGAIN_LATER
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import SessionHandle
from duologue.sessions.manager import Opening

logger = logging.getLogger(__name__)

PATH: Final = "/v1/telephony/media-stream"
START_TIMEOUT_S: Final = 10.0


async def media_stream_endpoint(websocket: WebSocket) -> None:
    """Serve one call. What is refused is closed with 1008 (1013: full) and the reason."""
    gateway: Gateway = websocket.app.state.gateway
    if not await admitted(websocket, gateway.refusal()):
        return
    try:
        start = await _started(websocket)
        model, opening = _wanted(start.start.custom_parameters, gateway, websocket.app.state.keys)
        await _serve(gateway, websocket, start, model, opening)
    except WebSocketDisconnect:
        return
    except ProtocolError as error:
        metrics.connections_refused.labels(reason=error.code).inc()
        logger.warning("a media stream was refused: %s", error.message)
        code = TRY_AGAIN_LATER if error.code == "duologue.capacity" else POLICY
        await websocket.close(code, error.message[:120])


async def _started(websocket: WebSocket) -> messages.Start:
    """Wait for the message that says what the stream is. Raises ``ProtocolError``."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                match await received(websocket):
                    case messages.Start() as start:
                        break
                    case messages.Connected():
                        continue
                    case other:
                        message = f"A stream begins with 'start', not with '{type(other).__struct_config__.tag}'."
                        raise ProtocolError("invalid_event", message, "event")
    except TimeoutError:
        message = f"No 'start' came within {START_TIMEOUT_S:.0f} seconds."
        raise ProtocolError("invalid_event", message, "event") from None
    form = start.start.media_format
    if (form.encoding, form.sample_rate, form.channels) != ("audio/x-mulaw", 8000, 1):
        message = f"Sound is taken as audio/x-mulaw, 8000 Hz, 1 channel; the stream has {form.encoding}, "
        message += f"{form.sample_rate} Hz, {form.channels}."
        raise ProtocolError("invalid_value", message, "start.mediaFormat")
    return start


def _wanted(parameters: dict[str, str], gateway: Gateway, keys: ApiKeys) -> tuple[str | None, Opening]:
    """The session that the key and the custom parameters ask for. Raises ``ProtocolError``."""
    offered = [parameters["key"]] if "key" in parameters else []
    secret = gateway.secrets.find(offered)
    if secret is None and not keys.accept(offered):
        message = "The custom parameter 'key' is to be an API key of this server, or a client secret."
        raise ProtocolError("unauthorized", message, "start.customParameters.key")
    if secret is not None:
        if secret.opening.type != "realtime":
            message = f"The client secret is for a session of type '{secret.opening.type}'."
            raise ProtocolError("duologue.unsupported_intent", message, "start.customParameters.key")
        return None, secret.opening
    config: dict[str, Any] = {"type": "realtime"}
    if "instructions" in parameters:
        config["instructions"] = parameters["instructions"]
    if "voice" in parameters:
        config["audio"] = {"output": {"voice": parameters["voice"]}}
    return parameters.get("model"), Opening(type="realtime", config=config)


async def _serve(
    gateway: Gateway, websocket: WebSocket, start: messages.Start, model: str | None, opening: Opening
) -> None:
    """Run a call to its end. Raises ``ProtocolError`` for a session that could not begin."""
    line = PhoneLine(websocket, start.stream_sid)
    shared = SharedTransport(line, gateway.settings.bounds)
    call_id = f"rtc_{secrets.token_hex(12)}"
    url = gateway.settings.telephony.callback_url
    notice = CallNotice(
        type="call.started", call_id=call_id, stream_sid=start.stream_sid, call_sid=start.start.call_sid
    )

    async def refer(target_uri: str) -> bool:
        return await notify(url, replace(notice, type="call.transfer", target_uri=target_uri))

    try:
        async with asyncio.TaskGroup() as tasks:

            def begun(handle: SessionHandle) -> None:
                gateway.calls.file(call_id, LiveSession(shared, handle, refer=None if url is None else refer))
                logger.info("call %s begins: stream %s", call_id, start.stream_sid)
                tasks.create_task(notify(url, notice), name=f"call-notice-{call_id}")
                tasks.create_task(line.run(), name=f"phone-{call_id}")

            await watched(shared, gateway.sessions.serve(shared, model, opening, begun, media=line))
    except* ProtocolError as group:
        raise group.exceptions[0] from None
    else:
        ended_by = "caller" if line.ended_by_caller else "server"
        await notify(url, replace(notice, type="call.ended", ended_by=ended_by))
    finally:
        gateway.calls.remove(call_id)
        shared.end()
