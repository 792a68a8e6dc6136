"""One response from ``response.created`` to ``response.done``: the event sequence of ``realtime-protocol`` O15 to O21.

A response is created, opened by its first delta (which announces an item), and finished. Its items follow each other: a
call that is written while the words before it are still being spoken is held until they are whole, so that no client
acts on it before. Every path ends in ``finish``, which closes what is open and sends exactly one ``response.done``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from duologue.codecs.wire_audio import WireEncoder
from duologue.engine.requests import FinishReason, ReasoningEffort, Tool, ToolChoice, Usage
from duologue.sessions import server_events as events
from duologue.sessions.config import AudioFormat, MaxOutputTokens, OutputModality, Truncation, encoding
from duologue.sessions.conversation import Entry
from duologue.sessions.items import ItemStatus
from duologue.sessions.mcp.catalogue import RemoteTool
from duologue.sessions.mcp.outputs import McpApprovalOutput, McpCallOutput
from duologue.sessions.output_items import CallOutput, Emit, EmitAudio, MessageOutput

AnyCall = CallOutput | McpCallOutput | McpApprovalOutput
OutputItem = MessageOutput | AnyCall
Status = Literal["completed", "cancelled", "failed", "incomplete"]
CancelReason = Literal["turn_detected", "client_cancelled"]


class State(enum.Enum):
    CREATED = "created"
    OPEN = "open"
    DONE = "done"


TRANSITIONS: dict[tuple[State, Literal["open", "finish"]], State] = {
    (State.CREATED, "open"): State.OPEN,
    (State.OPEN, "open"): State.OPEN,
    (State.CREATED, "finish"): State.DONE,
    (State.OPEN, "finish"): State.DONE,
}
"""Where each step leads; there are no other moves."""


@dataclass(frozen=True)
class Outcome:
    """How a response ended."""

    status: Status
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | UnsetType = UNSET
    error: str | None = None
    error_code: str = "server_error"

    @classmethod
    def of(cls, reason: FinishReason, error: str | None) -> Outcome:
        """The outcome behind the engine's terminal delta."""
        match reason:
            case "completed":
                return cls("completed")
            case "length":
                return cls("incomplete", "max_output_tokens")
            case "aborted" | "failed":
                return cls("failed", error=error or "The request was aborted by the server.")


@dataclass(frozen=True)
class ResponseSettings:
    """The effective settings of one response."""

    modality: OutputModality
    audio_format: AudioFormat
    voice: str
    served_voice: str
    speed: float
    max_output_tokens: MaxOutputTokens
    instructions: str
    conversation_id: str | None
    """None: out of band, nothing of it enters the conversation."""
    metadata: dict[str, str] | None = None
    context: tuple[Entry, ...] | None = None
    """What it answers in the place of the conversation; None: the conversation."""
    truncation: Truncation = "auto"
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    first_chunk_s: float | None = None
    """Length of the first piece of sound; None: as the engine likes."""
    remote: Mapping[str, RemoteTool] = field(default_factory=dict)
    """Those of the tools that MCP servers have, by their names here."""
    tool_round: int = 0
    """How many answers in a row have led to this one by the results of MCP calls."""


@dataclass
class HeldCall:
    """A call that has not been announced yet."""

    name: str
    arguments: str = ""


@dataclass
class ResponseLifecycle:
    """Emits the events of one response in their order, and remembers what was said."""

    id: str
    settings: ResponseSettings
    emit: Emit
    emit_audio: EmitAudio
    previous_id: Callable[[str], str | None]
    """The id of the item before one of the conversation, at this moment: what was before it may have been deleted."""
    state: State = State.CREATED
    request_id: str | None = None
    """The engine request behind it, once one is open."""
    outputs: list[OutputItem] = field(default_factory=list)
    held_calls: dict[str, HeldCall] = field(default_factory=dict)
    """Calls that wait for the item before them to be closed, by the engine's name for them."""
    usage: Usage = field(default_factory=Usage)
    outcome: Outcome | None = None
    """How the engine has ended it, while calls to MCP servers are still under way."""

    def __post_init__(self) -> None:
        self._calls: dict[str, AnyCall] = {}
        self.message: MessageOutput | None = None
        """The answer in words, once it has begun."""
        self.out_of_band = self.settings.conversation_id is None
        self.emit(events.ResponseCreated, response=self._snapshot("in_progress", None))

    @property
    def spoken(self) -> bool:
        return self.settings.modality == "audio"

    @property
    def open_output(self) -> OutputItem | None:
        """The item that is being made."""
        return self.outputs[-1] if self.outputs and self.outputs[-1].open else None

    @property
    def running_calls(self) -> tuple[McpCallOutput, ...]:
        """Calls to MCP servers that have not been answered."""
        return tuple(o for o in self.outputs if isinstance(o, McpCallOutput) and o.status == "in_progress")

    def hold_call(self, key: str, name: str, arguments: str) -> None:
        self.held_calls.setdefault(key, HeldCall(name)).arguments += arguments

    def refuses_call(self, key: str) -> bool:
        """Whether a new call is one too many: models do not always obey ``parallel_tool_calls``."""
        others = {*self._calls, *self.held_calls} - {key}
        return self.settings.parallel_tool_calls is False and bool(others)

    def call(self, key: str) -> AnyCall | None:
        """The call that the engine knows as ``key``, once it has begun."""
        return self._calls.get(key)

    def output(self, item_id: str) -> OutputItem | None:
        return next((output for output in self.outputs if output.id == item_id), None)

    def open_message(self, item_id: str) -> MessageOutput:
        """Begin the answer in words; :meth:`announce` follows once it stands in the conversation."""
        self.state = TRANSITIONS[self.state, "open"]
        encoder = WireEncoder(encoding(self.settings.audio_format)) if self.spoken else None
        message = self.message = MessageOutput(
            self.emit, self.id, item_id, len(self.outputs), emit_audio=self.emit_audio, encoder=encoder
        )
        self.outputs.append(message)
        return message

    def open_call(self, key: str, name: str, ids: Callable[[str], str]) -> AnyCall:
        """Begin a call; :meth:`announce` follows once it stands in the conversation.

        Its ids for the client are our own: engines repeat theirs.
        """
        self.state = TRANSITIONS[self.state, "open"]
        index, remote = len(self.outputs), self.settings.remote.get(name)
        call: AnyCall
        if remote is None:
            call = CallOutput(self.emit, self.id, ids("item"), index, call_id=ids("call"), name=name)
        elif remote.needs_approval:
            call = McpApprovalOutput(self.emit, self.id, ids("mcpr"), index, remote=remote)
        else:
            call = McpCallOutput(self.emit, self.id, ids("mcp"), index, remote=remote)
        self.outputs.append(call)
        self._calls[key] = call
        return call

    def announce(self, output: OutputItem) -> None:
        self.emit(events.OutputItemAdded, response_id=self.id, output_index=output.index, item=output.item)
        if not self.out_of_band:
            self.emit(events.ItemAdded, previous_item_id=self.previous_id(output.id), item=output.item)
        output.begin()

    def close(self, output: OutputItem, status: ItemStatus = "completed", *, flush: bool = True) -> None:
        """An item is whole, or broken off. ``flush``: what its encoder still holds belongs to it."""
        output.status = status
        output.end(flush=flush)
        if not (output.deleted or self.out_of_band):
            self.emit(events.ItemDone, previous_item_id=self.previous_id(output.id), item=output.item)
        self.emit(events.OutputItemDone, response_id=self.id, output_index=output.index, item=output.item)

    def finish(self, outcome: Outcome) -> None:
        """Close what is open and say how it ended; nothing of this response follows."""
        self.state = TRANSITIONS[self.state, "finish"]
        status: ItemStatus = "completed" if outcome.status == "completed" else "incomplete"
        for output in self.outputs:
            if output.status == "in_progress":
                self.close(output, status, flush=outcome.status in ("completed", "incomplete"))
        details = events.StatusDetails(type=outcome.status, reason=outcome.reason, error=_status_error(outcome))
        self.emit(events.ResponseDone, response=self._snapshot(outcome.status, details))

    def _snapshot(self, status: Any, details: events.StatusDetails | None) -> events.Response:
        settings = self.settings
        over = status != "in_progress"
        return events.Response(
            id=self.id,
            status=status,
            status_details=details,
            output=tuple(output.item for output in self.outputs) if over else (),
            conversation_id=settings.conversation_id,
            output_modalities=(settings.modality,),
            max_output_tokens=settings.max_output_tokens,
            audio=events.ResponseAudio(
                output=events.ResponseAudioOutput(format=settings.audio_format, voice=settings.voice)
            ),
            metadata=settings.metadata,
            usage=_usage(self.usage) if over else None,
        )


def _status_error(outcome: Outcome) -> events.StatusError | UnsetType:
    if outcome.error is None:
        return UNSET
    kind = "server_error" if outcome.error_code == "server_error" else "invalid_request_error"
    return events.StatusError(type=kind, code=outcome.error_code, message=outcome.error)


def _usage(usage: Usage) -> events.ResponseUsage:
    """Counts by kind. What was cached is the head of the prompt: text first, then sound, then pictures."""
    text_in = usage.input_tokens - usage.audio_input_tokens - usage.image_input_tokens
    cached_text = min(usage.cached_tokens, text_in)
    cached_audio = min(usage.cached_tokens - cached_text, usage.audio_input_tokens)
    return events.ResponseUsage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=events.InputTokenDetails(
            text_tokens=text_in,
            audio_tokens=usage.audio_input_tokens,
            image_tokens=usage.image_input_tokens,
            cached_tokens=usage.cached_tokens,
            cached_tokens_details=events.CachedTokensDetails(
                text_tokens=cached_text,
                audio_tokens=cached_audio,
                image_tokens=usage.cached_tokens - cached_text - cached_audio,
            ),
        ),
        output_token_details=events.OutputTokenDetails(
            text_tokens=usage.output_tokens - usage.audio_output_tokens, audio_tokens=usage.audio_output_tokens
        ),
    )
