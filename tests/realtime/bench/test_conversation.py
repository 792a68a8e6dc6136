"""Events folded into turns and responses."""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.realtime.bench.conversation import Conversation, received_events
from duologue.realtime.client import Received, ServerMessage
from duologue.realtime.event_log import LogEntry


def fold(*events: tuple[float, dict[str, Any]]) -> Conversation:
    conversation = Conversation()
    for at, event in events:
        conversation.handle(Received(at, msgspec.convert(event, ServerMessage), event.get("bytes", 0)))
    return conversation


STARTED = "input_audio_buffer.speech_started"
STOPPED = "input_audio_buffer.speech_stopped"
COMMITTED = "input_audio_buffer.committed"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"
INTERRUPTED = {"status_details": {"reason": "turn_detected"}}


def test_a_response_answers_the_turn_committed_last():
    conversation = fold(
        (1.0, {"type": STARTED, "item_id": "a", "audio_start_ms": 700}),
        (2.0, {"type": STOPPED, "item_id": "a", "audio_end_ms": 1900}),
        (2.0, {"type": COMMITTED, "item_id": "a"}),
        (2.1, {"type": "response.created", "response": {"id": "r1"}}),
        (3.0, {"type": STARTED, "item_id": "b", "audio_start_ms": 2800}),
        (3.5, {"type": "response.done", "response": {"id": "r1", "status": "cancelled", **INTERRUPTED}}),
        (4.0, {"type": STOPPED, "item_id": "b", "audio_end_ms": 3900}),
        (4.0, {"type": COMMITTED, "item_id": "b"}),
        (4.1, {"type": "response.created", "response": {"id": "r2"}}),
        (4.2, {"type": TRANSCRIBED, "item_id": "a", "transcript": "First."}),
    )  # fmt: skip
    assert [r.response_id for r in conversation.responses_to("a")] == ["r1"]
    assert [r.response_id for r in conversation.responses_to("b")] == ["r2"]
    first = conversation.turns["a"]
    assert (first.audio_start_ms, first.audio_end_ms, first.transcript, first.transcribed_s) == (
        700,
        1900,
        "First.",
        4.2,
    )
    assert conversation.responses["r1"].reason == "turn_detected"
    assert conversation.response_open
    assert not conversation.speech_open


def test_open_speech_and_activity():
    conversation = fold((1.0, {"type": STARTED, "item_id": "a"}), (1.5, {"type": "rate_limits.updated"}))
    assert conversation.speech_open
    assert conversation.last_activity_s == 1.0


def test_text_and_audio_are_collected_with_their_places():
    def delta(kind: str, response: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "response_id": response, "item_id": f"i-{response}", **fields}

    conversation = fold(
        (1.0, {"type": "response.created", "response": {"id": "r"}}),
        (1.0, {"type": "response.created", "response": {"id": "s"}}),
        (1.1, delta("output_audio_transcript", "r", delta="")),
        (1.2, delta("output_audio_transcript", "r", delta="Good ")),
        (1.3, delta("output_audio", "r", bytes=200)),
        (1.4, delta("output_audio", "s", bytes=60)),
        (1.5, delta("output_audio", "r", bytes=100)),
        (1.6, delta("output_audio_transcript", "r", delta="day.")),
    )
    response = conversation.responses["r"]
    assert (response.text, response.first_text_s, response.first_audio_s) == ("Good day.", 1.2, 1.3)
    assert [(chunk.samples, chunk.offset) for chunk in response.audio] == [(100, 0), (50, 130)]
    assert conversation.responses["s"].audio[0].offset == 100
    assert response.item_ids == ["i-r"]


def test_a_failed_transcription_and_errors_are_kept():
    failed = TRANSCRIBED.replace("completed", "failed")
    conversation = fold(
        (1.0, {"type": STARTED, "item_id": "a"}),
        (2.0, {"type": failed, "item_id": "a", "error": {"message": "unintelligible"}}),
        (2.1, {"type": "error", "error": {"code": "invalid_value", "message": "No."}}),
    )
    assert conversation.turns["a"].transcription_failed
    assert conversation.errors == ["invalid_value: No."]


def test_only_the_servers_events_of_a_log_count():
    entries = [
        LogEntry("c2s", 0.1, {"type": "input_audio_buffer.append", "bytes": 960}),
        LogEntry("note", 0.2, {"type": "utterance"}),
        LogEntry("s2c", 0.3, {"type": "response.output_audio.delta", "response_id": "r", "bytes": 960}),
    ]
    (received,) = received_events(entries)
    assert (received.at, received.audio_bytes) == (0.3, 960)
