"""MCP servers over streamable HTTP, as one session uses them, through the ``mcp`` package (extra ``[mcp]``).

A connection is made when it is first needed and kept for the session, since servers may keep state for it. Redirects
to another origin are not followed: what the deploy file allows is what is reached.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from duologue.sessions.effects import McpEndpoint
from duologue.sessions.items import McpError, McpHttpError, McpProtocolError, McpTool, McpToolExecutionError
from duologue.sessions.mcp.policy import McpRules

if TYPE_CHECKING:
    from mcp import Client, types

logger = logging.getLogger(__name__)

INTERNAL_ERROR = -32603
MAX_PAGES = 20
"""Pages of a list of tools that are asked for."""


def installed() -> bool:
    """Whether the ``mcp`` package is there."""
    return importlib.util.find_spec("mcp") is not None


class McpServers:
    """Implements :class:`duologue.sessions.interfaces.ToolServers`."""

    def __init__(self, rules: McpRules) -> None:
        self._rules = rules
        self._connections: dict[McpEndpoint, _Connection] = {}

    async def list_tools(self, server: McpEndpoint) -> tuple[McpTool, ...] | None:
        tools: list[McpTool] = []
        try:
            async with asyncio.timeout(self._rules.list_timeout_s):
                client = await self._client(server)
                cursor: str | None = None
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    tools += filter(None, map(_tool, page.tools))
                    if (cursor := page.next_cursor) is None:
                        break
        except Exception as error:  # noqa: BLE001 - whatever a stranger's server does is the client's news, not our fault
            self._connections.pop(server, None)
            logger.warning("MCP server %s gives no list of tools: %s", server.url, _failure(error).message)
            return None
        return tuple(tools)

    async def call(self, server: McpEndpoint, name: str, arguments: str) -> str | McpError:
        try:
            async with asyncio.timeout(self._rules.call_timeout_s):
                client = await self._client(server)
                result = await client.call_tool(name, msgspec.json.decode(arguments))
        except Exception as error:  # noqa: BLE001 - as above
            failure = _failure(error)
            if not isinstance(failure, McpProtocolError) or failure.code == INTERNAL_ERROR:
                self._connections.pop(server, None)
            logger.warning("Tool '%s' of MCP server %s failed: %s", name, server.url, failure.message)
            return failure
        text = _text(result)[: self._rules.max_output_chars]
        return McpToolExecutionError(message=text) if result.is_error else text

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _client(self, server: McpEndpoint) -> Client:
        connection = self._connections.get(server)
        if connection is None:
            connection = self._connections[server] = _Connection(server)
        return await connection.client()


class _Connection:
    """A connected client. It has a task of its own, since it has to be left in the task that entered it."""

    def __init__(self, server: McpEndpoint) -> None:
        self._server = server
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self._task = asyncio.create_task(self._hold(), name="mcp connection")

    async def client(self) -> Client:
        """The client, once it is connected. Raises what has kept it from that."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._done.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _hold(self) -> None:
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        try:
            async with (
                httpx2.AsyncClient(headers=dict(self._server.headers), timeout=httpx2.Timeout(30, read=300)) as http,
                Client(streamable_http_client(self._server.url, http_client=http)) as client,
            ):
                self._ready.set_result(client)
                await self._done.wait()
        except asyncio.CancelledError:
            self._ready.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - told to those who wait for the client
            if self._ready.done():
                logger.info("Connection to MCP server %s ended: %s", self._server.url, error)
            else:
                self._ready.set_exception(error)
                self._ready.exception()  # seen, also if nobody waits any more


def _tool(tool: types.Tool) -> McpTool | None:
    """A listed tool; None for one that cannot travel to a model."""
    annotations = tool.annotations
    shape: dict[str, Any] = tool.input_schema
    try:
        msgspec.msgpack.encode(shape)
    except OverflowError:
        return None
    return McpTool(
        name=tool.name,
        description=tool.description or "",
        input_schema=shape,
        annotations=UNSET if annotations is None else annotations.model_dump(by_alias=True, exclude_none=True),
    )


def _text(result: types.CallToolResult) -> str:
    """What a model is shown of a result: its texts, else its data as JSON."""
    texts = [part.text for part in result.content if part.type == "text"]
    if not texts and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    others = [f"({part.type} left out)" for part in result.content if part.type != "text"]
    return "\n".join(texts + others)


def _failure(error: BaseException) -> McpError:
    """Why a server could not be used, in the words of the protocol."""
    import httpx2
    from mcp import MCPError

    for cause in _causes(error):
        match cause:
            case MCPError():
                return McpProtocolError(code=cause.code, message=cause.message)
            case httpx2.HTTPStatusError():
                status = cause.response.status_code
                return McpHttpError(code=status, message=f"The server answered with status {status}.")
            case httpx2.TransportError():
                return McpHttpError(code=502, message="The server cannot be reached.")
            case TimeoutError():
                return McpHttpError(code=504, message="The server did not answer in time.")
    return McpProtocolError(code=INTERNAL_ERROR, message=f"{type(error).__name__}: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error
