"""A recorded trace of one client, and what the ordering rules read out of it."""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
CLOSED = "connection.closed"
"""Type of the line that ends a trace whose connection the server has closed; no event of the protocol. It may have a
``code``."""


@dataclass(frozen=True)
class Line:
    """One event of a trace."""

    from_client: bool
    event: Event


Trace = Sequence[Line]
Rule = Callable[[Trace], Iterator[str]]


def received(trace: Trace, *types: str) -> list[Event]:
    """The server's events, all or those of given types."""
    # In one expression: the rules of a long trace ask for this hundreds of times.
    events = [line.event for line in trace if not line.from_client and line.event["type"] != CLOSED]
    return [event for event in events if event["type"] in types] if types else events


def from_server(line: Line) -> bool:
    return not line.from_client and line.event["type"] != CLOSED


def sent(trace: Trace, *types: str) -> list[Event]:
    return [line.event for line in trace if line.from_client and line.event["type"] in types]


def errors_by_cause(trace: Trace) -> dict[str | None, list[Event]]:
    """The bodies of ``error`` events by the client event that caused them."""
    found: dict[str | None, list[Event]] = defaultdict(list)
    for event in received(trace, "error"):
        found[event["error"].get("event_id")].append(event["error"])
    return found


def accepted(trace: Trace, *types: str) -> list[Event]:
    """The client's events of given types that were not refused."""
    errors = errors_by_cause(trace)
    return [event for event in sent(trace, *types) if not errors[event["event_id"]]]


def item_of(event: Event) -> str | None:
    """The id of the item that an event is about."""
    item = event.get("item")
    return item.get("id") if isinstance(item, dict) else event.get("item_id")


def response_of(event: Event) -> str | None:
    """The id of the response that an event is about."""
    response = event.get("response")
    return response.get("id") if isinstance(response, dict) else event.get("response_id")


def detection_of(event: Event) -> Event | None:
    """The turn detection in ``session.created`` or ``session.updated``."""
    detection: Event | None = event["session"]["audio"]["input"]["turn_detection"]
    return detection


def decoded(audio: object) -> bytes:
    """The sound in an event; empty where there is none or it is not base64."""
    try:
        return base64.b64decode(audio, validate=True) if isinstance(audio, str) else b""
    except binascii.Error:
        return b""


def bytes_per_ms(session: Event, end: str) -> int:
    """Of the sound at one ``end`` (``input``, ``output``) of a session."""
    audio_format = session["audio"].get(end, {}).get("format", {"type": "audio/pcm"})
    return 48 if audio_format["type"] == "audio/pcm" else 8
