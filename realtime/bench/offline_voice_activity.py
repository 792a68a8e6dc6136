"""Voice activity over one stream without a service: computed at once, frame for frame what the service gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from duologue.codecs.pcm import SAMPLE_BYTES
from duologue.codecs.resample import FrameResampler
from duologue.engine.silero import CONTEXT, FRAME, STATE
from duologue.engine.sound_levels import SoundLevels
from duologue.engine.voice_activity import SAMPLE_RATE, FrameModel, VoiceFrame


class VoiceActivityFrames(Protocol):
    """Voice activity over one stream."""

    def feed(self, pcm: bytes) -> Iterator[VoiceFrame]:
        """The frames that are complete after ``pcm``."""


class OfflineVoiceActivity:
    """Frames that are computed."""

    def __init__(self, model: FrameModel, sample_rate: int) -> None:
        """``sample_rate``: of the sound, in hertz."""
        self._model = model
        self._converter = FrameResampler(sample_rate, SAMPLE_RATE, FRAME)
        self._pcm = bytearray(self._converter.lead * SAMPLE_BYTES)
        self._state = np.zeros((2, 1, STATE), np.float32)
        self._input = np.zeros((1, CONTEXT + FRAME), np.float32)
        self._levels = SoundLevels(1, FRAME, SAMPLE_RATE)

    def feed(self, pcm: bytes) -> Iterator[VoiceFrame]:
        """See :class:`VoiceActivityFrames`."""
        self._pcm += pcm
        window, step = self._converter.window * SAMPLE_BYTES, self._converter.step * SAMPLE_BYTES
        while len(self._pcm) >= window:
            self._input[:, CONTEXT:] = self._converter.convert([bytes(self._pcm[:window])])
            del self._pcm[:step]
            probability, self._state = self._model.step(self._input, self._state)
            steady, quiet_ms, heard_from = self._levels.update([0], self._levels.powers(self._input[:, CONTEXT:]))
            self._input[:, :CONTEXT] = self._input[:, -CONTEXT:]
            yield VoiceFrame(0.0 if steady[0] else float(probability[0]), int(quiet_ms[0]), float(heard_from[0]))


class ReplayedVoiceActivity:
    """Frames that were computed before, each when its audio is complete."""

    def __init__(self, frames: Sequence[VoiceFrame], sample_rate: int) -> None:
        self._frames = frames
        converter = FrameResampler(sample_rate, SAMPLE_RATE, FRAME)
        self._step, self._first = converter.step * SAMPLE_BYTES, (converter.window - converter.lead) * SAMPLE_BYTES
        self._fed = self._given = 0

    def feed(self, pcm: bytes) -> Iterator[VoiceFrame]:
        """See :class:`VoiceActivityFrames`."""
        self._fed += len(pcm)
        while self._given < len(self._frames) and self._fed >= self._first + self._given * self._step:
            self._given += 1
            yield self._frames[self._given - 1]
