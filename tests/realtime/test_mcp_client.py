"""The MCP client against a real MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp_server import mcp_server

from duologue.realtime.mcp_client import McpServers
from duologue.realtime.serve import listen
from duologue.sessions.effects import McpEndpoint
from duologue.sessions.items import McpHttpError, McpProtocolError, McpToolExecutionError
from duologue.sessions.mcp.policy import McpRules

RULES = McpRules(list_timeout_s=20, call_timeout_s=20)


@asynccontextmanager
async def servers(rules: McpRules = RULES) -> AsyncIterator[McpServers]:
    connected = McpServers(rules)
    try:
        yield connected
    finally:
        await connected.close()


async def test_the_tools_of_a_server() -> None:
    async with mcp_server() as library, servers() as mcp:
        tools = await mcp.list_tools(McpEndpoint(library.url))
    assert tools is not None
    weather = next(tool for tool in tools if tool.name == "weather")
    assert (weather.description, weather.read_only) == ("The weather in a city.", True)
    assert weather.input_schema["properties"]["city"]["type"] == "string"
    assert {tool.name for tool in tools} == {"weather", "broken", "wait", "count"}


async def test_a_call_and_its_result() -> None:
    async with mcp_server() as library, servers() as mcp:
        assert await mcp.call(McpEndpoint(library.url), "weather", '{"city":"Paris"}') == "Rain in Paris"
        assert library.asked == ["Paris"]
        assert '"calls": 1' in str(await mcp.call(McpEndpoint(library.url), "count", "{}")).replace('":1', '": 1')


async def test_what_a_tool_complains_of_is_its_own_error() -> None:
    async with mcp_server() as library, servers() as mcp:
        endpoint = McpEndpoint(library.url)
        failed = await mcp.call(endpoint, "broken", "{}")
        assert isinstance(failed, McpToolExecutionError)
        assert "broken" in failed.message
        wrong = await mcp.call(endpoint, "weather", '{"town":"Paris"}')
        unknown = await mcp.call(endpoint, "fly", "{}")
    assert isinstance(wrong, McpToolExecutionError | McpProtocolError)
    assert isinstance(unknown, McpToolExecutionError | McpProtocolError)


async def test_a_key_opens_a_server_and_nothing_else_does() -> None:
    async with mcp_server("sesame") as library, servers() as mcp:
        assert await mcp.list_tools(McpEndpoint(library.url)) is None
        refused = await mcp.call(McpEndpoint(library.url), "weather", '{"city":"Paris"}')
        assert not isinstance(refused, str)
        keyed = McpEndpoint(library.url, (("Authorization", "Bearer sesame"),))
        assert await mcp.call(keyed, "weather", '{"city":"Paris"}') == "Rain in Paris"


async def test_a_server_that_is_not_there() -> None:
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    listener.close()
    async with servers() as mcp:
        assert await mcp.list_tools(McpEndpoint(url)) is None
        failed = await mcp.call(McpEndpoint(url), "weather", "{}")
    assert isinstance(failed, McpHttpError)
    assert failed.code == 502


async def test_a_tool_that_takes_too_long() -> None:
    async with mcp_server() as library, servers(McpRules(call_timeout_s=1)) as mcp:
        failed = await mcp.call(McpEndpoint(library.url), "wait", "{}")
    assert isinstance(failed, McpHttpError)
    assert failed.code == 504


async def test_calls_run_side_by_side_over_one_connection() -> None:
    async with mcp_server() as library, servers() as mcp:
        endpoint = McpEndpoint(library.url)
        slow = asyncio.create_task(mcp.call(endpoint, "wait", "{}"))
        assert await mcp.call(endpoint, "weather", '{"city":"Oslo"}') == "Rain in Oslo"
        library.hold.set()
        assert await slow == "waited"


async def test_an_abandoned_call_leaves_the_connection_usable() -> None:
    async with mcp_server() as library, servers() as mcp:
        endpoint = McpEndpoint(library.url)
        call = asyncio.create_task(mcp.call(endpoint, "wait", "{}"))
        await library.waiting.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await mcp.call(endpoint, "weather", '{"city":"Rome"}') == "Rain in Rome"


async def test_a_long_result_is_cut() -> None:
    async with mcp_server() as library, servers(McpRules(max_output_chars=4)) as mcp:
        assert await mcp.call(McpEndpoint(library.url), "weather", '{"city":"Paris"}') == "Rain"


async def test_nothing_is_left_after_close() -> None:
    async with mcp_server() as library:
        before = asyncio.all_tasks()
        async with servers() as mcp:
            await mcp.list_tools(McpEndpoint(library.url))
        left = {task for task in asyncio.all_tasks() - before if "mcp connection" in task.get_name()}
    assert not left
