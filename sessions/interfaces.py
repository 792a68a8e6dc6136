"""What a session needs from around it and what it offers there: its client's transport, its core, the engine, its tool
servers, and the handle for those who join it. A media track's are in :mod:`~duologue.sessions.media`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from duologue.engine.requests import AbortReason, Delta, EngineRequest, Usage
from duologue.engine.turn_model import TurnModelService
from duologue.engine.voice_activity import VoiceFrame
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.config import AnySession
from duologue.sessions.effects import Effect, Input, McpEndpoint
from duologue.sessions.items import McpError, McpTool
from duologue.sessions.server_events import ServerEvent
from duologue.sessions.translation_events import TranslationSession


class Transport(Protocol):
    """How a session reaches its client."""

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        """The next event; None once the peer is gone."""

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Write events; returns when the transport is ready for more. ``ConnectionError``: the peer is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close with a WebSocket close code, or what it means on this transport."""


class Inlet(Protocol):
    """Where a transport may put events without waiting."""

    def ready(self) -> bool:
        """Whether the next event can be taken now, and is not to wait behind one before it."""

    def take(self, event: ClientEvent | InvalidEvent) -> None: ...


@runtime_checkable
class DirectTransport(Transport, Protocol):
    """A transport that can do without a task for each event while nothing has to wait."""

    def deliver_to(self, inlet: Inlet | None) -> None:
        """Give events to ``inlet`` as they come, while it is ready, and leave the others to ``receive``. None: stop."""

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        """Write events. False: the peer is slow, nothing was written, and ``send`` is to be used."""


class SessionHandle(Protocol):
    """A running session, for those who join it besides its own transport."""

    @property
    def session(self) -> AnySession:
        """The effective configuration."""

    async def submit(self, event: ClientEvent | InvalidEvent) -> None:
        """Hand in an event, as if the session's own client had; waits while the mailbox is full."""

    def hang_up(self) -> None:
        """End the session now, with whatever it is saying."""


class Machine(Protocol):
    """A session core: takes one event at a time, and says what follows."""

    @property
    def session(self) -> AnySession | TranslationSession: ...

    @property
    def deadline(self) -> float: ...

    @property
    def speculations_wasted(self) -> int: ...

    @property
    def held_bytes(self) -> int:
        """Sound of the engine that waits in the machine until it is due."""

    def start(self) -> list[Effect]: ...

    def handle(self, event: Input, now: float) -> list[Effect]: ...


class Answer(Protocol):
    """An open request of the engine: :class:`duologue.engine.stream.Stream`."""

    @property
    def readable(self) -> bool: ...

    @property
    def usage(self) -> Usage: ...

    def take(self) -> Delta | None: ...

    def abort(self, reason: AbortReason) -> None: ...

    def on_delta(self, notify: Callable[[], None]) -> None: ...


class Detector(Protocol):
    """A session's voice activity: :class:`duologue.engine.voice_activity.VoiceActivityStream`."""

    @property
    def pending_frames(self) -> int: ...

    def feed_pcm(self, pcm: bytes) -> None: ...

    async def wait_below(self, limit: int) -> None: ...

    def close(self) -> None: ...


class Detectors(Protocol):
    """Everybody's: :class:`duologue.engine.voice_activity.VoiceActivityService`."""

    def open(self, on_frame: Callable[[VoiceFrame], None], sample_rate: int) -> Detector: ...


class SessionEngine(Protocol):
    """What a session asks of the engine (:class:`duologue.engine.engine.Engine`)."""

    @property
    def voice_activity(self) -> Detectors: ...

    @property
    def turn_model(self) -> TurnModelService: ...

    def open(self, request: EngineRequest) -> Answer:
        """Raises :class:`duologue.engine.engine.RequestRefused`."""


class ToolServers(Protocol):
    """The MCP servers of one session, connected to as they are needed. Used by one event loop."""

    async def list_tools(self, server: McpEndpoint) -> tuple[McpTool, ...] | None:
        """What a server offers; None if it cannot be had."""

    async def call(self, server: McpEndpoint, name: str, arguments: str) -> str | McpError:
        """The text of a tool's result, or why there is none. ``arguments``: a JSON object."""

    async def close(self) -> None:
        """Disconnect from all servers."""
