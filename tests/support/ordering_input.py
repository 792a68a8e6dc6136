"""Ordering rules O6 to O14: what the user says, and the turns that it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ordering_trace import (
    Event,
    Rule,
    Trace,
    accepted,
    bytes_per_ms,
    decoded,
    detection_of,
    errors_by_cause,
    from_server,
    item_of,
    received,
    sent,
)

TURN = (
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
)
TIMEOUT = "input_audio_buffer.timeout_triggered"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"
SETTINGS = ("session.created", "session.updated")


def _appends_unanswered(trace: Trace) -> Iterator[str]:
    """What cannot be told from one trace, that chunking changes nothing, is a test of its own."""
    errors = errors_by_cause(trace)
    for append in sent(trace, "input_audio_buffer.append"):
        if len(errors[append["event_id"]]) > 1:
            yield f"several errors for append {append['event_id']}"
        for error in errors[append["event_id"]]:
            if error["type"] != "invalid_request_error":
                yield f"append {append['event_id']} was answered with {error}"


def _spoken_turns(trace: Trace) -> Iterator[str]:
    events = received(trace)
    for item_id in [event["item_id"] for event in events if event["type"] == TURN[0]]:
        types = [event["type"] for event in events if item_of(event) == item_id and event["type"] in TURN]
        if types != list(TURN) and not (types == [TURN[0]] and _broken_off(events, item_id)):
            yield f"the turn of {item_id} came as {types}"


def _broken_off(events: list[Event], item_id: str) -> bool:
    """Whether the client has thrown away a turn in progress: it cleared the buffer or switched detection off."""
    begun = next(i for i, event in enumerate(events) if event["type"] == TURN[0] and event["item_id"] == item_id)
    for event in events[begun:]:
        if event["type"] == "input_audio_buffer.cleared":
            return True
        if event["type"] == "session.updated" and detection_of(event) is None:
            return True
    return False


def _answered_after_done(trace: Trace) -> Iterator[str]:
    committing: str | None = None
    for event in received(trace):
        if event["type"] == "input_audio_buffer.committed":
            committing = event["item_id"]
        elif event["type"] == "conversation.item.done" and item_of(event) == committing:
            committing = None
        elif event["type"] == "response.created" and committing is not None:
            yield f"response.created before item.done of the committed {committing}"


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
            case "session.updated" if detection_of(event) is None:
                speaking = None


def _audio_times(trace: Trace) -> Iterator[str]:
    appended, rate, last = 0.0, 48, 0
    told = bool(sent(trace, "input_audio_buffer.append"))
    for line in trace:
        event = line.event
        if line.from_client:
            if event["type"] == "input_audio_buffer.append":
                appended += len(decoded(event.get("audio"))) / rate
            continue
        if event["type"] in SETTINGS:
            rate = min(rate, bytes_per_ms(event["session"], "input"))  # in doubt more time has been written
        elif event["type"] in (TURN[0], TURN[1], TIMEOUT):
            times = [event[key] for key in ("audio_start_ms", "audio_end_ms") if key in event]
            for earlier, later in pairwise([last, *times]):
                if later < earlier:
                    yield f"{event['type']} at {later} ms after {earlier} ms"
            last = max(last, *times)
            if told and last > appended:
                yield f"{event['type']} at {last} ms, when {appended:.0f} ms had been written"


def _manual_turns(trace: Trace) -> Iterator[str]:
    events = received(trace)
    detected = {event["item_id"] for event in events if event["type"] in (TURN[0], TIMEOUT)}
    for item_id in [e["item_id"] for e in events if e["type"] == TURN[2] and e["item_id"] not in detected]:
        types = [event["type"] for event in events if item_of(event) == item_id and event["type"] in TURN]
        if types != list(TURN[2:]):
            yield f"the manual turn of {item_id} came as {types}"
    for response_id, detection in uncaused(trace):
        if detection is None:
            yield f"{response_id} was asked for by nobody, without turn detection"


def _commits_answered_once(trace: Trace) -> Iterator[str]:
    errors = errors_by_cause(trace)
    for commit in sent(trace, "input_audio_buffer.commit"):
        caused = errors[commit["event_id"]]
        if len(caused) > 1:
            yield f"several errors for commit {commit['event_id']}"
        if caused and caused[0]["code"] == "input_audio_buffer_commit_empty" and "100ms" not in caused[0]["message"]:
            yield f"clients do not know this message: {caused[0]['message']!r}"
    turns = len(received(trace, TURN[1], TIMEOUT))
    commits = len(accepted(trace, "input_audio_buffer.commit"))
    made = len(received(trace, TURN[2]))
    if not max(turns, commits) <= made <= turns + commits:  # a commit during speech is also the end of a turn
        yield f"{commits} commits and {turns} turns have become {made} items"


def _transcriptions(trace: Trace) -> Iterator[str]:
    added: set[str | None] = set()
    ended: set[tuple[str | None, int]] = set()
    streams = False
    for event in received(trace):
        if event["type"] in SETTINGS:
            transcription = event["session"]["audio"]["input"].get("transcription") or {}
            streams = event["session"].get("type") == "transcription" or "delay" in transcription
        if event["type"] == "conversation.item.added":
            added.add(item_of(event))
            ended = {part for part in ended if part[0] != item_of(event)}  # an id may be given again after a deletion
        if not event["type"].startswith(_TRANSCRIPTION):
            continue
        part = (item_of(event), event["content_index"])
        if part[0] not in added and not (streams and event["type"].endswith(".delta")):
            yield f"{event['type']} of {part[0]}, which has not been added"
        if part in ended:
            yield f"{event['type']} of {part[0]} after its end"
        if event["type"].rpartition(".")[2] in ("completed", "failed"):
            ended.add(part)


def _detection_obeyed(trace: Trace) -> Iterator[str]:
    for response_id, detection in uncaused(trace):
        if detection is not None and not detection.get("create_response", True):
            yield f"{response_id} was created by itself in spite of create_response: false"
    detection: Event | None = None
    interrupting: dict[str, bool] = {}
    for event in received(trace):
        if event["type"] in SETTINGS:
            detection = detection_of(event)
        elif event["type"] == TURN[0]:
            may = bool(detection and detection.get("interrupt_response", True))
            interrupting = {name: before or may for name, before in interrupting.items()}
        elif event["type"] == "response.created":
            interrupting[event["response"]["id"]] = False
        elif event["type"] == "response.done":
            details = event["response"].get("status_details") or {}
            if details.get("reason") == "turn_detected" and not interrupting.get(event["response"]["id"]):
                yield f"{event['response']['id']} was interrupted in spite of interrupt_response: false"


def _idle_timeouts(trace: Trace) -> Iterator[str]:
    events = received(trace)
    for item_id in [event["item_id"] for event in events if event["type"] == TIMEOUT]:
        types = [event["type"] for event in events if item_of(event) == item_id and event["type"] in (TIMEOUT, *TURN)]
        if types != [TIMEOUT, *TURN[2:]]:
            yield f"the idle timeout of {item_id} came as {types}"
        done = next((i for i, e in enumerate(events) if e["type"] == TURN[4] and item_of(e) == item_id), len(events))
        then = [event["type"] for event in events[done + 1 :]]
        if not {"response.created", "error"} & set(then):
            yield f"nothing came of the idle timeout of {item_id}"


def uncaused(trace: Trace) -> Iterator[tuple[str, Event | None]]:
    """Responses that neither the client asked for nor a detected turn calls for, and the turn detection then."""
    refused = errors_by_cause(trace)
    detection: Event | None = None
    asked, turns, remote = 0, 0, 0
    detected: set[str] = set()
    for line in trace:
        event = line.event
        if line.from_client:
            asked += event["type"] == "response.create" and not refused[event["event_id"]]
            decision = event.get("item", {}).get("type") == "mcp_approval_response"
            remote = 1 if decision and not refused[event["event_id"]] else remote
        elif not from_server(line):
            continue
        elif event["type"] in SETTINGS:
            detection = detection_of(event)
        elif event["type"] == TIMEOUT or (event["type"] == TURN[1] and _answers(detection)):
            detected.add(event["item_id"])
        elif event["type"] == TURN[2] and event["item_id"] in detected:
            turns = 1  # of turns that wait, only the last is answered
        elif event["type"] == "response.done":
            kinds = {item["type"] for item in event["response"]["output"]}
            remote = 1 if "mcp_call" in kinds and "function_call" not in kinds else remote
        elif event["type"] == "response.created":
            if remote and not asked:
                remote = 0  # what came of calls to MCP servers is answered at once
            elif turns:
                turns = 0
            elif asked:
                asked -= 1
            else:
                yield event["response"]["id"], detection


def _answers(detection: Event | None) -> bool:
    return detection is not None and bool(detection.get("create_response", True))


INPUT_RULES: dict[str, Rule] = {
    "O6": _appends_unanswered,
    "O7": _spoken_turns,
    "O7 response": _answered_after_done,
    "O8": _one_id_per_turn,
    "O9": _audio_times,
    "O10": _manual_turns,
    "O11": _commits_answered_once,
    "O12": _transcriptions,
    "O13": _detection_obeyed,
    "O14": _idle_timeouts,
}
