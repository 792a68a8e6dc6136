"""Logging to standard error, as text for people or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from duologue.engine.metering import trace_logger

LogFormat = Literal["json", "text"]

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"}``, ``"exception"`` if there is one, and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(log_format: LogFormat, level: str, traces: bool = False) -> None:
    """Send everything from ``level`` on to standard error, and with ``traces`` the trace of each request (which is at
    level debug). Call once, before the server starts."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if traces:
        trace_logger.setLevel(logging.DEBUG)
    # Third parties: their information is noise here, and uvicorn's would write keys from query strings into the log.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "faster_whisper", "huggingface_hub", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
