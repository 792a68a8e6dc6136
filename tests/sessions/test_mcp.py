"""Tools of MCP servers: lists, calls inside a response, approvals, and what the model is shown of them."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import Driver, silence, speech

from duologue.engine.requests import NamedTool, Tool, ToolCall
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import AbandonCall, CallTool, ListTools, McpEndpoint, ToolAnswered, ToolsListed
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    InputText,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpHttpError,
    McpListToolsItem,
    McpTool,
    MessageItem,
)
from duologue.sessions.mcp.policy import Connector, McpPolicy, McpRules
from duologue.sessions.prompting import NO_RESULT_YET, NOT_DECIDED_YET, REFUSED
from duologue.sessions.tool_settings import McpServer

URL = "https://tools.example/mcp"
POLICY = McpPolicy(
    McpRules(
        allowed_urls=("https://*.example/mcp",),
        connectors={"connector_gmail": Connector("https://mail.test/mcp", {"X-Key": "ours"})},
    )
)
SERVER = {"type": "mcp", "server_label": "docs", "server_url": URL, "require_approval": "never"}
SEARCH = McpTool(name="search", description="Finds pages.", input_schema={"type": "object"})
DELETE = McpTool(name="delete", description="Deletes a page.", annotations={"destructiveHint": True})
READ = McpTool(name="read", annotations={"readOnlyHint": True})


def with_server(listed: tuple[McpTool, ...] | None = (SEARCH,), limits: Limits | None = None, **server: Any) -> Driver:
    driver = Driver({"tools": [SERVER | server]}, can_call_tools=True, mcp=POLICY, limits=limits)
    driver.do(ToolsListed(driver.effects_of(ListTools)[0].item_id, listed))
    return driver


def asked(driver: Driver, text: str = "What is new?", **response: object) -> int:
    driver.do(client.ItemCreate(item=MessageItem(role="user", content=(InputText(text=text),))))
    seen = len(driver.sent)
    driver.do(client.ResponseCreate(response=response))
    return seen


def searches(driver: Driver, arguments: str = '{"q":"news"}') -> CallTool:
    """The model calls ``search`` and ends; returns the call that leaves for the server."""
    driver.call(arguments, name="search")
    driver.finish()
    return driver.effects_of(CallTool)[-1]


def refusal(driver: Driver, patch: dict[str, Any]) -> tuple[str | None, str]:
    error = driver.update(patch)[-1]
    assert isinstance(error, events.ErrorEvent)
    return error.error.param, error.error.message


def test_a_server_that_the_session_names_is_asked_for_its_tools() -> None:
    driver = Driver(can_call_tools=True, mcp=POLICY)
    seen = len(driver.sent)
    driver.update({"tools": [SERVER]})
    assert driver.kinds()[seen:] == ["session.updated", "conversation.item.added", "mcp_list_tools.in_progress"]
    [wish] = driver.effects_of(ListTools)
    assert wish.server == McpEndpoint(URL)
    driver.do(client.ItemRetrieve(item_id=wish.item_id))
    assert driver.last(events.ItemRetrieved).item == McpListToolsItem(id=wish.item_id, server_label="docs")
    assert [type(event) for event in driver.do(ToolsListed(wish.item_id, (SEARCH,)))] == [
        events.McpListToolsCompleted,
        events.ItemDone,
    ]
    assert driver.last(events.ItemDone).item == McpListToolsItem(id=wish.item_id, server_label="docs", tools=(SEARCH,))


def test_a_server_that_gives_no_list_leaves_the_session_without_its_tools() -> None:
    driver = with_server(None)
    assert driver.kinds()[-2:] == ["mcp_list_tools.failed", "conversation.item.done"]
    asked(driver)
    assert driver.asked().tools == ()


def test_only_a_new_or_moved_server_is_asked_again() -> None:
    driver = with_server()
    driver.update({"instructions": "Be kind."})
    driver.update({"tools": [SERVER | {"require_approval": "always"}]})
    assert len(driver.effects_of(ListTools)) == 1
    driver.update({"tools": [SERVER | {"authorization": "other"}]})
    assert driver.effects_of(ListTools)[-1].server == McpEndpoint(URL, (("Authorization", "Bearer other"),))
    driver.update({"tools": []})
    asked(driver)
    assert driver.asked().tools == ()


def test_what_opens_a_server_is_not_shown() -> None:
    driver = Driver(can_call_tools=True, mcp=POLICY)
    driver.update({"tools": [SERVER | {"authorization": "secret", "headers": {"X-Key": "secret"}}]})
    [shown] = driver.last(events.SessionUpdated).session.tools  # type: ignore[union-attr]
    assert isinstance(shown, McpServer)
    assert "secret" not in str(shown)
    assert "secret" not in repr(driver.effects_of(ListTools)[0])


def test_a_call_runs_inside_its_response_and_is_answered_by_another() -> None:
    driver = with_server()
    seen = asked(driver)
    assert driver.asked().tools == (Tool(name="search", description="Finds pages.", parameters={"type": "object"}),)
    wish = searches(driver)
    assert (wish.server, wish.name, wish.arguments) == (McpEndpoint(URL), "search", '{"q":"news"}')
    assert driver.kinds()[seen:] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.in_progress",
    ]
    seen = len(driver.sent)
    driver.do(ToolAnswered(wish.item_id, "Rain."))
    assert driver.kinds()[seen:] == [
        "response.mcp_call.completed",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
        "response.created",
    ]
    item = McpCallItem(id=wish.item_id, server_label="docs", name="search", arguments='{"q":"news"}', output="Rain.")
    assert driver.last(events.ItemDone).item == item
    assert driver.last(events.ResponseDone).response.output == (item,)
    call = ToolCall(call_id=wish.item_id, name="search", arguments='{"q":"news"}')
    assistant, result = driver.asked().messages[-2:]
    assert (assistant.tool_calls, result.role, result.text) == ((call,), "tool", "Rain.")
    driver.answer("It rains.")
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_several_calls_run_side_by_side_and_one_answer_follows() -> None:
    driver = with_server()
    asked(driver)
    driver.call("{}", key="a", name="search")
    driver.call('{"q":1}', key="b", name="search")
    driver.finish()
    first, second = driver.effects_of(CallTool)
    driver.do(ToolAnswered(second.item_id, "two"))
    assert not driver.all(events.ResponseDone)
    driver.do(ToolAnswered(first.item_id, McpHttpError(code=502, message="The server cannot be reached.")))
    assert len(driver.all(events.ResponseDone)) == 1
    assert len(driver.all(events.ResponseCreated)) == 2
    texts = [message.text for message in driver.asked().messages if message.role == "tool"]
    assert texts == ["The call failed: The server cannot be reached.", "two"]
    assert len(driver.all(events.McpCallFailed)) == len(driver.all(events.McpCallCompleted)) == 1


def test_arguments_that_are_no_object_fail_without_a_call() -> None:
    driver = with_server()
    asked(driver)
    driver.call("[1", name="search")
    driver.finish()
    assert not driver.effects_of(CallTool)
    [item] = driver.last(events.ResponseDone).response.output
    assert isinstance(item, McpCallItem)
    assert "not a JSON object" in str(item.error)


def test_words_after_a_call_are_an_item_of_their_own() -> None:
    driver = with_server()
    asked(driver)
    driver.call("{}", name="search")
    driver.write("One moment.")
    driver.speak(400)
    driver.finish()
    wish = driver.effects_of(CallTool)[0]
    driver.do(ToolAnswered(wish.item_id, "Rain."))
    output = driver.last(events.ResponseDone).response.output
    assert [type(item) for item in output] == [McpCallItem, MessageItem]


def test_an_interruption_abandons_the_call() -> None:
    driver = with_server()
    driver.say(speech(600), silence(800))
    driver.transcribe("What is new?")
    wish = searches(driver)
    driver.say(speech(600))
    done = driver.last(events.ResponseDone).response
    assert (done.status, driver.effects_of(AbandonCall)) == ("cancelled", [AbandonCall(wish.item_id)])
    [item] = done.output
    assert isinstance(item, McpCallItem)
    assert "broken off" in str(item.error)
    seen = len(driver.sent)
    assert driver.do(ToolAnswered(wish.item_id, "late")) == []
    assert len(driver.sent) == seen


def test_the_model_cannot_call_for_ever() -> None:
    driver = with_server(limits=Limits(max_tool_rounds=2))
    asked(driver)
    for _ in range(3):
        driver.do(ToolAnswered(searches(driver).item_id, "more"))
    assert len(driver.all(events.ResponseCreated)) == len(driver.all(events.ResponseDone)) == 3


def test_the_client_answers_its_own_calls_first() -> None:
    weather = {"type": "function", "name": "look_up"}
    driver = with_server()
    driver.update({"tools": [SERVER, weather]})
    asked(driver)
    driver.call("{}", key="a")
    driver.call("{}", key="b", name="search")
    driver.finish()
    driver.do(ToolAnswered(driver.effects_of(CallTool)[0].item_id, "Rain."))
    assert driver.kinds()[-1] == "response.done"
    assert len(driver.all(events.ResponseCreated)) == 1


def test_out_of_band_calls_stay_out_of_the_conversation() -> None:
    driver = with_server()
    before = len(driver.machine.conversation)
    driver.do(client.ResponseCreate(response={"conversation": "none", "metadata": {"topic": "x"}}))
    wish = searches(driver)
    driver.do(ToolAnswered(wish.item_id, "Rain."))
    assert len(driver.machine.conversation) == before
    assert driver.asked().messages[-1].text == "Rain."
    driver.answer()
    assert [event.response.metadata for event in driver.all(events.ResponseDone)] == [{"topic": "x"}] * 2


# -- approval ----------------------------------------------------------------------------------------------------------


def requested(driver: Driver) -> McpApprovalRequestItem:
    asked(driver)
    driver.call('{"q":"news"}', name="search")
    driver.finish()
    [item] = driver.last(events.ResponseDone).response.output
    assert isinstance(item, McpApprovalRequestItem)
    return item


def decide(driver: Driver, request: McpApprovalRequestItem, approve: bool, **fields: Any) -> list[events.ServerEvent]:
    item = McpApprovalResponseItem(approval_request_id=str(request.id), approve=approve, **fields)
    return driver.do(client.ItemCreate(item=item))


def test_a_call_that_needs_approval_waits_for_it() -> None:
    driver = with_server(require_approval="always")
    request = requested(driver)
    assert (request.name, request.arguments, driver.effects_of(CallTool)) == ("search", '{"q":"news"}', [])
    assert len(driver.all(events.ResponseCreated)) == 1
    sent = decide(driver, request, approve=True)
    assert [str(type(event).__struct_config__.tag) for event in sent] == [
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.added",
        "response.mcp_call.in_progress",
    ]
    [wish] = driver.effects_of(CallTool)
    driver.do(ToolAnswered(wish.item_id, "Rain."))
    assert driver.kinds()[-3:] == ["response.mcp_call.completed", "conversation.item.done", "response.created"]
    done = driver.last(events.ItemDone).item
    assert isinstance(done, McpCallItem)
    assert (done.approval_request_id, done.output) == (request.id, "Rain.")
    [call] = [call for message in driver.asked().messages for call in message.tool_calls]
    assert call.call_id == wish.item_id


def test_an_answer_that_the_client_asks_for_waits_for_the_call_it_approved() -> None:
    driver = with_server(require_approval="always")
    request = requested(driver)
    decide(driver, request, approve=True)
    driver.do(client.ResponseCreate())
    assert len(driver.all(events.ResponseCreated)) == 2
    assert not driver.requests
    driver.do(ToolAnswered(driver.effects_of(CallTool)[0].item_id, "Rain."))
    assert driver.asked().messages[-1].text == "Rain."
    driver.answer()
    assert len(driver.all(events.ResponseCreated)) == 2


def test_a_refused_call_is_told_to_the_model() -> None:
    driver = with_server(require_approval="always")
    request = requested(driver)
    decide(driver, request, approve=False, reason="Not today.")
    assert driver.effects_of(CallTool) == []
    assert driver.asked().messages[-1].text == f"{REFUSED} Not today."


def test_an_undecided_call_is_shown_as_such() -> None:
    driver = with_server(require_approval="always")
    requested(driver)
    asked(driver)
    assert NOT_DECIDED_YET in [message.text for message in driver.asked().messages]


def test_decisions_on_nothing_are_refused() -> None:
    driver = with_server(require_approval="always")
    request = requested(driver)
    decide(driver, request, approve=False)
    driver.finish()
    for wrong in (request, McpApprovalRequestItem(id="no", server_label="docs", name="search", arguments="{}")):
        [error] = decide(driver, wrong, approve=True)
        assert isinstance(error, events.ErrorEvent)
        assert error.error.param == "item.approval_request_id"
    assert driver.effects_of(CallTool) == []


@pytest.mark.parametrize(
    ("rule", "asks"),
    [
        (None, {"search", "delete", "read"}),
        ("always", {"search", "delete", "read"}),
        ("never", set()),
        ({"never": {"read_only": True}}, {"search", "delete"}),
        ({"always": {"tool_names": ["delete"]}}, {"delete"}),
        ({"never": {"tool_names": ["search"]}, "always": {"tool_names": ["delete"]}}, {"delete", "read"}),
    ],
)
def test_rules_of_approval(rule: Any, asks: set[str]) -> None:
    driver = with_server((SEARCH, DELETE, READ), require_approval=rule)
    for name in ("search", "delete", "read"):
        asked(driver)
        driver.call("{}", name=name)
        driver.finish()
        [output] = driver.all(events.OutputItemAdded)[-1:]
        assert isinstance(output.item, McpApprovalRequestItem) == (name in asks), name
        if name not in asks:
            driver.do(ToolAnswered(str(output.item.id), "done"))
            driver.answer()


# -- which tools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["search", "delete", "read"]),
        (["search", "other"], ["search"]),
        ({"read_only": True}, ["read"]),
        ({"tool_names": ["delete", "read"], "read_only": False}, ["delete"]),
        ([], []),
    ],
)
def test_allowed_tools(allowed: Any, names: list[str]) -> None:
    driver = with_server((SEARCH, DELETE, READ), allowed_tools=allowed)
    asked(driver)
    assert [tool.name for tool in driver.asked().tools] == names


def test_a_name_that_is_taken_gets_the_label_before_it() -> None:
    driver = with_server()
    driver.update({"tools": [{"type": "function", "name": "search"}, SERVER]})
    asked(driver)
    assert [tool.name for tool in driver.asked().tools] == ["search", "docs__search"]
    driver.call("{}", name="docs__search")
    driver.finish()
    assert driver.effects_of(CallTool)[0].name == "search"


def test_a_response_uses_the_servers_of_its_session_in_its_own_way() -> None:
    driver = with_server((SEARCH, READ))
    asked(driver, tools=[{"type": "mcp", "server_label": "docs", "allowed_tools": ["read"]}])
    assert [tool.name for tool in driver.asked().tools] == ["read"]
    driver.finish()
    asked(driver, tools=[{"type": "mcp", "server_label": "other", "server_url": URL}])
    assert driver.last(events.ErrorEvent).error.param == "response.tools[0].server_label"


def test_the_choice_of_a_server_or_of_one_of_its_tools() -> None:
    driver = with_server((SEARCH, READ))
    asked(driver, tool_choice={"type": "mcp", "server_label": "docs"})
    assert driver.asked().tool_choice == "required"
    driver.finish()
    asked(driver, tool_choice={"type": "mcp", "server_label": "docs", "name": "read"})
    assert driver.asked().tool_choice == NamedTool(name="read")
    driver.do(ToolAnswered(_called(driver, "read"), "text"))
    assert driver.asked().tool_choice == "auto"  # else it would call for ever
    driver.finish()
    asked(driver, tool_choice={"type": "mcp", "server_label": "docs", "name": "write"})
    assert driver.last(events.ErrorEvent).error.param == "response.tool_choice"


def _called(driver: Driver, name: str) -> str:
    driver.call("{}", name=name)
    driver.finish()
    return driver.effects_of(CallTool)[-1].item_id


def test_a_call_without_a_result_is_shown_as_such() -> None:
    driver = with_server()
    asked(driver)
    driver.call("{}", name="search")
    driver.finish()
    driver.do(client.ResponseCreate(response={"conversation": "none"}))
    assert NO_RESULT_YET in [message.text for message in driver.asked().messages]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "param", "words"),
    [
        ({}, "session.tools[0]", "exactly one of"),
        ({"server_url": URL, "connector_id": "connector_gmail"}, "session.tools[0]", "exactly one of"),
        ({"tunnel_id": "t"}, "session.tools[0].tunnel_id", "no MCP tunnels"),
        ({"connector_id": "connector_dropbox"}, "session.tools[0].connector_id", "Known: connector_gmail"),
        ({"server_url": "https://elsewhere.test/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "http://tools.example/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://tools.example:444/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://tools.example/mcpx"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://tools.example/mcp/../admin"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://a.example@evil.test/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://u:p@a.example/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://evil.test/.example/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "https://a.example:x/mcp"}, "session.tools[0].server_url", "allowed_urls"),
        ({"server_url": "file:///etc/passwd"}, "session.tools[0].server_url", "allowed_urls"),
    ],
)
def test_servers_that_may_not_be_called(server: dict[str, Any], param: str, words: str) -> None:
    driver = Driver(can_call_tools=True, mcp=POLICY)
    named, message = refusal(driver, {"tools": [{"type": "mcp", "server_label": "docs", **server}]})
    assert named == param
    assert words in message
    assert not driver.effects_of(ListTools)


def test_no_server_may_be_called_unless_the_deploy_file_names_it() -> None:
    driver = Driver(can_call_tools=True)
    param, message = refusal(driver, {"tools": [SERVER]})
    assert (param, "deploy file" in message) == ("session.tools[0].server_url", True)


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    driver = Driver(can_call_tools=True, mcp=McpPolicy(McpRules(), installed=False))
    assert "duologue[mcp]" in refusal(driver, {"tools": [SERVER]})[1]


def test_a_connector_brings_its_own_headers() -> None:
    server = McpServer(server_label="mail", connector_id="connector_gmail", authorization="token")
    endpoint = POLICY.endpoint(server, "session.tools[0]")
    assert endpoint == McpEndpoint("https://mail.test/mcp", (("Authorization", "Bearer token"), ("X-Key", "ours")))


def test_two_servers_need_two_labels() -> None:
    driver = Driver(can_call_tools=True, mcp=POLICY)
    assert refusal(driver, {"tools": [SERVER, SERVER]})[0] == "session.tools[1].server_label"


@pytest.mark.parametrize(
    "item",
    [
        McpListToolsItem(server_label="docs"),
        McpCallItem(server_label="docs", name="search", arguments="{}"),
        McpApprovalRequestItem(server_label="docs", name="search", arguments="{}"),
    ],
)
def test_clients_do_not_make_the_servers_items(item: Any) -> None:
    driver = with_server()
    [error] = driver.do(client.ItemCreate(item=item))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "item.type"


def test_a_list_that_is_too_long_counts_as_none() -> None:
    driver = Driver({"tools": [SERVER]}, can_call_tools=True, mcp=POLICY, limits=Limits(max_tools_bytes=400))
    huge = tuple(McpTool(name=f"tool_{n}", description="x" * 100) for n in range(5))
    driver.do(ToolsListed(driver.effects_of(ListTools)[0].item_id, huge))
    assert driver.kinds()[-2] == "mcp_list_tools.failed"


def test_policy_errors_are_typed() -> None:
    with pytest.raises(ProtocolError) as caught:
        POLICY.endpoint(McpServer(server_label="x"), "session.tools[3]")
    assert caught.value.param == "session.tools[3]"
