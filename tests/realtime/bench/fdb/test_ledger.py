"""What makes a replay fail, and what is only odd."""

from __future__ import annotations

import pytest

from duologue.realtime.bench.fdb.ledger import check
from duologue.realtime.event_log import LogEntry

CREATED = {"type": "response.created", "response": {"id": "R"}}
DONE = {"type": "response.done", "response": {"id": "R", "status": "completed"}}
SOUND = {"type": "response.output_audio.delta", "response_id": "R", "bytes": 480}


def log(*events: dict, dir: str = "s2c") -> list[LogEntry]:
    return [LogEntry(dir, 0.0, event) for event in events]  # type: ignore[arg-type]


def test_an_answer_from_created_to_done_is_in_order():
    verdict = check(log(CREATED, SOUND, DONE, {"type": "something.new"}))
    assert (verdict.failures, verdict.warnings) == ([], [])


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ([CREATED, CREATED, DONE], "created twice"),
        ([CREATED, DONE, DONE], "done twice"),
        ([DONE], "before it was created"),
        ([CREATED], "never done"),
        ([SOUND], "without an open response"),
        ([CREATED, DONE, SOUND], "without an open response"),
        ([CREATED, SOUND | {"bytes": 481}, DONE], "481 bytes"),
        ([CREATED, SOUND | {"bytes": 0}, DONE], "0 bytes"),
        ([CREATED, {"type": "response.done", "response": {"id": "R", "status": "failed"}}], "a response failed"),
        ([{"type": "error", "error": {"code": "server_error", "message": "no"}}], "server_error: no"),
    ],
)
def test_each_way_to_fail(events: list[dict], failure: str):
    (text,) = check(log(*events)).failures
    assert failure in text


def test_a_broken_connection_and_a_timeout_fail_with_their_words():
    notes = log({"type": "connection.lost", "message": "gone"}, {"type": "timeout"}, dir="note")
    assert check(notes).failures == ["gone", "timeout"]


def test_errors_that_a_client_brings_on_itself_are_warnings():
    truncate = log({"type": "conversation.item.truncate", "event_id": "truncate_1"}, dir="c2s")
    refused = {"type": "error", "error": {"code": "x", "message": "too late", "event_id": "truncate_1"}}
    idle = {"type": "error", "error": {"code": "response_cancel_not_active", "message": "none"}}
    verdict = check([*truncate, *log(refused, idle)])
    assert verdict.failures == []
    assert len(verdict.warnings) == 2
    assert check(log(refused)).failures == ["error x: too late"]


def test_an_answer_that_crossed_the_hanging_up_need_not_end():
    hung_up = log({"type": "connection.hung_up"}, dir="note")
    assert check([*hung_up, *log(CREATED, SOUND)]).failures == []
    assert check([*log(CREATED, SOUND), *hung_up]).failures == ["a response was never done"]
