"""The ordering rules of the GA Realtime dialect as one pure function: a recorded trace in, violations out.

A trace is what one client sent and received, in the order in which the client saw it. Every client event carries an
``event_id`` of its own, so that errors can be told apart. A rule looks at finished traces: it expects each thing begun
to have ended.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One event of a trace."""

    from_client: bool
    event: Event


Trace = Sequence[Line]
Rule = Callable[[Trace], Iterator[str]]


def violations(trace: Trace) -> list[str]:
    """Every broken rule, as ``"O7: what is wrong"``; empty if the trace is in order."""
    return [f"{name}: {problem}" for name, rule in RULES.items() for problem in rule(trace)]


def received(trace: Trace, *types: str) -> list[Event]:
    """The server's events, all or those of given types."""
    return [line.event for line in trace if not line.from_client and (not types or line.event["type"] in types)]


def sent(trace: Trace, *types: str) -> list[Event]:
    return [line.event for line in trace if line.from_client and line.event["type"] in types]


def errors_by_cause(trace: Trace) -> dict[str | None, list[Event]]:
    """The bodies of ``error`` events by the client event that caused them."""
    found: dict[str | None, list[Event]] = defaultdict(list)
    for event in received(trace, "error"):
        found[event["error"].get("event_id")].append(event["error"])
    return found


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


# -- input turns -------------------------------------------------------------------------------------------------------

TURN = (
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
)


def _item_of(event: Event) -> str | None:
    item = event.get("item")
    return item.get("id") if isinstance(item, dict) else event.get("item_id")


def _spoken_turns(trace: Trace) -> Iterator[str]:
    events = received(trace)
    by_hand = bool(sent(trace, "input_audio_buffer.commit", "input_audio_buffer.clear"))
    for item_id in [event["item_id"] for event in events if event["type"] == TURN[0]]:
        types = [event["type"] for event in events if _item_of(event) == item_id and event["type"] in TURN]
        expected = [kind for kind in TURN if kind in types] if by_hand else list(TURN)
        if types != expected:
            yield f"the turn of {item_id} came as {types}"


def _one_id_per_turn(trace: Trace) -> Iterator[str]:
    speaking: str | None = None
    for event in received(trace):
        match event["type"]:
            case "input_audio_buffer.speech_started":
                if speaking is not None:
                    yield f"speech_started({event['item_id']}) inside the speech of {speaking}"
                speaking = event["item_id"]
            case "input_audio_buffer.speech_stopped":
                if event["item_id"] != speaking:
                    yield f"speech_stopped({event['item_id']}) after speech_started({speaking})"
                speaking = None
            case "input_audio_buffer.committed" | "input_audio_buffer.cleared":
                speaking = None


def _committed_before_answered(trace: Trace) -> Iterator[str]:
    committing: str | None = None
    for event in received(trace):
        if event["type"] == "input_audio_buffer.committed":
            committing = event["item_id"]
        elif event["type"] == "conversation.item.done" and _item_of(event) == committing:
            committing = None
        elif event["type"] == "response.created" and committing is not None:
            yield f"response.created before item.done of the committed {committing}"


def _audio_times(trace: Trace) -> Iterator[str]:
    times = [
        (event["type"], event.get("audio_start_ms", event.get("audio_end_ms")))
        for event in received(trace, TURN[0], TURN[1])
    ]
    for (_, earlier), (kind, later) in pairwise(times):
        if later < earlier:
            yield f"{kind} at {later} ms after {earlier} ms"


def _manual_turns(trace: Trace) -> Iterator[str]:
    events = received(trace)
    vad_items = {event["item_id"] for event in events if event["type"] == TURN[0]}
    for item_id in [e["item_id"] for e in events if e["type"] == TURN[2] and e["item_id"] not in vad_items]:
        types = [event["type"] for event in events if _item_of(event) == item_id and event["type"] in TURN]
        if types != list(TURN[2:]):
            yield f"the manual turn of {item_id} came as {types}"
    manual, asked = False, 0
    for line in trace:
        event = line.event
        if line.from_client:
            asked += event["type"] == "response.create"
        elif event["type"] in ("session.created", "session.updated"):
            manual = event["session"]["audio"]["input"]["turn_detection"] is None
        elif event["type"] == "response.created":
            if manual and not asked:
                yield "a response nobody asked for, without turn detection"
            asked = max(0, asked - 1)


def _commits_answered_once(trace: Trace) -> Iterator[str]:
    if received(trace, TURN[0]):
        return
    errors = errors_by_cause(trace)
    commits = sent(trace, "input_audio_buffer.commit")
    refused = [commit for commit in commits if errors[commit["event_id"]]]
    for commit in refused:
        if len(errors[commit["event_id"]]) > 1:
            yield f"several errors for commit {commit['event_id']}"
    if len(received(trace, "input_audio_buffer.committed")) != len(commits) - len(refused):
        yield "commits and their answers do not add up"


# -- responses ---------------------------------------------------------------------------------------------------------


def _of_response(event: Event) -> str | None:
    response = event.get("response")
    return response.get("id") if isinstance(response, dict) else event.get("response_id")


def _done_once(trace: Trace) -> Iterator[str]:
    created = [event["response"]["id"] for event in received(trace, "response.created")]
    done = [event["response"]["id"] for event in received(trace, "response.done")]
    if len(set(created)) != len(created):
        yield "a response id came twice"
    for response_id in {*created, *done}:
        if (created.count(response_id), done.count(response_id)) != (1, 1):
            yield f"{response_id}: created {created.count(response_id)} times, done {done.count(response_id)} times"
    for event in received(trace, "response.done"):
        usage = event["response"].get("usage")
        if not usage or usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
            yield f"{event['response']['id']}: usage is {usage}"


_LETTERS = {
    "response.created": "C",
    "response.output_item.added": "I",
    "conversation.item.added": "N",
    "response.content_part.added": "P",
    "response.output_audio.delta": "A",
    "response.output_audio_transcript.delta": "T",
    "response.output_text.delta": "X",
    "response.function_call_arguments.delta": "F",
    "response.output_audio.done": "a",
    "response.output_audio_transcript.done": "t",
    "response.output_text.done": "x",
    "response.function_call_arguments.done": "f",
    "response.content_part.done": "p",
    "conversation.item.done": "n",
    "response.output_item.done": "i",
    "response.done": "R",
}
_IN_CONVERSATION = re.compile(r"C(IN(P([AT]*at|X*x)p|F*f)?ni)*R")
_OUT_OF_BAND = re.compile(r"C(I(P([AT]*at|X*x)p|F*f)?i)*R")


def _response_sequence(trace: Trace) -> Iterator[str]:
    events = received(trace)
    for created in [event for event in events if event["type"] == "response.created"]:
        response_id = created["response"]["id"]
        items = {
            event["item"]["id"]
            for event in events
            if event["type"] == "response.output_item.added" and event["response_id"] == response_id
        }
        letters = "".join(
            _LETTERS.get(event["type"], "?")
            for event in events
            if _of_response(event) == response_id
            or (event["type"] in ("conversation.item.added", "conversation.item.done") and _item_of(event) in items)
        )
        pattern = _OUT_OF_BAND if created["response"]["conversation_id"] is None else _IN_CONVERSATION
        if not pattern.fullmatch(letters):
            yield f"{response_id} came as {letters}"


def _texts_agree(trace: Trace) -> Iterator[str]:
    deltas: dict[tuple[str, str], str] = defaultdict(str)
    finals: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for event in received(trace):
        kind, item_id = event["type"], _item_of(event) or ""
        if kind in ("response.output_text.delta", "response.output_audio_transcript.delta"):
            deltas[item_id, kind.removesuffix(".delta")] += event["delta"]
        elif kind in ("response.output_text.done", "response.output_audio_transcript.done"):
            finals[item_id, kind.removesuffix(".done")][kind] = event.get("text", event.get("transcript"))
        elif kind == "response.content_part.done":
            for (item, _), texts in finals.items():
                if item == item_id:
                    texts[kind] = event["part"].get("text", event["part"].get("transcript"))
        elif kind in ("conversation.item.done", "response.output_item.done"):
            _note_item(finals, kind, event["item"])
        elif kind == "response.done":
            for item in event["response"]["output"]:
                _note_item(finals, kind, item)
    for key, texts in finals.items():
        for source, text in texts.items():
            if text != deltas[key]:
                yield f"{key[0]}: the deltas say {deltas[key]!r}, {source} says {text!r}"


def _note_item(finals: dict[tuple[str, str], dict[str, str]], source: str, item: Event) -> None:
    for (item_id, _), texts in finals.items():
        if item_id == item["id"] and item.get("content"):
            texts[source] = item["content"][0].get("text", item["content"][0].get("transcript"))


def _one_open_response(trace: Trace) -> Iterator[str]:
    is_open: str | None = None
    for event in received(trace, "response.created", "response.done"):
        response = event["response"]
        if response["conversation_id"] is None:
            continue
        if event["type"] == "response.done":
            is_open = None
        elif is_open is not None:
            yield f"{response['id']} began while {is_open} was open"
        else:
            is_open = response["id"]


def _silent_after_done(trace: Trace) -> Iterator[str]:
    done: set[str] = set()
    for event in received(trace):
        response_id = _of_response(event)
        if response_id in done and not event["type"].startswith("output_audio_buffer."):
            yield f"{event['type']} after response.done of {response_id}"
        if event["type"] == "response.done" and response_id is not None:
            done.add(response_id)


def _cancellations(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    for cancel in sent(trace, "response.cancel"):
        caused = errors[cancel["event_id"]]
        if len(caused) > 1:
            yield f"several errors for response.cancel {cancel['event_id']}"
        for error in caused:
            if error["code"] == "response_cancel_not_active" and not error["message"].startswith("Cancellation failed"):
                yield f"LiveKit does not know this message: {error['message']!r}"
    wanted = {"cancelled": ("turn_detected", "client_cancelled"), "incomplete": ("max_output_tokens", "content_filter")}
    for event in received(trace, "response.done"):
        response = event["response"]
        details = response.get("status_details") or {}
        if response["status"] in wanted and (
            details.get("type") != response["status"] or details.get("reason") not in wanted[response["status"]]
        ):
            yield f"{response['id']} is {response['status']} with details {details}"


def _interruptions(trace: Trace) -> Iterator[str]:
    events = received(trace)
    for end, event in enumerate(events):
        response = event.get("response", {})
        if event["type"] != "response.done" or (response.get("status_details") or {}).get("reason") != "turn_detected":
            continue
        begin = next(i for i, e in enumerate(events) if _of_response(e) == response["id"])
        speech = [i for i in range(begin, end) if events[i]["type"] == TURN[0]]
        if not speech:
            yield f"{response['id']} was interrupted by nobody"
            continue
        late = [
            e for e in events[speech[-1] : end] if _of_response(e) == response["id"] and e["type"].endswith(".delta")
        ]
        if late:
            yield f"{len(late)} deltas of {response['id']} after the speech that interrupted it"


# -- conversation list -------------------------------------------------------------------------------------------------


def _list_rebuilds(trace: Trace) -> Iterator[str]:
    items: list[str] = []
    for event in received(trace, "conversation.item.added", "conversation.item.deleted", "conversation.item.done"):
        item_id = _item_of(event)
        assert item_id is not None
        if event["type"] == "conversation.item.deleted":
            if item_id in items:
                items.remove(item_id)
            else:
                yield f"{item_id} was deleted but never there"
            continue
        if "previous_item_id" not in event:
            yield f"{event['type']}({item_id}) has no previous_item_id"
            continue
        previous = event["previous_item_id"]
        if previous is not None and previous not in items:
            yield f"{event['type']}({item_id}) refers to {previous}, which is not there"
        elif event["type"] == "conversation.item.added":
            if item_id in items:
                yield f"{item_id} was added twice"
            else:
                items.insert(0 if previous is None else items.index(previous) + 1, item_id)


def _client_ids_kept(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    for kind in ("conversation.item.added", "conversation.item.done"):
        ids = {_item_of(event) for event in received(trace, kind)}
        for create in sent(trace, "conversation.item.create"):
            given = create["item"].get("id") if isinstance(create.get("item"), dict) else None
            if given is not None and not errors[create["event_id"]] and given not in ids:
                yield f"{given} is missing in {kind}"


def _rejected_items_absent(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    for create in sent(trace, "conversation.item.create"):
        given = create["item"].get("id") if isinstance(create.get("item"), dict) else None
        codes = [error["code"] for error in errors[create["event_id"]]]
        if len(codes) > 1:
            yield f"several errors for conversation.item.create {create['event_id']}"
        if given is None or not codes or "item_create_duplicate_item_id" in codes:
            continue
        if any(_item_of(event) == given for event in received(trace)):
            yield f"{given} was refused and appears all the same"


RULES: dict[str, Rule] = {
    "O1": _created_first,
    "O2": _updates_answered_in_order,
    "O3": _unique_ids,
    "O4": _known_types,
    "O7": _spoken_turns,
    "O7 response": _committed_before_answered,
    "O8": _one_id_per_turn,
    "O9": _audio_times,
    "O10": _manual_turns,
    "O11": _commits_answered_once,
    "O15": _done_once,
    "O16-O19": _response_sequence,
    "O20": _texts_agree,
    "O23": _one_open_response,
    "O24": _silent_after_done,
    "O25": _cancellations,
    "O27": _interruptions,
    "O32": _list_rebuilds,
    "O33": _client_ids_kept,
    "O34": _rejected_items_absent,
}

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
