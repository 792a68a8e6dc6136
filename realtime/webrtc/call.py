"""A call as a session sees it: a transport of events and a media track, over one peer connection after another.

A client whose network has changed makes a new peer connection and offers it for the same call
(:meth:`CallTransport.join`); once it is connected it takes over, with the sound that has not been played, and the one
before it is closed. Where all that happens, in this process or in another, is the matter of the call's media
(:mod:`duologue.realtime.webrtc.call_media`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from duologue.engine.requests import ImagePart
from duologue.realtime import metrics
from duologue.realtime.dialects import Dialect
from duologue.realtime.sideband import QueueBounds
from duologue.realtime.webrtc.call_media import CallListener, CallMedia, End, MediaChannel
from duologue.realtime.webrtc.channel import send_events
from duologue.realtime.webrtc.offer import Offer
from duologue.realtime.websocket import CLOSE_TIMEOUT_S
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.effects import AudioSent, PlayoutCleared, PlayoutReport, PlayoutStarted, PlayoutStopped
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import Inlet
from duologue.sessions.media import MediaListener
from duologue.sessions.server_events import ServerEvent

_BINARY: Final = InvalidEvent(
    error=ProtocolError("invalid_event", "Binary messages are not accepted; send events as JSON in text messages.")
)


class CallTransport:
    """The session's transport (:class:`~duologue.sessions.interfaces.DirectTransport`) and its media track
    (:class:`~duologue.sessions.media.Media`)."""

    def __init__(
        self,
        dialect: Dialect,
        bounds: QueueBounds,
        greeting: Callable[[], ServerEvent],
        open_media: Callable[[CallListener], CallMedia],
    ) -> None:
        """``greeting`` makes the first event for a peer that joins a session that has begun.

        Raises ``ProtocolError`` where there is no place for its media.
        """
        self._dialect = dialect
        self._bounds = bounds
        self._greeting = greeting
        self._channel: MediaChannel | None = None
        self._has_channel = False
        self._greeted = False
        self._listener: MediaListener | None = None
        self._inlet: Inlet | None = None
        self._incoming: deque[ClientEvent | InvalidEvent] = deque()
        self._arrived = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when there may be a channel to send over, or never will be."""
        self._over = False
        self._media = open_media(self)

    # -- peers ---------------------------------------------------------------------------------------------------------

    async def join(self, offer: Offer) -> str:
        """The answer to a peer's offer; it is used once it is connected. Raises ``ProtocolError``."""
        answer = await self._media.join(offer)
        self._has_channel = self._has_channel or offer.has_channel
        return answer

    async def close_peers(self) -> None:
        """Let go of every peer there is."""
        await self._media.close()

    @property
    def av_delay_difference_s(self) -> float | None:
        """Of the peer in use: how much longer pictures wait than sound; None without both."""
        return self._media.av_delay_difference_s

    # -- Transport -----------------------------------------------------------------------------------------------------

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        while not self._incoming:
            if self._over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._incoming.popleft()

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Send events in order; waits for a channel to be open. Without one in the offer they go nowhere."""
        while self._has_channel:
            channel = self._channel
            if self._over:
                raise ConnectionError("the call is over")
            if channel is not None and channel.open:
                await channel.drained()
                if channel.ready:
                    break
            else:
                self._moved.clear()
                await self._moved.wait()
        self.send_now(events)

    async def close(self, code: int, reason: str) -> None:
        """End the call, once the peer has every event."""
        if self._channel is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._channel.close()
        self._end()
        await self.close_peers()

    # -- DirectTransport -----------------------------------------------------------------------------------------------

    def deliver_to(self, inlet: Inlet | None) -> None:
        self._inlet = inlet

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        if self._has_channel:
            if self._channel is None or not self._channel.ready:
                return False
            send_events(self._channel, self._dialect, events)
        self._greeted = True
        return True

    # -- Media ---------------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        return self._media.queued_bytes

    def attach(self, listener: MediaListener | None) -> None:
        self._listener = listener

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        self._media.play(response_id, item_id, pcm)

    def finish(self, response_id: str) -> None:
        self._media.finish(response_id)

    def clear(self) -> None:
        self._media.clear()

    # -- PlayoutListener -----------------------------------------------------------------------------------------------

    def on_started(self, response_id: str) -> None:
        self._report(PlayoutStarted(response_id))

    def on_played(self, item_id: str, samples: int) -> None:
        self._report(AudioSent(item_id, samples))

    def on_stopped(self, response_id: str) -> None:
        self._report(PlayoutStopped(response_id))

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        self._report(PlayoutCleared(response_id))

    def _report(self, report: PlayoutReport) -> None:
        if self._listener is not None:
            self._listener.playout(report)

    # -- CallListener: what comes in -----------------------------------------------------------------------------------

    def on_heard(self, pcm: bytes) -> None:
        if self._listener is not None:
            self._listener.hear(pcm)

    def on_dialled(self, key: str) -> None:
        if self._listener is not None:
            self._listener.dialled(key, time.time())

    def on_picture(self, picture: ImagePart | None) -> None:
        if self._listener is not None:
            self._listener.see(picture)

    def on_opened(self, channel: MediaChannel) -> None:
        if self._greeted:
            send_events(channel, self._dialect, [self._greeting()])
        self._channel = channel
        self._moved.set()

    def on_peer_over(self, end: End, last: bool) -> None:
        metrics.calls_ended.labels(reason=end).inc()
        if last:
            self._end()

    def on_message(self, message: str | bytes) -> None:
        if self._over:
            return
        event = _BINARY if isinstance(message, bytes) else self._dialect.decode(message)
        if isinstance(event, InvalidEvent):
            metrics.invalid_events.labels(code=event.error.code).inc()
        if self._inlet is not None and not self._incoming and self._inlet.ready():
            self._inlet.take(event)
            return
        if len(self._incoming) >= self._bounds.events:  # a data channel cannot be held back
            self._end()
            return
        self._incoming.append(event)
        self._arrived.set()

    def _end(self) -> None:
        self._over = True
        self._arrived.set()
        self._moved.set()
