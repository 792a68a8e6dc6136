"""A simulated caller's microphone: never silent on the wire, speaks when told to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.realtime.bench.utterances import Rendered


class CallerAudio:
    """An endless audio source (:class:`~duologue.realtime.bench.clock.AudioSource`) at 24 kHz.

    The background of the last utterance goes on until the next one, as a room does.
    """

    def __init__(self) -> None:
        self.position = 0
        """Samples taken so far: the input clock of the connection, in samples."""
        self._speech: NDArray[np.float32] = np.zeros(0, np.float32)
        self._spoken = 0
        self._background: NDArray[np.float32] = np.zeros(1, np.float32)
        self._closed = False

    def say(self, rendered: Rendered) -> int:
        """Begin an utterance with the next sample, in place of one still being said; the position of its start."""
        self._speech = rendered.speech
        self._background = rendered.background
        self._spoken = 0
        return self.position

    def close(self) -> None:
        """End the source at the next chunk."""
        self._closed = True

    def take(self, samples: int) -> bytes | None:
        if self._closed:
            return None
        where = np.arange(self.position, self.position + samples) % len(self._background)
        chunk = self._background[where]
        speech = self._speech[self._spoken : self._spoken + samples]
        chunk[: len(speech)] += speech
        self._spoken += len(speech)
        self.position += samples
        return float_to_pcm16(chunk)
