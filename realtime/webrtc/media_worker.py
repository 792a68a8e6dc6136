"""A media worker: ``python -m duologue.realtime.webrtc.media_worker INDEX FD``.

It keeps the peer connections of its calls as the gateway itself would (:class:`LocalMedia`), behind a connection to the
gateway. When that connection ends, for whatever reason, it hangs up and exits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, NoReturn

import uvloop

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.executors.wire import Close, Ping, Pong, Ready, Wire
from duologue.engine.executors.worker_base import log_to, run_worker
from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc import media_wire as wire
from duologue.realtime.webrtc.call_media import LOW_WATER, End, MediaChannel, Video
from duologue.realtime.webrtc.local_media import DataChannel, LocalMedia
from duologue.realtime.webrtc.media_wire import Down, Link, OfCall, down_decoder
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)

MOST_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""What may wait for a gateway that stands still: 3 s of the microphones of 50 calls. Beyond, sound is left out; whoever
goes on sending events until twice as much waits is hung up on."""
READ_STEP_BYTES: Final = 64 * 1024
"""The gateway is told after so much that a channel has taken."""
DELAY_EVERY_S: Final = 1.0
HANG_UP_S: Final = 1.0


class WorkerCall:
    """One call: does with its media what the gateway says, and tells the gateway what that does, as its
    :class:`~duologue.realtime.webrtc.call_media.CallListener`."""

    def __init__(self, number: int, worker: Worker, settings: WebRtcDeploy, video: Video) -> None:
        self._number = number
        self._worker = worker
        self._media = LocalMedia(settings, self, video)
        self._unheard_bytes = 0
        self._channel: DataChannel | None = None
        self._channel_number = 0
        self._given = 0
        """Bytes that the channel in use was given."""
        self._told = 0
        """Of how many of them the gateway knows that they were taken."""
        self._timer: asyncio.TimerHandle | None = None
        if video.seen:
            self._tell_delay()

    # -- what the gateway says -----------------------------------------------------------------------------------------

    def take(self, message: OfCall) -> None:
        match message:
            case wire.Play(response_id=response_id, item_id=item_id, pcm=pcm):
                self._media.play(response_id, item_id, pcm)
            case wire.Finish(response_id=response_id):
                self._media.finish(response_id)
            case wire.Clear():
                self._media.clear()
                self._post(wire.Silent(self._number))
            case wire.Say(channel=channel, message=text):
                self._say(channel, text)
            case wire.Join():
                self._worker.spawn(self._join(message))
            case wire.CloseChannel(channel=channel):
                if channel == self._channel_number and self._channel is not None:
                    self._worker.spawn(self._channel.close())
            case wire.EndCall():
                self._worker.spawn(self._end())

    async def _join(self, message: wire.Join) -> None:
        try:
            answer = await self._media.join(message.offer)
        except ProtocolError as error:
            self._post(wire.Refused(self._number, message.number, error.code, error.message, error.param))
        except Exception:
            logger.exception("an offer could not be answered")
            text = "The offer could not be answered because of a fault in the server."
            self._post(wire.Refused(self._number, message.number, "duologue.internal_error", text, None))
        else:
            self._post(wire.Answered(self._number, message.number, answer))

    def _say(self, channel: int, message: bytes) -> None:
        if channel != self._channel_number or self._channel is None:
            return
        with suppress(ConnectionError):
            self._channel.send(message.decode())
        self._given += len(message)
        if self._given - self._told >= READ_STEP_BYTES and self._channel.waiting_bytes <= LOW_WATER:
            self._tell_read()

    def _tell_read(self) -> None:
        self._told = self._given
        self._post(wire.Read(self._number, self._channel_number, self._told))

    async def _end(self) -> None:
        await self.close()
        self._tell_unheard()
        self._post(wire.Ended(self._number))
        self._worker.forget(self._number)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._media.close()

    # -- CallListener --------------------------------------------------------------------------------------------------

    def on_heard(self, pcm: bytes) -> None:
        if self._worker.unsent_bytes > MOST_UNSENT_BYTES:
            self._unheard_bytes += len(pcm)
            return
        self._tell_unheard()
        self._post(wire.Heard(self._number, pcm))

    def on_dialled(self, key: str) -> None:
        self._post(wire.Dialled(self._number, key))

    def on_picture(self, picture: ImagePart | None) -> None:
        if picture is None or self._worker.unsent_bytes <= MOST_UNSENT_BYTES:  # else the next one will do
            self._post(wire.Showed(self._number, picture))

    def on_opened(self, channel: MediaChannel) -> None:
        assert isinstance(channel, DataChannel)
        self._channel = channel
        self._channel_number += 1
        self._given = self._told = 0
        number = self._channel_number
        channel.watch(self._on_low, lambda: self._post(wire.ChannelClosed(self._number, number)))
        self._post(wire.Opened(self._number, number, channel.max_message_bytes))

    def on_message(self, message: str | bytes) -> None:
        if self._worker.unsent_bytes > 2 * MOST_UNSENT_BYTES:
            self._worker.spawn(self._media.close())
            return
        if isinstance(message, str):
            self._post(wire.Said(self._number, message.encode(), is_text=True))
        else:
            self._post(wire.Said(self._number, message, is_text=False))

    def on_peer_over(self, end: End, last: bool) -> None:
        self._post(wire.PeerOver(self._number, end, last))

    def on_started(self, response_id: str) -> None:
        self._post(wire.Started(self._number, response_id))

    def on_played(self, item_id: str, samples: int) -> None:
        self._post(wire.Played(self._number, item_id, samples))

    def on_stopped(self, response_id: str) -> None:
        self._post(wire.Stopped(self._number, response_id))

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        self._post(wire.Cleared(self._number, response_id, item_id, samples_played))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _post(self, message: Wire) -> None:
        self._worker.link.post(message)

    def _tell_unheard(self) -> None:
        if self._unheard_bytes:
            self._post(wire.Unheard(self._number, self._unheard_bytes))
            self._unheard_bytes = 0

    def _on_low(self) -> None:
        if self._given > self._told:
            self._tell_read()

    def _tell_delay(self) -> None:
        difference = self._media.av_delay_difference_s
        if difference is not None:
            self._post(wire.Delay(self._number, difference))
        self._timer = asyncio.get_running_loop().call_later(DELAY_EVERY_S, self._tell_delay)


class Worker:
    """Acts on the gateway's messages. Lives on the event loop of the worker process."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.clean = False
        self.link: Link[Down] = Link(down_decoder, self._on_messages, self.over.set)
        self._settings = WebRtcDeploy()
        self._calls: dict[int, WorkerCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unsent_bytes(self) -> int:
        """What the gateway has not taken yet."""
        return self.link.unsent_bytes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, number: int) -> None:
        """That call is over."""
        del self._calls[number]

    async def hang_up(self) -> None:
        """End every call, within a bound."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP_S):
                await asyncio.gather(*(call.close() for call in self._calls.values()))

    def _on_messages(self, messages: list[Down]) -> None:
        for message in messages:
            match message:
                case wire.Place(call=number, video=video):
                    self._calls[number] = WorkerCall(number, self, self._settings, video)
                case OfCall(call=number):
                    if (call := self._calls.get(number)) is not None:
                        self._tell(call, message)
                case wire.Launch(settings=settings, log_level=log_level):
                    self._settings = settings
                    log_to(self.link, log_level)
                    self.link.post(Ready())
                case Ping():
                    self.link.post(Pong())
                case Close():
                    self.clean = True
                    self.over.set()

    def _tell(self, call: WorkerCall, message: OfCall) -> None:
        try:
            call.take(message)
        except Exception:  # the other calls are not to suffer by it
            logger.exception("a call failed")
            self.spawn(call.close())


async def _run(fd: int) -> bool:
    worker = Worker()
    await asyncio.get_running_loop().create_unix_connection(lambda: worker.link, sock=socket.socket(fileno=fd))
    await worker.over.wait()
    await worker.hang_up()
    return worker.clean


def main() -> NoReturn:
    """Run until the gateway says so or is gone."""
    run_worker(_run, int(sys.argv[2]), uvloop.new_event_loop)


if __name__ == "__main__":
    main()
