"""The beta dialect: every name both ways, judged by the client library's own types."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.beta.realtime import RealtimeServerEvent
from session_driver import Driver, silence, speech

from duologue.realtime.dialects import beta
from duologue.sessions import client_events as ce
from duologue.sessions import server_events as se
from duologue.sessions.items import FunctionCallOutputItem
from duologue.sessions.updating import Bound

KNOWN = {
    get_args(member.model_fields["type"].annotation)[0]: member for member in get_args(get_args(RealtimeServerEvent)[0])
}
TOOL = {"type": "function", "name": "look_up", "description": "", "parameters": {"type": "object"}}


def said(driver: Driver) -> list[dict[str, Any]]:
    """Everything that a session has sent, in this dialect."""
    return [json.loads(frame) for event in driver.sent for frame in beta.encode(event)]


def update(driver: Driver, **session: Any) -> list[dict[str, Any]]:
    event = beta.decode(json.dumps({"type": "session.update", "event_id": "u", "session": session}))
    return [json.loads(frame) for sent in driver.do(event) for frame in beta.encode(sent)]


def spoken_and_typed() -> Driver:
    """A session in which nearly everything happens once."""
    driver = Driver({"tools": [TOOL]}, can_call_tools=True)
    item_id = driver.spoken_turn()
    driver.do(ce.ItemTruncate(item_id=item_id, audio_end_ms=500))
    driver.do(ce.ItemRetrieve(item_id=item_id))
    driver.do(ce.ItemDelete(item_id=item_id))
    driver.do(ce.ResponseCreate(response={"output_modalities": ["text"]}))
    driver.write("Hm.")
    driver.call("{}")
    driver.finish()
    call_id = driver.last(se.FunctionCallArgumentsDone).call_id
    driver.do(ce.ItemCreate(item=FunctionCallOutputItem(call_id=call_id, output="sunny")))
    driver.do(ce.ResponseCancel())
    driver.say(speech(600), silence(800))
    driver.transcribe("", reason="failed")
    driver.do(ce.InputAudioClear())
    return driver


def test_fc_073_every_event_is_one_that_the_library_knows_and_no_other_dialects() -> None:
    events = said(spoken_and_typed())
    for event in events:
        if "session" in event:
            event["session"]["model"] = "gpt-realtime"  # the library lists OpenAI's own models only
        KNOWN[event["type"]].model_validate(event, strict=True)
    kinds = {event["type"] for event in events}
    assert {"response.audio.delta", "response.text.delta", "conversation.item.created"} <= kinds


def test_a_new_session_is_followed_by_its_conversation() -> None:
    driver = Driver(transcription=False)
    created, conversation = said(driver)
    assert created["type"] == "session.created"
    assert conversation["type"] == "conversation.created"
    assert created["event_id"] != conversation["event_id"]
    driver.do(ce.ResponseCreate())
    assert driver.last(se.ResponseCreated).response.conversation_id == conversation["conversation"]["id"]


def test_fc_074_each_flat_field_changes_its_setting_and_is_echoed() -> None:
    flat = {
        "modalities": ["text"],
        "instructions": "Shout.",
        "voice": "alloy",
        "speed": 1.2,
        "input_audio_format": "g711_ulaw",
        "output_audio_format": "g711_alaw",
        "input_audio_transcription": {"model": "whisper-1", "language": "en"},
        "input_audio_noise_reduction": {"type": "near_field", "strength": 1.0},
        "turn_detection": {
            "type": "server_vad",
            "threshold": 0.7,
            "prefix_padding_ms": 200,
            "silence_duration_ms": 300,
            "idle_timeout_ms": None,
            "create_response": False,
            "interrupt_response": True,
        },
        "tools": [TOOL],
        "tool_choice": "required",
        "max_response_output_tokens": 100,
        "temperature": 0.8,
        "tracing": "auto",
    }
    driver = Driver(can_call_tools=True)
    (updated,) = update(driver, **flat)
    assert {name: updated["session"][name] for name in flat} == flat
    assert not {"audio", "output_modalities", "max_output_tokens", "type"} & set(updated["session"])


def test_null_turns_detection_off() -> None:
    driver = Driver()
    update(driver, turn_detection=None)
    assert driver.machine.session.audio.input.turn_detection is None


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"output_modalities": ["text"]}, "session.output_modalities"),
        ({"audio": {}}, "session.audio"),
        ({"nonsense": 1}, "session.nonsense"),
        ({"modalities": ["video"]}, "session.modalities"),
        ({"modalities": "text"}, "session.modalities"),
        ({"input_audio_format": "mp3"}, "session.input_audio_format"),
        ({"output_audio_format": {"type": "audio/pcm"}}, "session.output_audio_format"),
        ({"temperature": 2}, "session.temperature"),
        ({"voice": "nobody"}, "session.voice"),
        ({"speed": 9}, "session.speed"),
        ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "session.turn_detection.threshold"),
        ({"input_audio_transcription": {"model": "no"}}, "session.input_audio_transcription.model"),
        ({"max_response_output_tokens": 0}, "session.max_response_output_tokens"),
    ],
)
def test_fc_074_a_wrong_field_is_named_as_the_client_knows_it(session: dict[str, Any], param: str) -> None:
    driver = Driver()
    before = driver.machine.session
    (error,) = update(driver, **session)
    assert error["type"] == "error"
    assert (error["error"]["param"], error["error"]["event_id"]) == (param, "u")
    assert driver.machine.session == before


def test_overrides_of_a_response_are_flat_too() -> None:
    driver = Driver()
    response = {
        "modalities": ["text"],
        "instructions": "Shout.",
        "temperature": 0.7,
        "max_response_output_tokens": 20,
        "conversation": "none",
        "metadata": {"k": "v"},
        "input": [{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Before."}]}],
    }
    driver.do(beta.decode(json.dumps({"type": "response.create", "response": response})))
    assert driver.context() == [("system", "Shout."), ("assistant", "Before.")]
    created = said(driver)[-1]["response"]
    assert (created["modalities"], created["max_output_tokens"], created["conversation_id"]) == (["text"], 20, None)
    assert (created["voice"], created["output_audio_format"]) == ("heart", "pcm16")


def test_content_of_items_is_renamed_both_ways() -> None:
    driver = Driver()
    item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Before."}]}
    driver.do(beta.decode(json.dumps({"type": "conversation.item.create", "item": item})))
    created = said(driver)[-1]
    assert created["type"] == "conversation.item.created"
    assert created["item"]["content"] == item["content"]


def test_the_legacy_transcription_session() -> None:
    driver = Driver(transcription=False, bound=Bound(type=False, model=False))
    session = {
        "input_audio_format": "g711_ulaw",
        "input_audio_transcription": {"model": "whisper-1"},
        "turn_detection": {"type": "server_vad"},
    }
    driver.do(beta.decode(json.dumps({"type": "transcription_session.update", "session": session})))
    updated = said(driver)[-1]
    assert updated["type"] == "transcription_session.updated"
    assert updated["session"]["input_audio_format"] == "g711_ulaw"
    assert updated["session"]["object"] == "realtime.transcription_session"


def test_sound_passes_untouched() -> None:
    sound = base64.b64encode(bytes(range(200))).decode()
    event = beta.decode(json.dumps({"type": "input_audio_buffer.append", "audio": sound}))
    assert isinstance(event, ce.InputAudioAppend)
    assert event.audio == bytes(range(200))


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "[]",
        "3",
        '{"type":"session.update"}',
        '{"type":"session.update","session":3}',
        '{"type":"session.update","session":null}',
        '{"type":"response.create","response":[]}',
        '{"type":"response.create","response":{"input":3}}',
        '{"type":"conversation.item.create","item":3}',
        '{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[3]}}',
        '{"type":"transcription_session.update","session":[]}',
        '{"type":"conversation.item.create","item":' + "[" * 5000 + "]" * 5000 + "}",
        '{"type":{}}',
    ],
)
def test_what_is_wrong_in_either_dialect_is_an_error(frame: str) -> None:
    driver = Driver()
    sent = driver.do(beta.decode(frame))
    assert [type(event) for event in sent] == [se.ErrorEvent]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "input", "audio", "voice", "modalities", "turn_detection", "temperature"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(kind=st.sampled_from([*beta._TRANSLATIONS, "input_audio_buffer.append"]), body=JSON_VALUES, event_id=JSON_VALUES)
@settings(max_examples=300, deadline=None)
def test_no_event_of_a_client_can_make_the_dialect_fail(kind: str, body: Any, event_id: Any) -> None:
    frame = {"type": kind, "event_id": event_id, "session": body, "response": body, "item": body}
    (field,) = {"session.update": ["session"], "transcription_session.update": ["session"]}.get(
        kind, ["response" if kind == "response.create" else "item"]
    )
    for name in {"session", "response", "item"} - {field}:
        del frame[name]
    driver = Driver()
    for sent in driver.do(beta.decode(json.dumps(frame))):
        assert beta.encode(sent) is not None
