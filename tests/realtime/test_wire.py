"""Frames to events and back: what is accepted, and that everything else becomes an error that names the field."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duologue.realtime import wire
from duologue.sessions import client_events as ce
from duologue.sessions import server_events as se

LEGAL: list[tuple[dict[str, Any], type]] = [
    ({"type": "session.update", "session": {"type": "realtime", "instructions": ""}}, ce.SessionUpdate),
    ({"type": "input_audio_buffer.append", "audio": "AAECAw=="}, ce.InputAudioAppend),
    ({"type": "input_audio_buffer.commit"}, ce.InputAudioCommit),
    ({"type": "input_audio_buffer.clear"}, ce.InputAudioClear),
    (
        {
            "type": "conversation.item.create",
            "previous_item_id": "root",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        },
        ce.ItemCreate,
    ),
    ({"type": "conversation.item.retrieve", "item_id": "item_1"}, ce.ItemRetrieve),
    ({"type": "conversation.item.truncate", "item_id": "item_1", "audio_end_ms": 0}, ce.ItemTruncate),
    ({"type": "conversation.item.delete", "item_id": "item_1"}, ce.ItemDelete),
    ({"type": "response.create", "response": {"metadata": {"a": "b"}}}, ce.ResponseCreate),
    ({"type": "response.cancel", "response_id": "resp_1"}, ce.ResponseCancel),
    ({"type": "output_audio_buffer.clear"}, ce.OutputAudioClear),
    (
        {"type": "playback.ack", "response_id": "resp_1", "item_id": "item_1", "played_ms": 2, "committed_ms": 1},
        ce.PlaybackAck,
    ),
]


def refused(frame: str | bytes | dict[str, Any]) -> ce.InvalidEvent:
    event = wire.decode(json.dumps(frame) if isinstance(frame, dict) else frame)
    assert isinstance(event, ce.InvalidEvent)
    return event


@pytest.mark.parametrize(("raw", "kind"), LEGAL, ids=[raw["type"] for raw, _ in LEGAL])
def test_every_client_event_is_decoded(raw: dict[str, Any], kind: type) -> None:
    event = wire.decode(json.dumps({"event_id": "evt_7", **raw}))
    assert type(event) is kind
    assert event.event_id == "evt_7"


def test_the_list_above_is_complete() -> None:
    assert {kind for _, kind in LEGAL} == set(get_args(ce.AnyClientEvent))
    assert set(wire.CLIENT_EVENT_TYPES) == {raw["type"] for raw, _ in LEGAL}


def test_audio_arrives_as_bytes() -> None:
    event = wire.decode('{"audio":"AAECAw==","type":"input_audio_buffer.append"}')
    assert isinstance(event, ce.InputAudioAppend)
    assert event.audio == bytes([0, 1, 2, 3])


@pytest.mark.parametrize(
    "frame", ["", "garbage", '{"type":', "{'type': 'x'}", '{"type":"response.cancel"} tail', "NaN"]
)
def test_garbage_is_not_json(frame: str) -> None:
    event = refused(frame)
    assert event.error.code == "invalid_event"
    assert "not valid JSON" in event.error.message
    assert event.event_id is None


@pytest.mark.parametrize("frame", ["[]", "1", '"response.cancel"', "null", "true"])
def test_json_that_is_no_object(frame: str) -> None:
    event = refused(frame)
    assert (event.error.code, event.error.message) == ("invalid_event", "The event is not a JSON object.")


@pytest.mark.parametrize(
    "raw",
    [{}, {"type": None}, {"type": 5}, {"type": ["response.cancel"]}, {"type": ""}, {"type": "response.audio.delta"}],
)
def test_a_missing_or_unknown_type_says_which_exist(raw: dict[str, Any]) -> None:
    event = refused({"event_id": "evt_1", **raw})
    assert event.error.code == "invalid_event"
    assert event.error.param == "type"
    assert all(name in event.error.message for name in wire.CLIENT_EVENT_TYPES)
    assert event.event_id == "evt_1"


@pytest.mark.parametrize("name", ["transcription_session.update", "session.start", "session.close"])
def test_an_event_of_another_dialect_gets_a_typed_error(name: str) -> None:
    event = refused({"type": name})
    assert event.error.code == "invalid_event"
    assert "It belongs to" in event.error.message


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "%%%"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAA"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": 5}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AA==", "adio": ""}, "unknown_parameter", "adio"),
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": []}, "invalid_value", "session"),
        ({"type": "response.create", "response": None}, "invalid_value", "response"),
        ({"type": "response.cancel", "response_id": 7}, "invalid_value", "response_id"),
        ({"type": "conversation.item.delete", "item_id": ""}, "invalid_value", "item_id"),
        (
            {"type": "conversation.item.truncate", "item_id": "a", "audio_end_ms": -1},
            "invalid_value",
            "audio_end_ms",
        ),
        (
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user"}},
            "missing_required_parameter",
            "item.content",
        ),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_text"}]},
            },
            "missing_required_parameter",
            "item.content[0].text",
        ),
    ],
)
def test_a_wrong_field_is_named(raw: dict[str, Any], code: str, param: str) -> None:
    event = refused({"event_id": "evt_2", **raw})
    assert (event.error.code, event.error.param) == (code, param)
    assert param in event.error.message
    assert event.event_id == "evt_2"


def test_an_item_kind_that_is_not_implemented_says_which_are() -> None:
    event = refused({"type": "conversation.item.create", "item": {"type": "computer_call"}})
    assert (event.error.code, event.error.param) == ("invalid_value", "item.type")
    assert "message, function_call, function_call_output" in event.error.message


@pytest.mark.parametrize("event_id", [5, [], {}, "x" * 513])
def test_a_wrong_event_id_is_named_and_not_echoed(event_id: Any) -> None:
    event = refused({"type": "response.cancel", "event_id": event_id})
    assert event.error.param == "event_id"
    assert event.event_id is None


def append_of(size: int) -> str:
    audio = base64.b64encode(bytes(size)).decode()
    return f'{{"event_id":"big","type":"input_audio_buffer.append","audio":"{audio}"}}'


def test_fc_134_a_legal_append_of_15_mib_passes_and_a_byte_more_does_not() -> None:
    event = wire.decode(append_of(wire.MAX_APPEND_BYTES))
    assert isinstance(event, ce.InputAudioAppend)
    assert len(event.audio) == 15 * 2**20
    event = refused(append_of(wire.MAX_APPEND_BYTES + 1))
    assert (event.error.code, event.error.param, event.event_id) == ("invalid_value", "audio", "big")


def test_fc_134_an_event_above_the_soft_limit_names_the_limit() -> None:
    frame = json.dumps({"event_id": "big", "type": "session.update", "session": {"instructions": "x" * (22 * 2**20)}})
    assert wire.MAX_EVENT_CHARACTERS < len(frame) < wire.MAX_FRAME_BYTES
    event = refused(frame)
    assert event.error.code == "invalid_event"
    assert str(wire.MAX_EVENT_CHARACTERS) in event.error.message
    assert event.event_id == "big"


@pytest.mark.parametrize("depth", [65, 500, 100_000])
@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deep_nesting_is_refused(depth: int, bracket: str) -> None:
    closing = "]" if bracket == "[" else "}"
    nested = bracket * depth + "1" + closing * depth
    for frame in (
        f'{{"type":"session.update","session":{{"a":{nested}}}}}',
        f'{{"type":"response.create","response":{{"a":{nested}}}}}',
    ):
        event = refused(frame)
        assert event.error.code in ("invalid_value", "invalid_event")
        assert "nested" in event.error.message
    assert isinstance(refused(f'{{"type":"input_audio_buffer.append","audio":{nested}}}'), ce.InvalidEvent)


def test_a_tool_schema_of_ordinary_depth_passes() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"inner": schema}}
    frame = json.dumps({"type": "session.update", "session": {"tools": [{"type": "function", "parameters": schema}]}})
    assert isinstance(wire.decode(frame), ce.SessionUpdate)


def test_an_error_does_not_repeat_megabytes() -> None:
    for raw in (
        {"type": "x" * 10**6},
        {"type": "response.cancel", "y" * 10**6: 1},
        {"type": "session.update", "session": 1},
    ):
        event = refused(raw)
        assert len(event.error.message) < 1000
        assert len(event.error.param or "") < 1000


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 300, "9" * 5000, "5.5", "1e-400", "-0"])
def test_huge_numbers_do_not_crash(number: str) -> None:
    wire.decode(f'{{"type":"conversation.item.truncate","item_id":"a","audio_end_ms":{number}}}')
    wire.decode(f'{{"type":"session.update","session":{{"x":{number}}}}}')


ANY_EVENT = get_args(ce.AnyClientEvent)


def checked(frame: str | bytes) -> None:
    event = wire.decode(frame)
    if isinstance(event, ce.InvalidEvent):
        assert event.error.code in ("invalid_event", "invalid_value", "unknown_parameter", "missing_required_parameter")
        assert event.error.message
        # the error must itself be encodable
        body = se.ErrorBody(
            type="invalid_request_error", message=event.error.message, param=event.error.param, event_id=event.event_id
        )
        json.loads(wire.encode(se.ErrorEvent(event_id="e", error=body)))
    else:
        assert isinstance(event, ANY_EVENT)


@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b'{"type":"response.cancel","event_id":"\\ud800"}')
def test_random_bytes_do_not_crash(frame: bytes) -> None:
    checked(frame)


@given(st.text(max_size=300))
@example("\ud800")
def test_random_text_does_not_crash(frame: str) -> None:
    checked(frame)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated_events(draw: st.DrawFn) -> str:
    """A legal event with some fields replaced, removed or added, then perhaps with bytes changed."""
    raw = json.loads(json.dumps(draw(st.sampled_from([raw for raw, _ in LEGAL]))))
    target = raw
    while (inner := [value for value in target.values() if isinstance(value, dict)]) and draw(st.booleans()):
        target = draw(st.sampled_from(inner))
    match draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace" if target:
            target[draw(st.sampled_from(sorted(target)))] = draw(json_values)
        case "remove" if target:
            del target[draw(st.sampled_from(sorted(target)))]
        case _:
            target[draw(st.text(max_size=8))] = draw(json_values)
    text = json.dumps(raw)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=3)) + text[at + draw(st.integers(0, 3)) :]
    return text


@given(mutated_events())
@settings(max_examples=400)
def test_mutated_events_do_not_crash(frame: str) -> None:
    checked(frame)


def test_a_server_event_is_encoded_with_its_type_its_nulls_and_its_audio() -> None:
    text = wire.encode(
        se.OutputAudioDelta(
            event_id="e1", response_id="r1", item_id="i1", output_index=0, content_index=0, delta=bytes([0, 1, 2, 3])
        )
    )
    assert json.loads(text) == {
        "type": "response.output_audio.delta",
        "event_id": "e1",
        "response_id": "r1",
        "item_id": "i1",
        "output_index": 0,
        "content_index": 0,
        "delta": "AAECAw==",
    }
    committed = json.loads(wire.encode(se.InputAudioCommitted(event_id="e2", item_id="i1", previous_item_id=None)))
    assert committed["previous_item_id"] is None
    part = json.loads(
        wire.encode(
            se.ContentPartAdded(
                event_id="e3",
                response_id="r1",
                item_id="i1",
                output_index=0,
                content_index=0,
                part=se.ResponsePart(type="audio", transcript=""),
            )
        )
    )["part"]
    assert part == {"type": "audio", "transcript": ""}
