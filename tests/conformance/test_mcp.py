"""MCP tools through the whole server: a real MCP server behind it, the official client before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp_server import Library, mcp_server
from openai import AsyncOpenAI
from ordering import violations
from recorder import Recorder
from scripted_server import KEY, scripted_server
from shapes import check_shapes

from duologue.sessions.mcp.policy import McpRules


@asynccontextmanager
async def talking(**server: Any) -> AsyncIterator[tuple[Recorder, Library]]:
    """A session whose tools are the weather of a real MCP server, once they are listed."""
    async with (
        mcp_server("sesame") as library,
        scripted_server(mcp=McpRules(allowed_urls=(library.url,))) as scripted,
        AsyncOpenAI(base_url=scripted.http, api_key=KEY) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        talk = Recorder(connection)
        await talk.next()
        tool = {"type": "mcp", "server_label": "library", "server_url": library.url, "authorization": "sesame"}
        await talk.update(output_modalities=["text"], tools=[tool | server])
        yield talk, library
        await talk.settle()
    check_shapes(talk.trace)
    assert violations(talk.trace) == []


async def test_mcp_tools_are_listed_called_and_answered() -> None:
    async with talking(require_approval="never", allowed_tools=["weather"]) as (talk, library):
        await talk.until("mcp_list_tools.completed")
        listed = (await talk.until("conversation.item.done"))["item"]
        assert "weather" in [tool["name"] for tool in listed["tools"]]
        await talk.write("How is the weather?")
        [call] = (await talk.respond())["output"]
        assert (call["type"], call["output"], library.asked) == ("mcp_call", "Rain in Paris", ["Paris"])
        [message] = (await talk.until("response.done"))["response"]["output"]
        assert message["content"][0]["text"] == "It is Rain in Paris."
        assert "sesame" not in str([line.event for line in talk.trace if not line.from_client])


async def test_mcp_calls_wait_for_approval() -> None:
    async with talking() as (talk, library):
        await talk.until("mcp_list_tools.completed")
        await talk.write("How is the weather?")
        [request] = (await talk.respond())["output"]
        assert (request["type"], request["arguments"], library.asked) == (
            "mcp_approval_request",
            '{"city":"Paris"}',
            [],
        )
        decision = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        await talk.send("conversation.item.create", item=decision)
        await talk.until("response.mcp_call.completed")
        assert library.asked == ["Paris"]
        [message] = (await talk.until("response.done"))["response"]["output"]
        assert message["content"][0]["text"] == "It is Rain in Paris."


async def test_mcp_server_that_refuses_us_is_reported_and_the_session_goes_on() -> None:
    async with talking(authorization="wrong") as (talk, _):
        await talk.until("mcp_list_tools.failed")
        await talk.write("Hello")
        [message] = (await talk.respond())["output"]
        assert message["content"][0]["text"] == "You said: Hello"
