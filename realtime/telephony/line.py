"""One telephone call as a session sees it: a transport without a client of its own, and a media track over marks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.codecs import g711
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import StreamResampler
from duologue.codecs.wire_audio import G711_RATE, PCM_RATE
from duologue.realtime.telephony import messages
from duologue.realtime.telephony.marks import MarkedPlayout, Message
from duologue.realtime.websocket import CLOSE_TIMEOUT_S
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.interfaces import Inlet
from duologue.sessions.media import MediaListener
from duologue.sessions.server_events import ServerEvent

logger = logging.getLogger(__name__)

MAX_FILLED_MS: Final = 1000
"""Longest hole in the caller's sound that is filled with silence, so that pauses keep their length."""

_ULAW_SILENCE: Final = b"\xff"


async def received(websocket: WebSocket) -> messages.AnyInbound:
    """The next message that is one. What is none is logged and left out: a provider cannot be told.

    Raises ``WebSocketDisconnect``.
    """
    while True:
        frame = await websocket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code", 1006))
        try:
            return messages.decode(frame.get("text") or frame.get("bytes") or b"")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            logger.warning("a media stream sent something that is no message: %s", error)


class PhoneLine:
    """The session's transport (:class:`~duologue.sessions.interfaces.DirectTransport`) and its media track
    (:class:`~duologue.sessions.media.Media`). Events go nowhere: who wants them joins the call as a sideband."""

    def __init__(self, websocket: WebSocket, stream_sid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._websocket = websocket
        self._stream_sid = stream_sid
        self._clock = clock
        self._playout = MarkedPlayout()
        self._upsampler = StreamResampler(G711_RATE, PCM_RATE, "LOW_DELAY")
        self._expected_ms: int | None = None
        """The time stamp that the caller's next sound is expected to have."""
        self._listener: MediaListener | None = None
        self._outgoing: deque[str] = deque()
        self._outgoing_filled = asyncio.Event()
        self._over = asyncio.Event()
        self.ended_by_caller = False
        """Whether the provider has ended the stream; else we have."""

    async def run(self) -> None:
        """Carry messages both ways until the provider or the session ends the call."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(), name="phone-read")
            writing = tasks.create_task(self._write(), name="phone-write")
            await self._over.wait()
            reading.cancel()
            writing.cancel()

    # -- Transport -----------------------------------------------------------------------------------------------------

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        await self._over.wait()
        return None

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Nobody listens."""

    async def close(self, code: int, reason: str) -> None:
        """End the stream; the provider goes on with what the call's TwiML says next."""
        if self._over.is_set():
            return
        self._over.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._websocket.close(code)
        except (WebSocketDisconnect, TimeoutError, RuntimeError):
            return  # gone already, or about to be cut off by the server

    def deliver_to(self, inlet: Inlet | None) -> None:
        """No events come this way."""

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        return True

    # -- Media ---------------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        return self._playout.queued_bytes

    def attach(self, listener: MediaListener | None) -> None:
        self._listener = listener

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        self._say(self._playout.play(response_id, item_id, pcm, self._clock()))

    def finish(self, response_id: str) -> None:
        self._say(self._playout.finish(response_id, self._clock()))

    def clear(self) -> None:
        self._outgoing.clear()
        self._say(self._playout.clear(self._clock()))

    # -- what comes in -------------------------------------------------------------------------------------------------

    def take(self, message: messages.AnyInbound) -> None:
        """One message of the provider."""
        now = self._clock()
        match message:
            case messages.Sound(media=media) if media.track == "inbound":
                self._hear(media)
                self._playout.settle(now)
            case messages.MarkReached(mark=mark):
                self._playout.reached(mark.name, now)
            case messages.Dtmf(dtmf=dtmf):
                if dtmf.digit in messages.DIGITS and self._listener is not None:
                    self._listener.dialled(dtmf.digit, time.time())
            case messages.Stop():
                self.ended_by_caller = True
                self._over.set()
        self._report()

    def _hear(self, media: messages.MediaPayload) -> None:
        if self._listener is None:
            return
        at = int(media.timestamp)
        hole = 0 if self._expected_ms is None else at - self._expected_ms
        filled = _ULAW_SILENCE * (min(hole, MAX_FILLED_MS) * G711_RATE // 1000) if hole > 0 else b""
        self._expected_ms = at + len(media.payload) * 1000 // G711_RATE
        samples = pcm16_to_float(g711.decode_ulaw(filled + media.payload))
        if pcm := float_to_pcm16(self._upsampler.process(samples)):
            self._listener.hear(pcm)

    async def _read(self) -> None:
        try:
            while True:
                self.take(await received(self._websocket))
        except WebSocketDisconnect:
            self.ended_by_caller = True
        finally:
            self._over.set()

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _say(self, said: Sequence[Message]) -> None:
        for message in said:
            if message.ulaw:
                text = messages.sound(self._stream_sid, message.ulaw)
            elif message.mark:
                text = messages.mark(self._stream_sid, message.mark)
            else:
                text = messages.clear(self._stream_sid)
            self._outgoing.append(text)
        self._outgoing_filled.set()
        self._report()

    async def _write(self) -> None:
        while True:
            while self._outgoing:
                try:
                    await self._websocket.send_text(self._outgoing.popleft())
                except WebSocketDisconnect:
                    self._over.set()
                    return
            self._outgoing_filled.clear()
            await self._outgoing_filled.wait()

    def _report(self) -> None:
        while self._playout.reports:
            report = self._playout.reports.popleft()
            if self._listener is not None:
                self._listener.playout(report)
