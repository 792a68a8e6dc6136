"""The media of calls, in the process that this runs in: the gateway's own or a media worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiortc import RTCDataChannel
from aiortc.exceptions import InvalidStateError

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc.call_media import HIGH_WATER, LOW_WATER, CallListener, End, Video
from duologue.realtime.webrtc.offer import Offer
from duologue.realtime.webrtc.peer import Peer
from duologue.realtime.webrtc.playout_queue import PlayoutQueue
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)


class LocalHost:
    """Implements :class:`~duologue.realtime.webrtc.call_media.MediaHost`."""

    def __init__(self, settings: WebRtcDeploy) -> None:
        self._settings = settings

    def open(self, listener: CallListener, video: Video) -> LocalMedia:
        return LocalMedia(self._settings, listener, video)

    async def close(self) -> None:
        """The calls hold everything."""


class LocalMedia:
    """Implements :class:`~duologue.realtime.webrtc.call_media.CallMedia`: one peer connection after another, which play
    from one queue."""

    def __init__(self, settings: WebRtcDeploy, listener: CallListener, video: Video) -> None:
        self._settings = settings
        self._listener = listener
        self._video = video
        self._queue = PlayoutQueue(listener)
        self._peers: dict[Peer, asyncio.Task[None]] = {}
        """Oldest first, each with what keeps it. The newest that has connected is in use; there are more than one only
        during a change."""
        self._peer: Peer | None = None
        self._channel: DataChannel | None = None
        self._closed = False

    # -- CallMedia -----------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        return self._queue.queued_bytes

    @property
    def av_delay_difference_s(self) -> float | None:
        return None if self._peer is None else self._peer.av_delay_difference_s

    async def join(self, offer: Offer) -> str:
        peer = Peer(self._settings, offer, self._queue, self, self._video)
        answer = await peer.answer()
        if self._closed:
            await peer.close()
            raise ProtocolError("call_id_not_found", "The call has just ended.", "call_id")
        self._peers[peer] = asyncio.create_task(self._keep(peer), name="call-peer")
        return answer

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        if self._peer is not None:
            self._peer.push(response_id, item_id, pcm)
        else:
            self._queue.push(response_id, item_id, pcm)

    def finish(self, response_id: str) -> None:
        self._queue.finish(response_id)

    def clear(self) -> None:
        self._queue.clear()

    async def close(self) -> None:
        self._closed = True
        keeping = tuple(self._peers.values())
        for peer in self._peers:
            peer.leave()
        if keeping:
            await asyncio.wait(keeping)

    # -- PeerListener --------------------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        self._peer = peer
        for other in tuple(self._peers):
            if other is peer:
                break
            other.be_silent()
            other.leave()

    def peer_spoke(self, peer: Peer, pcm: bytes) -> None:
        if peer is self._peer:
            self._listener.on_heard(pcm)

    def peer_dialled(self, peer: Peer, key: str) -> None:
        if peer is self._peer:
            self._listener.on_dialled(key)

    def peer_showed(self, peer: Peer, picture: ImagePart | None) -> None:
        if peer is self._peer:
            self._listener.on_picture(picture)

    def peer_opened(self, peer: Peer, channel: RTCDataChannel) -> None:
        if peer is not self._peer:
            return
        opened = DataChannel(channel)
        channel.on("message", lambda message: self._take(opened, message))
        self._channel = opened
        self._listener.on_opened(opened)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take(self, channel: DataChannel, message: str | bytes) -> None:
        if channel is self._channel:
            self._listener.on_message(message)

    async def _keep(self, peer: Peer) -> None:
        """Keep a peer until it is over."""
        end: End = "failed"
        try:
            end = await peer.run()
        except Exception:
            logger.exception("a peer connection failed")
        finally:
            await peer.close()
            del self._peers[peer]
            self._listener.on_peer_over(end, last=not self._peers)


class DataChannel:
    """Implements :class:`~duologue.realtime.webrtc.call_media.MediaChannel`."""

    def __init__(self, channel: RTCDataChannel) -> None:
        self._channel = channel
        self._low = asyncio.Event()
        self._low.set()
        channel.bufferedAmountLowThreshold = LOW_WATER
        channel.on("bufferedamountlow", self._low.set)
        channel.on("close", self._low.set)

    @property
    def open(self) -> bool:
        return self._channel.readyState == "open"

    @property
    def ready(self) -> bool:
        return self.open and self._channel.bufferedAmount < HIGH_WATER

    @property
    def waiting_bytes(self) -> int:
        """What was given to it and has not left."""
        return self._channel.bufferedAmount

    @property
    def max_message_bytes(self) -> int:
        limit: int = self._channel.transport._remote_max_message_size
        return limit

    def watch(self, on_low: Callable[[], None], on_closed: Callable[[], None]) -> None:
        """Call ``on_low`` when what waits has become less than ``LOW_WATER``, and ``on_closed`` once, at the end."""
        self._channel.on("bufferedamountlow", on_low)
        self._channel.on("close", on_closed)

    def send(self, message: str) -> None:
        try:
            self._channel.send(message)
        except InvalidStateError as error:
            raise ConnectionError("the data channel is closed") from error

    async def drained(self) -> None:
        while self.open and not self.ready:
            self._low.clear()
            await self._low.wait()

    async def close(self) -> None:
        """A stream is reset behind what was sent on it."""
        if not self.open:
            return
        closed = asyncio.Event()
        self._channel.on("close", closed.set)
        self._channel.close()
        await closed.wait()
