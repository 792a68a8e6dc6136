"""Pictures to the peer, in time with the sound: what a frame shows is the sound that leaves with it.

A source is asked for a frame by the position of the sound, and the frame's time stamp is that position too, so that no
second clock can run away from the first. Until the engine has a stage that makes video there is one source, a card with
a level meter; a client asks for it with ``?extensions=level_meter``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, Protocol

import numpy as np
from aiortc import MediaStreamTrack, RTCRtpTransceiver
from aiortc.mediastreams import MediaStreamError
from av import VideoFrame

from duologue.codecs.pcm import PCM16
from duologue.realtime.webrtc.playout_queue import PlayoutQueue

FPS: Final = 25
SOUND_RATE: Final = 48_000
VIDEO_RATE: Final = 90_000
_TICKS: Final = SOUND_RATE // FPS


class VideoSource(Protocol):
    """What is shown."""

    def heard(self, pcm: bytes | None) -> None:
        """The next 20 ms of sound leave now: PCM16 at 24 kHz, None for silence."""

    def frame(self, ticks: int) -> VideoFrame:
        """The picture for the sound ``ticks`` (48 kHz) into the call, which leaves now."""


class LevelMeter:
    """A dark card with a bar as high as the sound is loud, in tenths of its height."""

    def __init__(self, width: int = 320, height: int = 180) -> None:
        self._width, self._height = width, height
        self._level = 0.0

    def heard(self, pcm: bytes | None) -> None:
        if pcm is None:
            self._level = 0.0
            return
        samples = np.frombuffer(pcm, PCM16).astype(np.float32)
        loudness_db = 20 * np.log10(float(np.sqrt(np.mean(samples**2))) / 32768 + 1e-6)
        self._level = min(1.0, max(0.0, (loudness_db + 50) / 50))  # -50 dB: nothing, 0 dB: all

    def frame(self, ticks: int) -> VideoFrame:
        width, height = self._width, self._height
        planes = np.full((height * 3 // 2, width), 128, np.uint8)  # yuv420p: 128 is no colour
        planes[:height] = 24
        bar = round(self._level * 10) * height // 10
        planes[height - bar : height, width // 3 : width * 2 // 3] = 220
        return VideoFrame.from_ndarray(planes, format="yuv420p")


SOURCES: Final[Mapping[str, Callable[[], VideoSource]]] = {"level_meter": LevelMeter}
"""What a call may be shown, by name."""


class OutgoingVideo:
    """The track that shows a source."""

    def __init__(
        self, transceiver: RTCRtpTransceiver, queue: PlayoutQueue, source: VideoSource, position: Callable[[], int]
    ) -> None:
        """Before the answer is made. ``position``: ticks (48 kHz) at which what is taken from ``queue`` begins."""
        self._track = _TimedTrack(source, position)
        self._queue = queue
        queue.tap = self._track.heard
        transceiver.sender.replaceTrack(self._track)

    def stop(self) -> None:
        """Show nothing more."""
        if self._queue.tap == self._track.heard:
            self._queue.tap = None
        self._track.stop()


class _TimedTrack(MediaStreamTrack):
    kind = "video"

    def __init__(self, source: VideoSource, position: Callable[[], int]) -> None:
        super().__init__()
        self._source = source
        self._position = position
        self._ticks = -1
        """Where the sound began that left last."""
        self._due = 0
        self._moved = asyncio.Event()

    def heard(self, pcm: bytes | None) -> None:
        self._source.heard(pcm)
        self._ticks = self._position()
        self._moved.set()

    def stop(self) -> None:
        super().stop()
        self._moved.set()

    async def recv(self) -> VideoFrame:
        while self.readyState == "live" and self._ticks < self._due:
            self._moved.clear()
            await self._moved.wait()
        if self.readyState != "live":
            raise MediaStreamError
        ticks = self._ticks
        self._due = ticks - ticks % _TICKS + _TICKS
        frame = self._source.frame(ticks)
        frame.pts, frame.time_base = ticks * VIDEO_RATE // SOUND_RATE, Fraction(1, VIDEO_RATE)
        return frame
