"""Ordering rules O15 to O31: responses, their items, interruption and playout."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ordering_input import SETTINGS, TURN, uncaused
from ordering_trace import (
    CLOSED,
    Event,
    Rule,
    Trace,
    accepted,
    bytes_per_ms,
    decoded,
    errors_by_cause,
    item_of,
    received,
    response_of,
    sent,
)


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


# -- the sequence of a response's events -------------------------------------------------------------------------------

_LETTERS = {
    "response.created": "C",
    "response.output_item.added": "I",
    "conversation.item.added": "N",
    "response.content_part.added": "P",
    "response.output_audio.delta": "A",
    "response.output_audio_transcript.delta": "T",
    "response.output_text.delta": "X",
    "response.function_call_arguments.delta": "F",
    "response.mcp_call_arguments.delta": "M",
    "response.output_audio.done": "a",
    "response.output_audio_transcript.done": "t",
    "response.output_text.done": "x",
    "response.function_call_arguments.done": "f",
    "response.mcp_call_arguments.done": "m",
    "response.content_part.done": "p",
    "conversation.item.done": "n",
    "response.output_item.done": "i",
    "response.done": "R",
}
_DELTAS, _ITEM_EVENTS = set("ATXFM"), set("INPATXFMatxfmpni")
_WHOLE = {
    "audio": re.compile(r"IN?P[AT]*(at|ta)pn?i"),
    "text": re.compile(r"IN?PX*xpn?i"),
    "function_call": re.compile(r"IN?F*fn?i"),
    "other": re.compile(r"IN?M*m?n?i"),
}


def _letters(trace: Trace, item_id: str | None) -> str:
    letters = ((item_of(event), _LETTERS.get(event["type"], "?")) for event in received(trace))
    return "".join(letter for item, letter in letters if item == item_id and letter in _ITEM_EVENTS)


def _kind(trace: Trace, added: Event) -> str:
    """What an item of a response is: ``audio``, ``text``, ``function_call`` or ``other``."""
    if added["item"]["type"] != "message":
        return "function_call" if added["item"]["type"] == "function_call" else "other"
    parts = [event for event in received(trace, "response.content_part.added") if item_of(event) == item_of(added)]
    return parts[0]["part"]["type"] if parts else "audio"


def _items(trace: Trace, *kinds: str) -> Iterator[tuple[str, str, Event]]:
    """Kind, letters and ``output_item.added`` of the items of all responses."""
    for added in received(trace, "response.output_item.added"):
        kind = _kind(trace, added)
        if kind in kinds:
            yield kind, _letters(trace, item_of(added)), added


def _response_sequence(trace: Trace) -> Iterator[str]:
    for kind, letters, added in _items(trace, "audio", "other"):
        if not _WHOLE[kind].fullmatch(letters):
            yield f"item {item_of(added)} came as {letters}"
    yield from _items_follow_each_other(trace)
    yield from _announced_in_the_conversation(trace)


def _items_follow_each_other(trace: Trace) -> Iterator[str]:
    """In a response an item is closed before the next begins, calls to MCP servers apart."""
    for created in received(trace, "response.created"):
        response_id = created["response"]["id"]
        letters = "".join(
            _LETTERS[event["type"]]
            for event in received(trace)
            if response_of(event) == response_id
            and _LETTERS.get(event["type"], "?") in set("CIiR")
            and event.get("item", {}).get("type") != "mcp_call"
        )
        if not re.fullmatch(r"C(Ii)*R", letters):
            yield f"{response_id} came as {letters}"


def _announced_in_the_conversation(trace: Trace) -> Iterator[str]:
    """Items of the conversation's responses are announced there, and finished unless the client has deleted them."""
    beside = _out_of_band(trace)
    deleted = {item_of(event) for event in received(trace, "conversation.item.deleted")}
    for _, letters, added in _items(trace, *_WHOLE):
        if added["response_id"] in beside:
            continue
        if letters.count("N") != 1 or (letters.count("n") != 1 and item_of(added) not in deleted):
            yield f"{item_of(added)} came into the conversation as {letters}"


def _done_group(trace: Trace) -> Iterator[str]:
    for _, letters, added in _items(trace, "audio"):
        if [letter for letter in letters if letter in "atp"] != list("atp"):
            yield f"the end of {item_of(added)} came as {letters}"


def _text_sequence(trace: Trace) -> Iterator[str]:
    for kind, letters, added in _items(trace, "text"):
        if not _WHOLE[kind].fullmatch(letters):
            yield f"item {item_of(added)} came as {letters}"


def _deltas_inside(trace: Trace) -> Iterator[str]:
    for kind, letters, added in _items(trace, *_WHOLE):
        begin = letters.find("P" if kind in ("audio", "text") else "I")
        end = {"audio": "a", "text": "x", "function_call": "f", "other": "m"}[kind]
        for index, letter in enumerate(letters):
            closed = letters.find("t" if letter == "T" else end)
            if letter in _DELTAS and (index < begin or 0 <= closed < index):
                yield f"a delta of {item_of(added)} outside its item: {letters}"


def _texts_agree(trace: Trace) -> Iterator[str]:
    deltas: dict[tuple[str, str], str] = defaultdict(str)
    finals: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for event in received(trace):
        kind, item_id = event["type"], item_of(event) or ""
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


def _calls(trace: Trace) -> Iterator[str]:
    arguments: dict[str | None, str] = defaultdict(str)
    for event in received(trace, "response.function_call_arguments.delta"):
        arguments[item_of(event)] += event["delta"]
    for event in received(trace, "response.function_call_arguments.done"):
        if event["arguments"] != arguments[item_of(event)]:
            yield f"{item_of(event)}: the deltas say {arguments[item_of(event)]!r}, .done says {event['arguments']!r}"
    ends = {event["response"]["id"]: event["response"]["status"] for event in received(trace, "response.done")}
    for kind, letters, added in _items(trace, "function_call"):
        item_id, item = item_of(added), added["item"]
        if not _WHOLE[kind].fullmatch(letters):
            yield f"call {item_id} came as {letters}"
        if not item.get("call_id") or not item.get("name") or item.get("status") != "in_progress":
            yield f"{item_id} was announced as {item}"
        for event in received(trace, "conversation.item.added"):
            if item_of(event) == item_id and event["item"] != item:
                yield f"{item_id} was announced to the conversation as {event['item']}"
        for event in received(trace, "response.output_item.done"):
            whole = event["item"].get("status") == "completed"
            if item_of(event) == item_id and not whole and ends.get(added["response_id"]) == "completed":
                yield f"{item_id} is {event['item'].get('status')} in a completed response"


def _nothing_by_itself(trace: Trace) -> Iterator[str]:
    """A response nobody asked for, whatever the turn detection: after a function call above all."""
    yield from (f"{response_id} was created by itself" for response_id, _ in uncaused(trace))


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
        response_id = response_of(event)
        if response_id in done and not event["type"].startswith("output_audio_buffer."):
            yield f"{event['type']} after response.done of {response_id}"
        if event["type"] == "response.done" and response_id is not None:
            done.add(response_id)


_REASONS = {"cancelled": ("turn_detected", "client_cancelled"), "incomplete": ("max_output_tokens", "content_filter")}


def _cancellations(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    for cancel in sent(trace, "response.cancel"):
        caused = errors[cancel["event_id"]]
        if len(caused) > 1:
            yield f"several errors for response.cancel {cancel['event_id']}"
        for error in caused:
            if error["code"] == "response_cancel_not_active" and not error["message"].startswith("Cancellation failed"):
                yield f"LiveKit does not know this message: {error['message']!r}"
    by_client = 0
    for event in received(trace, "response.done"):
        response = event["response"]
        details = response.get("status_details") or {}
        by_client += details.get("reason") == "client_cancelled"
        if response["status"] in _REASONS and (
            details.get("type") != response["status"] or details.get("reason") not in _REASONS[response["status"]]
        ):
            yield f"{response['id']} is {response['status']} with details {details}"
    cancels = len(accepted(trace, "response.cancel"))
    hung_up = any(line.event["type"] == CLOSED for line in trace)
    if by_client < cancels or (by_client > cancels and not hung_up):
        yield f"{cancels} cancels have ended {by_client} responses"


# -- out of band -------------------------------------------------------------------------------------------------------


def _out_of_band(trace: Trace) -> set[str]:
    created = (event["response"] for event in received(trace, "response.created"))
    return {response["id"] for response in created if response["conversation_id"] is None}


def _beside_the_conversation(trace: Trace) -> Iterator[str]:
    beside = _out_of_band(trace)
    items = {item_of(e) for e in received(trace, "response.output_item.added") if e["response_id"] in beside}
    for event in received(trace):
        if event["type"].startswith("conversation.item.") and item_of(event) in items:
            yield f"{event['type']} of {item_of(event)}, which is out of band"
    said = {event["response"]["id"]: event["response"] for event in received(trace, "response.created")}
    for done in received(trace, "response.done"):
        created = said.get(done["response"]["id"], {})
        for key in ("conversation_id", "metadata"):
            if done["response"].get(key) != created.get(key):
                yield f"{done['response']['id']}: {key} was {created.get(key)}, is {done['response'].get(key)}"
    wanted = [create.get("response") or {} for create in accepted(trace, "response.create")]
    metadata = [response.get("metadata") for response in wanted if response.get("conversation") == "none"]
    echoed = [response.get("metadata") for name, response in said.items() if name in beside]
    if metadata != echoed:
        yield f"the metadata {metadata} came back as {echoed}"


# -- interruption and playout ------------------------------------------------------------------------------------------


def _interruptions(trace: Trace) -> Iterator[str]:
    events = received(trace)
    for end, event in enumerate(events):
        response = event.get("response", {})
        if event["type"] != "response.done" or (response.get("status_details") or {}).get("reason") != "turn_detected":
            continue
        begin = next(i for i, e in enumerate(events) if response_of(e) == response["id"])
        speech = [i for i in range(begin, end) if events[i]["type"] == TURN[0]]
        if not speech:
            yield f"{response['id']} was interrupted by nobody"
            continue
        late = [
            e for e in events[speech[-1] : end] if response_of(e) == response["id"] and e["type"].endswith(".delta")
        ]
        if late:
            yield f"{len(late)} deltas of {response['id']} after the speech that interrupted it"


_PLAYOUT = tuple(f"output_audio_buffer.{name}" for name in ("started", "stopped", "cleared"))


def _client_truncates(trace: Trace) -> Iterator[str]:
    """Over WebSocket; a trace with playout events is one of WebRTC, where the server may do it."""
    if received(trace, *_PLAYOUT):
        return
    wanted = [
        (event["item_id"], event.get("content_index", 0), event["audio_end_ms"])
        for event in accepted(trace, "conversation.item.truncate")
    ]
    done = [
        (event["item_id"], event["content_index"], event["audio_end_ms"])
        for event in received(trace, "conversation.item.truncated")
    ]
    if wanted != done:
        yield f"the client asked for the truncations {wanted} and got {done}"


def _server_truncates(trace: Trace) -> Iterator[str]:
    """Over WebRTC: to nothing before it has begun to play, and never an item whose sound was played to its end."""
    if not received(trace, *_PLAYOUT):
        return
    responses = {item_of(e): e["response_id"] for e in received(trace, "response.output_item.added")}
    started: set[str] = set()
    stopped: set[str] = set()
    asked = {event["item_id"] for event in sent(trace, "conversation.item.truncate")}
    for event in received(trace):
        if event["type"] == _PLAYOUT[0]:
            started.add(event["response_id"])
        elif event["type"] == _PLAYOUT[1]:
            stopped.add(event["response_id"])
        elif event["type"] == "conversation.item.truncated" and event["item_id"] not in asked:
            response_id = responses.get(event["item_id"])
            unstarted = response_id not in started and event["audio_end_ms"]
            if unstarted or response_id in stopped:
                yield f"{event['item_id']} was truncated while it was not being played"


def _playout_events(trace: Trace) -> Iterator[str]:
    parts = set()
    playing: set[str] = set()
    for event in received(trace):
        response_id = event.get("response_id")
        if event["type"] == "response.content_part.added":
            parts.add(response_id)
        elif event["type"] == _PLAYOUT[0]:
            if response_id not in parts:
                yield f"{response_id} began to play before its part was announced"
            if response_id in playing:
                yield f"{response_id} began to play twice"
            playing.add(response_id)
        elif event["type"] in _PLAYOUT[1:]:
            if response_id not in playing:
                yield f"{event['type']} of {response_id}, which is not being played"
            playing.discard(response_id)
        elif event["type"] == "response.output_audio.delta" and received(trace, *_PLAYOUT):
            yield "sound in an event over WebRTC"
    yield from (f"{response_id} plays for ever" for response_id in playing)


def _retrieved_after_truncate(trace: Trace) -> Iterator[str]:
    """The other half of O31, what the model is shown, is not in a trace."""
    cuts: dict[str | None, int] = {}
    rate = 48
    for event in received(trace):
        if event["type"] in SETTINGS:
            rate = bytes_per_ms(event["session"], "output")
        elif event["type"] == "conversation.item.truncated":
            cuts[item_of(event)] = event["audio_end_ms"]
        elif event["type"] == "conversation.item.deleted":
            cuts.pop(item_of(event), None)
        elif event["type"] == "conversation.item.retrieved" and item_of(event) in cuts:
            end_ms = cuts[item_of(event)]
            for part in event["item"]["content"]:
                if part.get("transcript"):
                    yield f"{item_of(event)} still has a transcript after its truncation"
                if len(decoded(part.get("audio"))) > (end_ms + 1) * rate:
                    yield f"{item_of(event)} holds more than {end_ms} ms of sound after its truncation"


RESPONSE_RULES: dict[str, Rule] = {
    "O15": _done_once,
    "O16": _response_sequence,
    "O17": _done_group,
    "O18": _text_sequence,
    "O19": _deltas_inside,
    "O20": _texts_agree,
    "O21": _calls,
    "O22": _nothing_by_itself,
    "O23": _one_open_response,
    "O24": _silent_after_done,
    "O25": _cancellations,
    "O26": _beside_the_conversation,
    "O27": _interruptions,
    "O28": _client_truncates,
    "O29": _server_truncates,
    "O30": _playout_events,
    "O31": _retrieved_after_truncate,
}
