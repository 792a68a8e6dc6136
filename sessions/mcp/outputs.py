"""The items that a response makes of calls to MCP servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from duologue.sessions import server_events as events
from duologue.sessions.items import McpApprovalRequestItem, McpCallItem, McpError, McpToolExecutionError
from duologue.sessions.mcp.catalogue import RemoteTool
from duologue.sessions.output_items import OutputItemBase

BROKEN_OFF = McpToolExecutionError(message="The call was broken off before there was a result.")


@dataclass
class McpCallOutput(OutputItemBase):
    """A call that the server carries out: arguments piece by piece, then its result."""

    remote: RemoteTool = field(kw_only=True)
    arguments: list[str] = field(default_factory=list)
    result: str | McpError | None = None
    started: bool = False
    """The arguments are whole and the call is under way, or over."""

    @property
    def item(self) -> McpCallItem:
        """The item as it stands; without arguments until they are whole."""
        failed = self.result is not None and not isinstance(self.result, str)
        error: McpError | UnsetType = self.result if failed else UNSET  # type: ignore[assignment]
        return McpCallItem(
            id=self.id,
            server_label=self.remote.server.server_label,
            name=self.remote.tool.name,
            arguments="".join(self.arguments) if self.started else "",
            output=self.result if isinstance(self.result, str) else None,
            error=error,
        )

    @property
    def open(self) -> bool:
        return not self.started and super().open

    def begin(self) -> None:
        """Nothing: the name is in the item already."""

    def add_arguments(self, delta: str) -> None:
        self.arguments.append(delta)
        if delta:
            self.emit(events.McpCallArgumentsDelta, **self.place, delta=delta)

    def start(self) -> str:
        """The arguments are whole: the call begins. Returns them."""
        self.started = True
        arguments = "".join(self.arguments)
        self.emit(events.McpCallArgumentsDone, **self.place, arguments=arguments)
        self.emit(events.McpCallInProgress, output_index=self.index, item_id=self.id)
        return arguments

    def end(self, *, flush: bool) -> None:
        if not self.started:
            self.start()
        if self.result is None:
            self.result = BROKEN_OFF
        kind = events.McpCallCompleted if isinstance(self.result, str) else events.McpCallFailed
        self.emit(kind, output_index=self.index, item_id=self.id)


@dataclass
class McpApprovalOutput(OutputItemBase):
    """A call that the client is asked about first. Clients read it whole, so there are no deltas."""

    remote: RemoteTool = field(kw_only=True)
    arguments: list[str] = field(default_factory=list)

    @property
    def item(self) -> McpApprovalRequestItem:
        return McpApprovalRequestItem(
            id=self.id,
            server_label=self.remote.server.server_label,
            name=self.remote.tool.name,
            arguments="" if self.status == "in_progress" else "".join(self.arguments),
        )

    def begin(self) -> None:
        """Nothing."""

    def add_arguments(self, delta: str) -> None:
        self.arguments.append(delta)

    def end(self, *, flush: bool) -> None:
        """Nothing: the item says it all."""
