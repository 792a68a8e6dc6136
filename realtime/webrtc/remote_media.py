"""The media of a call that lives in a media worker, as the gateway sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from duologue.engine.executors.wire import Wire
from duologue.realtime import metrics
from duologue.realtime.webrtc import media_wire as wire
from duologue.realtime.webrtc.call_media import HIGH_WATER, CallListener, Video
from duologue.realtime.webrtc.media_wire import OfCall
from duologue.realtime.webrtc.offer import Offer
from duologue.sessions.errors import ProtocolError

Post = Callable[[Wire], None]

_BYTES_PER_S = 48_000


class RemoteMedia:
    """Implements :class:`~duologue.realtime.webrtc.call_media.CallMedia`."""

    def __init__(self, number: int, post: Post, listener: CallListener, video: Video) -> None:
        """``number``: of the call, with its worker; ``post`` sends to that worker."""
        self.number = number
        self.queued_bytes = 0
        self.av_delay_difference_s: float | None = None
        self._post = post
        self._listener = listener
        self._channel: RemoteChannel | None = None
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._joins = 0
        self._peers = 0
        """Connections that have been answered and are not over."""
        self._clears = 0
        """How often the queue was cleared and the worker has not said that it was."""
        self._closing = False
        self._over = asyncio.Event()
        post(wire.Place(number, video))

    # -- CallMedia -----------------------------------------------------------------------------------------------------

    async def join(self, offer: Offer) -> str:
        if self._closing or self._over.is_set():
            raise _just_ended()
        self._joins += 1
        number, answer = self._joins, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._post(wire.Join(self.number, number, offer))
        try:
            sdp: str = await answer
            return sdp
        finally:
            del self._answers[number]

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        self.queued_bytes += len(pcm)
        self._tell(wire.Play(self.number, response_id, item_id, pcm))

    def finish(self, response_id: str) -> None:
        self._tell(wire.Finish(self.number, response_id))

    def clear(self) -> None:
        self.queued_bytes = 0
        self._clears += 1
        self._tell(wire.Clear(self.number))

    async def close(self) -> None:
        self.hang_up()
        await self._over.wait()

    def hang_up(self) -> None:
        """Have the worker let go of every peer."""
        if not self._closing:
            self._closing = True
            self._tell(wire.EndCall(self.number))

    @property
    def over(self) -> bool:
        """Whether nothing more comes from the worker."""
        return self._over.is_set()

    # -- what the worker says ------------------------------------------------------------------------------------------

    def take(self, message: OfCall) -> None:
        """Act on a message of the worker about this call."""
        listener = self._listener
        match message:
            case wire.Heard(pcm=pcm):
                listener.on_heard(pcm)
            case wire.Played(item_id=item_id, samples=samples):
                if not self._clears:
                    self.queued_bytes -= 2 * samples
                listener.on_played(item_id, samples)
            case wire.Started(response_id=response_id):
                listener.on_started(response_id)
            case wire.Stopped(response_id=response_id):
                listener.on_stopped(response_id)
            case wire.Cleared(response_id=response_id, item_id=item_id, samples_played=samples):
                listener.on_cleared(response_id, item_id, samples)
            case wire.Silent():
                self._clears -= 1
            case wire.Said(message=said, is_text=is_text):
                listener.on_message(said.decode() if is_text else said)
            case wire.Read(channel=number, total=total):
                if (channel := self._numbered(number)) is not None:
                    channel.was_read(total)
            case wire.Opened(channel=number, max_message_bytes=limit):
                self._lose_channel()
                self._channel = RemoteChannel(self.number, number, limit, self._tell)
                with suppress(ConnectionError):
                    listener.on_opened(self._channel)
            case wire.ChannelClosed(channel=number):
                if (channel := self._numbered(number)) is not None:
                    channel.was_closed()
            case wire.Dialled(key=key):
                listener.on_dialled(key)
            case wire.Showed(picture=picture):
                listener.on_picture(picture)
            case wire.Unheard(pcm_bytes=lost):
                metrics.unheard_s.inc(lost / _BYTES_PER_S)
            case wire.Delay(difference_s=difference):
                self.av_delay_difference_s = difference
            case wire.Answered() | wire.Refused():
                self._answered(message)
            case wire.PeerOver(end=end, last=last):
                self._peers -= 1
                listener.on_peer_over(end, last)
            case wire.Ended():
                self._end(_just_ended())

    def lost(self) -> None:
        """The worker is gone, and with it every connection."""
        if self._over.is_set():
            return
        self._end(ProtocolError("duologue.media_worker_lost", "The call's media process has ended. Place it again."))
        while self._peers:
            self._peers -= 1
            self._listener.on_peer_over("worker_lost", last=not self._peers)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tell(self, message: Wire) -> None:
        if not self._over.is_set():
            self._post(message)

    def _numbered(self, number: int) -> RemoteChannel | None:
        return self._channel if self._channel is not None and self._channel.number == number else None

    def _answered(self, message: wire.Answered | wire.Refused) -> None:
        if isinstance(message, wire.Answered):
            self._peers += 1
        answer = self._answers.get(message.number)
        if answer is None or answer.done():
            return
        if isinstance(message, wire.Answered):
            answer.set_result(message.sdp)
        else:
            answer.set_exception(ProtocolError(message.code, message.message, message.param))

    def _end(self, reason: ProtocolError) -> None:
        self._over.set()
        self._lose_channel()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(reason)

    def _lose_channel(self) -> None:
        if self._channel is not None:
            self._channel.was_closed()


def _just_ended() -> ProtocolError:
    return ProtocolError("call_id_not_found", "The call has just ended.", "call_id")


class RemoteChannel:
    """Implements :class:`~duologue.realtime.webrtc.call_media.MediaChannel`."""

    def __init__(self, call: int, number: int, max_message_bytes: int, tell: Post) -> None:
        self.number = number
        self.max_message_bytes = max_message_bytes
        self.open = True
        self._call = call
        self._tell = tell
        self._waiting = 0
        """Bytes that were sent and that the worker has not reported as read."""
        self._sent = 0
        self._moved = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.open and self._waiting < HIGH_WATER

    def send(self, message: str) -> None:
        if not self.open:
            raise ConnectionError("the data channel is closed")
        text = message.encode()
        self._sent += len(text)
        self._waiting += len(text)
        self._tell(wire.Say(self._call, self.number, text))

    async def drained(self) -> None:
        while self.open and not self.ready:
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        if self.open:
            self._tell(wire.CloseChannel(self._call, self.number))
            await self._closed.wait()

    def was_read(self, total: int) -> None:
        """The peer's channel has taken so many bytes since it was opened."""
        self._waiting = self._sent - total
        self._moved.set()

    def was_closed(self) -> None:
        """Nothing more can be sent."""
        self.open = False
        self._moved.set()
        self._closed.set()
