"""What is still to be heard of each response, in the order of its first sound, taken in frames of 20 ms.

Pure bookkeeping: whoever has the clock calls :meth:`PlayoutQueue.take` once a frame and hands what it gets to the peer.
What was taken counts as played, since it leaves in the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES

SAMPLE_RATE: Final = 24_000
FRAME_SAMPLES: Final = 480
FRAME_BYTES: Final = FRAME_SAMPLES * SAMPLE_BYTES
FADE_SAMPLES: Final = 240
"""What is still heard, more and more quietly, of sound that is stopped: 10 ms. A sudden end would be a click."""


class PlayoutListener(Protocol):
    """Who is told what the peer gets to hear. Every ``on_started`` is followed by one ``on_stopped`` or ``on_cleared``.

    Called on the event loop, from :meth:`PlayoutQueue.take`, ``finish`` and ``clear``.
    """

    def on_started(self, response_id: str) -> None:
        """The first sound of a response leaves now."""

    def on_played(self, item_id: str, samples: int) -> None:
        """``samples`` more (at 24 kHz) of an item have left."""

    def on_stopped(self, response_id: str) -> None:
        """All of a response has been played."""

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        """The rest of a response was dropped. ``item_id``: the item that was being played, of which
        ``samples_played`` (at 24 kHz) have left in all."""


@dataclass
class _Playing:
    """One response in the queue."""

    response_id: str
    pieces: deque[tuple[str, memoryview]] = field(default_factory=deque)
    """Item and PCM16, never empty."""
    held: int = 0
    """Bytes in ``pieces``."""
    item_id: str = ""
    """The item of which sound left last."""
    item_samples: int = 0
    started: bool = False
    finished: bool = False


class PlayoutQueue:
    """Sound of responses, one after the other: the next begins when the one before it is finished and played."""

    def __init__(self, listener: PlayoutListener) -> None:
        self._listener = listener
        self._responses: dict[str, _Playing] = {}
        self._fading = b""
        self.tap: Callable[[bytes | None], None] | None = None
        """Told of every frame that is taken."""
        self.queued_bytes = 0
        """PCM16 bytes that wait."""

    @property
    def playing(self) -> bool:
        """Whether there is a response whose end has not been heard."""
        return bool(self._responses)

    def push(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue PCM16 at 24 kHz. A response that was finished or cleared begins anew."""
        if not pcm:
            return
        response = self._responses.setdefault(response_id, _Playing(response_id))
        response.pieces.append((item_id, memoryview(pcm)))
        response.held += len(pcm)
        self.queued_bytes += len(pcm)

    def finish(self, response_id: str) -> None:
        """Nothing more is pushed for a response. Harmless for one that is not here."""
        response = self._responses.get(response_id)
        if response is not None:
            response.finished = True
            self._drop_played()

    def clear(self) -> None:
        """Drop everything that waits; what would have come next fades out."""
        cleared, self._responses, self.queued_bytes = self._responses, {}, 0
        for response in cleared.values():
            if response.started:
                self._fading = _faded(response.pieces)
                self._listener.on_cleared(response.response_id, response.item_id, response.item_samples)

    def take(self) -> bytes | None:
        """The next 20 ms: :data:`FRAME_BYTES` bytes, or None for silence.

        A piece shorter than a frame waits for what follows it, unless nothing does.
        """
        frame = self._take()
        if self.tap is not None:
            self.tap(frame)
        return frame

    def _take(self) -> bytes | None:
        if self._fading:
            faded, self._fading = self._fading, b""
            return faded.ljust(FRAME_BYTES, b"\0")
        response = next(iter(self._responses.values()), None)
        if response is None or not (response.held >= FRAME_BYTES or (response.finished and response.held)):
            return None
        if not response.started:
            response.started = True
            self._listener.on_started(response.response_id)
        frame = self._cut(response).ljust(FRAME_BYTES, b"\0")
        self._drop_played()
        return frame

    def _cut(self, response: _Playing) -> bytes:
        frame = bytearray()
        while response.pieces and len(frame) < FRAME_BYTES:
            item_id, piece = response.pieces.popleft()
            wanted = FRAME_BYTES - len(frame)
            if len(piece) > wanted:
                response.pieces.appendleft((item_id, piece[wanted:]))
                piece = piece[:wanted]
            frame += piece
            response.held -= len(piece)
            self.queued_bytes -= len(piece)
            self._count(response, item_id, len(piece) // SAMPLE_BYTES)
        return bytes(frame)

    def _count(self, response: _Playing, item_id: str, samples: int) -> None:
        if item_id != response.item_id:
            response.item_id, response.item_samples = item_id, 0
        response.item_samples += samples
        self._listener.on_played(item_id, samples)

    def _drop_played(self) -> None:
        """Take out responses at the head that are over."""
        while (first := next(iter(self._responses.values()), None)) and first.finished and not first.held:
            del self._responses[first.response_id]
            if first.started:
                self._listener.on_stopped(first.response_id)


def _faded(pieces: deque[tuple[str, memoryview]]) -> bytes:
    """The first 10 ms of what waits, down to silence."""
    pcm = b"".join(piece for _, piece in list(pieces)[:FADE_SAMPLES])[: FADE_SAMPLES * SAMPLE_BYTES]
    samples = np.frombuffer(pcm, PCM16)
    ramp = np.linspace(1.0, 0.0, len(samples), dtype=np.float32)
    return (samples * ramp).astype(PCM16).tobytes()
