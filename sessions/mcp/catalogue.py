"""What the MCP servers of a session offer, and under which names the model knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from duologue.engine.requests import Tool
from duologue.sessions.items import McpTool
from duologue.sessions.tool_settings import ApprovalFilter, FunctionTool, McpServer, ToolFilter, ToolSetting


@dataclass(frozen=True)
class RemoteTool:
    """A tool of an MCP server as one response may use it."""

    server: McpServer
    tool: McpTool

    @property
    def needs_approval(self) -> bool:
        """Whether the client is asked before each call. It is where the client says nothing."""
        rule = self.server.require_approval
        if isinstance(rule, ApprovalFilter):
            if rule.never is not UNSET and _passes(rule.never, self.tool):
                return False
            return rule.always is UNSET or _passes(rule.always, self.tool) or rule.never is not UNSET
        return rule != "never"


@dataclass
class ToolCatalogue:
    """The tools that servers have been found to offer, by label."""

    listed: dict[str, tuple[McpTool, ...]] = field(default_factory=dict)

    def visible(self, settings: Sequence[ToolSetting]) -> tuple[tuple[Tool, ...], Mapping[str, RemoteTool]]:
        """The tools behind ``settings`` as a model is shown them, and which of their names are remote.

        A function of the client keeps its name. A remote tool whose name is taken has its server's label before it.
        """
        functions = [tool for tool in settings if isinstance(tool, FunctionTool)]
        shown = [Tool(name=t.name, description=t.description, parameters=t.parameters) for t in functions]
        taken = {tool.name for tool in functions}
        remote: dict[str, RemoteTool] = {}
        for server in settings:
            if not isinstance(server, McpServer):
                continue
            for tool in self.listed.get(server.server_label, ()):
                if not _allowed(server, tool):
                    continue
                name = tool.name if tool.name not in taken else f"{server.server_label}__{tool.name}"
                if name in taken:
                    continue
                taken.add(name)
                remote[name] = RemoteTool(server, tool)
                shown.append(Tool(name=name, description=tool.description, parameters=tool.input_schema))
        return tuple(shown), remote


def _allowed(server: McpServer, tool: McpTool) -> bool:
    allowed = server.allowed_tools
    if isinstance(allowed, ToolFilter):
        return _passes(allowed, tool)
    return allowed is UNSET or allowed is None or tool.name in allowed


def _passes(rule: ToolFilter, tool: McpTool) -> bool:
    named = rule.tool_names is UNSET or tool.name in rule.tool_names
    return named and (rule.read_only is UNSET or rule.read_only == tool.read_only)
