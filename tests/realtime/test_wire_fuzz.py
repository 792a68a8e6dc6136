"""Anything at all from a client: through the decoder into a real session and out again, and over a real socket.

No frame may crash the session, hang it, or be answered with anything but an ``error`` that names what is wrong; after
each the session still answers. ``DUOLOGUE_FUZZ`` multiplies the number of examples (1 unless it is set).
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ordering import violations
from pictures import data_url, png
from scripted_engine import ScriptedEngine
from session_driver import NAMES
from traced import TracedDriver

from duologue.realtime import wire
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.manager import ManagerSettings, SessionManager

FACTOR = max(1, int(os.environ.get("DUOLOGUE_FUZZ", "1")))
CODES = {
    "invalid_event",
    "invalid_value",
    "unknown_parameter",
    "missing_required_parameter",
    "input_audio_buffer_commit_empty",
    "conversation_already_has_active_response",
    "response_cancel_not_active",
    "item_create_duplicate_item_id",
    "item_create_invalid_previous_item_id",
    "item_retrieve_invalid_item_id",
    "item_delete_invalid_item_id",
    "item_truncate_invalid_item_id",
    "cannot_update_voice",
}

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"n": {"maximum": 5}}}}
USER = {"type": "message", "role": "user", "id": "a", "content": [{"type": "input_text", "text": "Hi"}]}
PICTURE = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": data_url(png(2, 2))}]}
LEGAL: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"type": "realtime", "instructions": "x", "tools": [TOOL]}},
    {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
    {"type": "session.update", "session": {"audio": {"output": {"voice": {"id": "other"}, "speed": 1.5}}}},
    {"type": "session.update", "session": {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}}},
    {"type": "session.update", "session": {"tracing": {"metadata": {"n": 1}}, "max_output_tokens": 10}},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.create", "item": USER, "previous_item_id": "root"},
    {"type": "conversation.item.create", "item": PICTURE},
    {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", "arguments": "{}"}},
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "1"}},
    {"type": "conversation.item.retrieve", "item_id": "a"},
    {"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": 10},
    {"type": "conversation.item.delete", "item_id": "a"},
    {"type": "response.create", "response": {"conversation": "none", "metadata": {"k": "v"}, "input": [USER]}},
    {"type": "response.create", "response": {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}},
    {"type": "response.cancel", "response_id": "r"},
]

HARD = [
    "1e400",
    "-1e400",
    "9" * 400,
    "-" + "9" * 30,
    "NaN",
    "Infinity",
    "null",
    "true",
    '""',
    '"\\ud800"',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    "[" * 70 + "]" * 70,
    '{"a":' * 70 + "1" + "}" * 70,
    "[" * 100_000,
    '{"id":1}',
    "-0.0",
    "[[]]",
]
"""Values, as JSON or nearly so, that have crashed servers."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in inner for place in ((*path, key), *_places(part, (*path, key)))]


@st.composite
def frames(draw: st.DrawFn) -> str:
    """A legal event with something inside it changed, removed, added or doubled; sometimes bytes changed as well."""
    raw = json.loads(json.dumps(draw(st.sampled_from(LEGAL))))
    *path, last = draw(st.sampled_from(_places(raw)))
    holder = raw
    for key in path:
        holder = holder[key]
    text = None
    match draw(st.sampled_from(["keep", "value", "hard", "hard", "remove", "add", "double"])):
        case "value":
            holder[last] = draw(json_values)
        case "hard":
            holder[last] = "<here>"
            text = json.dumps(raw).replace('"<here>"', draw(st.sampled_from(HARD)))
        case "remove":
            del holder[last]
        case "add" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["type", "event_id", "item", "id", "x", "\x00", ""]))] = draw(json_values)
        case "double" if isinstance(holder, dict):
            again = json.dumps({last: draw(json_values)})[1:-1]
            text = json.dumps(raw)[:-1] + ", " + again + "}"
    text = text if text is not None else json.dumps(raw)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=3)) + text[at + draw(st.integers(0, 3)) :]
    return text


def session() -> TracedDriver:
    return TracedDriver(can_call_tools=True, takes_images=True, gives_logprobs=True)


def survives(driver: TracedDriver, frame: str | bytes) -> None:
    """Everything that comes of a frame can be sent; what goes wrong is an error of a known code; the session lives."""
    for event in driver.do(wire.decode(frame)):
        json.loads(wire.encode(event))
        if isinstance(event, events.ErrorEvent):
            assert event.error.code in CODES
            assert 0 < len(event.error.message) < 2000
    (alive,) = driver.do(wire.decode('{"type":"conversation.item.retrieve","item_id":"nobody"}'))
    assert isinstance(alive, events.ErrorEvent)
    assert alive.error.code == "item_retrieve_invalid_item_id"


@given(st.lists(frames(), min_size=1, max_size=6))
@settings(max_examples=250 * FACTOR, deadline=None)
def test_a_session_survives_mutated_events(sequence: list[str]) -> None:
    driver = session()
    for frame in sequence:
        survives(driver, frame)
    while driver.requests:
        driver.finish(next(iter(driver.requests)))
    driver.read_all()
    assert violations(driver.trace) == []


@given(st.binary(max_size=200) | st.text(max_size=200))
@example(b"\xff\xfe{}")
@example(b'{"type":"response.cancel","event_id":"\\ud800"}')
@example("\ud800")
@example('{"type":"response.cancel","type":"input_audio_buffer.clear"}')
@example('{"type":"input_audio_buffer.append","audio":"AAAA","audio":1}')
@settings(max_examples=100 * FACTOR, deadline=None)
def test_a_session_survives_random_frames(frame: str | bytes) -> None:
    survives(session(), frame)


@pytest.mark.parametrize("value", HARD)
@pytest.mark.parametrize("legal", range(len(LEGAL)))
def test_hard_values_in_every_place(legal: int, value: str) -> None:
    """Exhaustive where the random test above only samples: each value in each field of each event."""
    driver = session()
    for *path, last in _places(LEGAL[legal]):
        raw = json.loads(json.dumps(LEGAL[legal]))
        holder = raw
        for key in path:
            holder = holder[key]
        holder[last] = "<here>"
        survives(driver, json.dumps(raw).replace('"<here>"', value))


class RealSessions:
    """Real sessions over a scripted engine, for the server of these tests."""

    def __init__(self) -> None:
        begin = ManagerSettings(NAMES, model="assistant", voice="heart", instructions="Be kind.", limits=Limits())
        self.engine = ScriptedEngine()
        self._manager = SessionManager(self.engine, begin)  # type: ignore[arg-type]
        self._over = asyncio.Event()

    async def __call__(self, transport: Any, model: str | None) -> None:
        try:
            await self._manager.serve(transport, model)
        finally:
            self._over.set()

    async def over(self) -> None:
        """The session has ended and left nothing in the engine."""
        await asyncio.wait_for(self._over.wait(), 10)
        assert self._manager.open_sessions == 0
        assert all(stream.aborted for stream in self.engine.streams)
        assert all(detector.closed for detector in self.engine.detectors)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("session-")]


async def test_a_socket_survives_hundreds_of_bad_frames_and_nothing_is_left(serve: Any) -> None:
    sessions = RealSessions()
    bad = [json.dumps(raw).replace('"AAAA"', value) for raw in LEGAL for value in HARD[:12]]
    bad += [json.dumps(raw)[:cut] for raw in LEGAL for cut in range(0, 60, 3)]
    bad += [value for value in HARD if len(value) < 1000]
    async with serve(sessions) as edge:
        async with edge.connect() as connection, asyncio.timeout(30):
            for frame in [*bad, *(frame.encode() for frame in bad[:20])]:
                await connection.send(frame)
            await connection.send('{"type":"conversation.item.retrieve","item_id":"x","event_id":"the last"}')
            last = None
            while last != "the last":
                event = json.loads(await connection.recv())
                if event["type"] == "error":
                    assert event["error"]["code"] in CODES
                    last = event["error"]["event_id"]
        await sessions.over()


async def test_invalid_utf_8_in_a_text_frame_closes_with_1007_and_leaves_nothing(serve: Any) -> None:
    """RFC 6455 section 8.1 asks for it; there is no session left to go on."""
    sessions = RealSessions()
    async with serve(sessions) as edge, edge.connect() as connection:
        await connection.recv()
        await connection.send(b'{"type":"response.cancel\xff"}', text=True)
        await asyncio.wait_for(connection.wait_closed(), 10)
        assert connection.close_code == 1007
        await sessions.over()
