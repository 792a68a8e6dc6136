"""What a connection to ``/v1/realtime`` asks for: which dialect, and which session, a new one or one there is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

from starlette.requests import HTTPConnection

from duologue.realtime.auth import SCOPE_SECRET
from duologue.realtime.client_secrets import ClientSecret
from duologue.realtime.dialects import BETA, GA, Dialect
from duologue.realtime.gateway import Gateway
from duologue.realtime.resume import EXTENSION
from duologue.sessions.config import EXTENSIONS, deep_merge
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening


@dataclass(frozen=True)
class NewSession:
    """Begin a session."""

    model: str | None
    """What the URL names; None: the session binds it later."""
    opening: Opening
    resumable: bool


@dataclass(frozen=True)
class JoinCall:
    """Be a sideband of a session in progress."""

    call_id: str


@dataclass(frozen=True)
class ResumeSession:
    """Go on with a session whose connection broke."""

    token: str
    after: int
    """Frames that the client has."""


Request = NewSession | JoinCall | ResumeSession


def dialect(connection: HTTPConnection) -> Dialect:
    """The dialect that the handshake asks for."""
    beta = (
        "realtime=v1" in connection.headers.get("openai-beta", "")
        or "openai-beta.realtime-v1" in connection.scope.get("subprotocols", ())
        or connection.query_params.get("dialect") == "beta"
    )
    return BETA if beta else GA


def requested(connection: HTTPConnection, gateway: Gateway) -> Request:
    """Raises ``ProtocolError`` for a model, an intent or an extension that is not served."""
    query = connection.query_params
    if "resume" in query:
        return ResumeSession(query["resume"], _after(query.get("after", "")))
    if "call_id" in query:
        return JoinCall(query["call_id"])
    model, opening = _session(connection, gateway)
    resumes = (EXTENSION,) if gateway.settings.resume_window_s > 0 else ()
    of_events = EXTENSIONS if opening.type is None else ()
    wanted = extensions(connection, (*resumes, *of_events))
    if events := [name for name in of_events if name in wanted]:
        opening = replace(opening, config={**opening.config, "extensions": events})
    return NewSession(model, opening, EXTENSION in wanted)


def extensions(connection: HTTPConnection, known: Collection[str]) -> Collection[str]:
    """What a connection asks for besides the protocol. Raises ``ProtocolError`` for what is not among ``known``."""
    wanted = [name for name in connection.query_params.get("extensions", "").split(",") if name]
    for name in wanted:
        if name not in known:
            raise ProtocolError("duologue.unsupported_extension", f"There is no extension '{name[:64]}'.", "extensions")
    return wanted


def _after(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ProtocolError("invalid_value", "'after' is the number of events that the client has received.", "after")
    return int(text)


def _session(connection: HTTPConnection, gateway: Gateway) -> tuple[str | None, Opening]:
    query = connection.query_params
    intent, model = query.get("intent", "realtime"), query.get("model") or None
    if intent not in ("realtime", "transcription"):
        message = f"Unsupported intent '{intent}'. Supported: realtime, transcription."
        raise ProtocolError("duologue.unsupported_intent", message, "intent")
    secret: ClientSecret | None = connection.scope.get(SCOPE_SECRET)
    if secret is not None:
        return None, _of_secret(secret, model, query.get("intent"), gateway)
    if intent != "transcription":
        return model and _served(gateway, "models", model), Opening()
    if model is not None:
        _served(gateway, "transcription_models", model)
    return model, Opening(type="transcription")


def call(connection: HTTPConnection, gateway: Gateway, session: dict[str, Any]) -> tuple[str | None, Opening]:
    """What an offer asks for: the session of the key, or of the URL, with ``session`` laid over it.

    Raises ``ProtocolError``.
    """
    model, opening = _session(connection, gateway)
    kind = session.get("type", opening.type)
    if kind not in (None, "realtime", "transcription") or (opening.type is not None and kind != opening.type):
        message = f"Invalid value for 'session.type': '{kind}'. Expected: {opening.type or 'realtime, transcription'}."
        raise ProtocolError("invalid_value", message, "session.type")
    named = session.get("model")
    if model is not None and isinstance(named, str) and _served(gateway, "models", named) != model:
        raise ProtocolError("invalid_value", f"The URL names the model '{model}'.", "session.model")
    return model, Opening(type=kind, config=deep_merge(opening.config, session))


def translation(connection: HTTPConnection, gateway: Gateway) -> tuple[str | None, Opening]:
    """What a connection to ``/v1/realtime/translations`` asks for. Raises ``ProtocolError``."""
    model = connection.query_params.get("model") or None
    secret: ClientSecret | None = connection.scope.get(SCOPE_SECRET)
    if secret is None:
        return model and _served(gateway, "models", model), Opening(type="translation")
    return None, _of_secret(secret, model, "translation", gateway)


def _served(gateway: Gateway, kind: Literal["models", "transcription_models"], name: str) -> str:
    """The served name of a model. Raises ``ProtocolError`` with the known ones."""
    try:
        return gateway.names.resolve(kind, name, "model")
    except ProtocolError as error:
        raise ProtocolError("model_not_found", error.message, error.param) from error


def _of_secret(secret: ClientSecret, model: str | None, intent: str | None, gateway: Gateway) -> Opening:
    """What a client secret is bound to. Raises ``ProtocolError`` where the URL says something else."""
    opening = secret.opening
    if (intent or "realtime") != opening.type and (intent is not None or opening.type == "translation"):
        message = f"The client secret is for a session of type '{opening.type}'."
        raise ProtocolError("duologue.unsupported_intent", message, "intent")
    if model is None or opening.type == "transcription":
        return opening
    bound = opening.config.get("model", model)
    if _served(gateway, "models", model) != _served(gateway, "models", bound):
        raise ProtocolError("model_not_found", f"The client secret is for the model '{bound}'.", "model")
    return replace(opening, config={**opening.config, "model": bound})
