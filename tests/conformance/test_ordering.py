"""The checker of ordering rules finds each kind of disorder: a good trace passes, and each spoilt copy is caught."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from typing import Any

import pytest
from ordering import CLOSED, RULES, Line, slow_reader_problems, violations

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
            error("c1", "input_audio_buffer_commit_empty", "Expected at least 100ms of audio"),
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


def written() -> Trace:
    """A text answer out of band beside one in the conversation that calls a function; its result and what follows."""
    text = {"id": "t", "type": "message", "content": []}
    whole = {**text, "content": [{"type": "output_text", "text": "Sunny."}]}
    part = {"response_id": "r1", "item_id": "t"}
    beside = {"id": "r1", "conversation_id": None, "metadata": {"k": "v"}}
    call = {"id": "f", "type": "function_call", "call_id": "c", "name": "look_up", "arguments": ""}
    ended = {**call, "status": "completed", "arguments": "{}"}
    place, main = {"response_id": "r2", "item_id": "f", "call_id": "c"}, {"id": "r2", "conversation_id": "conv"}
    output = {**call, "id": "o", "type": "function_call_output"}
    return numbered(
        [
            server("session.created", session=session({"type": "server_vad"})),
            client("response.create", "c1", response={"conversation": "none", "metadata": {"k": "v"}}),
            client("response.create", "c2"),
            server("response.created", response={**beside, "status": "in_progress"}),
            server("response.output_item.added", response_id="r1", item=text),
            server("response.content_part.added", part={"type": "text"}, **part),
            server("response.output_text.delta", delta="Sun", **part),
            server("response.created", response={**main, "status": "in_progress"}),
            server("response.output_item.added", response_id="r2", item={**call, "status": "in_progress"}),
            server("conversation.item.added", item={**call, "status": "in_progress"}, previous_item_id=None),
            server("response.output_text.delta", delta="ny.", **part),
            server("response.function_call_arguments.delta", delta="{", **place),
            server("response.output_text.done", text="Sunny.", **part),
            server("response.content_part.done", part={"type": "text", "text": "Sunny."}, **part),
            server("response.output_item.done", response_id="r1", item=whole),
            server("response.done", response={**beside, "status": "completed", "output": [whole], "usage": USAGE}),
            server("response.function_call_arguments.delta", delta="}", **place),
            server("response.function_call_arguments.done", arguments="{}", name="look_up", **place),
            server("conversation.item.done", item=ended, previous_item_id=None),
            server("response.output_item.done", response_id="r2", item=ended),
            server("response.done", response={**main, "status": "completed", "output": [ended], "usage": USAGE}),
            client("conversation.item.create", "c3", item={"type": "function_call_output"}),
            server("conversation.item.added", item=output, previous_item_id="f"),
            server("conversation.item.done", item=output, previous_item_id="f"),
            client("response.create", "c4"),
            *response("r3", "It is sunny", "o"),
        ]
    )


def idle() -> Trace:
    """Words come after their item; silence is committed by the idle timeout; an answer is truncated and retrieved."""
    spoken = {"id": "r1_item", "type": "message"}
    words = "conversation.item.input_audio_transcription"
    place = {"item_id": "u1", "content_index": 0}
    return numbered(
        [
            server("session.created", session=session({"type": "server_vad", "idle_timeout_ms": 5000})),
            client("input_audio_buffer.append", "c1", audio=PCM_3_S),
            *turn("u1", None, 0, 900),
            server(f"{words}.delta", delta="Hello", **place),
            server(f"{words}.completed", transcript="Hello", **place),
            *response("r1", "A story", "u1"),
            client("conversation.item.truncate", "c2", item_id="r1_item", content_index=0, audio_end_ms=1),
            server("conversation.item.truncated", item_id="r1_item", content_index=0, audio_end_ms=1),
            client("conversation.item.retrieve", "c3", item_id="r1_item"),
            server("conversation.item.retrieved", item={**spoken, "content": [{"type": "output_audio"}]}),
            server("input_audio_buffer.timeout_triggered", item_id="u2", audio_start_ms=900, audio_end_ms=2900),
            *turn("u2", "r1_item", 0, 0)[2:],
            *response("r2", "Are you there?", "u2"),
        ]
    )


PCM_3_S = base64.b64encode(bytes(3 * 48_000)).decode()


def webrtc() -> Trace:
    """Over WebRTC: playout events, an interruption, and a truncation by the server."""
    first, second = response("r1", "A story", "u1"), response("r2", "Yes?", "u2")
    return numbered(
        [
            server("session.created", session=session({"type": "server_vad"})),
            *turn("u1", None, 0, 900),
            *first[:4],
            server("output_audio_buffer.started", response_id="r1"),
            first[4],
            *first[6:],
            turn("u2", "r1_item", 1000, 2500)[0],
            server("output_audio_buffer.cleared", response_id="r1"),
            server("conversation.item.truncated", item_id="r1_item", content_index=0, audio_end_ms=40),
            *turn("u2", "r1_item", 1000, 2500)[1:],
            *second[:4],
            server("output_audio_buffer.started", response_id="r2"),
            second[4],
            *second[6:],
            server("output_audio_buffer.stopped", response_id="r2"),
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


def before_end(kind: str, nth: int, before: str, which: int) -> Callable[[Trace], None]:
    """Move the ``nth`` event of a kind to just before the ``which``-th of another."""

    def spoil(trace: Trace) -> None:
        line = trace.pop(at(trace, kind, nth))
        trace.insert(at(trace, before, which), line)

    return spoil


def item_field(kind: str, **fields: Any) -> Callable[[Trace], None]:
    def spoil(trace: Trace) -> None:
        trace[at(trace, kind)].event["item"].update(fields)

    return spoil


def detects(**detection: Any) -> Callable[[Trace], None]:
    """The session had another turn detection than its events show."""

    def spoil(trace: Trace) -> None:
        for line in trace:
            if "session" in line.event and not line.from_client:
                line.event["session"] = session({"type": "server_vad", **detection})

    return spoil


def closes(trace: Trace) -> None:
    """The connection is closed after the client's fault."""
    end(trace, "error", error={"type": "invalid_request_error", "code": "invalid_value", "message": "no"})
    trace.append(Line(False, {"type": CLOSED, "code": 1008}))


def append_answered_twice(trace: Trace) -> None:
    for number in range(2):
        trace.append(error("c1", "invalid_value"))
        trace[-1].event["event_id"] = f"event_more_{number}"


_WORDS = "conversation.item.input_audio_transcription"

SPOILT: list[tuple[str, Callable[[], Trace], Callable[[Trace], None]]] = [
    ("O1", spoken, later("session.created", 3)),
    ("O1", spoken, without("session.created")),
    ("O2", spoken, without("session.updated")),
    ("O2", spoken, later("session.updated")),
    ("O2", spoken, repeated("session.updated")),
    ("O3", spoken, changed("session.updated", event_id="event_0")),
    ("O3", spoken, changed("response.done", event_id=None)),
    ("O4", spoken, changed("response.created", type="conversation.item.created")),
    ("O5", spoken, closes),
    ("O6", idle, append_answered_twice),
    ("O7", spoken, without("input_audio_buffer.speech_stopped")),
    ("O7", spoken, later("input_audio_buffer.committed")),
    ("O7 response", spoken, later("conversation.item.done")),
    ("O8", spoken, changed("input_audio_buffer.speech_stopped", item_id="u9")),
    ("O8", spoken, speech_inside_speech),
    ("O9", spoken, changed("input_audio_buffer.speech_started", 1, audio_start_ms=800)),
    ("O9", spoken, changed("input_audio_buffer.speech_stopped", audio_end_ms=-1)),
    ("O9", idle, changed("input_audio_buffer.timeout_triggered", audio_start_ms=800)),
    ("O9", idle, changed("input_audio_buffer.timeout_triggered", audio_end_ms=3500)),
    ("O10", manual, later("input_audio_buffer.committed")),
    ("O10", manual, without("response.create")),
    ("O11", manual, without("error")),
    ("O11", manual, repeated("error")),
    ("O11", manual, lambda trace: trace[2].event["error"].update(message="Too short")),
    ("O12", idle, later(f"{_WORDS}.delta")),
    ("O12", idle, repeated(f"{_WORDS}.completed")),
    ("O12", idle, before_end(f"{_WORDS}.delta", 0, "conversation.item.added", 0)),
    ("O13", spoken, detects(create_response=False)),
    ("O13", spoken, detects(interrupt_response=False)),
    ("O14", idle, later("input_audio_buffer.timeout_triggered")),
    ("O14", idle, lambda trace: trace.__delitem__(slice(at(trace, "response.created", 1), None))),
    ("O15", spoken, without("response.done")),
    ("O15", spoken, repeated("response.done")),
    ("O15", spoken, lambda trace: trace[at(trace, "response.done")].event["response"].update(usage=None)),
    ("O16", spoken, later("response.output_item.added")),
    ("O16", spoken, without("response.content_part.added")),
    ("O16", spoken, without("conversation.item.added", 1)),
    ("O16", spoken, without("conversation.item.done", 1)),
    ("O16", spoken, later("response.output_audio.delta", 3, nth=1)),
    ("O16", spoken, later("conversation.item.done", nth=1)),
    ("O17", spoken, later("response.output_audio.done")),
    ("O17", spoken, later("response.output_audio_transcript.done")),
    ("O17", spoken, without("response.output_audio.done")),
    ("O18", written, without("response.output_text.done")),
    ("O18", written, later("response.output_text.done")),
    ("O19", spoken, before_end("response.output_audio_transcript.delta", 0, "response.content_part.added", 0)),
    ("O19", written, later("response.output_text.delta", 2, nth=1)),
    ("O19", written, later("response.function_call_arguments.delta", 1, nth=1)),
    ("O20", spoken, changed("response.output_audio_transcript.delta", delta="Another")),
    ("O20", spoken, changed("response.output_audio_transcript.done", transcript="Another")),
    ("O20", spoken, changed("response.content_part.done", part={"type": "audio", "transcript": "Another"})),
    ("O20", spoken, changed("response.output_item.done", item=item("r1_item", "Another"))),
    ("O21", written, changed("response.function_call_arguments.done", arguments="{ }")),
    ("O21", written, lambda trace: trace[at(trace, "response.output_item.added", 1)].event["item"].pop("call_id")),
    (
        "O21",
        written,
        lambda trace: trace[at(trace, "conversation.item.added")].event["item"].update(status="completed"),
    ),
    ("O21", written, lambda trace: trace[at(trace, "response.output_item.done", 1)].event["item"].pop("status")),
    ("O21", written, without("response.function_call_arguments.done")),
    ("O22", written, without("response.create", 2)),
    ("O23", spoken, without("response.done")),
    ("O24", spoken, repeated("response.output_audio.delta")),
    ("O25", spoken, lambda trace: trace[-1].event["error"].update(message="There is nothing to cancel")),
    ("O25", spoken, lambda trace: trace[at(trace, "response.done")].event["response"].update(status_details=None)),
    ("O25", spoken, without("error", 1)),
    ("O26", written, lambda trace: trace[at(trace, "response.done")].event["response"].update(metadata=None)),
    ("O26", written, lambda trace: trace[at(trace, "response.done")].event["response"].update(conversation_id="conv")),
    ("O26", written, lambda trace: trace[at(trace, "response.created")].event["response"].update(metadata={})),
    ("O26", written, changed("conversation.item.added", item=item("t"))),
    ("O27", spoken, delta_after_speech),
    ("O27", spoken, without("input_audio_buffer.speech_started", 1)),
    ("O28", idle, without("conversation.item.truncate")),
    ("O28", idle, without("conversation.item.truncated")),
    ("O28", idle, changed("conversation.item.truncated", audio_end_ms=2)),
    ("O29", webrtc, before_end("conversation.item.truncated", 0, "output_audio_buffer.started", 0)),
    ("O29", webrtc, changed("output_audio_buffer.cleared", type="output_audio_buffer.stopped")),
    ("O30", webrtc, before_end("output_audio_buffer.started", 0, "response.content_part.added", 0)),
    ("O30", webrtc, without("output_audio_buffer.stopped")),
    ("O30", webrtc, without("output_audio_buffer.started", 1)),
    ("O30", webrtc, repeated("output_audio_buffer.started")),
    ("O31", idle, item_field("conversation.item.retrieved", content=[{"type": "output_audio", "transcript": "A"}])),
    ("O31", idle, item_field("conversation.item.retrieved", content=[{"type": "output_audio", "audio": PCM_3_S}])),
    ("O32", spoken, changed("conversation.item.added", 1, previous_item_id="unknown")),
    ("O32", manual, lambda trace: end(trace, "conversation.item.added", item=item("x"), previous_item_id="mine")),
    ("O32", manual, lambda trace: end(trace, "conversation.item.deleted", item_id="mine")),
    ("O32", manual, changed("input_audio_buffer.committed", previous_item_id="unknown")),
    ("O32", manual, lambda trace: end(trace, f"{_WORDS}.delta", item_id="mine", content_index=0)),
    ("O33", manual, changed("conversation.item.added", 1, item=item("renamed"))),
    ("O34", manual, lambda trace: end(trace, "conversation.item.retrieved", item=item("refused"))),
]


@pytest.mark.parametrize("trace", [spoken, manual, written, idle, webrtc])
def test_a_trace_in_order_has_no_violations(trace: Callable[[], Trace]) -> None:
    assert violations(trace()) == []


@pytest.mark.parametrize(("rule", "trace", "spoil"), SPOILT)
def test_each_rule_catches_its_disorder(rule: str, trace: Callable[[], Trace], spoil: Callable[[Trace], None]) -> None:
    spoilt = trace()
    spoil(spoilt)
    assert rule in {violation.partition(":")[0] for violation in violations(spoilt)}


def test_o12_an_id_that_is_given_again_after_a_deletion_is_another_item() -> None:
    trace = idle()
    words = trace[at(trace, f"{_WORDS}.completed")].event
    end(trace, "conversation.item.deleted", item_id=words["item_id"])
    end(trace, "conversation.item.added", item=item(words["item_id"]), previous_item_id=None)
    end(trace, f"{_WORDS}.completed", item_id=words["item_id"], content_index=words["content_index"])
    assert not [violation for violation in violations(trace) if violation.startswith("O12")]
    end(trace, f"{_WORDS}.completed", item_id=words["item_id"], content_index=words["content_index"])
    assert [violation for violation in violations(trace) if violation.startswith("O12")]


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _, _ in SPOILT} == set(RULES)


def said() -> list[dict[str, Any]]:
    return [line.event for line in spoken() if not line.from_client]


def read_slowly(events: list[dict[str, Any]]) -> None:
    """The two pieces of the second answer's words are joined, and the interrupted answer's sound is dropped."""
    words = [event for event in events if event["type"] == "response.output_audio_transcript.delta"][-2:]
    words[0]["delta"] += words[1]["delta"]
    events.remove(words[1])
    events.remove(next(event for event in events if event["type"] == "response.output_audio.delta"))


def test_o35_a_slow_reader_may_get_deltas_joined_and_no_sound_of_what_was_interrupted() -> None:
    got = said()
    read_slowly(got)
    assert list(slow_reader_problems(said(), got)) == []


@pytest.mark.parametrize(
    ("kind", "nth"),
    [
        ("response.output_audio.delta", 1),
        ("response.output_audio_transcript.delta", 0),
        ("response.done", 0),
        ("error", 0),
    ],
)
def test_o35_nothing_else_may_be_lost_or_moved(kind: str, nth: int) -> None:
    lost = said()
    events = [event for event in lost if event["type"] == kind]
    lost.remove(events[nth])
    assert list(slow_reader_problems(said(), lost))
    if not kind.endswith(".delta"):
        moved = said()
        moved.insert(0, moved.pop(moved.index(events[nth])))
        assert list(slow_reader_problems(said(), moved))
    twice = said()
    twice.append(events[nth])
    assert list(slow_reader_problems(said(), twice))
