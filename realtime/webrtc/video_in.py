"""The peer's camera or screen as pictures for a model: the newest frame now and then, and none twice.

A camera that is switched off, or a share that has ended, is no longer a view: nothing says so but that no frame comes.

Every frame is taken from the track as it comes, so that none waits; all but the newest are let go of. What is sampled
is compared with the last picture that was handed on, scaled and coded as JPEG, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import VideoFrame
from av.codec import CodecContext
from numpy.typing import NDArray

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc.aiortc_wire import FrameDelays

GONE_S: Final = 5.0
"""Nothing is shown any more after so long without a frame; browsers send one in a second even of a screen at rest."""
THUMBNAIL: Final = (32, 18)
"""Columns and rows of the grey picture by which frames are compared."""

OnPicture = Callable[[ImagePart | None], None]
"""Told of a picture, or of None once nothing is shown any more."""


class IncomingVideo:
    """One video track, sampled."""

    def __init__(
        self,
        track: MediaStreamTrack,
        settings: WebRtcDeploy,
        on_picture: OnPicture,
        delays: FrameDelays | None = None,
    ) -> None:
        """``delays``: of the buffer that the track's frames come from."""
        self._track = track
        self.delays = delays
        self._settings = settings
        self._on_picture = on_picture
        self._newest: VideoFrame | None = None
        self._arrived = asyncio.Event()
        self._last: NDArray[np.float32] | None = None
        self.received = 0
        self.taken = 0

    async def run(self) -> None:
        """Hand pictures on until the track ends. To be cancelled by its owner."""
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sample(), name="call-look")
            try:
                while True:
                    frame = await self._track.recv()
                    assert isinstance(frame, VideoFrame)
                    self.received += 1
                    self._newest = frame
                    self._arrived.set()
            except MediaStreamError:
                sampling.cancel()

    async def _sample(self) -> None:
        period, loop = 1 / self._settings.video_fps, asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(None if self._last is None else GONE_S):
                    await self._arrived.wait()
            except TimeoutError:
                self._last = None
                self._on_picture(None)
                continue
            began = loop.time()
            frame, self._newest = self._newest, None
            self._arrived.clear()
            if frame is not None:
                picture = await asyncio.to_thread(self._picture, frame)
                if picture is not None:
                    self.taken += 1
                    self._on_picture(picture)
            # What comes meanwhile replaces what came before it.
            await asyncio.sleep(max(0.0, began + period - loop.time()))

    def _picture(self, frame: VideoFrame) -> ImagePart | None:
        """The frame as a picture; None if it looks like the last one that was handed on."""
        thumbnail = thumbnail_of(frame)
        if self._last is not None and similarity(thumbnail, self._last) >= self._settings.video_similarity:
            return None
        self._last = thumbnail
        return ImagePart(data=jpeg_of(frame, self._settings.video_max_side), media_type="image/jpeg")


def thumbnail_of(frame: VideoFrame) -> NDArray[np.float32]:
    """Grey levels ``[rows, columns]`` in [0, 255], float32, of a frame of any size."""
    columns, rows = THUMBNAIL
    return frame.reformat(width=columns, height=rows, format="gray").to_ndarray().astype(np.float32)


def similarity(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """1 minus the mean difference of grey levels as a share of all 255."""
    return 1.0 - float(np.abs(one - other).mean()) / 255.0


def jpeg_of(frame: VideoFrame, max_side: int) -> bytes:
    """The frame as JPEG, scaled down to ``max_side`` pixels on its longer side; sizes are even, as the codec wants."""
    scale = min(1.0, max_side / max(frame.width, frame.height))
    width, height = (max(2, round(side * scale / 2) * 2) for side in (frame.width, frame.height))
    encoder = CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
    encoder.time_base = Fraction(1, 30)
    scaled = frame.reformat(width=width, height=height, format="yuvj420p")
    scaled.pts = 0
    return b"".join(bytes(packet) for packet in (*encoder.encode(scaled), *encoder.encode(None)))
