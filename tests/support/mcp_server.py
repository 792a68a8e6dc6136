"""A real MCP server on a free port of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

from duologue.realtime.serve import listen


@dataclass
class Library:
    """The server, and what its tools have seen."""

    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once ``wait`` has been called."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """``wait`` returns once it is set."""


@asynccontextmanager
async def mcp_server(key: str | None = None) -> AsyncIterator[Library]:
    """Serve tools; with ``key`` only to those who have it."""
    library, server = Library(), MCPServer("library")

    @server.tool(description="The weather in a city.", annotations=ToolAnnotations(read_only_hint=True))
    async def weather(city: str) -> str:
        library.asked.append(city)
        return f"Rain in {city}"

    @server.tool(description="Always fails.")
    async def broken() -> str:
        raise ValueError("The shelf is empty.")

    @server.tool(description="Returns when it is told to.")
    async def wait() -> str:
        library.waiting.set()
        await library.hold.wait()
        return "waited"

    @server.tool(description="Counts the calls of one connection.")
    async def count(context: Context[Any]) -> dict[str, int]:
        library.asked.append("count")
        return {"calls": library.asked.count("count")}

    app = server.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            library.headers.append(headers)
            if key is not None and headers.get("authorization") != f"Bearer {key}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    listener = listen("127.0.0.1", 0)
    http = uvicorn.Server(uvicorn.Config(guarded, log_config=None, lifespan="on"))
    running = asyncio.create_task(http.serve(sockets=[listener]))
    host, port = listener.getsockname()
    library.url = f"http://{host}:{port}/mcp"
    try:
        yield library
    finally:
        library.hold.set()
        http.should_exit = True
        await running
        listener.close()
