"""``/v1/realtime/calls``: what can be done to a call over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duologue.realtime.bodies import json_body, refused
from duologue.realtime.calls import Incoming, LiveSession
from duologue.realtime.gateway import Gateway
from duologue.realtime.http_errors import error_response
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening


class Rejection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``reject``."""

    status_code: Annotated[int, msgspec.Meta(ge=300, le=699)] = 603
    """What SIP calls a final response that is no success; 603: decline."""


class Referral(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``refer``."""

    target_uri: Annotated[str, msgspec.Meta(pattern="^(tel|sip|sips):.+", max_length=1024)]


async def create_call(request: Request) -> Response:
    """Where a WebRTC offer goes."""
    message = "This server has no WebRTC transport; connect a WebSocket to /v1/realtime instead."
    return error_response(501, message, "duologue.unsupported_transport")


async def accept_call(request: Request) -> Response:
    """Take a call that rings. The body is the session; ``type`` is required."""
    try:
        call = _call(request)
        config = await json_body(request, dict[str, Any])
        if config.get("type") != "realtime":
            raise ProtocolError("invalid_value", "The session of a call is of type 'realtime'.", "session.type")
        opening = Opening(type="realtime", config=config)
        _gateway(request).sessions.configure(None, opening)
        await _ringing(call).accept(opening)
    except ProtocolError as error:
        return _refused(error)
    return Response(status_code=200)


async def reject_call(request: Request) -> Response:
    """Turn a call down that rings."""
    try:
        call = _call(request)
        body: Rejection = await json_body(request, Rejection)
        await _ringing(call).reject(body.status_code)
    except ProtocolError as error:
        return _refused(error)
    return Response(status_code=200)


async def hang_up_call(request: Request) -> Response:
    """End a call in progress; one that rings is turned down."""
    try:
        match _call(request):
            case LiveSession(handle=handle):
                handle.hang_up()
            case ringing:
                await ringing.reject(Rejection().status_code)
    except ProtocolError as error:
        return _refused(error)
    return Response(status_code=200)


async def refer_call(request: Request) -> Response:
    """Pass a call on. That is a SIP request, and SIP is spoken by whatever stands before this server."""
    try:
        _call(request)
        await json_body(request, Referral)
    except ProtocolError as error:
        return _refused(error)
    message = "Calls are passed on by SIP, which this server does not speak; let the SIP gateway before it do so."
    return error_response(501, message, "duologue.unsupported_transport")


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _call(request: Request) -> LiveSession | Incoming:
    return _gateway(request).calls.find(request.path_params["call_id"])


def _ringing(call: LiveSession | Incoming) -> Incoming:
    if isinstance(call, LiveSession):
        raise ProtocolError("duologue.call_in_progress", "The call has been taken already.", "call_id")
    return call


def _refused(error: ProtocolError) -> Response:
    status = {"call_id_not_found": 404, "duologue.call_in_progress": 409}.get(error.code)
    return refused(error, status)
