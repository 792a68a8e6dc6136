"""Errors over HTTP, in the shape that OpenAI's clients read: ``{"error": {"message", "type", "code", "param"}}``."""

from __future__ import annotations

from starlette.responses import JSONResponse


def error_response(
    status: int, message: str, code: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """A JSON error; its ``type`` follows from the status (400 to 499 are the client's fault)."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code, "param": param}}
    return JSONResponse(body, status_code=status, headers=headers)
