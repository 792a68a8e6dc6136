"""A conversation longer than the context: what the model is still shown, and what a client is told."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import Driver, silence, speech

from duologue.engine.requests import ChatMessage, Converse, Tool
from duologue.engine.text.context import estimated_tokens
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.context_window import fixed_tokens
from duologue.sessions.items import FunctionCallItem, FunctionCallOutputItem, InputText, MessageItem

WORDS = "w" * 285
COST = 100
"""Estimated tokens of a message of these words: 5 and a third of its bytes."""
FIXED = estimated_tokens(ChatMessage(role="system", text="Be brief."))


def long_conversation(truncation: Any, count: int, room: int | None = 5 * COST, **kwargs: Any) -> Driver:
    limit = None if room is None else room + FIXED
    driver = Driver({"truncation": truncation}, limits=Limits(context_tokens=limit), **kwargs)
    for index in range(count):
        say(driver, index)
    return driver


def say(driver: Driver, index: int) -> None:
    text = f"{index:03d}{WORDS[3:]}"
    driver.do(client.ItemCreate(item=MessageItem(id=f"m{index}", role="user", content=(InputText(text=text),))))


def shown(driver: Driver) -> list[int]:
    """Numbers of the messages that the model gets for an answer."""
    driver.do(client.ResponseCreate())
    numbers = [int(text[:3]) for role, text in driver.context() if role == "user"]
    driver.do(client.ResponseCancel())
    return numbers


def test_what_fits_is_shown_whole() -> None:
    assert shown(long_conversation("auto", 5)) == [0, 1, 2, 3, 4]


def test_auto_leaves_out_the_oldest_and_keeps_the_instructions() -> None:
    driver = long_conversation("auto", 7)
    assert shown(driver) == [2, 3, 4, 5, 6]
    assert driver.context()[0] == ("system", "Be brief.")
    assert len(driver.machine.conversation) == 7, "the items themselves stay"
    driver.do(client.ItemRetrieve(item_id="m0"))
    assert driver.last(events.ItemRetrieved).item.id == "m0"


def test_a_ratio_cuts_further_so_that_the_next_turns_begin_alike() -> None:
    driver = long_conversation({"type": "retention_ratio", "retention_ratio": 0.6}, 6)
    assert shown(driver) == [3, 4, 5]
    say(driver, 6)
    assert shown(driver) == [3, 4, 5, 6]
    say(driver, 7)
    assert shown(driver) == [3, 4, 5, 6, 7]
    say(driver, 8)
    assert shown(driver) == [6, 7, 8]


def test_what_was_left_out_stays_out_when_there_is_room_again() -> None:
    driver = long_conversation("auto", 7)
    assert shown(driver)[0] == 2
    for index in (3, 4):
        driver.do(client.ItemDelete(item_id=f"m{index}"))
    assert shown(driver) == [2, 5, 6]


def test_a_clients_own_token_limit_counts() -> None:
    limits = {"post_instructions": 2 * COST}
    driver = long_conversation({"type": "retention_ratio", "retention_ratio": 1.0, "token_limits": limits}, 4, None)
    assert shown(driver) == [2, 3]


def test_without_a_limit_nothing_is_left_out_here() -> None:
    assert len(shown(long_conversation("auto", 50, None))) == 50


def test_the_last_item_is_always_shown() -> None:
    assert shown(long_conversation("auto", 3, COST // 2)) == [2]


def test_disabled_fails_the_response_and_nothing_else() -> None:
    driver = long_conversation("disabled", 6)
    driver.do(client.ResponseCreate(event_id="r"))
    error = driver.last(events.ErrorEvent).error
    assert error.code == "context_length_exceeded"
    response = driver.last(events.ResponseDone).response
    assert response.status == "failed"
    assert response.status_details.error.code == "context_length_exceeded"  # type: ignore[union-attr]
    assert not driver.requests
    driver.do(client.ItemDelete(item_id="m0"))
    assert shown(driver) == [1, 2, 3, 4, 5]


def test_disabled_fails_a_spoken_turn_too_also_one_prepared_in_secret() -> None:
    driver = long_conversation("disabled", 6, speculate=True)
    driver.say(speech(640), silence(256))
    driver.transcribe("Hello.")
    assert not driver.pending(Converse)
    assert not driver.all(events.ErrorEvent)
    driver.say(silence(320))
    assert driver.last(events.ResponseDone).response.status == "failed"
    assert not driver.machine._answering.busy


def test_the_input_of_a_response_is_cut_without_a_trace() -> None:
    driver = long_conversation("auto", 5)
    references = [{"type": "item_reference", "id": f"m{index}"} for index in (0, 1, 2, 3, 4, 0)]
    driver.do(client.ResponseCreate(response={"conversation": "none", "input": references}))
    assert [int(text[:3]) for role, text in driver.context() if role == "user"] == [1, 2, 3, 4, 0]
    assert shown(driver) == [0, 1, 2, 3, 4]


def test_a_result_is_left_out_with_its_call() -> None:
    driver = long_conversation("auto", 0, 2 * COST)
    driver.do(client.ItemCreate(item=FunctionCallItem(name="f", arguments=WORDS, call_id="c")))
    driver.do(client.ItemCreate(item=FunctionCallOutputItem(call_id="c", output="ok")))
    say(driver, 0)
    say(driver, 1)
    assert shown(driver) == [0, 1]
    assert [role for role, _ in driver.context()] == ["system", "user", "user"]


def test_tools_take_room() -> None:
    assert fixed_tokens("", ()) == 0
    assert fixed_tokens("Be brief.", (Tool(name="look_up"),)) > fixed_tokens("Be brief.", ())


@pytest.mark.parametrize(
    ("truncation", "param"),
    [
        ("sometimes", "session.truncation"),
        ({"type": "retention_ratio"}, "session.truncation.retention_ratio"),
        ({"type": "retention_ratio", "retention_ratio": 2}, "session.truncation.retention_ratio"),
        ({"type": "other", "retention_ratio": 1}, "session.truncation.type"),
    ],
)
def test_a_wrong_truncation_is_named(truncation: Any, param: str) -> None:
    driver = Driver()
    driver.update({"truncation": truncation})
    assert driver.last(events.ErrorEvent).error.param == param


def test_the_kind_of_truncation_can_be_changed_back() -> None:
    driver = Driver({"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}})
    driver.update({"truncation": "auto"})
    assert driver.machine.session.truncation == "auto"  # type: ignore[union-attr]
