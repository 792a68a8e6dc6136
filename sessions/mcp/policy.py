"""Which MCP servers sessions may have called for them, and where they are: the deploy file's ``mcp`` section."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import UNSET

from duologue.sessions.effects import McpEndpoint
from duologue.sessions.errors import ProtocolError
from duologue.sessions.tool_settings import McpServer

PORTS = {"http": 80, "https": 443}


class Connector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that clients name by ``connector_id``. Its headers are added to the client's."""

    url: str
    headers: dict[str, str] = {}


class McpRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the deploy file says. As it stands, no server may be called: a URL is the client's word, and this server
    can reach what the client cannot."""

    allowed_urls: tuple[str, ...] = ()
    """Servers that a client may name: scheme, host (``*``: any characters), port and beginning of the path."""
    connectors: dict[str, Connector] = {}
    list_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    call_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    max_output_chars: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    """Longest result that a model is shown; the rest is cut off."""


@dataclass(frozen=True)
class McpPolicy:
    rules: McpRules
    installed: bool = True
    """Whether the client library is there."""

    def endpoint(self, server: McpServer, where: str) -> McpEndpoint:
        """Where a server is. Raises ``ProtocolError`` that names the field below ``where``."""
        if not self.installed:
            message = "This server cannot call MCP servers: it lacks the extra (pip install 'duologue[mcp]')."
            raise ProtocolError("invalid_value", message, where)
        named = [name for name in ("server_url", "connector_id", "tunnel_id") if getattr(server, name) is not UNSET]
        if len(named) != 1:
            message = "An MCP server is named by exactly one of 'server_url', 'connector_id' and 'tunnel_id'."
            raise ProtocolError("invalid_value", message, where)
        headers = dict(server.headers or {})
        if server.authorization:
            headers["Authorization"] = f"Bearer {server.authorization}"
        if server.tunnel_id is not UNSET:
            raise ProtocolError("invalid_value", "There are no MCP tunnels here.", f"{where}.tunnel_id")
        if server.connector_id is not UNSET:
            connector = self.rules.connectors.get(server.connector_id)
            if connector is None:
                known = ", ".join(sorted(self.rules.connectors)) or "none"
                message = f"Unknown connector '{server.connector_id}'. Known: {known}."
                raise ProtocolError("invalid_value", message, f"{where}.connector_id")
            return McpEndpoint(connector.url, tuple({**headers, **connector.headers}.items()))
        url = str(server.server_url)
        if not any(_allows(pattern, url) for pattern in self.rules.allowed_urls):
            message = (
                "This MCP server may not be called from here: "
                "it is not among 'mcp.allowed_urls' of the server's deploy file."
            )
            raise ProtocolError("invalid_value", message, f"{where}.server_url")
        return McpEndpoint(url, tuple(headers.items()))


def _allows(pattern: str, url: str) -> bool:
    allowed, asked = _parsed(pattern), _parsed(url)
    if allowed is None or asked is None or asked.username is not None or asked.password is not None:
        return False
    return (
        asked.scheme in PORTS
        and asked.scheme == allowed.scheme
        and fnmatchcase((asked.hostname or "").lower(), (allowed.hostname or "").lower())
        and (asked.port or PORTS[asked.scheme]) == (allowed.port or PORTS[asked.scheme])
        and _below(asked.path, allowed.path)
    )


def _parsed(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a port that is no number shows here
    except ValueError:
        return None
    return parts


def _below(path: str, beginning: str) -> bool:
    """Whether ``path`` is ``beginning`` or lies under it; dots would lead out again."""
    if any(step in (".", "..") for step in path.split("/")):
        return False
    beginning = beginning.rstrip("/")
    return path == beginning or path.startswith(f"{beginning}/") or not beginning
