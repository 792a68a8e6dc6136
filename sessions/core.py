"""What the halves of the session core share: the settings, the conversation, the ledger, and the list of effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from duologue.sessions import server_events as events
from duologue.sessions.config import Limits, Names, RealtimeSession
from duologue.sessions.conversation import Conversation
from duologue.sessions.effects import Effect, Send
from duologue.sessions.errors import ProtocolError
from duologue.sessions.playout import PlayoutLedger

IdFactory = Callable[[str], str]
"""``ids("item")`` gives a new id with that prefix, unique in the process."""


@dataclass(frozen=True)
class SessionContext:
    """What the server decides about a session before it begins."""

    names: Names
    ids: IdFactory
    limits: Limits = field(default_factory=Limits)
    can_call_tools: bool = False
    may_speculate: Callable[[], bool] = lambda: False
    """Whether the machine has room for work that may be thrown away; asked at every pause of a user."""


@dataclass
class SessionCore:
    """State that more than one half of the core reads or changes."""

    session: RealtimeSession
    context: SessionContext
    conversation: Conversation = field(init=False)
    ledger: PlayoutLedger = field(default_factory=PlayoutLedger)
    effects: list[Effect] = field(default_factory=list)
    settings_version: int = 0
    conversation_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.conversation = Conversation(self.context.limits.kept_audio_s)
        self.conversation_id = self.context.ids("conv")

    def emit(self, kind: type[events.ServerEvent], samples: int = 0, **fields: Any) -> None:
        """Send an event with a fresh id. ``samples``: the sound in it, at 24 kHz."""
        self.effects.append(Send(kind(event_id=self.context.ids("event"), **fields), samples))

    def emit_error(self, error: ProtocolError, event_id: str | None = None) -> None:
        """Tell the client of its fault; the session goes on."""
        body = events.ErrorBody(
            type="invalid_request_error",
            code=error.code,
            message=error.message,
            param=error.param,
            event_id=event_id,
        )
        self.emit(events.ErrorEvent, error=body)

    def emit_server_error(self, message: str) -> None:
        """Tell the client of a fault of ours."""
        body = events.ErrorBody(type="server_error", code="server_error", message=message)
        self.emit(events.ErrorEvent, error=body)

    def take_effects(self) -> list[Effect]:
        taken, self.effects = self.effects, []
        return taken
