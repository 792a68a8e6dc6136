"""What the session core is told besides client events, and what it asks for. Frozen data; the actor carries it out.

``gc=False``: none of it can be part of a cycle, and there are hundreds a second for each session.
"""

from __future__ import annotations

import msgspec

from duologue.engine.requests import AbortReason, Delta, EngineRequest, ImagePart, Usage
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.items import McpError, McpTool
from duologue.sessions.server_events import ServerEvent


class Signal(msgspec.Struct, frozen=True, gc=False):
    """Base of what the core is told."""


class VoiceActivity(Signal, frozen=True):
    """The next frame of a voice-activity stream (:data:`timebase.VAD_FRAME_TICKS` long): how probable it is that
    somebody speaks, for how long at its end nothing has been heard, and the power from which on something is
    (0: no silence is known before a frame has come)."""

    stream: int
    probability: float
    quiet_ms: int = 0
    heard_from: float = 0.0


class TurnJudged(Signal, frozen=True):
    """The answer to :class:`AskTurnModel`: how probable it is that the turn is over; None: there is no answer."""

    question: int
    probability: float | None


class MoreAudio(Signal, frozen=True):
    """The rest of an append from byte ``offset`` on: what takes long to work on is taken in pieces."""

    audio: bytes
    offset: int


class EngineOutput(Signal, frozen=True):
    """The next delta of an open engine request. A request that the core no longer knows is stale: dropped."""

    request_id: str
    delta: Delta
    usage: Usage = Usage()
    """Tokens that the request has used so far."""


class AudioSent(Signal, frozen=True):
    """Sound of an item has left, ``samples`` at 24 kHz: the transport has written it, or a media track played it."""

    item_id: str
    samples: int


class MediaAudio(Signal, frozen=True):
    """Sound of the user that came over a media track: mono PCM16 at 24 kHz."""

    pcm: bytes


class MediaPicture(Signal, frozen=True):
    """What a camera or a screen shows, from a video track: one frame now and then; None once it shows nothing."""

    picture: ImagePart | None


class Dialled(Signal, frozen=True):
    """The user has pressed a key of the telephone, at ``received_at`` (seconds since 1970)."""

    digit: str
    received_at: float


class PlayoutStarted(Signal, frozen=True):
    """A media track begins to play a response."""

    response_id: str


class PlayoutStopped(Signal, frozen=True):
    """All of a response has been played that there was."""

    response_id: str


class PlayoutCleared(Signal, frozen=True):
    """The rest of a response will not be played (:class:`StopPlaying`)."""

    response_id: str


PlayoutReport = AudioSent | PlayoutStarted | PlayoutStopped | PlayoutCleared


class Tick(Signal, frozen=True):
    """The moment named by ``deadline`` has come."""


class Shutdown(Signal, frozen=True):
    """The server goes away: finish the answer in progress, then close."""


class HangUp(Signal, frozen=True):
    """Somebody who may has ended the session: cut the answer in progress off, and close."""


class ToolsListed(Signal, frozen=True):
    """What the MCP server offers that the item ``item_id`` asks for; None: it could not be had."""

    item_id: str
    tools: tuple[McpTool, ...] | None


class ToolAnswered(Signal, frozen=True):
    """The end of the call ``item_id``."""

    item_id: str
    result: str | McpError


Input = ClientEvent | InvalidEvent | Signal


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of what the core asks for."""


class Send(Effect, frozen=True):
    """Send an event to the client. ``samples``: the sound in it, at 24 kHz, to be reported by ``AudioSent``."""

    event: ServerEvent
    samples: int = 0


class Play(Effect, frozen=True):
    """Put sound of an item on the media track: mono PCM16 at 24 kHz. What is heard of it comes back as reports."""

    response_id: str
    item_id: str
    pcm: bytes


class FinishPlaying(Effect, frozen=True):
    """Nothing more of a response will be played than what has been handed over."""

    response_id: str


class StopPlaying(Effect, frozen=True):
    """Be silent: drop what the media track has not played."""


class DropAudio(Effect, frozen=True):
    """Forget sound of a response that is queued and has not left."""

    response_id: str


class Interrupted(Effect, frozen=True):
    """The user has stopped an answer that sounded, so many seconds after the first of his voice came."""

    after_s: float


class FeedVoiceActivity(Effect, frozen=True):
    """Run voice activity over new input. A new ``stream`` number begins with fresh state."""

    stream: int
    pcm: bytes
    sample_rate: int


class StopVoiceActivity(Effect, frozen=True):
    """No stream of voice activity is wanted any more."""


class AskTurnModel(Effect, frozen=True):
    """Have the sound of a turn up to a pause judged; answered by :class:`TurnJudged`. A new question takes the place of
    one that is open."""

    question: int
    pcm: bytes
    sample_rate: int


class GoOn(Effect, frozen=True):
    """Let others have their turn, then hand this back, before anything else."""

    rest: MoreAudio


class OpenRequest(Effect, frozen=True):
    request: EngineRequest


class AbortRequest(Effect, frozen=True):
    request_id: str
    reason: AbortReason = "client_abort"


class McpEndpoint(msgspec.Struct, frozen=True):
    """Where an MCP server is reached, and what opens it. The headers are secret."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"McpEndpoint({self.url!r})"


class ListTools(Effect, frozen=True):
    """Ask an MCP server for its tools; answered by :class:`ToolsListed`."""

    item_id: str
    server: McpEndpoint


class CallTool(Effect, frozen=True):
    """Call a tool of an MCP server; answered by :class:`ToolAnswered`. ``arguments``: a JSON object."""

    item_id: str
    server: McpEndpoint
    name: str
    arguments: str


class AbandonCall(Effect, frozen=True):
    """Nobody waits for the answer of that call any more."""

    item_id: str


class CloseSession(Effect, frozen=True):
    """Send what is queued, then close the transport with this WebSocket code."""

    code: int
    reason: str
