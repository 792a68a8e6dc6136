"""JSON bodies of HTTP requests: read within a bound, checked against a type, refused with the field's name."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duologue.realtime.http_errors import error_response
from duologue.sessions.errors import ProtocolError, from_validation_error

MAX_BODY_BYTES = 2**20


async def json_body(request: Request, shape: Any) -> Any:
    """The request's JSON as ``shape``. Raises ``ProtocolError``. An empty body is an empty object."""
    collected = bytearray()
    async for chunk in request.stream():
        collected += chunk
        if len(collected) > MAX_BODY_BYTES:
            raise ProtocolError("invalid_value", f"The body is longer than {MAX_BODY_BYTES} bytes.")
    try:
        raw = msgspec.json.decode(bytes(collected) or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ProtocolError("invalid_json", f"The body is not valid JSON: {error}.") from error
    return converted(raw, shape)


def converted(raw: Any, shape: Any, where: str = "") -> Any:
    """Decoded JSON as ``shape``. Raises ``ProtocolError`` that names the field, below ``where``."""
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        raise from_validation_error(error, where) from error


def refused(error: ProtocolError, status: int | None = None) -> Response:
    """The answer to a request that cannot be served."""
    if status is None:
        status = {"rate_limit_exceeded": 429}.get(error.code, 503 if error.code.startswith("duologue.") else 400)
    return error_response(status, error.message, error.code, error.param)


def json_answer(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
