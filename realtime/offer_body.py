"""The body of a WebRTC offer: raw SDP, or a form with the SDP and the session."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from duologue.realtime.bodies import MAX_BODY_BYTES, converted
from duologue.sessions.errors import ProtocolError

SDP: Final = "application/sdp"
FORM: Final = "multipart/form-data"


async def read_offer(request: Request) -> tuple[str, dict[str, Any]]:
    """The SDP of an offer, and the session that comes with it (empty: none). Raises ``ProtocolError``."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM:
        return await _form(request)
    if kind not in (SDP, "text/plain", ""):
        message = f"An offer comes as {SDP}, or as {FORM} with the parts 'sdp' and 'session', not as '{kind[:64]}'."
        raise ProtocolError("unsupported_media_type", message)
    collected = bytearray()
    async for chunk in request.stream():
        collected += chunk
        if len(collected) > MAX_BODY_BYTES:
            raise ProtocolError("invalid_value", f"The body is longer than {MAX_BODY_BYTES} bytes.")
    return _text(bytes(collected), "sdp"), {}


async def _form(request: Request) -> tuple[str, dict[str, Any]]:
    try:
        form = await request.form(max_files=2, max_fields=2, max_part_size=MAX_BODY_BYTES)
    except HTTPException as error:
        raise ProtocolError("invalid_value", f"The form cannot be read: {error.detail}") from error
    try:
        parts: dict[str, bytes] = {}
        for name, value in form.multi_items():
            if name not in ("sdp", "session"):
                message = f"Unknown part '{name[:64]}'; the parts are 'sdp' and 'session'."
                raise ProtocolError("unknown_parameter", message, name[:64])
            parts[name] = value.encode() if isinstance(value, str) else await value.read(MAX_BODY_BYTES)
    finally:
        await form.close()
    if "sdp" not in parts:
        raise ProtocolError("missing_required_parameter", "Missing required parameter: 'sdp'.", "sdp")
    try:
        session = msgspec.json.decode(parts.get("session") or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ProtocolError("invalid_json", f"'session' is not valid JSON: {error}.", "session") from error
    return _text(parts["sdp"], "sdp"), converted(session, dict[str, Any], "session")


def _text(body: bytes, param: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("invalid_value", "The SDP is not UTF-8.", param) from error
