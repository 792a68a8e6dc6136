"""The shape of every server event: known to the strictest client, and without null where a key should be absent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from agents.realtime.openai_realtime import get_server_event_type_adapter
from ordering import Event, Line, received

_adapter = cache(get_server_event_type_adapter)


def check_shapes(trace: Sequence[Line]) -> None:
    """Check each server event against the union of openai-agents, which knows each type and each field."""
    for event in received(trace):
        parsed: Any = _adapter().validate_python(event)
        kept = json.loads(parsed.model_dump_json(exclude_unset=True))
        assert kept["type"] == event["type"]
        _no_nulls_where_absent_is_meant(event)


def _no_nulls_where_absent_is_meant(event: Event) -> None:
    """S1: inside items and parts a key is absent, never null (the JavaScript agents client rejects null).

    All but two: it insists on the ``transcript`` of input audio and on the ``output`` of a call to an MCP server, which
    are null until they are known.
    """
    items = [event["item"]] if "item" in event else event.get("response", {}).get("output", [])
    for item in [*items, *([event["part"]] if "part" in event else [])]:
        for holder in (item, *item.get("content", [])):
            named = dict(holder)
            if holder.get("type") == "input_audio":
                assert isinstance(named.pop("transcript"), str | None)
            if holder.get("type") == "mcp_call":
                assert isinstance(named.pop("output"), str | None)
            assert None not in named.values(), f"null in {holder} of {event['type']}"
