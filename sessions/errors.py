"""Errors that a client is told about, and how a validation failure becomes one."""

from __future__ import annotations

import re

import msgspec


class ProtocolError(Exception):
    """A client's fault: becomes one ``error`` event; the session goes on.

    ``code`` is what clients key on, ``param`` the dotted path of the offending field.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


_PATH = re.compile(r" - at `\$?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")


def from_validation_error(error: msgspec.ValidationError, prefix: str = "") -> ProtocolError:
    """Turn msgspec's message into a code and the dotted path of the field, below ``prefix``.

    Unknown and missing fields get codes of their own, everything else is ``invalid_value``.
    """
    text = str(error)
    path = ""
    if match := _PATH.search(text):
        path = match["path"].lstrip(".").replace("[...]", "")
        text = text[: match.start()]
    code = "invalid_value"
    for pattern, name in ((_UNKNOWN, "unknown_parameter"), (_MISSING, "missing_required_parameter")):
        if match := pattern.match(text):
            code = name
            path = f"{path}.{match['name']}" if path else match["name"]
    param = ".".join(part for part in (prefix, path) if part) or None
    messages = {
        "unknown_parameter": f"Unknown parameter: '{param}'.",
        "missing_required_parameter": f"Missing required parameter: '{param}'.",
        "invalid_value": f"Invalid value for '{param}': {text[:1].lower()}{text[1:]}.",
    }
    return ProtocolError(code, messages[code], param)
