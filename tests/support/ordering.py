"""The ordering rules O1 to O35 of the GA Realtime dialect as one pure function: a recorded trace in, violations out.

A trace is what one client sent and received, in the order in which the client saw it. Every client event carries an
``event_id`` of its own, so that errors can be told apart. A rule looks at finished traces: it expects each thing begun
to have ended. O35 compares two traces of one session and is :func:`slow_reader_problems`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator

from ordering_input import INPUT_RULES
from ordering_responses import RESPONSE_RULES
from ordering_trace import (
    CLOSED,
    Event,
    Line,
    Rule,
    Trace,
    accepted,
    decoded,
    errors_by_cause,
    item_of,
    received,
    sent,
)

__all__ = ["CLOSED", "RULES", "Event", "Line", "Trace", "received", "slow_reader_problems", "violations"]


def violations(trace: Trace) -> list[str]:
    """Every broken rule, as ``"O7: what is wrong"``; empty if the trace is in order."""
    return [f"{name}: {problem}" for name, rule in RULES.items() for problem in rule(trace)]


# -- session and stream ------------------------------------------------------------------------------------------------


def _created_first(trace: Trace) -> Iterator[str]:
    types = [event["type"] for event in received(trace)]
    if types[:1] != ["session.created"]:
        yield f"the first event is {types[:1]}"
    if types.count("session.created") > 1:
        yield "session.created came more than once"


def _updates_answered_in_order(trace: Trace) -> Iterator[str]:
    waiting: deque[str] = deque()
    for line in trace:
        event = line.event
        if line.from_client and event["type"] == "session.update":
            waiting.append(event["event_id"])
        elif line.from_client:
            continue
        elif event["type"] == "session.updated":
            if not waiting:
                yield "session.updated without an update"
            else:
                waiting.popleft()
        elif event["type"] == "error" and event["error"].get("event_id") in waiting:
            if waiting[0] != event["error"]["event_id"]:
                yield f"the error for {event['error']['event_id']} overtook the answer to {waiting[0]}"
            waiting.remove(event["error"]["event_id"])
    yield from (f"no answer to session.update {event_id}" for event_id in waiting)


def _unique_ids(trace: Trace) -> Iterator[str]:
    seen: set[str] = set()
    for event in received(trace):
        event_id = event.get("event_id")
        if event["type"] == "input_audio_buffer.dtmf_event_received":
            continue
        if not isinstance(event_id, str) or not event_id:
            yield f"{event['type']} has no event_id"
        elif event_id in seen:
            yield f"event_id {event_id} came twice"
        else:
            seen.add(event_id)


def _known_types(trace: Trace) -> Iterator[str]:
    yield from (f"unknown type {event['type']}" for event in received(trace) if event["type"] not in SERVER_TYPES)


def _errors_leave_it_open(trace: Trace) -> Iterator[str]:
    """A client's fault is no reason to close; an expired session, a fault of ours and the server's end are."""
    last: Event | None = None
    for line in trace:
        if line.event["type"] == CLOSED and last is not None and last["type"] == "error":
            error = last["error"]
            if error["type"] == "invalid_request_error" and error["code"] != "session_expired":
                yield f"closed after {error['code']}"
        if not line.from_client:
            last = line.event
    closed = [line.event["type"] == CLOSED for line in trace if not line.from_client]
    if any(closed[:-1]):
        yield "events after the end"


# -- conversation list -------------------------------------------------------------------------------------------------


_BEFORE_THE_ITEM = ("conversation.item.input_audio_transcription.delta",)


def _list_rebuilds(trace: Trace) -> Iterator[str]:
    items: list[str] = []
    ever: set[str] = set()
    for event in received(trace):
        kind, item_id = event["type"], item_of(event) or ""
        if kind in _PLACED and "previous_item_id" not in event:
            yield f"{kind}({item_id}) has no previous_item_id"
            continue
        previous = event.get("previous_item_id")
        if kind in _PLACED and previous is not None and previous not in items:
            yield f"{kind}({item_id}) refers to {previous}, which is not there"
        elif kind == "conversation.item.done" and item_id in items and previous != _before(items, item_id):
            yield f"{kind}({item_id}) refers to {previous}, but {_before(items, item_id)} is before it"
        elif kind == "conversation.item.added":
            if item_id in items:
                yield f"{item_id} was added twice"
            else:
                ever.add(item_id)
                items.insert(0 if previous is None else items.index(previous) + 1, item_id)
        elif kind in _BEFORE_THE_ITEM and item_id not in ever:
            continue  # O12 says when
        elif kind.startswith("conversation.item.") and item_id not in items:
            yield f"{kind} of {item_id}, which is not there"
        elif kind == "conversation.item.deleted":
            items.remove(item_id)


def _before(items: list[str], item_id: str) -> str | None:
    index = items.index(item_id)
    return items[index - 1] if index else None


_PLACED = ("conversation.item.added", "conversation.item.done", "input_audio_buffer.committed")


def _given_ids(creates: list[Event]) -> Iterator[str]:
    for create in creates:
        given = create["item"].get("id") if isinstance(create.get("item"), dict) else None
        if isinstance(given, str):
            yield given


def _client_ids_kept(trace: Trace) -> Iterator[str]:
    given = list(_given_ids(accepted(trace, "conversation.item.create")))
    for kind in ("conversation.item.added", "conversation.item.done"):
        ids = [item_of(event) for event in received(trace, kind)]
        for item_id in sorted(set(given)):
            if ids.count(item_id) < given.count(item_id):
                yield f"{item_id} is missing in {kind}"


def _rejected_items_absent(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    kept = list(_given_ids(accepted(trace, "conversation.item.create")))
    added = [item_of(event) for event in received(trace, "conversation.item.added")]
    for create in sent(trace, "conversation.item.create"):
        codes = [error["code"] for error in errors[create["event_id"]]]
        if len(codes) > 1:
            yield f"several errors for conversation.item.create {create['event_id']}"
        for given in _given_ids([create]):
            if not codes or "item_create_duplicate_item_id" in codes:
                continue
            if added.count(given) > kept.count(given) or (
                given not in kept and any(item_of(event) == given for event in received(trace))
            ):
                yield f"{given} was refused and appears all the same"


# -- slow consumers ----------------------------------------------------------------------------------------------------


def slow_reader_problems(said: list[Event], got: list[Event], interrupted: Collection[str] = ()) -> Iterator[str]:
    """O35: what a slow reader ``got`` is what was ``said``, with deltas of one part joined and sound of interrupted
    responses left out; nothing else is missing, added or moved. ``interrupted``: responses that were complete by then,
    besides those that say it themselves."""
    interrupted = set(interrupted) | {
        event["response"]["id"]
        for event in said
        if event["type"] == "response.done" and event["response"]["status"] == "cancelled"
    }
    for name, keep in (("said", said), ("got", got)):
        if len({event["event_id"] for event in keep}) != len(keep):
            yield f"an event of what was {name} came twice"
    others = [[event for event in events if not event["type"].endswith(".delta")] for events in (said, got)]
    if others[0] != others[1]:
        yield "events that are no deltas differ"
    whole, read = _joined(said), _joined(got)
    for key in whole.keys() | read.keys():
        if whole[key] == read[key]:
            continue
        kind, response_id = key[1], key[2]
        may_be_cut = kind == "response.output_audio.delta" and response_id in interrupted
        if not may_be_cut or not whole[key].startswith(read[key]):
            yield f"{kind} of {key[0]}: {whole[key]!r} became {read[key]!r}"


def _joined(events: list[Event]) -> dict[tuple[str | None, str, str | None], str]:
    joined: dict[tuple[str | None, str, str | None], str] = defaultdict(str)
    for event in events:
        if event["type"].endswith(".delta"):
            sound = event["type"] == "response.output_audio.delta"
            piece = decoded(event["delta"]).hex() if sound else event["delta"]
            joined[item_of(event), event["type"], event.get("response_id")] += piece
    return joined


RULES: dict[str, Rule] = {
    "O1": _created_first,
    "O2": _updates_answered_in_order,
    "O3": _unique_ids,
    "O4": _known_types,
    "O5": _errors_leave_it_open,
    **INPUT_RULES,
    **RESPONSE_RULES,
    "O32": _list_rebuilds,
    "O33": _client_ids_kept,
    "O34": _rejected_items_absent,
}
"""Every rule but O35, which needs two traces."""

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
SERVER_TYPES = frozenset(
    {
        "error",
        "session.created",
        "session.updated",
        *(f"conversation.item.{name}" for name in ("added", "done", "retrieved", "deleted", "truncated")),
        *(f"{_TRANSCRIPTION}.{name}" for name in ("delta", "completed", "segment", "failed")),
        *(
            f"input_audio_buffer.{name}"
            for name in (
                "committed",
                "cleared",
                "speech_started",
                "speech_stopped",
                "timeout_triggered",
                "dtmf_event_received",
            )
        ),
        *(f"output_audio_buffer.{name}" for name in ("started", "stopped", "cleared")),
        "response.created",
        "response.done",
        *(f"response.{part}.{name}" for part in ("output_item", "content_part") for name in ("added", "done")),
        *(
            f"response.{stream}.{name}"
            for stream in (
                "output_text",
                "output_audio",
                "output_audio_transcript",
                "function_call_arguments",
                "mcp_call_arguments",
            )
            for name in ("delta", "done")
        ),
        *(f"response.mcp_call.{name}" for name in ("in_progress", "completed", "failed")),
        *(f"mcp_list_tools.{name}" for name in ("in_progress", "completed", "failed")),
        "rate_limits.updated",
    }
)
"""The 44 types a GA server may send: all of the schema but the two that only the beta dialect uses."""
