"""``POST /v1/realtime/client_secrets`` and its two predecessors: configure a session now, open it from a browser."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from duologue.realtime.bodies import converted, json_answer, json_body, refused
from duologue.realtime.client_secrets import DEFAULT_LIFETIME_S
from duologue.realtime.dialects import beta
from duologue.realtime.gateway import Gateway
from duologue.sessions.config import AnySession
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200)] = DEFAULT_LIFETIME_S


class SecretRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``client_secrets``."""

    expires_after: ExpiresAfter | None = None
    session: dict[str, Any] | None = None


class LegacySecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``client_secret`` that the bodies of the predecessors may hold."""

    expires_after: ExpiresAfter | UnsetType = UNSET
    expires_at: ExpiresAfter | UnsetType = UNSET
    """What older clients call the same."""


async def create_client_secret(request: Request) -> Response:
    """200 with ``value``, ``expires_at`` and the effective ``session``."""
    try:
        body = await json_body(request, SecretRequest)
        value, expires_at, session = _mint(request, body.session or {}, body.expires_after)
    except ProtocolError as error:
        return refused(error)
    return json_answer({"value": value, "expires_at": expires_at, "session": session})


async def create_translation_secret(request: Request) -> Response:
    """The same for translation sessions."""
    try:
        body: SecretRequest = await json_body(request, SecretRequest)
        opening = Opening(type="translation", config={"type": "translation", **(body.session or {})})
        gateway = _open_gateway(request)
        session = gateway.sessions.configure_translation(None, opening)
        value, secret = gateway.secrets.mint(opening, (body.expires_after or ExpiresAfter()).seconds)
    except ProtocolError as error:
        return refused(error)
    return json_answer({"value": value, "expires_at": int(secret.expires_at), "session": session})


async def create_session(request: Request) -> Response:
    """The predecessor for conversations: a flat session in, the same with a ``client_secret`` out."""
    return await _legacy(request, "realtime")


async def create_transcription_session(request: Request) -> Response:
    """The predecessor for transcription."""
    return await _legacy(request, "transcription")


async def _legacy(request: Request, kind: Literal["realtime", "transcription"]) -> Response:
    try:
        body = await json_body(request, dict[str, Any])
        secret = converted(body.pop("client_secret", {}), LegacySecret, "client_secret")
        config = {**beta.nested(body), "type": kind}
        if kind == "transcription":
            config.pop("output_modalities", None)
        lifetime = secret.expires_after or secret.expires_at or None
        value, expires_at, session = _mint(request, config, lifetime)
    except ProtocolError as error:
        return refused(ProtocolError(error.code, error.message, beta.param_to_beta(error.param)))
    shaped = beta.flat(msgspec.to_builtins(session))
    return json_answer({**shaped, "client_secret": {"value": value, "expires_at": expires_at}})


def _open_gateway(request: Request) -> Gateway:
    """Raises ``ProtocolError`` where the server is not serving."""
    gateway: Gateway = request.app.state.gateway
    if (closed := gateway.closed()) is not None:
        raise closed
    return gateway


def _mint(request: Request, config: dict[str, Any], lifetime: ExpiresAfter | None) -> tuple[str, int, AnySession]:
    gateway = _open_gateway(request)
    kind = config.get("type", "realtime")
    if kind not in ("realtime", "transcription"):
        message = f"Invalid value for 'session.type': '{kind}'. Supported: realtime, transcription."
        raise ProtocolError("invalid_value", message, "session.type")
    opening = Opening(type=kind, config=config)
    session = gateway.sessions.configure(None, opening)
    value, secret = gateway.secrets.mint(opening, (lifetime or ExpiresAfter()).seconds)
    return value, int(secret.expires_at), session
