"""Whole conversations with the real models through the official OpenAI client.

Each one is checked for shape (openai-agents' own event models) and for the ordering rules when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from recorder import Recorder

pytestmark = pytest.mark.models

SECOND = 48_000
"""Bytes of one second of PCM16 at 24 kHz."""

BRIEF = 30
"""Tokens after which an answer is long enough, where its words are the model's own."""

ANSWERED = ("completed", "incomplete")

TRANSCRIBE = {"input": {"transcription": {"model": "whisper-1"}}}
MANUAL = {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c.isspace()).split()


async def test_the_session_is_echoed_with_every_default(converse: Any) -> None:
    async with converse("gpt-realtime") as talk:
        session = talk.received("session.created")[0]["session"]
        assert session["type"] == "realtime"
        assert session["object"] == "realtime.session"
        assert session["model"] == "smollm2-135m-instruct"
        assert session["output_modalities"] == ["audio"]
        assert session["instructions"]
        assert session["audio"]["input"]["turn_detection"] == {
            "type": "server_vad",
            "threshold": 0.5,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 500,
            "idle_timeout_ms": None,
            "create_response": True,
            "interrupt_response": True,
        }
        assert session["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}


async def test_an_update_is_merged_and_a_wrong_one_changes_nothing(converse: Any) -> None:
    async with converse() as talk:
        updated = (await talk.update(instructions="Be kind.", audio={"output": {"voice": "alloy"}}))["session"]
        assert updated["instructions"] == "Be kind."
        updated = (await talk.update(audio={"input": {"turn_detection": {"type": "server_vad", "threshold": 0.7}}}))[
            "session"
        ]
        assert updated["instructions"] == "Be kind."
        assert updated["audio"]["input"]["turn_detection"]["threshold"] == 0.7
        assert updated["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500
        for wrong, code, param in (
            ({"instrctions": "x"}, "unknown_parameter", "session.instrctions"),
            ({"instructions": 5}, "invalid_value", "session.instructions"),
            ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
            ({"audio": {"output": {"voice": "nobody"}}}, "invalid_value", "session.audio.output.voice"),
            (
                {"audio": {"input": {"format": {"type": "audio/mp3"}}}},
                "invalid_value",
                "session.audio.input.format.type",
            ),
            ({"model": "gpt-9"}, "invalid_value", "session.model"),
            ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ):
            error = (await talk.update(**{"instructions": "unkind", **wrong}))["error"]
            assert (error["code"], error["param"]) == (code, param)
        assert (await talk.update())["session"] == updated


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modalities", ["audio", "text"]),
        ("voice", "alloy"),
        ("input_audio_format", "pcm16"),
        ("output_audio_format", "pcm16"),
        ("input_audio_transcription", {"model": "whisper-1"}),
        ("turn_detection", {"type": "server_vad"}),
        ("max_response_output_tokens", 100),
        ("temperature", 0.8),
    ],
)
async def test_fc_074_a_flat_beta_field_is_refused_by_name(converse: Any, field: str, value: Any) -> None:
    async with converse() as talk:
        error = (await talk.update(**{field: value}))["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", f"session.{field}")


async def test_a_text_turn(converse: Any) -> None:
    async with converse() as talk:
        await talk.update(output_modalities=["text"])
        await talk.write("What is the capital of France?")
        response = await talk.respond()
        assert response["status"] == "completed"
        assert "Paris" in response["output"][0]["content"][0]["text"]
        assert response["output"][0]["content"][0]["type"] == "output_text"
        assert response["usage"]["output_tokens"] > 0
        assert not talk.received("response.output_audio.delta")


async def test_an_audio_turn_from_text(converse: Any) -> None:
    async with converse() as talk:
        await talk.write("What is the capital of France?")
        response = await talk.respond(metadata={"topic": "capitals"})
        assert response["status"] == "completed"
        assert response["metadata"] == {"topic": "capitals"}
        assert "Paris" in response["output"][0]["content"][0]["transcript"]
        assert 0.5 * SECOND < len(talk.audio_of(response["id"])) < 30 * SECOND


async def test_a_response_of_text_only_inside_an_audio_session(converse: Any) -> None:
    async with converse() as talk:
        await talk.write("Say hello.")
        response = await talk.respond(output_modalities=["text"], max_output_tokens=3)
        assert response["output_modalities"] == ["text"]
        assert (response["status"], response["status_details"]["reason"]) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("chunk", [480, 4801, SECOND])
async def test_a_spoken_turn(converse: Any, recording: Callable[[str], bytes], chunk: int) -> None:
    async with converse() as talk:
        await talk.update(audio=TRANSCRIBE, max_output_tokens=BRIEF)
        await talk.append(recording("librivox-austen-0880") + bytes(SECOND), chunk)
        done = (await talk.until("response.done"))["response"]
        assert done["status"] in ANSWERED
        assert len(talk.audio_of(done["id"])) > 0.3 * SECOND
        if not talk.received("conversation.item.input_audio_transcription.completed"):
            await talk.until("conversation.item.input_audio_transcription.completed")
        heard = talk.received("conversation.item.input_audio_transcription.completed")[0]
        assert words(heard["transcript"])[:4] == ["he", "was", "not", "an"]
        assert words(heard["transcript"])[-2:] == ["young", "man"]
        assert heard["usage"]["type"] == "duration"
        started = talk.received("input_audio_buffer.speech_started")
        assert [event["item_id"] for event in started] == [heard["item_id"]]


async def test_a_manual_turn(converse: Any, recording: Callable[[str], bytes]) -> None:
    async with converse() as talk:
        await talk.update(audio=MANUAL, max_output_tokens=BRIEF)
        await talk.append(recording("goforward"))
        await talk.send("input_audio_buffer.commit")
        heard = await talk.until("conversation.item.input_audio_transcription.completed")
        assert words(heard["transcript"])[:2] == ["go", "forward"]
        assert not talk.received("input_audio_buffer.speech_started", "response.created")
        response = await talk.respond()
        assert response["status"] in ANSWERED
        assert talk.audio_of(response["id"])


NOVELIST = "You are a novelist. Write a long story of at least three hundred words."
"""The server's own instructions ask for short answers."""


async def begin_a_long_answer(talk: Recorder) -> str:
    """Ask for a long answer; returns the response's id once its sound has begun."""
    await talk.write("Tell me a very long story about a dragon, with many details.")
    await talk.send("response.create", response={"instructions": NOVELIST})
    return (await talk.until("response.output_audio.delta"))["response_id"]


async def test_speech_interrupts_the_answer(converse: Any, recording: Callable[[str], bytes]) -> None:
    async with converse() as talk:
        response_id = await begin_a_long_answer(talk)
        await talk.update(max_output_tokens=BRIEF)
        await talk.append(recording("librivox-austen-0880") + bytes(SECOND))
        cut = (await talk.until("response.done"))["response"]
        assert cut["id"] == response_id
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
        following = (await talk.until("response.done"))["response"]
        assert following["status"] in ANSWERED
        assert talk.audio_of(following["id"])


async def test_the_client_cancels_and_cancelling_nothing_is_harmless(converse: Any) -> None:
    async with converse() as talk:
        response_id = await begin_a_long_answer(talk)
        await talk.send("response.cancel", response_id=response_id)
        cut = (await talk.until("response.done"))["response"]
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        error = await talk.refused("response.cancel")
        assert error["code"] == "response_cancel_not_active"
        response = await talk.respond(output_modalities=["text"], max_output_tokens=5)
        assert response["status"] in ("completed", "incomplete")


async def test_fc_065_a_second_response_is_refused_while_one_is_active(converse: Any) -> None:
    async with converse() as talk:
        response_id = await begin_a_long_answer(talk)
        error = await talk.refused("response.create")
        assert error["code"] == "conversation_already_has_active_response"
        assert response_id in error["message"]
        await talk.send("response.cancel")
        assert (await talk.until("response.done"))["response"]["id"] == response_id


async def test_truncate_then_retrieve_holds_what_was_heard(converse: Any) -> None:
    async with converse() as talk:
        await talk.write("What is the capital of France?")
        response = await talk.respond()
        item_id = response["output"][0]["id"]
        generated_ms = len(talk.audio_of(response["id"])) * 1000 // SECOND
        error = await talk.refused(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=generated_ms + 1000
        )
        assert error["code"] == "invalid_value"
        assert "already shorter than" in error["message"]
        await talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=300)
        cut = await talk.until("conversation.item.truncated")
        assert (cut["item_id"], cut["audio_end_ms"]) == (item_id, 300)
        await talk.send("conversation.item.retrieve", item_id=item_id)
        (part,) = (await talk.until("conversation.item.retrieved"))["item"]["content"]
        assert not part.get("transcript")
        assert len(part["audio"]) <= 4 * -(-SECOND * 300 // 1000 // 3) + 4


async def test_a_user_item_is_retrieved_with_its_audio(converse: Any, recording: Callable[[str], bytes]) -> None:
    async with converse() as talk:
        await talk.update(audio=MANUAL)
        spoken = recording("cards-001")
        await talk.append(spoken)
        await talk.send("input_audio_buffer.commit")
        item_id = (await talk.until("input_audio_buffer.committed"))["item_id"]
        await talk.send("conversation.item.retrieve", item_id=item_id)
        (part,) = (await talk.until("conversation.item.retrieved"))["item"]["content"]
        assert part["type"] == "input_audio"
        assert len(part["audio"]) == pytest.approx(len(spoken) * 4 / 3, rel=0.01)


async def test_items_are_placed_deleted_and_kept_by_their_ids(converse: Any) -> None:
    def message(text: str, item_id: str) -> dict[str, Any]:
        return {"type": "message", "id": item_id, "role": "user", "content": [{"type": "input_text", "text": text}]}

    async with converse() as talk:
        await talk.write("second", id="item_b")
        await talk.send("conversation.item.create", previous_item_id="root", item=message("first", "item_a"))
        await talk.send("conversation.item.create", previous_item_id="item_a", item=message("between", "item_c"))
        error = await talk.refused(
            "conversation.item.create", previous_item_id="item_x", item=message("nowhere", "item_d")
        )
        assert error["param"] == "previous_item_id"
        error = await talk.refused("conversation.item.create", item=message("again", "item_a"))
        assert error["code"] == "item_create_duplicate_item_id"
        await talk.send("conversation.item.delete", item_id="item_a")
        assert (await talk.until("conversation.item.deleted"))["item_id"] == "item_a"
        error = await talk.refused("conversation.item.delete", item_id="item_a")
        assert error["code"] == "item_delete_invalid_item_id"
        added = {event["item"]["id"]: event["previous_item_id"] for event in talk.received("conversation.item.added")}
        assert added == {"item_b": None, "item_a": None, "item_c": "item_a"}


@pytest.mark.parametrize(
    ("audio_format", "size"),
    [(None, 0), (None, 4_798), ({"type": "audio/pcmu"}, 799), ({"type": "audio/pcma"}, 799)],
)
async def test_fc_059_a_commit_below_100_ms_is_refused(converse: Any, audio_format: Any, size: int) -> None:
    async with converse() as talk:
        given = {} if audio_format is None else {"format": audio_format}
        await talk.update(audio={"input": {"turn_detection": None, **given}})
        await talk.append(bytes(size))
        error = await talk.refused("input_audio_buffer.commit")
        assert error["code"] == "input_audio_buffer_commit_empty"
        assert error["message"].startswith("Error committing input audio buffer: buffer too small.")
        await talk.send("input_audio_buffer.clear")
        await talk.until("input_audio_buffer.cleared")
        assert not talk.received("conversation.item.added")


async def test_fc_061_a_commit_before_any_audio_is_refused(converse: Any) -> None:
    async with converse() as talk:
        error = await talk.refused("input_audio_buffer.commit")
        assert error["code"] == "input_audio_buffer_commit_empty"
        assert not talk.received("input_audio_buffer.committed", "conversation.item.added")


@pytest.mark.parametrize(
    ("kind", "fields", "code", "param"),
    [
        ("nonsense", {}, "invalid_event", "type"),
        ("transcription_session.update", {"session": {}}, "invalid_event", "type"),
        ("input_audio_buffer.append", {"audio": "%"}, "invalid_value", "audio"),
        ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
        ("response.create", {"response": {"modalities": ["text"]}}, "unknown_parameter", "response.modalities"),
        ("response.cancel", {"reponse_id": "x"}, "unknown_parameter", "reponse_id"),
        ("conversation.item.create", {"item": {"type": "computer_call"}}, "invalid_value", "item.type"),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]}},
            "invalid_value",
            "item.content[0].type",
        ),
        ("conversation.item.retrieve", {"item_id": "item_x"}, "item_retrieve_invalid_item_id", "item_id"),
        ("conversation.item.delete", {"item_id": "item_x"}, "item_delete_invalid_item_id", "item_id"),
        (
            "conversation.item.truncate",
            {"item_id": "item_x", "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
            "item_id",
        ),
        (
            "conversation.item.create",
            {"item": {"type": "function_call_output", "call_id": "call_x", "output": "1"}},
            "invalid_value",
            "item.call_id",
        ),
    ],
)
async def test_a_wrong_event_gets_its_error_and_the_session_goes_on(
    converse: Any, kind: str, fields: dict[str, Any], code: str, param: str
) -> None:
    async with converse() as talk:
        error = await talk.refused(kind, **fields)
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
        assert (await talk.update(instructions="still here"))["type"] == "session.updated"


async def test_output_audio_buffer_clear_gets_an_error_on_a_websocket(converse: Any) -> None:
    async with converse() as talk:
        error = await talk.refused("output_audio_buffer.clear")
        assert "WebSocket" in error["message"] or "WebRTC" in error["message"]


@pytest.mark.parametrize("encoding", ["audio/pcmu", "audio/pcma"])
async def test_fc_097_a_g711_conversation(converse: Any, recording: Callable[[str], bytes], encoding: str) -> None:
    from duologue.codecs.g711 import encode_alaw, encode_ulaw
    from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
    from duologue.codecs.resample import resample

    narrow = float_to_pcm16(resample(pcm16_to_float(recording("librivox-austen-0880")), 24_000, 8_000))
    encode = encode_ulaw if encoding == "audio/pcmu" else encode_alaw
    async with converse() as talk:
        session = (
            await talk.update(audio={"input": {"format": {"type": encoding}}, "output": {"format": {"type": encoding}}})
        )["session"]
        assert session["audio"]["output"]["format"] == {"type": encoding}
        await talk.update(audio=TRANSCRIBE, max_output_tokens=BRIEF)
        await talk.append(encode(narrow + bytes(16_000)), 803)
        response = (await talk.until("response.done"))["response"]
        assert response["status"] in ANSWERED
        assert response["audio"]["output"]["format"] == {"type": encoding}
        seconds = len(talk.audio_of(response["id"])) / 8000
        assert 0.3 < seconds < 30


async def test_fc_122_two_conversations_at_once_do_not_mix(converse: Any) -> None:
    async def ask(question: str, answer: str) -> None:
        async with converse() as talk:
            await talk.update(output_modalities=["text"])
            await talk.write(question)
            response = await talk.respond()
            assert answer in response["output"][0]["content"][0]["text"]

    async with asyncio.TaskGroup() as group:
        group.create_task(ask("What is the capital of France?", "Paris"))
        group.create_task(ask("What is the capital of Japan?", "Tokyo"))
