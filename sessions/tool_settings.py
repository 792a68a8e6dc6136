"""The tools that a session or a response may use, and which of them it has to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from duologue.sessions.shape import Shape


class FunctionTool(Shape, frozen=True, tag_field="type", tag="function"):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class ToolFilter(Shape, frozen=True):
    """Tools of an MCP server: those that are named, those that only read, or those for which both hold."""

    tool_names: tuple[str, ...] | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET


class ApprovalFilter(Shape, frozen=True):
    always: ToolFilter | UnsetType = UNSET
    never: ToolFilter | UnsetType = UNSET


class McpServer(Shape, frozen=True, tag_field="type", tag="mcp"):
    """An MCP server whose tools this server calls by itself (:mod:`duologue.sessions.mcp`)."""

    server_label: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    server_url: str | UnsetType = UNSET
    connector_id: str | UnsetType = UNSET
    tunnel_id: str | UnsetType = UNSET
    server_description: str | UnsetType = UNSET
    authorization: str | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    allowed_tools: tuple[str, ...] | ToolFilter | UnsetType | None = UNSET
    require_approval: Literal["always", "never"] | ApprovalFilter | UnsetType | None = UNSET
    allowed_callers: tuple[str, ...] | UnsetType | None = UNSET
    defer_loading: bool | UnsetType | None = UNSET


ToolSetting = FunctionTool | McpServer


class ToolChoiceFunction(Shape, frozen=True, tag_field="type", tag="function"):
    name: str


class ToolChoiceMcp(Shape, frozen=True, tag_field="type", tag="mcp"):
    """Any tool of an MCP server, or one."""

    server_label: str
    name: str | UnsetType | None = UNSET


ToolChoiceSetting = Literal["auto", "none", "required"] | ToolChoiceFunction | ToolChoiceMcp
