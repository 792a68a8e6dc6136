"""How a session ends: its time is up, its client is silent, somebody hangs it up. What was running ends before it."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import Driver, silence, speech

from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import CloseSession, HangUp


def answering(limits: Limits | None = None) -> Driver:
    """A session in the middle of an answer, and of another one beside it."""
    driver = Driver(limits=limits)
    driver.do(client.ResponseCreate())
    driver.write("Once upon a time")
    driver.do(client.ResponseCreate(response={"conversation": "none"}))
    return driver


def test_at_its_end_a_session_ends_its_responses_says_why_and_closes_with_1001() -> None:
    driver = answering(Limits(max_duration_s=60))
    driver.wait(60)
    outcomes = [
        (done.response.status, done.response.status_details.error.code) for done in driver.all(events.ResponseDone)
    ]  # type: ignore[union-attr]
    assert outcomes == [("failed", "session_expired")] * 2
    assert isinstance(driver.sent[-1], events.ErrorEvent)
    assert driver.sent[-1].error.code == "session_expired"
    assert driver.closed == CloseSession(1001, "Your session hit the maximum duration of 1 minutes.")
    assert len(driver.aborted) == 2


def test_hanging_up_ends_a_session_at_once_with_1000() -> None:
    driver = answering()
    driver.do(HangUp())
    assert [done.response.status for done in driver.all(events.ResponseDone)] == ["cancelled"] * 2
    assert driver.closed is not None
    assert driver.closed.code == 1000
    assert driver.do(client.InputAudioClear()) == []


def test_a_client_may_be_silent_for_ever_unless_the_server_says_otherwise() -> None:
    driver = Driver()
    driver.wait(3500)
    assert driver.closed is None


@pytest.mark.parametrize("alive", [client.InputAudioAppend(audio=silence(20)), client.ResponseCancel()])
def test_fc_128_a_client_that_says_nothing_is_let_go_of(alive: Any) -> None:
    driver = Driver(limits=Limits(max_idle_s=30))
    for _ in range(10):
        driver.wait(29)
        driver.do(alive)
    driver.wait(29.9)
    assert driver.closed is None
    driver.wait(0.2)
    assert driver.last(events.ErrorEvent).error.code == "duologue.session_idle"
    assert driver.closed is not None
    assert driver.closed.code == 1001


def test_a_client_that_listens_to_a_long_answer_is_not_idle() -> None:
    driver = Driver(limits=Limits(max_idle_s=30))
    driver.do(client.ResponseCreate())
    driver.write("A very long story.")
    driver.wait(100)
    assert driver.closed is None
    driver.finish()
    driver.wait(61)
    assert driver.closed is not None


# -- limits of what it holds -------------------------------------------------------------------------------------------


def tool(number: int, size: int = 0) -> dict[str, Any]:
    parameters = {"type": "object", "description": "x" * size}
    return {"type": "function", "name": f"tool_{number}", "description": "", "parameters": parameters}


@pytest.mark.parametrize(
    ("allowed", "refused", "words"),
    [
        ([tool(n) for n in range(128)], [tool(n) for n in range(129)], "128"),
        ([tool(0, 200_000)], [tool(0, 270_000)], "262144"),
    ],
)
def test_tools_are_limited_in_number_and_size(allowed: Any, refused: Any, words: str) -> None:
    driver = Driver(can_call_tools=True)
    (answer,) = driver.update({"tools": refused})
    assert isinstance(answer, events.ErrorEvent)
    assert answer.error.param == "session.tools"
    assert words in answer.error.message
    (answer,) = driver.update({"tools": allowed})
    assert isinstance(answer, events.SessionUpdated)


def test_a_quarter_of_an_hour_can_be_buffered_by_hand_and_committed() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": None}}}, transcription=False)
    for _ in range(15):
        driver.do(client.InputAudioAppend(audio=speech(60_000)))
    assert driver.all(events.ErrorEvent) == []
    driver.do(client.InputAudioAppend(audio=speech(1000)))
    (answer,) = driver.do(client.InputAudioAppend(audio=speech(1000)))
    assert isinstance(answer, events.ErrorEvent)
    assert "900 s" in answer.error.message
    kinds = [type(event) for event in driver.do(client.InputAudioCommit())]
    assert kinds == [events.InputAudioCommitted, events.ItemAdded, events.ItemDone]
