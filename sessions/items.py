"""Conversation items in their wire shape (``realtime-protocol`` section 4.2).

Absent keys are left out, never null; only the transcript of input audio is null until it is known.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["completed", "incomplete", "in_progress"]
ItemId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """One piece of a message's content."""


class InputText(Part, frozen=True, tag="input_text"):
    text: str


class InputAudio(Part, frozen=True, tag="input_audio"):
    audio: bytes | UnsetType = UNSET
    """Base64 on the wire; only in what clients create and in ``conversation.item.retrieved``."""
    transcript: str | None = None
    """Null on the wire until it is known: the JavaScript agents client ends its process where the key is missing."""


class InputImage(Part, frozen=True, tag="input_image"):
    image_url: str | UnsetType = UNSET
    """A data URL. Absent in what the server sends once the picture is no longer kept."""
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class OutputText(Part, frozen=True, tag="output_text"):
    text: str


class OutputAudio(Part, frozen=True, tag="output_audio"):
    audio: bytes | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


Content = InputText | InputAudio | InputImage | OutputText | OutputAudio


class ItemBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: ItemId | UnsetType = UNSET
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus | UnsetType = UNSET


class MessageItem(ItemBase, frozen=True, tag="message"):
    role: Literal["system", "user", "assistant"]
    content: tuple[Content, ...]


class FunctionCallItem(ItemBase, frozen=True, tag="function_call"):
    name: str
    arguments: str
    call_id: str | UnsetType = UNSET


class FunctionCallOutputItem(ItemBase, frozen=True, tag="function_call_output"):
    call_id: str
    output: str


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its MCP server describes it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | UnsetType = UNSET

    @property
    def read_only(self) -> bool:
        return self.annotations is not UNSET and self.annotations.get("readOnlyHint") is True


class McpProtocolError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="protocol_error"):
    code: int
    message: str


class McpToolExecutionError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_execution_error"):
    message: str


class McpHttpError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="http_error"):
    code: int
    message: str


McpError = McpProtocolError | McpToolExecutionError | McpHttpError


class McpListToolsItem(ItemBase, frozen=True, tag="mcp_list_tools"):
    server_label: str
    tools: tuple[McpTool, ...] = ()


class McpCallItem(ItemBase, frozen=True, tag="mcp_call"):
    """A call that the server itself carries out. ``output`` is null until there is one."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | UnsetType = UNSET
    approval_request_id: str | UnsetType = UNSET

    @property
    def over(self) -> bool:
        return self.output is not None or self.error is not UNSET


class McpApprovalRequestItem(ItemBase, frozen=True, tag="mcp_approval_request"):
    server_label: str
    name: str
    arguments: str


class McpApprovalResponseItem(ItemBase, frozen=True, tag="mcp_approval_response"):
    approval_request_id: str
    approve: bool
    reason: str | UnsetType | None = UNSET


McpItem = McpListToolsItem | McpCallItem | McpApprovalRequestItem | McpApprovalResponseItem
Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | McpItem


class ItemReference(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="item_reference"
):
    """Stands for an item of the conversation in the ``input`` of a response."""

    id: ItemId


InputItem = Item | ItemReference
