"""What the edge knows of the server behind it: whether it is ready, what it serves, and who runs the sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from duologue.engine.deploy.config import DeployConfig, TelephonyDeploy, WebRtcDeploy
from duologue.engine.engine import EngineHealth
from duologue.engine.pipeline import PipelineConfig
from duologue.realtime.calls import Calls
from duologue.realtime.client_secrets import ClientSecrets
from duologue.realtime.resume import Resumables
from duologue.realtime.sideband import QueueBounds
from duologue.realtime.webrtc_options import media_worker_count
from duologue.sessions.config import AnySession, Names
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import SessionHandle, Transport
from duologue.sessions.manager import Opening
from duologue.sessions.media import Media
from duologue.sessions.translation_events import TranslationSession

if TYPE_CHECKING:
    from duologue.realtime.webrtc.desk import CallDesk
    from duologue.realtime.webrtc.media_workers import MediaWorker


class EngineView(Protocol):
    """What the edge asks of the engine."""

    @property
    def pipeline(self) -> PipelineConfig: ...

    def health(self) -> EngineHealth: ...


class Sessions(Protocol):
    """What the edge asks of the session manager."""

    def has_room(self) -> bool: ...

    def configure(self, model: str | None, opening: Opening) -> AnySession: ...

    def configure_translation(self, model: str | None, opening: Opening) -> TranslationSession: ...

    async def translate(self, transport: Transport, model: str | None, opening: Opening = ...) -> None: ...

    async def serve(
        self,
        transport: Transport,
        model: str | None,
        opening: Opening = ...,
        on_begin: Callable[[SessionHandle], None] = ...,
        media: Media | None = ...,
    ) -> None: ...


@dataclass(frozen=True)
class EdgeSettings:
    """What the deploy file says about connections."""

    bounds: QueueBounds = field(default_factory=QueueBounds)
    resume_window_s: float = 30.0
    """How long a session waits for a client whose connection broke, if the client asked for it; 0: not at all."""

    webrtc: WebRtcDeploy = field(default_factory=WebRtcDeploy)
    telephony: TelephonyDeploy = field(default_factory=TelephonyDeploy)

    @classmethod
    def of(cls, deploy: DeployConfig) -> EdgeSettings:
        """The settings of a deploy file."""
        duplex = deploy.duplex_session
        bounds = QueueBounds(duplex.output_buffer_events, duplex.output_buffer_bytes)
        return cls(bounds, duplex.resume_window_s, deploy.webrtc, deploy.telephony)


class Gateway:
    """Filled in as the server starts and stops: loading, then open, then draining."""

    def __init__(self, engine: EngineView, names: Names, settings: EdgeSettings = EdgeSettings()) -> None:
        self.engine = engine
        self.names = names
        self.settings = settings
        self.draining = False
        self.secrets = ClientSecrets()
        self.calls = Calls()
        self.resumables = Resumables()
        self._sessions: Sessions | None = None
        self._desk: CallDesk | None = None

    def open(self, sessions: Sessions) -> None:
        """The models are loaded: let sessions in."""
        self._sessions = sessions

    def desk(self) -> CallDesk:
        """Where WebRTC calls are placed. Raises ``ProtocolError`` where that is not installed."""
        if self._desk is None:
            try:
                from duologue.realtime.webrtc.desk import CallDesk
            except ModuleNotFoundError as error:
                message = (
                    f"This server has no WebRTC transport ({error.name} is missing): pip install 'duologue[webrtc]'."
                )
                raise ProtocolError("duologue.unsupported_transport", message) from error
            self._desk = CallDesk(self)
        return self._desk

    async def start_media(self) -> None:
        """Start the media workers that the settings ask for.

        Raises ``WorkerError`` or ``OSError`` if one does not start, ``ProtocolError`` if a number of them is asked for
        where calls are not installed.
        """
        count = media_worker_count(self.settings.webrtc)
        if count == 0:
            return
        try:
            desk = self.desk()
        except ProtocolError:
            if self.settings.webrtc.media_workers == "auto":
                return
            raise
        await desk.start_workers(count)

    def media_workers(self) -> Sequence[MediaWorker]:
        """Those that there are."""
        return () if self._desk is None else self._desk.workers

    def opens_call(self, call_id: str, offered: Iterable[str]) -> bool:
        """Whether one of the keys offered lets a new peer connection join that call."""
        return self._desk is not None and self._desk.opens(call_id, offered)

    @property
    def av_delay_difference_s(self) -> float:
        """See :attr:`~duologue.realtime.webrtc.desk.CallDesk.av_delay_difference_s`."""
        return math.nan if self._desk is None else self._desk.av_delay_difference_s

    async def close(self) -> None:
        """End what outlives a request: the calls."""
        if self._desk is not None:
            await self._desk.close()

    @property
    def sessions(self) -> Sessions:
        """The session manager. Only to be asked for after ``refusal`` returned None."""
        assert self._sessions is not None
        return self._sessions

    def refusal(self) -> ProtocolError | None:
        """Why no new session is let in now, or None if one is."""
        if (closed := self.closed()) is not None:
            return closed
        if not self.sessions.has_room():
            return ProtocolError("duologue.capacity", "All sessions are in use; try again later.")
        return None

    def closed(self) -> ProtocolError | None:
        """Why nothing at all is served now, not even to a session that is in progress; None if it is."""
        if self.draining:
            return ProtocolError("duologue.going_away", "The server is shutting down.")
        if self._sessions is None or not self.engine.health().ready:
            return ProtocolError("duologue.not_ready", "The server is not ready; /health says what is missing.")
        return None
