"""What the edge knows of the server behind it: whether it is ready, what it serves, and who runs the sessions."""

from __future__ import annotations

from typing import Protocol

from duologue.engine.engine import EngineHealth
from duologue.engine.pipeline import PipelineConfig
from duologue.realtime.client_secrets import ClientSecrets
from duologue.sessions.actor import Transport
from duologue.sessions.config import AnySession, Names
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening


class EngineView(Protocol):
    """What the edge asks of the engine."""

    @property
    def pipeline(self) -> PipelineConfig: ...

    def health(self) -> EngineHealth: ...


class Sessions(Protocol):
    """What the edge asks of the session manager."""

    def has_room(self) -> bool: ...

    def configure(self, model: str | None, opening: Opening) -> AnySession: ...

    async def serve(self, transport: Transport, model: str | None, opening: Opening = ...) -> None: ...


class Gateway:
    """Filled in as the server starts and stops: loading, then open, then draining."""

    def __init__(self, engine: EngineView, names: Names) -> None:
        self.engine = engine
        self.names = names
        self.draining = False
        self.secrets = ClientSecrets()
        self._sessions: Sessions | None = None

    def open(self, sessions: Sessions) -> None:
        """The models are loaded: let sessions in."""
        self._sessions = sessions

    @property
    def sessions(self) -> Sessions:
        """The session manager. Only to be asked for after ``refusal`` returned None."""
        assert self._sessions is not None
        return self._sessions

    def refusal(self) -> ProtocolError | None:
        """Why no new session is let in now, or None if one is."""
        if self.draining:
            return ProtocolError("duologue.going_away", "The server is shutting down.")
        if self._sessions is None or not self.engine.health().ready:
            return ProtocolError("duologue.not_ready", "The server is not ready; /health says what is missing.")
        if not self._sessions.has_room():
            return ProtocolError("duologue.capacity", "All sessions are in use; try again later.")
        return None
