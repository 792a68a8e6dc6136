"""Between a call's session and its media: what either says to the other.

The media of a call (its playout queue, its peer connections and their data channels) lives in this process
(:mod:`duologue.realtime.webrtc.local_media`) or in a worker (:mod:`duologue.realtime.webrtc.media_workers`), where the
same code runs behind a socket. The session's end of it (:class:`~duologue.realtime.webrtc.call.CallTransport`) sees no
difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc.offer import Offer
from duologue.realtime.webrtc.playout_queue import PlayoutListener

HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait in a data channel; beyond, the session waits."""
LOW_WATER: Final = 256 * 1024

End = Literal["closed", "failed", "timeout", "worker_lost"]
"""Why a connection is over: closed by either side, lost, never made, or its media worker ended."""


@dataclass(frozen=True)
class Video:
    """What a call does with video."""

    seen: bool = False
    """Whether there is a model that looks at the peer's."""
    source: Literal["level_meter"] | None = None
    """What the peer is shown; None: nothing is."""

    @property
    def any(self) -> bool:
        return self.seen or self.source is not None


class MediaChannel(Protocol):
    """The data channel of the peer in use, once it is open."""

    @property
    def open(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """Whether more can be sent without waiting."""

    @property
    def max_message_bytes(self) -> int:
        """Longest message that the peer takes; 0: any."""

    def send(self, message: str) -> None:
        """Queue a message. Raises ``ConnectionError`` when the channel is not open."""

    async def drained(self) -> None:
        """Wait until the peer has read enough, or the channel is closed."""

    async def close(self) -> None:
        """Close the channel once the peer has everything."""


class CallListener(PlayoutListener, Protocol):
    """Who is told what the media of a call does. Called on the event loop, and never waits."""

    def on_heard(self, pcm: bytes) -> None:
        """Mono PCM16 at 24 kHz of the peer's microphone."""

    def on_dialled(self, key: str) -> None:
        """A key of its telephone was pressed: one of ``0-9 * # A-D``."""

    def on_picture(self, picture: ImagePart | None) -> None:
        """A frame of its camera or screen, now and then; None once it shows nothing any more."""

    def on_opened(self, channel: MediaChannel) -> None:
        """A data channel is open; it takes the place of the one before."""

    def on_message(self, message: str | bytes) -> None:
        """The peer has sent a message over the data channel in use."""

    def on_peer_over(self, end: End, last: bool) -> None:
        """A peer connection is gone; with the last one the call is over."""


class CallMedia(Protocol):
    """The media of one call. A peer connection that joins takes over once it is connected."""

    @property
    def queued_bytes(self) -> int:
        """PCM16 bytes that have not been played."""

    @property
    def av_delay_difference_s(self) -> float | None:
        """Of the peer in use: how much longer pictures wait than sound; None without both."""

    async def join(self, offer: Offer) -> str:
        """The SDP answer to a peer's offer. Raises ``ProtocolError``, and then holds nothing of it."""

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue sound of an item: mono PCM16 at 24 kHz."""

    def finish(self, response_id: str) -> None:
        """Nothing more of a response follows."""

    def clear(self) -> None:
        """Drop what is queued, now."""

    async def close(self) -> None:
        """Let go of every peer. Idempotent."""


class MediaHost(Protocol):
    """Where the media of calls lives."""

    def open(self, listener: CallListener, video: Video) -> CallMedia:
        """Make the media of a call. Raises ``ProtocolError`` where there is no place for it."""

    async def close(self) -> None:
        """End it. The calls are over."""
