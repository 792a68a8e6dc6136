"""``/v1/realtime/calls``: what can be done to a call over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duologue.realtime import handshake, metrics
from duologue.realtime.bodies import json_body, refused
from duologue.realtime.calls import Incoming, LiveSession
from duologue.realtime.cors import REJOIN_HEADER
from duologue.realtime.dialects import BETA, Dialect
from duologue.realtime.gateway import Gateway
from duologue.realtime.http_errors import error_response
from duologue.realtime.ice_servers import for_clients, link_headers
from duologue.realtime.offer_body import SDP, read_offer
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
    """A WebRTC offer: raw SDP, or a form with ``sdp`` and ``session``. 201 with the answer, and where the call is."""
    return await _place(request, handshake.dialect(request))


async def create_beta_call(request: Request) -> Response:
    """The same at the path of the beta, in its dialect."""
    return await _place(request, BETA)


async def rejoin_call(request: Request) -> Response:
    """An extension: the offer of a new peer connection to a call in progress. 200 with the answer."""
    gateway = _gateway(request)
    try:
        if (closed := gateway.closed()) is not None:
            raise closed
        offer, session = await read_offer(request)
        if session:
            raise ProtocolError("invalid_value", "The session has begun; change it with 'session.update'.", "session")
        answer = await gateway.desk().rejoin(request.path_params["call_id"], offer)
    except ProtocolError as error:
        return _refused(error)
    return Response(answer, media_type=SDP)


async def _place(request: Request, dialect: Dialect) -> Response:
    gateway = _gateway(request)
    try:
        if (refusal := gateway.refusal()) is not None:
            raise refusal
        desk = gateway.desk()
        offer, session = await read_offer(request)
        model, opening = handshake.call(request, gateway, session)
        placed = await desk.place(offer, model, opening, dialect, handshake.extensions(request, desk.extensions))
    except ProtocolError as error:
        metrics.connections_refused.labels(reason=error.code).inc()
        return _refused(error)
    headers = {"Location": f"/v1/realtime/calls/{placed.call_id}", REJOIN_HEADER: placed.token}
    response = Response(placed.answer, status_code=201, media_type=SDP, headers=headers)
    for link in link_headers(for_clients(gateway.settings.webrtc).iceServers):
        response.headers.append("Link", link)
    return response


async def list_ice_servers(request: Request) -> Response:
    """An extension: the STUN and TURN servers that a client is to make its peer connection with."""
    body = msgspec.json.encode(for_clients(_gateway(request).settings.webrtc))
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


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
    """Pass a call on. With SIP that is for whatever stands before this server; a telephone call's is asked for at the
    operator's callback URL."""
    try:
        call = _call(request)
        body: Referral = await json_body(request, Referral)
    except ProtocolError as error:
        return _refused(error)
    if not isinstance(call, LiveSession) or call.refer is None:
        message = "Calls are passed on by SIP, which this server does not speak; let the SIP gateway before it do so."
        return error_response(501, message, "duologue.unsupported_transport")
    if not await call.refer(body.target_uri):
        return error_response(
            502, "The call was not passed on: the callback URL did not agree.", "duologue.not_referred"
        )
    return Response(status_code=200)


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
    status = {
        "call_id_not_found": 404,
        "duologue.call_in_progress": 409,
        "duologue.unsupported_transport": 501,
        "duologue.unsupported_intent": 400,
        "duologue.unsupported_extension": 400,
        "unsupported_media_type": 415,
    }.get(error.code)
    return refused(error, status)
