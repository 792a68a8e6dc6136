"""Sound of a call: what comes from the peer as PCM, and what goes to it by a 20 ms clock.

The only module of the call that knows how sound is coded, buffered and sent; the rest sees PCM16 at 24 kHz.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from aiortc import MediaStreamTrack, RTCRtpReceiver, RTCRtpTransceiver
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler

from duologue.realtime.webrtc.playout_queue import FRAME_BYTES, FRAME_SAMPLES, SAMPLE_RATE, PlayoutQueue

FRAME_S: Final = FRAME_SAMPLES / SAMPLE_RATE
_SILENCE: Final = bytes(FRAME_BYTES)

OnPcm = Callable[[bytes, int], None]
"""``on_pcm(pcm16, sample_rate)``: mono PCM16 in playing order, on the event loop."""


class IncomingAudio:
    """The peer's microphone."""

    def __init__(self, receiver: RTCRtpReceiver, on_pcm: OnPcm) -> None:
        """Once the remote description is set: ``receiver`` has its track."""
        self._track = receiver.track
        self._on_pcm = on_pcm

    async def run(self) -> None:
        """Give what is heard to ``on_pcm``; returns when the track ends. To be cancelled by its owner."""
        resampler = AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        while True:
            try:
                frame = await self._track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            for converted in resampler.resample(frame):
                self._on_pcm(bytes(converted.planes[0])[: converted.samples * 2], SAMPLE_RATE)


class OutgoingAudio:
    """The server's voice: takes a frame from the queue every 20 ms, silence where there is none."""

    def __init__(self, transceiver: RTCRtpTransceiver, queue: PlayoutQueue) -> None:
        """Before the answer is made. ``queue`` outlives this: the next peer connection of the call takes it over."""
        self.queue = queue
        self._track = _PlayoutTrack(queue)
        transceiver.sender.replaceTrack(self._track)
        transceiver.direction = "sendrecv"

    def push(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue PCM16 at 24 kHz of an item."""
        self.queue.push(response_id, item_id, pcm)

    def finish(self, response_id: str) -> None:
        """Nothing more of a response follows."""
        self.queue.finish(response_id)

    def clear(self) -> None:
        """Be silent at once: drop what is queued."""
        self.queue.clear()

    def stop(self) -> None:
        """Take nothing more from the queue."""
        self._track.stop()


class _PlayoutTrack(MediaStreamTrack):
    kind = "audio"

    def __init__(self, queue: PlayoutQueue) -> None:
        super().__init__()
        self._queue = queue
        self._first_at = 0.0
        self._frames = 0

    async def recv(self) -> AudioFrame:
        if self.readyState != "live":
            raise MediaStreamError
        if not self._frames:
            self._first_at = time.monotonic()
        await asyncio.sleep(self._first_at + self._frames * FRAME_S - time.monotonic())
        if self.readyState != "live":
            raise MediaStreamError
        frame = AudioFrame(format="s16", layout="mono", samples=FRAME_SAMPLES)
        frame.planes[0].update(self._queue.take() or _SILENCE)
        frame.sample_rate, frame.time_base = SAMPLE_RATE, Fraction(1, SAMPLE_RATE)
        frame.pts = self._frames * FRAME_SAMPLES
        self._frames += 1
        return frame
