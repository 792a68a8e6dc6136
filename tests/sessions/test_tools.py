"""Function calls: the order of their events, what of them the model sees again, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import Driver, silence, speech

from duologue.engine.requests import Converse, NamedTool, Tool, ToolCall
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.items import FunctionCallItem, FunctionCallOutputItem, InputText, MessageItem
from duologue.sessions.prompting import NO_RESULT_YET

WEATHER = {
    "type": "function",
    "name": "look_up",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def with_tools(**patch: Any) -> Driver:
    return Driver({"tools": [WEATHER], **patch}, can_call_tools=True)


def asked(driver: Driver, text: str = "Weather?", **response: object) -> int:
    """A typed question; returns where its answer begins in what is sent."""
    driver.do(client.ItemCreate(item=MessageItem(role="user", content=(InputText(text=text),))))
    seen = len(driver.sent)
    driver.do(client.ResponseCreate(response=response))
    return seen


def gives(driver: Driver, call_id: str, output: str) -> None:
    driver.do(client.ItemCreate(item=FunctionCallOutputItem(call_id=call_id, output=output)))


def calls(driver: Driver) -> list[FunctionCallItem]:
    output = driver.last(events.ResponseDone).response.output
    return [item for item in output if isinstance(item, FunctionCallItem)]


def test_fc_089_o21_the_events_of_a_call() -> None:
    driver = with_tools()
    seen = asked(driver)
    driver.call('{"city":')
    driver.call('"Paris"}')
    driver.finish()
    assert driver.kinds()[seen:] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    for added in (driver.last(events.OutputItemAdded).item, driver.last(events.ItemAdded).item):
        assert isinstance(added, FunctionCallItem)
        assert (added.name, added.status, added.arguments) == ("look_up", "in_progress", "")
    done = driver.last(events.FunctionCallArgumentsDone)
    assert (done.arguments, done.name) == ('{"city":"Paris"}', "look_up")
    for item in (driver.last(events.ItemDone).item, driver.last(events.OutputItemDone).item, *calls(driver)):
        assert isinstance(item, FunctionCallItem)
        assert (item.status, item.arguments, item.call_id) == ("completed", done.arguments, done.call_id)


def test_fc_070_words_and_a_call_are_two_items_in_order() -> None:
    driver = with_tools()
    seen = asked(driver)
    driver.write("Let me see.")
    driver.call("{")
    driver.speak(800)
    driver.call("}")
    driver.finish()
    assert driver.kinds()[seen:] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    message, call = driver.last(events.ResponseDone).response.output
    assert isinstance(message, MessageItem)
    assert isinstance(call, FunctionCallItem)
    assert [entry.id for entry in driver.machine.conversation][-2:] == [message.id, call.id]
    assert [event.output_index for event in driver.all(events.OutputItemDone)] == [0, 1]
    gives(driver, str(call.call_id), "sunny")
    driver.do(client.ResponseCreate())
    _, _, words, result = driver.asked().messages
    assert (words.text, words.tool_calls) == (
        "Let me see.",
        (ToolCall(call_id=str(call.call_id), name="look_up", arguments="{}"),),
    )
    assert (result.role, result.text, result.tool_call_id) == ("tool", "sunny", call.call_id)


def test_fc_087_the_words_before_a_call_are_spoken_to_their_end() -> None:
    driver = with_tools()
    asked(driver)
    driver.write("Let me see.")
    driver.call("{}")
    for _ in range(3):
        driver.speak(500)
    assert not driver.all(events.FunctionCallArgumentsDone)
    driver.finish()
    assert sum(len(event.delta) for event in driver.all(events.OutputAudioDelta)) == 3 * 24_000


def test_words_after_a_call_close_it() -> None:
    driver = with_tools()
    asked(driver)
    driver.call("{}", "0")
    driver.write("I have asked.")
    assert driver.last(events.OutputItemDone).item.status == "completed"
    driver.call("late", "0")
    driver.call("{}", "1")
    driver.finish()
    kinds = [type(item) for item in driver.last(events.ResponseDone).response.output]
    assert kinds == [FunctionCallItem, MessageItem, FunctionCallItem]
    assert [call.arguments for call in calls(driver)] == ["{}", "{}"]


def test_a_call_that_nobody_has_heard_of_goes_with_the_answer_that_is_cancelled() -> None:
    driver = with_tools()
    asked(driver)
    driver.write("Let me see.")
    driver.call("{}")
    driver.do(client.ResponseCancel())
    assert calls(driver) == []
    assert not driver.all(events.FunctionCallArgumentsDone)


def test_of_a_used_up_budget_only_the_last_item_is_incomplete() -> None:
    driver = with_tools(output_modalities=["text"])
    asked(driver)
    driver.write("Let me see.")
    driver.call("{", "0")
    driver.finish(reason="length")
    assert [item.status for item in driver.last(events.ResponseDone).response.output] == ["completed", "incomplete"]


def test_fc_087_a_turn_without_the_result_is_answered() -> None:
    driver = with_tools()
    asked(driver)
    driver.call("{}")
    driver.finish()
    driver.say(speech(600), silence(800))
    driver.transcribe("Never mind.")
    assert [(m.role, m.text) for m in driver.asked().messages][2:] == [
        ("assistant", ""),
        ("tool", NO_RESULT_YET),
        ("user", "Never mind."),
    ]
    driver.answer("All right.")
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_fc_090_parallel_calls_keep_apart_and_get_one_follow_up() -> None:
    driver = with_tools()
    asked(driver, "Paris and New York?")
    driver.call('{"city":', "0")
    driver.call('{"city":', "1")
    driver.call('"Paris"}', "0")
    driver.call('"New York"}', "1")
    driver.finish()
    paris, new_york = calls(driver)
    assert (paris.arguments, new_york.arguments) == ('{"city":"Paris"}', '{"city":"New York"}')
    assert paris.call_id != new_york.call_id
    gives(driver, str(new_york.call_id), "rain")
    gives(driver, str(paris.call_id), "sun")
    assert len(driver.all(events.ResponseCreated)) == 1, "O22: nothing happens by itself"
    driver.do(client.ResponseCreate())
    _, _, both, first, second = driver.asked().messages
    assert [call.call_id for call in both.tool_calls] == [paris.call_id, new_york.call_id]
    assert [(first.text, first.tool_call_id), (second.text, second.tool_call_id)] == [
        ("sun", paris.call_id),
        ("rain", new_york.call_id),
    ]


def test_the_same_name_for_two_calls_of_an_engine_is_two_ids_for_the_client() -> None:
    driver = with_tools()
    for _ in range(2):
        asked(driver)
        driver.call("{}", "call_0")
        driver.finish()
    ids = {event.call_id for event in driver.all(events.FunctionCallArgumentsDone)}
    assert len(ids) == 2


def test_a_call_that_is_broken_off_is_incomplete_and_not_shown_again() -> None:
    driver = with_tools()
    asked(driver)
    driver.call('{"ci')
    driver.do(client.ResponseCancel())
    (call,) = calls(driver)
    assert (call.status, call.arguments) == ("incomplete", '{"ci')
    asked(driver, "Again.")
    assert driver.context() == [("system", "Be brief."), ("user", "Weather?"), ("user", "Again.")]


def test_out_of_band_calls_stay_out_of_the_conversation() -> None:
    driver = with_tools()
    seen = asked(driver, conversation="none")
    driver.call("{}")
    driver.finish()
    assert not [kind for kind in driver.kinds()[seen:] if kind.startswith("conversation.")]
    assert calls(driver)
    assert len(driver.machine.conversation) == 1


def test_tools_reach_the_engine_and_overrides_hold_for_one_response() -> None:
    driver = with_tools(tool_choice="required", parallel_tool_calls=False, reasoning={"effort": "low"})
    asked(driver)
    request = driver.asked()
    tool = Tool(name="look_up", description=WEATHER["description"], parameters=WEATHER["parameters"])  # type: ignore[arg-type]
    assert (request.tools, request.tool_choice) == ((tool,), "required")
    assert (request.parallel_tool_calls, request.reasoning_effort) == (False, "low")
    driver.finish()
    asked(driver, tool_choice={"type": "function", "name": "look_up"}, parallel_tool_calls=True)
    assert driver.asked().tool_choice == NamedTool(name="look_up")
    assert driver.asked().parallel_tool_calls is True
    driver.finish()
    asked(driver, tool_choice="none")
    assert driver.asked().tools == ()
    driver.finish()
    asked(driver, tools=[])
    assert (driver.asked().tools, driver.asked().tool_choice) == ((), "auto")


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [{**WEATHER, "name": f"f{i}"} for i in range(200)]}, "tools"),
        ({"tools": [{**WEATHER, "description": "d" * 300_000}]}, "tools"),
        ({"tools": [{**WEATHER, "parameters": {"maximum": 10**30}}]}, "tools"),
    ],
)
def test_tools_that_cannot_be_used_are_refused(patch: dict[str, Any], param: str) -> None:
    driver = Driver(can_call_tools=True)
    (error,) = driver.do(client.SessionUpdate(session=patch))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == f"session.{param}"
    (error,) = driver.do(client.ResponseCreate(response=patch))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == f"response.{param}"


def test_a_model_without_tools_says_so() -> None:
    driver = Driver()
    (error,) = driver.do(client.ResponseCreate(response={"tools": [WEATHER]}))
    assert isinstance(error, events.ErrorEvent)
    assert "cannot call tools" in error.error.message


@pytest.mark.parametrize("known", [False, True])
def test_a_result_needs_its_call(known: bool) -> None:
    driver = with_tools()
    if known:
        call = FunctionCallItem(name="look_up", arguments="{}", call_id="call_x")
        driver.do(client.ItemCreate(item=call))
    gives(driver, "call_x", "sunny")
    assert bool(driver.all(events.ErrorEvent)) is not known


def test_a_result_has_a_limit() -> None:
    driver = with_tools()
    driver.do(client.ItemCreate(item=FunctionCallItem(name="look_up", arguments="{}", call_id="call_x")))
    gives(driver, "call_x", "x" * 100_001)
    assert driver.last(events.ErrorEvent).error.param == "item.output"
    assert len(driver.machine.conversation) == 1


def test_a_result_is_not_a_call() -> None:
    driver = with_tools()
    driver.do(client.ItemCreate(item=FunctionCallItem(id="c", name="look_up", arguments="{}", call_id="call_x")))
    gives(driver, "call_x", "sunny")
    driver.do(client.ItemDelete(item_id="c"))
    gives(driver, "call_x", "sunny")
    assert driver.last(events.ErrorEvent).error.param == "item.call_id"


def test_deleting_a_call_in_progress_names_it_no_more() -> None:
    driver = with_tools()
    asked(driver)
    driver.call("{}")
    item_id = str(driver.last(events.OutputItemAdded).item.id)
    driver.do(client.ItemDelete(item_id=item_id))
    driver.finish()
    assert item_id not in [event.item.id for event in driver.all(events.ItemDone)]
    assert not driver.pending(Converse)


@pytest.mark.parametrize("words", ["", "Let me see."])
@pytest.mark.parametrize("allowed", [False, True])
def test_parallel_calls_can_be_forbidden(allowed: bool, words: str) -> None:
    driver = with_tools(parallel_tool_calls=allowed)
    asked(driver)
    if words:
        driver.write(words)
    driver.call('{"city":', "0")
    driver.call('{"city":"Rome"}', "1")
    driver.call('"Paris"}' if words else "", "0")
    driver.finish()
    arguments = [call.arguments for call in calls(driver)]
    first = '{"city":"Paris"}' if words else '{"city":'
    assert arguments == [first] + ['{"city":"Rome"}'] * allowed


def test_a_call_cannot_be_required_without_tools() -> None:
    driver = Driver({"tool_choice": "required"}, can_call_tools=True)
    asked(driver)
    assert driver.asked().tool_choice == "auto"
    driver.finish()
    (error,) = driver.do(client.ResponseCreate(response={"tool_choice": "required"}))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "response.tool_choice"
