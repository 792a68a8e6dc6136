"""Session settings: partial updates, defaults, refusals; expiry and shutdown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from session_driver import Driver, speech

from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import (
    AdaptiveInterruption,
    Limits,
    NoiseReduction,
    PcmuFormat,
    SemanticVad,
    ServerVad,
    Transcription,
)
from duologue.sessions.effects import Shutdown
from duologue.sessions.errors import ProtocolError
from duologue.sessions.stored_prompts import PromptTemplate

PROMPTS = {"guide": PromptTemplate(versions={"1": "You are a guide.", "2": "You know {{ city }}."})}


def test_o1_the_first_event_is_the_session_with_every_default() -> None:
    driver = Driver(transcription=False)
    (created,) = driver.sent
    assert isinstance(created, events.SessionCreated)
    session = created.session
    assert session.audio.input.turn_detection == ServerVad()
    assert session.output_modalities == ("audio",)
    assert session.instructions == "Be brief."


def test_o2_each_update_gets_one_answer_in_order() -> None:
    driver = Driver(transcription=False)
    for patch in ({"instructions": "a"}, {"nonsense": 1}, {"instructions": "b"}):
        driver.update(patch)
    assert driver.kinds()[1:] == ["session.updated", "error", "session.updated"]
    assert driver.machine.session.instructions == "b"


def test_only_the_fields_present_change() -> None:
    driver = Driver(transcription=False)
    driver.update({"audio": {"input": {"turn_detection": {"silence_duration_ms": 200}}}})
    detection = driver.machine.session.audio.input.turn_detection
    assert detection == ServerVad(silence_duration_ms=200)
    driver.update({"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    assert driver.machine.session.audio.input.turn_detection == detection
    assert driver.machine.session.audio.input.format == PcmuFormat()


def test_another_kind_of_turn_detection_replaces_the_old_one_whole() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"threshold": 0.9}}}})
    driver.update({"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    assert driver.machine.session.audio.input.turn_detection == SemanticVad()
    driver.update({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    assert driver.machine.session.audio.input.turn_detection == ServerVad()


def test_null_clears() -> None:
    driver = Driver()
    assert driver.machine.session.audio.input.transcription is not None
    driver.update({"audio": {"input": {"transcription": None, "turn_detection": None}}})
    assert driver.machine.session.audio.input.transcription is None
    assert driver.machine.session.audio.input.turn_detection is None


@pytest.mark.parametrize(
    ("patch", "code", "param"),
    [
        ({"modalities": ["text"]}, "unknown_parameter", "session.modalities"),
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"output_modalities": ["text", "audio"]}, "invalid_value", "session.output_modalities"),
        ({"max_output_tokens": 5000}, "invalid_value", "session.max_output_tokens"),
        ({"model": "gpt-17"}, "invalid_value", "session.model"),
        ({"id": "mine"}, "invalid_value", "session.id"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tools": [{"type": "function", "name": "f"}]}, "invalid_value", "session.tools"),
        ({"audio": {"input": {"format": {"type": "g711-ulaw"}}}}, "invalid_value", "session.audio.input.format.type"),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 1.5}}}},
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        (
            {"audio": {"input": {"turn_detection": {"idle_timeout_ms": 100}}}},
            "invalid_value",
            "session.audio.input.turn_detection.idle_timeout_ms",
        ),
        (
            {"audio": {"input": {"transcription": {"model": "nobody"}}}},
            "invalid_value",
            "session.audio.input.transcription.model",
        ),
        ({"audio": {"output": {"voice": "nobody"}}}, "invalid_value", "session.audio.output.voice"),
        ({"audio": {"output": {"speed": 2}}}, "invalid_value", "session.audio.output.speed"),
        ({"audio": {"output": {"first_chunk_ms": 12}}}, "invalid_value", "session.audio.output.first_chunk_ms"),
        ({"audio": {"output": {"first_chunk_ms": 2001}}}, "invalid_value", "session.audio.output.first_chunk_ms"),
        ({"audio": {"output": {"first_chunk_ms": "1"}}}, "invalid_value", "session.audio.output.first_chunk_ms"),
        ({"audio": 3}, "invalid_value", "session.audio"),
        ({"audio": None}, "invalid_value", "session.audio"),
    ],
)
def test_fc_074_fc_098_a_wrong_field_is_named_and_nothing_changes(patch: dict[str, Any], code: str, param: str) -> None:
    driver = Driver()
    before = driver.machine.session
    (error,) = driver.do(client.SessionUpdate(session=patch, event_id="u"))
    assert isinstance(error, events.ErrorEvent)
    assert (error.error.code, error.error.param, error.error.event_id) == (code, param, "u")
    assert driver.machine.session == before


def test_null_takes_away_what_may_be_missing() -> None:
    hints = {"model": "whisper-1", "language": "en", "prompt": "Names.", "keywords": ["Ada"]}
    driver = Driver({"parallel_tool_calls": False, "reasoning": {"effort": "low"}})
    driver.update({"audio": {"input": {"transcription": hints}}})
    cleared = {"language": None, "prompt": None, "keywords": None}
    driver.update({"parallel_tool_calls": None, "reasoning": None, "audio": {"input": {"transcription": cleared}}})
    assert "error" not in driver.kinds()
    session = driver.machine.session
    assert (session.parallel_tool_calls, session.reasoning) == (msgspec.UNSET, msgspec.UNSET)
    assert session.audio.input.transcription == Transcription(model="whisper-1")
    judged = {"mode": "adaptive", "acknowledgements": ["aye"]}
    driver.update({"interruption": judged})
    driver.update({"interruption": {"acknowledgements": None}})
    assert driver.machine.session.interruption == AdaptiveInterruption()


def test_null_in_a_response_is_as_good_as_nothing() -> None:
    """LiveKit's client writes ``"instructions": null`` where it has none."""
    driver = Driver()
    names = ("instructions", "tools", "tool_choice", "max_output_tokens", "metadata", "audio", "input", "conversation")
    driver.do(client.ResponseCreate(response=dict.fromkeys(names)))
    assert driver.kinds()[-1] == "response.created"
    assert driver.context()[0] == ("system", "Be brief.")
    driver.do(client.ResponseCreate(response={"modalities": None}))
    assert driver.last(events.ErrorEvent).error.param == "response.modalities"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    driver = Driver()
    driver.update({"audio": {"output": {"voice": "nobody"}}})
    message = driver.last(events.ErrorEvent).error.message
    assert "heart" in message
    assert "alloy" in message


def test_names_that_stock_clients_send_work_and_are_echoed() -> None:
    driver = Driver()
    driver.update({"model": "gpt-realtime", "audio": {"output": {"voice": "alloy"}}})
    session = driver.last(events.SessionUpdated).session
    assert (session.model, session.audio.output.voice) == ("gpt-realtime", "alloy")


def test_the_voice_is_fixed_once_it_has_been_heard() -> None:
    driver = Driver()
    driver.update({"audio": {"output": {"voice": "other"}}})
    assert isinstance(driver.sent[-1], events.SessionUpdated)
    driver.spoken_turn()
    driver.update({"audio": {"output": {"voice": "heart"}}})
    assert driver.last(events.ErrorEvent).error.code == "cannot_update_voice"
    driver.update({"audio": {"output": {"voice": "other"}}, "instructions": "New."})
    assert driver.machine.session.instructions == "New."


def test_an_invalid_event_takes_its_place_in_the_stream() -> None:
    driver = Driver()
    error = ProtocolError("invalid_event", "No such event.", "type")
    (sent,) = driver.do(client.InvalidEvent(error=error, event_id="bad"))
    assert isinstance(sent, events.ErrorEvent)
    assert (sent.error.code, sent.error.event_id) == ("invalid_event", "bad")


def test_output_audio_clear_is_not_for_websockets() -> None:
    driver = Driver()
    (error,) = driver.do(client.OutputAudioClear())
    assert isinstance(error, events.ErrorEvent)


def test_a_session_expires_with_an_error_and_close_1001() -> None:
    driver = Driver(limits=Limits(max_duration_s=60))
    driver.wait(59)
    assert driver.closed is None
    driver.wait(2)
    error = driver.last(events.ErrorEvent).error
    assert error.code == "session_expired"
    assert driver.closed is not None
    assert (driver.closed.code, driver.closed.reason) == (1001, error.message)
    assert driver.do(client.InputAudioClear()) == []


def test_fc_082_shutdown_lets_the_answer_in_progress_finish() -> None:
    driver = Driver()
    driver.do(client.ResponseCreate())
    driver.write("One")
    driver.do(Shutdown())
    assert driver.closed is None
    driver.speak(100)
    driver.finish()
    assert driver.last(events.ResponseDone).response.status == "completed"
    assert driver.closed is not None
    assert driver.closed.code == 1001


def test_shutdown_of_an_idle_session_closes_at_once() -> None:
    driver = Driver()
    driver.say(speech(320))
    driver.do(Shutdown())
    assert driver.closed is not None


def test_every_field_of_the_session_is_accepted_and_echoed() -> None:
    patch: dict[str, Any] = {
        "parallel_tool_calls": False,
        "prompt": {"id": "guide", "version": "2", "variables": {"city": "Paris"}},
        "reasoning": {"effort": "low"},
        "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"k": "v"}},
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": {"post_instructions": 100}},
        "audio": {
            "input": {
                "noise_reduction": {"type": "far_field", "strength": 0.5},
                "transcription": {
                    "model": "whisper-1",
                    "language": "en",
                    "languages": ["en"],
                    "prompt": "names",
                    "keywords": ["Duologue"],
                    "delay": "low",
                },
            }
        },
    }
    driver = Driver(transcription=False, prompts=PROMPTS)
    driver.update(patch)
    echoed = msgspec.json.decode(msgspec.json.encode(driver.last(events.SessionUpdated).session))
    for name in ("parallel_tool_calls", "prompt", "reasoning", "tracing", "truncation"):
        assert echoed[name] == patch[name]
    for name, value in patch["audio"]["input"].items():
        assert echoed["audio"]["input"][name] == value


def test_the_strength_of_noise_reduction_is_kept_when_it_is_not_named() -> None:
    driver = Driver({"audio": {"input": {"noise_reduction": {"type": "near_field"}}}})
    assert driver.machine.session.audio.input.noise_reduction == NoiseReduction(type="near_field", strength=1.0)
    driver.update({"audio": {"input": {"noise_reduction": {"type": "near_field", "strength": 0.3}}}})
    driver.update({"audio": {"input": {"noise_reduction": {"type": "far_field"}}}})
    assert driver.machine.session.audio.input.noise_reduction == NoiseReduction(type="far_field", strength=0.3)


def test_tracing_cannot_be_changed_once_it_is_on() -> None:
    driver = Driver()
    driver.update({"tracing": "auto"})
    driver.update({"tracing": "auto", "instructions": "New."})
    assert not driver.all(events.ErrorEvent)
    driver.update({"tracing": None})
    assert driver.last(events.ErrorEvent).error.param == "session.tracing"


def test_s4_a_voice_given_as_an_object_is_echoed_as_its_name() -> None:
    driver = Driver({"audio": {"output": {"voice": {"id": "other"}}}})
    assert driver.last(events.SessionUpdated).session.audio.output.voice == "other"  # type: ignore[union-attr]
    driver.do(client.ResponseCreate(response={"audio": {"output": {"voice": {"id": "heart"}}}}))
    assert driver.last(events.ResponseCreated).response.audio.output.voice == "heart"
    driver.update({"audio": {"output": {"voice": {"name": "other"}}}})
    assert driver.last(events.ErrorEvent).error.param == "session.audio.output.voice"


def test_a_prompt_becomes_the_instructions_and_instructions_beside_it_win() -> None:
    driver = Driver({"prompt": {"id": "guide", "variables": {"city": "Paris"}}}, prompts=PROMPTS)
    assert driver.machine.session.instructions == "You know Paris."  # type: ignore[union-attr]
    driver.update({"prompt": {"id": "guide", "version": "1"}})
    assert driver.machine.session.instructions == "You are a guide."  # type: ignore[union-attr]
    driver.do(client.ResponseCreate())
    assert driver.context() == [("system", "You are a guide.")]
    driver.finish()
    driver.do(client.ResponseCreate(response={"prompt": {"id": "guide", "variables": {"city": "Rome"}}}))
    assert driver.context() == [("system", "You know Rome.")]
    driver.update({"prompt": {"id": "guide", "version": "1"}, "instructions": "Whisper."})
    assert driver.machine.session.instructions == "Whisper."  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ({"id": "nobody"}, "invalid_value", "prompt.id"),
        ({"id": "guide", "version": "9"}, "invalid_value", "prompt.version"),
        ({"id": "guide"}, "missing_required_parameter", "prompt.variables.city"),
        ({"id": "guide", "version": "1", "variables": {"x": "y"}}, "unknown_parameter", "prompt.variables.x"),
        ({"version": "1"}, "missing_required_parameter", "prompt.id"),
    ],
)
@pytest.mark.parametrize("stored", [True, False])
def test_a_prompt_that_is_not_stored_is_refused(prompt: dict[str, Any], code: str, param: str, stored: bool) -> None:
    if not stored:
        prompt = {"id": "guide"}
        code, param = "invalid_value", "prompt.id"
    driver = Driver(prompts=PROMPTS if stored else None)
    before = driver.machine.session
    for where, event in (
        ("session", client.SessionUpdate(session={"prompt": prompt})),
        ("response", client.ResponseCreate(response={"prompt": prompt})),
    ):
        (error,) = driver.do(event)
        assert isinstance(error, events.ErrorEvent)
        assert (error.error.code, error.error.param) == (code, f"{where}.{param}")
    assert driver.machine.session == before


def test_logprobs_of_a_recogniser_that_gives_none_are_refused() -> None:
    driver = Driver()
    driver.update({"include": ["item.input_audio_transcription.logprobs"]})
    assert driver.last(events.ErrorEvent).error.param == "session.include"
