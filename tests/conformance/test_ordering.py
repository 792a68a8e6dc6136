"""The checker of ordering rules finds each kind of disorder: a good trace passes, and each spoilt copy is caught."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ordering import RULES, Line, violations

Trace = list[Line]


def server(kind: str, **fields: Any) -> Line:
    return Line(False, {"type": kind, "event_id": "", **fields})


def client(kind: str, event_id: str, **fields: Any) -> Line:
    return Line(True, {"type": kind, "event_id": event_id, **fields})


def error(cause: str, code: str, message: str = "no") -> Line:
    return server("error", error={"type": "invalid_request_error", "code": code, "message": message, "event_id": cause})


def session(turn_detection: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": turn_detection}}}


def item(item_id: str, text: str | None = None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "output_audio", "transcript": text}]
    return {"id": item_id, "type": "message", "content": content}


USAGE = {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}


def response(name: str, text: str, previous: str, status: str = "completed", reason: str | None = None) -> Trace:
    final = {
        "id": name,
        "conversation_id": "conv",
        "status": status,
        "status_details": {"type": status, "reason": reason},
        "output": [item(f"{name}_item", text)],
        "usage": USAGE,
    }
    part = {"response_id": name, "item_id": f"{name}_item"}
    place = {"previous_item_id": previous}
    half = len(text) // 2
    return [
        server("response.created", response={"id": name, "conversation_id": "conv", "status": "in_progress"}),
        server("response.output_item.added", response_id=name, item=item(f"{name}_item")),
        server("conversation.item.added", item=item(f"{name}_item"), **place),
        server("response.content_part.added", part={"type": "audio"}, **part),
        server("response.output_audio_transcript.delta", delta=text[:half], **part),
        server("response.output_audio.delta", delta="AAAA", **part),
        server("response.output_audio_transcript.delta", delta=text[half:], **part),
        server("response.output_audio.done", **part),
        server("response.output_audio_transcript.done", transcript=text, **part),
        server("response.content_part.done", part={"type": "audio", "transcript": text}, **part),
        server("conversation.item.done", item=item(f"{name}_item", text), **place),
        server("response.output_item.done", response_id=name, item=item(f"{name}_item", text)),
        server("response.done", response=final),
    ]


def turn(item_id: str, previous: str | None, start: int, end: int) -> Trace:
    return [
        server("input_audio_buffer.speech_started", item_id=item_id, audio_start_ms=start),
        server("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=end),
        server("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous),
        server("conversation.item.added", item=item(item_id), previous_item_id=previous),
        server("conversation.item.done", item=item(item_id), previous_item_id=previous),
    ]


def numbered(trace: Trace) -> Trace:
    """A copy in which every server event has an id of its own."""
    trace = copy.deepcopy(trace)
    for number, line in enumerate(trace):
        if not line.from_client:
            line.event["event_id"] = f"event_{number}"
    return trace


def spoken() -> Trace:
    """Two spoken turns; the answer to the first is interrupted by the second."""
    first, second = turn("u1", None, 0, 900), turn("u2", "r1_item", 1000, 2500)
    cut = response("r1", "A long story", "u1", "cancelled", "turn_detected")
    return numbered(
        [
            server("session.created", session=session({"type": "server_vad"})),
            client("session.update", "c1"),
            client("session.update", "c2"),
            server("session.updated", session=session({"type": "server_vad"})),
            error("c2", "invalid_value"),
            *first,
            *cut[:7],
            second[0],
            *cut[7:],
            *second[1:],
            *response("r2", "Well then", "u2"),
            client("response.cancel", "c3"),
            error("c3", "response_cancel_not_active", "Cancellation failed: no active response found"),
        ]
    )


def manual() -> Trace:
    """Manual turns, items of the client's own, and refusals."""
    return numbered(
        [
            server("session.created", session=session(None)),
            client("input_audio_buffer.commit", "c1"),
            error("c1", "input_audio_buffer_commit_empty"),
            client("input_audio_buffer.commit", "c2"),
            *turn("u1", None, 0, 0)[2:],
            client("conversation.item.create", "c3", item={"id": "mine"}),
            server("conversation.item.added", item=item("mine"), previous_item_id="u1"),
            server("conversation.item.done", item=item("mine"), previous_item_id="u1"),
            client("conversation.item.create", "c4", item={"id": "refused"}),
            error("c4", "invalid_value"),
            client("response.create", "c5"),
            *response("r1", "Hello", "mine"),
            client("conversation.item.delete", "c6", item_id="mine"),
            server("conversation.item.deleted", item_id="mine"),
        ]
    )


def at(trace: Trace, kind: str, nth: int = 0) -> int:
    return [i for i, line in enumerate(trace) if line.event["type"] == kind][nth]


def without(kind: str, nth: int = 0) -> Callable[[Trace], None]:
    def spoil(trace: Trace) -> None:
        del trace[at(trace, kind, nth)]

    return spoil


def later(kind: str, steps: int = 1, nth: int = 0) -> Callable[[Trace], None]:
    """Move an event some places back in the queue."""

    def spoil(trace: Trace) -> None:
        i = at(trace, kind, nth)
        trace.insert(i + steps, trace.pop(i))

    return spoil


def changed(kind: str, nth: int = 0, **fields: Any) -> Callable[[Trace], None]:
    def spoil(trace: Trace) -> None:
        trace[at(trace, kind, nth)].event.update(fields)

    return spoil


def repeated(kind: str, nth: int = 0) -> Callable[[Trace], None]:
    def spoil(trace: Trace) -> None:
        line = copy.deepcopy(trace[at(trace, kind, nth)])
        line.event["event_id"] += "_again"
        trace.append(line)

    return spoil


def delta_after_speech(trace: Trace) -> None:
    i = at(trace, "response.output_audio.delta")
    trace.insert(at(trace, "input_audio_buffer.speech_started", 1), trace.pop(i))


def speech_inside_speech(trace: Trace) -> None:
    second = trace.pop(at(trace, "input_audio_buffer.speech_started", 1))
    trace.insert(at(trace, "input_audio_buffer.speech_stopped"), second)


def end(trace: Trace, kind: str, **fields: Any) -> None:
    trace.append(server(kind, **fields))
    trace[-1].event["event_id"] = "event_last"


SPOILT: list[tuple[str, Callable[[], Trace], Callable[[Trace], None]]] = [
    ("O1", spoken, later("session.created", 3)),
    ("O1", spoken, without("session.created")),
    ("O2", spoken, without("session.updated")),
    ("O2", spoken, later("session.updated")),
    ("O2", spoken, repeated("session.updated")),
    ("O3", spoken, changed("session.updated", event_id="event_0")),
    ("O3", spoken, changed("response.done", event_id=None)),
    ("O4", spoken, changed("response.created", type="conversation.item.created")),
    ("O7", spoken, without("input_audio_buffer.speech_stopped")),
    ("O7", spoken, later("input_audio_buffer.committed")),
    ("O7 response", spoken, later("conversation.item.done")),
    ("O8", spoken, changed("input_audio_buffer.speech_stopped", item_id="u9")),
    ("O8", spoken, speech_inside_speech),
    ("O9", spoken, changed("input_audio_buffer.speech_started", 1, audio_start_ms=800)),
    ("O9", spoken, changed("input_audio_buffer.speech_stopped", audio_end_ms=-1)),
    ("O10", manual, later("input_audio_buffer.committed")),
    ("O10", manual, without("response.create")),
    ("O11", manual, without("error")),
    ("O11", manual, repeated("error")),
    ("O15", spoken, without("response.done")),
    ("O15", spoken, repeated("response.done")),
    ("O15", spoken, lambda trace: trace[at(trace, "response.done")].event["response"].update(usage=None)),
    ("O16-O19", spoken, later("response.output_item.added")),
    ("O16-O19", spoken, without("response.content_part.added")),
    ("O16-O19", spoken, later("response.output_audio.done")),
    ("O16-O19", spoken, later("response.output_audio.delta", 3, nth=1)),
    ("O16-O19", spoken, later("conversation.item.done", nth=1)),
    ("O20", spoken, changed("response.output_audio_transcript.delta", delta="Another")),
    ("O20", spoken, changed("response.output_audio_transcript.done", transcript="Another")),
    ("O20", spoken, changed("response.content_part.done", part={"type": "audio", "transcript": "Another"})),
    ("O20", spoken, changed("response.output_item.done", item=item("r1_item", "Another"))),
    ("O23", spoken, without("response.done")),
    ("O24", spoken, repeated("response.output_audio.delta")),
    ("O25", spoken, lambda trace: trace[-1].event["error"].update(message="There is nothing to cancel")),
    ("O25", spoken, lambda trace: trace[at(trace, "response.done")].event["response"].update(status_details=None)),
    ("O27", spoken, delta_after_speech),
    ("O27", spoken, without("input_audio_buffer.speech_started", 1)),
    ("O32", spoken, changed("conversation.item.added", 1, previous_item_id="unknown")),
    ("O32", manual, lambda trace: end(trace, "conversation.item.added", item=item("x"), previous_item_id="mine")),
    ("O32", manual, lambda trace: end(trace, "conversation.item.deleted", item_id="mine")),
    ("O33", manual, changed("conversation.item.added", 1, item=item("renamed"))),
    ("O34", manual, lambda trace: end(trace, "conversation.item.retrieved", item=item("refused"))),
]


@pytest.mark.parametrize("trace", [spoken, manual])
def test_a_trace_in_order_has_no_violations(trace: Callable[[], Trace]) -> None:
    assert violations(trace()) == []


@pytest.mark.parametrize(("rule", "trace", "spoil"), SPOILT)
def test_each_rule_catches_its_disorder(rule: str, trace: Callable[[], Trace], spoil: Callable[[Trace], None]) -> None:
    spoilt = trace()
    spoil(spoilt)
    assert rule in {violation.partition(":")[0] for violation in violations(spoilt)}


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _, _ in SPOILT} == set(RULES)
