"""Errors as clients key on them (``realtime-protocol`` section 6): code, words, field and cause, one row each."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from session_driver import Driver, silence, speech

import duologue.engine
import duologue.realtime
import duologue.sessions
from duologue.realtime import wire
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits

Prepare = Callable[[Driver], None]


def nothing(driver: Driver) -> None:
    """The session as it begins."""


def answering(driver: Driver) -> None:
    driver.do(client.ResponseCreate())


def manual(driver: Driver) -> None:
    driver.update({"audio": {"input": {"turn_detection": None}}})


def ten_ms(driver: Driver) -> None:
    manual(driver)
    driver.say(speech(10))


def a_spoken_answer(driver: Driver) -> None:
    """Of 1000 ms, in the item ``item_5``."""
    driver.spoken_turn(ms=1000)


def a_message(driver: Driver) -> None:
    driver.do(wire.decode('{"type":"conversation.item.create","item":' + MESSAGE + "}"))


MESSAGE = '{"type":"message","id":"a","role":"user","content":[{"type":"input_text","text":"Hi"}]}'
ANSWERED = "{answered}"
"""Stands for the id of the answer's item."""


@dataclass(frozen=True)
class Row:
    event: str
    """The offending event, without its braces and its ``event_id``."""
    code: str
    message: str
    """A regular expression for the whole message."""
    param: str | None = None
    before: Prepare = nothing


ROWS = [
    Row(
        '"type":"response.create"',
        "conversation_already_has_active_response",
        r"Conversation already has an active response in progress: resp_\w+\. "
        r"Wait until the response is finished before creating a new one\.",
        before=answering,
    ),
    Row('"type":"response.cancel"', "response_cancel_not_active", "Cancellation failed: no active response found"),
    Row(
        '"type":"response.cancel","response_id":"resp_x"',
        "response_cancel_not_active",
        "Cancellation failed: no active response found",
        before=answering,
    ),
    Row(
        '"type":"conversation.item.retrieve","item_id":"x"',
        "item_retrieve_invalid_item_id",
        r"Error retrieving item: the item with id 'x' does not exist\.",
        "item_id",
    ),
    *(
        Row(
            '"type":"input_audio_buffer.commit"',
            "input_audio_buffer_commit_empty",
            r"Error committing input audio buffer: buffer too small\. "
            rf"Expected at least 100ms of audio, but buffer only has {held}ms of audio\.",
            before=before,
        )
        for before, held in ((nothing, r"0\.00"), (manual, r"0\.00"), (ten_ms, r"10\.00"))
    ),
    Row(
        f'"type":"conversation.item.create","item":{MESSAGE}',
        "item_create_duplicate_item_id",
        r"An item 'a' already exists\.",
        "item.id",
        a_message,
    ),
    Row(
        f'"type":"conversation.item.create","previous_item_id":"x","item":{MESSAGE}',
        "item_create_invalid_previous_item_id",
        r"Previous item with id 'x' not found\.",
        "previous_item_id",
    ),
    Row(
        '"type":"conversation.item.delete","item_id":"x"',
        "item_delete_invalid_item_id",
        r"Error deleting item: the item with id 'x' does not exist\.",
        "item_id",
    ),
    Row(
        '"type":"conversation.item.truncate","item_id":"x","content_index":0,"audio_end_ms":0',
        "item_truncate_invalid_item_id",
        r"Item with item_id not found: x",
        "item_id",
    ),
    Row(
        f'"type":"conversation.item.truncate","item_id":"{ANSWERED}","content_index":0,"audio_end_ms":1500',
        "invalid_value",
        r"Audio content of 1000ms is already shorter than 1500ms",
        "audio_end_ms",
        a_spoken_answer,
    ),
    Row(
        '"type":"conversation.item.truncate","item_id":"a","content_index":0,"audio_end_ms":0',
        "invalid_value",
        r"Only the assistant's audio can be truncated\.",
        "item_id",
        a_message,
    ),
    Row(
        '"type":"session.begin"', "invalid_event", r"Unknown event type 'session\.begin'\. Supported types: .*", "type"
    ),
    Row(
        '"type":"session.update","session":{"max_output_tokens":0}',
        "invalid_value",
        r"Invalid value for 'session\.max_output_tokens': .*",
        "session.max_output_tokens",
    ),
    Row(
        '"type":"conversation.item.delete"',
        "missing_required_parameter",
        r"Missing required parameter: 'item_id'\.",
        "item_id",
    ),
    Row(
        '"type":"session.update","session":{"modalities":["text"]}',
        "unknown_parameter",
        r"Unknown parameter: 'session\.modalities'\.",
        "session.modalities",
    ),
    Row(
        '"type":"session.update","session":{"audio":{"output":{"voice":"other"}}}',
        "cannot_update_voice",
        r"The voice cannot be changed once the session has produced audio\.",
        "session.audio.output.voice",
        a_spoken_answer,
    ),
    Row(
        '"type":"session.update","session":{"audio":{"output":{"speed":1.2}}}',
        "invalid_value",
        r"The speed can only be changed between turns\.",
        "session.audio.output.speed",
        answering,
    ),
    Row('"type":"output_audio_buffer.clear"', "invalid_event", r".*is for WebRTC and SIP.*", "type"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}-{row.before.__name__}")
def test_each_error_is_what_clients_key_on(row: Row) -> None:
    driver = Driver()
    row.before(driver)
    done = driver.all(events.OutputItemDone)
    text = row.event.replace(ANSWERED, str(done[-1].item.id) if done else "")
    session, items = driver.machine.session, [entry.id for entry in driver.machine.conversation]
    (event,) = driver.do(wire.decode('{"event_id":"mine",' + text + "}"))
    assert isinstance(event, events.ErrorEvent)
    error = event.error
    assert (error.type, error.code, error.param, error.event_id) == (
        "invalid_request_error",
        row.code,
        row.param,
        "mine",
    )
    assert re.fullmatch(row.message, error.message)
    assert (driver.machine.session, [entry.id for entry in driver.machine.conversation]) == (session, items)
    driver.update({"instructions": "The session lives."})
    assert isinstance(driver.sent[-1], events.SessionUpdated)


def test_an_expired_session_says_so_in_the_words_that_clients_know() -> None:
    driver = Driver(limits=Limits(max_duration_s=3600))
    driver.wait(3601)
    error = driver.last(events.ErrorEvent).error
    assert (error.type, error.code) == ("invalid_request_error", "session_expired")
    assert error.message == "Your session hit the maximum duration of 60 minutes."
    assert driver.closed is not None
    assert (driver.closed.code, driver.closed.reason) == (1001, error.message)


def test_a_failed_transcription_has_its_own_event_and_no_nulls() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("", reason="failed")
    assert json.loads(wire.encode(driver.last(events.TranscriptionFailed)))["error"] == {
        "type": "transcription_error",
        "code": "audio_unintelligible",
        "message": "The audio could not be transcribed.",
    }


def test_a_fault_of_ours_is_a_server_error() -> None:
    driver = Driver()
    driver.do(client.ResponseCreate())
    driver.finish(reason="failed", error="The stage broke.")
    assert driver.last(events.ErrorEvent).error.type == "server_error"
    details = driver.last(events.ResponseDone).response.status_details
    assert details is not None
    assert details.error.type == "server_error"  # type: ignore[union-attr]


def test_the_plain_error_names_every_field_also_where_it_is_null() -> None:
    driver = Driver()
    driver.do(wire.decode("garbage"))
    text = wire.encode(driver.last(events.ErrorEvent))
    assert '"param":null' in text
    assert '"event_id":null' in text


FATAL = ("insufficient_quota", "credit_balance_exhausted", "invalid_api_key", "account_deactivated")
"""Codes after which LiveKit never connects again: they must not stand for a condition of this server."""


@pytest.mark.parametrize("package", [duologue.sessions, duologue.realtime, duologue.engine])
def test_no_code_that_ends_a_client_for_good_is_ever_used(package: Any) -> None:
    folder = Path(inspect.getfile(package)).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    assert not [code for code in (*FATAL, "billing_hard_limit_reached") if code in text]
