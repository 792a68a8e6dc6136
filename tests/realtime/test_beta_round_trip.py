"""The beta dialect is a change of names: said in it and read back, everything is what it was.

The way back is written here a second time, from the table of ``realtime-protocol`` section 9.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_driver import Driver, silence, speech

from duologue.engine.requests import Converse
from duologue.realtime import wire
from duologue.realtime.dialects import beta
from duologue.sessions import client_events as ce
from duologue.sessions import server_events as se
from duologue.sessions.config import Audio, AudioOutput, RealtimeSession, merged

Json = dict[str, Any]

NAMES = {
    "conversation.item.created": "conversation.item.added",
    "response.text.delta": "response.output_text.delta",
    "response.text.done": "response.output_text.done",
    "response.audio.delta": "response.output_audio.delta",
    "response.audio.done": "response.output_audio.done",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
}
FORMATS = {
    "pcm16": {"type": "audio/pcm", "rate": 24000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
LOST = ("type", "truncation", "reasoning", "parallel_tool_calls")
"""What a flat session cannot say."""


# -- back to GA --------------------------------------------------------------------------------------------------------


def item_to_ga(item: Json) -> Json:
    if "content" not in item:
        return item
    kinds = {"text": "output_text", "audio": "output_audio"}
    return {**item, "content": [{**part, "type": kinds.get(part["type"], part["type"])} for part in item["content"]]}


def modalities_to_ga(modalities: list[str]) -> list[str]:
    return ["audio"] if "audio" in modalities else ["text"]


def session_to_ga(flat: Json) -> Json:
    flat = dict(flat)
    assert flat.pop("temperature") == 0.8
    output = {
        "voice": flat.pop("voice"),
        "speed": flat.pop("speed"),
        "format": FORMATS[flat.pop("output_audio_format")],
    }
    heard = {
        "format": FORMATS[flat.pop("input_audio_format")],
        "transcription": flat.pop("input_audio_transcription"),
        "noise_reduction": flat.pop("input_audio_noise_reduction"),
        "turn_detection": flat.pop("turn_detection"),
    }
    modalities = modalities_to_ga(flat.pop("modalities"))
    max_output_tokens = flat.pop("max_response_output_tokens")
    audio = {"input": heard, "output": output}
    return {**flat, "output_modalities": modalities, "max_output_tokens": max_output_tokens, "audio": audio}


def event_to_ga(event: Json) -> Json:
    event = {**event, "type": NAMES.get(event["type"], event["type"])}
    if "item" in event:
        event["item"] = item_to_ga(event["item"])
    if "session" in event:
        event["session"] = session_to_ga(event["session"])
    if "response" in event:
        response = dict(event["response"])
        assert response.pop("temperature") == 0.8
        audio = {"format": FORMATS[response.pop("output_audio_format")], "voice": response.pop("voice")}
        response["audio"] = {"output": audio}
        response["output_modalities"] = modalities_to_ga(response.pop("modalities"))
        response["output"] = [item_to_ga(item) for item in response["output"]]
        event["response"] = response
    return event


def as_beta_can_say_it(event: Json) -> Json:
    if "session" in event:
        return {**event, "session": {k: v for k, v in event["session"].items() if k not in LOST}}
    return event


# -- what a server says ------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "name": "look_up", "description": "", "parameters": {"type": "object"}}
STEPS = (
    "speak",
    "type",
    "answer",
    "call",
    "cancel",
    "fail",
    "retrieve",
    "truncate",
    "delete",
    "reset",
    "wrong",
    "g711",
)


def act(driver: Driver, step: str) -> None:
    entries = [entry.id for entry in driver.machine.conversation]
    match step:
        case "speak":
            driver.say(speech(600), silence(800))
            driver.transcribe("Hello there.")
        case "type":
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
            event = beta.decode(json.dumps({"type": "conversation.item.create", "item": item}))
            driver.do(event)
        case "answer" | "call" | "cancel" | "fail":
            driver.do(ce.ResponseCreate(response={"output_modalities": ["text" if step == "call" else "audio"]}))
            open_requests = driver.pending(Converse)
            if not open_requests:
                return
            driver.write("One two.", open_requests[0])
            if step == "answer":
                driver.speak(500, request_id=open_requests[0])
            elif step == "call":
                driver.call("{}", request_id=open_requests[0])
            if step == "cancel":
                driver.do(ce.ResponseCancel())
            else:
                driver.finish(open_requests[0], *(("failed", "broken") if step == "fail" else ()))
        case "retrieve" | "truncate" | "delete" if entries:
            kinds: Any = {"retrieve": ce.ItemRetrieve, "delete": ce.ItemDelete}
            truncated = ce.ItemTruncate(item_id=entries[-1], audio_end_ms=100)
            driver.do(truncated if step == "truncate" else kinds[step](item_id=entries[-1]))
        case "reset":
            driver.do(ce.InputAudioClear())
        case "wrong":
            driver.update({"audio": {"output": {"voice": "nobody"}}})
        case "g711":
            driver.update({"audio": {"output": {"format": {"type": "audio/pcmu"}}}})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=10))
def test_fc_073_whatever_is_said_in_beta_names_reads_back_as_it_was(steps: list[str]) -> None:
    driver = Driver({"tools": [TOOL]}, can_call_tools=True)
    for step in steps:
        act(driver, step)
    for event in driver.sent:
        ga = json.loads(wire.encode(event))
        frames = [json.loads(frame) for frame in beta.encode(event)]
        if isinstance(event, se.ItemDone):
            assert frames == []
            continue
        if isinstance(event, se.ErrorEvent) and event.error.param is not None:
            (frame,) = frames
            assert {**frame["error"], "param": None} == {**ga["error"], "param": None}
            continue
        if isinstance(event, se.SessionCreated):
            assert frames.pop()["type"] == "conversation.created"
        (frame,) = frames
        assert event_to_ga(frame) == as_beta_can_say_it(ga)
        assert frame["type"] not in NAMES.values(), "no GA name where beta has another"


def test_there_is_a_beta_reading_of_every_server_event() -> None:
    driver = Driver({"tools": [TOOL]}, can_call_tools=True)
    for step in STEPS:
        act(driver, step)
    kinds = {type(event) for event in driver.sent}
    assert len(kinds) > 25


# -- what a client says ------------------------------------------------------------------------------------------------

VAD = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"type": st.just("server_vad")},
        optional={
            "threshold": st.floats(0, 1),
            "silence_duration_ms": st.integers(0, 9999),
            "create_response": st.booleans(),
        },
    ),
    st.fixed_dictionaries({"type": st.just("semantic_vad")}, optional={"eagerness": st.sampled_from(["low", "auto"])}),
)
FLAT_SESSION = st.fixed_dictionaries(
    {},
    optional={
        "instructions": st.text(max_size=20),
        "voice": st.sampled_from(["heart", "alloy"]),
        "speed": st.floats(0.25, 1.5),
        "modalities": st.sampled_from([["text"], ["audio", "text"], ["text", "audio"]]),
        "input_audio_format": st.sampled_from(sorted(FORMATS)),
        "output_audio_format": st.sampled_from(sorted(FORMATS)),
        "input_audio_transcription": st.sampled_from(
            [None, {"model": "whisper-1"}, {"model": "whisper-1", "language": "en"}]
        ),
        "input_audio_noise_reduction": st.sampled_from([None, {"type": "near_field"}]),
        "turn_detection": VAD,
        "tools": st.sampled_from([[], [TOOL]]),
        "tool_choice": st.sampled_from(["auto", "none", {"type": "function", "name": "look_up"}]),
        "max_response_output_tokens": st.one_of(st.just("inf"), st.integers(1, 4096)),
        "temperature": st.floats(0.6, 1.2),
    },
)
SESSION = RealtimeSession(
    id="sess_1", model="assistant", expires_at=0, instructions="", audio=Audio(output=AudioOutput(voice="heart"))
)


@given(FLAT_SESSION)
def test_fc_074_a_flat_session_is_echoed_as_it_was_set(flat: Json) -> None:
    event = beta.decode(json.dumps({"type": "session.update", "session": flat}))
    assert isinstance(event, ce.SessionUpdate)
    ga = json.loads(msgspec.json.encode(merged(SESSION, event.session)))
    echoed = beta.flat(ga)
    for name, value in flat.items():
        if name == "temperature":
            continue
        if name == "modalities":
            assert set(echoed[name]) == set(value)
        elif isinstance(value, dict):
            assert {key: echoed[name][key] for key in value} == value
        else:
            assert echoed[name] == value
    update = {"type": "session.updated", "session": ga}
    assert event_to_ga({**update, "session": echoed}) == as_beta_can_say_it(update)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "input_audio_buffer.append", "audio": "AAA="},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear", "event_id": "e"},
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 5},
        {"type": "conversation.item.retrieve", "item_id": "i"},
        {"type": "conversation.item.delete", "item_id": "i"},
        {"type": "response.create"},
        {"type": "response.cancel", "response_id": "r"},
    ],
)
def test_what_is_named_alike_means_the_same(event: Json) -> None:
    assert beta.decode(json.dumps(event)) == wire.decode(json.dumps(event))
