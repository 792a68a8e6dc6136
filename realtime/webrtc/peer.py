"""One peer connection of a call: its answer, its media and its data channel, from the offer to the last packet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from aiortc import (
    RTCDataChannel,
    RTCDtlsTransport,
    RTCIceTransport,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError
from aiortc.sdp import candidate_from_sdp

from duologue.codecs.opus import OpusMissingError
from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc.aiortc_wire import FrameDelays
from duologue.realtime.webrtc.call_media import End, Video
from duologue.realtime.webrtc.ice import NoPort, configuration, gather_by
from duologue.realtime.webrtc.media import IncomingAudio, OutgoingAudio
from duologue.realtime.webrtc.offer import Offer, bad_offer
from duologue.realtime.webrtc.playout_queue import PlayoutQueue
from duologue.realtime.webrtc.video_in import IncomingVideo
from duologue.realtime.webrtc.video_out import SOURCES, OutgoingVideo
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)

_REFUSALS = (ValueError, KeyError, IndexError, OperationError, InternalError, InvalidAccessError, InvalidStateError)
"""What the library raises at a description that it cannot use."""

_DIRECTIONS = {
    (False, False): "inactive",
    (True, False): "recvonly",
    (False, True): "sendonly",
    (True, True): "sendrecv",
}
"""Of a video section in the answer, by whether the peer's is seen and whether it is shown any."""


class PeerListener(Protocol):
    """Who is told what a peer does. Called on the event loop."""

    def peer_connected(self, peer: Peer) -> None:
        """Media flows from now on."""

    def peer_spoke(self, peer: Peer, pcm: bytes) -> None:
        """Mono PCM16 at 24 kHz of the peer's microphone."""

    def peer_dialled(self, peer: Peer, key: str) -> None:
        """A key of its telephone was pressed: one of ``0-9 * # A-D``."""

    def peer_showed(self, peer: Peer, picture: ImagePart | None) -> None:
        """A frame of its camera or screen, now and then; None once it shows nothing any more."""

    def peer_opened(self, peer: Peer, channel: RTCDataChannel) -> None:
        """Its data channel is open."""


class Peer:
    """A peer that has sent an offer."""

    def __init__(
        self, settings: WebRtcDeploy, offer: Offer, queue: PlayoutQueue, listener: PeerListener, video: Video
    ) -> None:
        """``queue`` holds what is to be said; ``video``: what is done with a video section of the offer."""
        self.offer = offer
        self.video = video
        self._settings = settings
        self._listener = listener
        self._connection = RTCPeerConnection(configuration(settings))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connection.on("datachannel", self._channel_opened)
        self._audio = self._connection.addTransceiver("audio", direction="sendrecv")
        self._queue = queue
        self._outgoing: OutgoingAudio | None = None
        self._incoming: IncomingAudio | None = None
        self._watching: IncomingVideo | None = None
        self._showing: OutgoingVideo | None = None
        self._channel: RTCDataChannel | None = None
        self._closing: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._end: End = "closed"

    async def answer(self) -> str:
        """The SDP answer with every candidate of ours; media may come from now on.

        Raises ``ProtocolError`` for an offer that cannot be taken; the peer is closed then.
        """
        connection = self._connection
        try:
            await connection.setRemoteDescription(RTCSessionDescription(self.offer.sdp, "offer"))
            for transport in self._transports():
                gather_by(self._settings, transport)
            if connection.sctp is not None:
                _lose_quietly(connection.sctp.transport)
            self._outgoing = OutgoingAudio(self._audio, self._queue, self.offer.most_bitrate)
            self._arrange_video(self._outgoing)
            if self._audio.receiver.track is not None:
                self._incoming = IncomingAudio(self._audio, self._heard, self._pressed, self.offer.telephone_events)
            await connection.setLocalDescription(await connection.createAnswer())
            answer = self.offer.answer(connection.localDescription.sdp)
        except OpusMissingError as error:
            await self.close()
            raise ProtocolError("duologue.unsupported_transport", str(error)) from error
        except NoPort as error:
            await self.close()
            raise ProtocolError("duologue.capacity", f"{error} Try again later.") from error
        except _REFUSALS as error:
            await self.close()
            raise bad_offer(f"{error}.") from error
        return answer

    def _arrange_video(self, audio: OutgoingAudio) -> None:
        """Say in the answer which way video goes, and make what the peer is shown."""
        transceiver = next((t for t in self._connection.getTransceivers() if t.kind == "video"), None)
        if transceiver is None:
            return
        source, shown = self.video.source, self.offer.wants_video and self.video.source is not None
        seen = self.offer.shows_video and self.video.seen
        transceiver.direction = _DIRECTIONS[seen, shown]
        if seen:
            self._watching = IncomingVideo(
                transceiver.receiver.track, self._settings, self._saw, FrameDelays(transceiver.receiver)
            )
        if shown and source is not None:
            self._showing = OutgoingVideo(transceiver, self._queue, SOURCES[source](), lambda: audio.position)

    async def run(self) -> End:
        """Keep the connection up until it is over; says why it is."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._look_up(self.offer.candidates), name="call-candidates")]
            if self._incoming is not None:
                helpers.append(tasks.create_task(self._incoming.run(), name="call-hear"))
            if self._watching is not None:
                helpers.append(tasks.create_task(self._watching.run(), name="call-watch"))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    await self._connected.wait()
            if not self._connected.is_set():
                self._finish("timeout")
            await self._over.wait()
            for helper in helpers:
                helper.cancel()
        return self._end

    @property
    def av_delay_difference_s(self) -> float | None:
        """How much longer pictures wait than sound before they are given out; None before both have come."""
        if self._incoming is None or self._watching is None or self._watching.delays is None:
            return None
        sound, pictures = self._incoming.stats.mean_held_s, self._watching.delays.mean_s
        return None if sound is None or pictures is None else pictures - sound

    def leave(self) -> None:
        """Let :meth:`run` return."""
        self._finish("closed")

    def push(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue PCM16 at 24 kHz of an item."""
        if self._outgoing is not None:
            self._outgoing.push(response_id, item_id, pcm)

    def be_silent(self) -> None:
        """Send nothing more of the queue: another peer does."""
        if self._showing is not None:
            self._showing.stop()
        if self._outgoing is not None:
            self._outgoing.stop()

    async def close(self) -> None:
        """Close the connection and free its ports. Harmless when it is closed."""
        self._finish("closed")
        self.be_silent()
        if self._closing is None:
            self._closing = asyncio.create_task(self._connection.close(), name="call-close")
        # The library cannot go on with a close that was cancelled half way, nor would it ever say that it is closed.
        await asyncio.shield(self._closing)

    # -- what the connection says --------------------------------------------------------------------------------------

    def _state_changed(self) -> None:
        match self._connection.connectionState:
            case "connected" if not self._connected.is_set():
                self._connected.set()
                self._listener.peer_connected(self)
            case "failed" | "closed" as state:
                self._finish("failed" if state == "failed" else "closed")

    def _channel_opened(self, channel: RTCDataChannel) -> None:
        if self._channel is not None:  # one is enough for all events
            logger.info("a second data channel, '%s', is closed", channel.label[:64])
            channel.close()
            return
        self._channel = channel
        channel.on("close", self.leave)
        self._listener.peer_opened(self, channel)

    def _saw(self, picture: ImagePart | None) -> None:
        self._listener.peer_showed(self, picture)

    def _pressed(self, key: str) -> None:
        self._listener.peer_dialled(self, key)

    def _heard(self, pcm: bytes, sample_rate: int) -> None:
        self._listener.peer_spoke(self, pcm)

    def _finish(self, end: End) -> None:
        if not self._over.is_set():
            self._end = end
            self._over.set()
            self._connected.set()

    # -- ICE -----------------------------------------------------------------------------------------------------------

    def _transports(self) -> Iterable[RTCIceTransport]:
        transports = [transceiver.receiver.transport.transport for transceiver in self._connection.getTransceivers()]
        if self._connection.sctp is not None:
            transports.append(self._connection.sctp.transport.transport)
        return dict.fromkeys(transports)

    async def _look_up(self, candidates: Iterable[str]) -> None:
        """Add the candidates that have names. Those that cannot be found are no loss while the peer can reach us."""
        for text in candidates:
            with suppress(ValueError, OSError):
                candidate = candidate_from_sdp(text)
                for transport in self._transports():
                    await transport.addRemoteCandidate(candidate)


def _lose_quietly(transport: RTCDtlsTransport) -> None:
    """A packet of the data channel that can no longer leave is lost, as others are, and no error.

    The library sends from tasks that nobody waits for: with each peer that vanishes they would end with exceptions.
    """
    send = transport._send_data

    async def send_or_lose(data: bytes) -> None:
        with suppress(ConnectionError):
            await send(data)

    transport._send_data = send_or_lose  # type: ignore[method-assign]
