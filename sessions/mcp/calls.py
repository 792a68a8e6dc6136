"""The traffic of a session with its MCP servers: lists of tools, and the calls that wait for an answer.

A call begins inside a response, which stays in progress until its calls are over; what they gave is then answered by
another response (:mod:`duologue.sessions.responses`). A call that needed the client's approval begins when that is
given, when its response is long over: it stands in the conversation alone, and an answer is owed for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from duologue.sessions import server_events as events
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbandonCall, CallTool, ListTools, ToolAnswered, ToolsListed
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpError,
    McpListToolsItem,
    McpProtocolError,
)
from duologue.sessions.mcp.outputs import McpCallOutput
from duologue.sessions.tool_settings import McpServer, ToolSetting

INVALID_PARAMS = -32602
"""JSON-RPC's code for arguments that do not fit."""


class RemoteTools:
    """Owns what is under way between a session and its MCP servers."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._servers: dict[str, McpServer] = {}
        self._listing: dict[str, str] = {}
        """Labels of the servers that have been asked, by item."""
        self._approved: set[str] = set()
        """Items of calls outside any response that are under way."""
        self.answer_owed = False
        """The client has decided on a call, and nobody has said anything about what came of it."""

    @property
    def calling(self) -> bool:
        """Whether a call outside any response is under way."""
        return bool(self._approved)

    # -- what there is -------------------------------------------------------------------------------------------------

    def offered(self, tools: Sequence[ToolSetting]) -> None:
        """The tools of the session are these now: servers that are new, or reached in a new way, are asked."""
        servers = {tool.server_label: tool for tool in tools if isinstance(tool, McpServer)}
        before, self._servers = self._servers, servers
        for label in before.keys() - servers.keys():
            self._core.catalogue.listed.pop(label, None)
        for label, server in servers.items():
            if label not in before or _address(before[label]) != _address(server):
                self._ask(label, server)

    def _ask(self, label: str, server: McpServer) -> None:
        core = self._core
        core.catalogue.listed.pop(label, None)
        endpoint = core.context.mcp.endpoint(server, "session.tools")
        entry = Entry(McpListToolsItem(id=core.context.ids("mcpl"), server_label=label))
        self._listing = {item: asked for item, asked in self._listing.items() if asked != label}
        self._listing[entry.id] = label
        core.conversation.insert(entry)
        core.emit(events.ItemAdded, previous_item_id=core.conversation.previous_id(entry.id), item=entry.item)
        core.emit(events.McpListToolsInProgress, item_id=entry.id)
        core.effects.append(ListTools(entry.id, endpoint))

    def listed(self, answer: ToolsListed) -> None:
        core, label = self._core, self._listing.pop(answer.item_id, None)
        tools, limits = answer.tools, core.context.limits
        if tools is not None and len(msgspec.json.encode(tools)) > limits.max_tools_bytes:
            tools = None
        if tools is not None and label is not None:
            core.catalogue.listed[label] = tools[: limits.max_tools]
        core.emit(events.McpListToolsFailed if tools is None else events.McpListToolsCompleted, item_id=answer.item_id)
        entry = core.conversation.find(answer.item_id)
        if entry is not None:
            entry.item = replace(entry.item, tools=tools or ())
            self._done(entry)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def start(self, output: McpCallOutput) -> None:
        """A response's call has its arguments."""
        self._call(output.id, output.remote.server, output.remote.tool.name, output.start())

    def abandon(self, output: McpCallOutput) -> None:
        """A response's call is not waited for any more."""
        self._core.effects.append(AbandonCall(output.id))

    def decided(self, decision: McpApprovalResponseItem) -> None:
        """The client has answered a request for approval, which :meth:`check_decision` has found in order."""
        request = self._request(decision)
        self.answer_owed = True
        server = self._servers.get(request.server_label)
        if not decision.approve or server is None:
            return
        entry = Entry(
            McpCallItem(
                id=self._core.context.ids("mcp"),
                server_label=request.server_label,
                name=request.name,
                arguments=request.arguments,
                approval_request_id=str(request.id),
            )
        )
        core = self._core
        core.conversation.insert(entry)
        core.emit(events.ItemAdded, previous_item_id=core.conversation.previous_id(entry.id), item=entry.item)
        core.emit(events.McpCallInProgress, output_index=0, item_id=entry.id)
        self._approved.add(entry.id)
        self._call(entry.id, server, request.name, request.arguments)

    def check_decision(self, decision: McpApprovalResponseItem) -> None:
        """Raises ``ProtocolError`` for an answer to no request, or to one that has been answered."""
        request = self._request(decision)
        for entry in self._core.conversation:
            if isinstance(entry.item, McpApprovalResponseItem) and entry.item.approval_request_id == request.id:
                message = f"The approval request '{request.id}' has been answered already."
                raise ProtocolError("invalid_value", message, "item.approval_request_id")
        if decision.approve and request.server_label not in self._servers:
            message = f"The session has no MCP server '{request.server_label}' any more."
            raise ProtocolError("invalid_value", message, "item.approval_request_id")

    def answered(self, answer: ToolAnswered) -> None:
        """A call outside any response is over. One that nobody waits for is not noticed."""
        if answer.item_id not in self._approved:
            return
        self._approved.discard(answer.item_id)
        text = answer.result if isinstance(answer.result, str) else None
        kind = events.McpCallFailed if text is None else events.McpCallCompleted
        self._core.emit(kind, output_index=0, item_id=answer.item_id)
        entry = self._core.conversation.find(answer.item_id)
        if entry is not None:
            error = UNSET if isinstance(answer.result, str) else answer.result
            entry.item = replace(entry.item, output=text, error=error)
            self._done(entry)

    def _request(self, decision: McpApprovalResponseItem) -> McpApprovalRequestItem:
        entry = self._core.conversation.find(decision.approval_request_id)
        if entry is None or not isinstance(entry.item, McpApprovalRequestItem):
            message = f"No approval request '{decision.approval_request_id}' in the conversation."
            raise ProtocolError("invalid_value", message, "item.approval_request_id")
        return entry.item

    def _call(self, item_id: str, server: McpServer, name: str, arguments: str) -> None:
        core = self._core
        result: McpError
        try:
            msgspec.json.decode(arguments or "{}", type=dict)
            endpoint = core.context.mcp.endpoint(server, "session.tools")
        except msgspec.DecodeError:
            result = McpProtocolError(code=INVALID_PARAMS, message="The arguments are not a JSON object.")
            core.postponed.append(ToolAnswered(item_id, result))
        else:
            core.effects.append(CallTool(item_id, endpoint, name, arguments or "{}"))

    def _done(self, entry: Entry) -> None:
        conversation = self._core.conversation
        conversation.version += 1
        self._core.emit(events.ItemDone, previous_item_id=conversation.previous_id(entry.id), item=entry.item)


def _address(server: McpServer) -> tuple[object, ...]:
    return server.server_url, server.connector_id, server.authorization, server.headers
