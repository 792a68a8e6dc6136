"""The codec: acoustic frames to sound, in chunks that are ready before they are needed."""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.harmonic_noise import HOP, SAMPLE_RATE, AcousticFrames, HarmonicNoiseSynthesiser
from duologue.codecs.levels import first_audible_sample
from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, AudioDelta, Converse, EngineRequest, Speak, WordSpan
from duologue.engine.stage import Stage, StageContext
from duologue.engine.stages.pieces import FrameWord, SpokenClause

FIRST_CHUNK_S: Final = 0.0625
"""Five frames: long enough to find the first audible sample in."""
LONGEST_CHUNK_S: Final = 2.0
LEADING_SILENCE_S: Final = 0.01
"""Silence left before the first audible sample of a reply."""

_SAFETY: Final = 0.5
"""Part of the time until the deadline that a chunk may take at the speed measured last."""
_SEED_STEP: Final = 0x9E3779B1


class ChunkLadder:
    """How long the next chunk should be: ready before what was already handed over has been played.

    The player is taken to start with the first chunk. ``real_time_factor`` is time to synthesise over time to play.
    """

    def __init__(self, first_s: float = FIRST_CHUNK_S, longest_s: float = LONGEST_CHUNK_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._started: float | None = None
        self._handed_over_s = 0.0

    def next_length(self, now: float, real_time_factor: float) -> float:
        """Seconds of sound to make next."""
        if self._started is None:
            return self._first_s
        left_s = self._handed_over_s - (now - self._started)
        return min(max(left_s * _SAFETY / max(real_time_factor, 1e-3), self._first_s), self._longest_s)

    def handed_over(self, seconds: float, now: float) -> None:
        """A chunk of that length went out. After an underrun the player's clock starts anew."""
        if self._started is None or now - self._started > self._handed_over_s:
            self._started, self._handed_over_s = now, 0.0
        self._handed_over_s += seconds


@dataclass
class _Reply:
    """One request."""

    seed: int
    ladder: ChunkLadder = field(default_factory=ChunkLadder)
    clauses: int = 0
    samples: int = 0
    """Handed over so far."""
    audible: bool = False
    pause_s: float = 0.0
    """Due before the next clause."""


class HarmonicNoiseCodec(Stage):
    """Takes :class:`SpokenClause`, emits :class:`AudioDelta`.

    All of a clause's sound comes out, sample for sample what synthesis in one go would give for the same seed: that of
    the payload, else one derived from the request's id. Only silence before the reply's first audible sample is left
    out, down to 10 ms.
    """

    def __init__(self, first_chunk_s: float = FIRST_CHUNK_S) -> None:
        self._first_chunk_s = first_chunk_s
        self._speed_lock = threading.Lock()
        self._real_time_factor = 0.05

    def warm_up(self) -> None:
        """Two chunks of a quiet hum."""
        quiet = np.full((40, 601), -9.0, np.float32)
        frames = AcousticFrames(quiet, quiet, quiet, quiet, quiet, np.full(40, 120.0, np.float32))
        synthesiser = HarmonicNoiseSynthesiser(frames, 0)
        self._timed(synthesiser, 5)
        self._timed(synthesiser, 35)

    def start(self, request: EngineRequest) -> _Reply:
        """The seed of the noise is fixed here."""
        payload = request.payload
        seed = payload.seed if isinstance(payload, Converse | Speak) else None
        if seed is None:
            seed = zlib.crc32(request.request_id.encode())
        return _Reply(seed=abs(seed), ladder=ChunkLadder(self._first_chunk_s))

    def process(self, state: _Reply, piece: SpokenClause, context: StageContext) -> None:
        """Synthesise one clause, chunk by chunk."""
        synthesiser = HarmonicNoiseSynthesiser(piece.frames, (state.seed + state.clauses * _SEED_STEP) % 2**32)
        state.clauses += 1
        waiting = np.zeros(round(state.pause_s * SAMPLE_RATE) if state.audible else 0, np.float32)
        state.pause_s = piece.pause_s
        clause_start = state.samples + len(waiting)
        words = list(piece.words)
        while not synthesiser.finished:
            if context.aborted:
                return
            length = state.ladder.next_length(time.monotonic(), self._real_time_factor)
            chunk = self._timed(synthesiser, max(1, round(length * SAMPLE_RATE / HOP)))
            waiting = np.concatenate((waiting, chunk))
            if not state.audible:
                cut = _leading_silence(waiting)
                if cut is None:
                    continue
                waiting, clause_start, state.audible = waiting[cut:], clause_start - cut, True
            if not self._hand_over(state, waiting, _ended(words, clause_start, state.samples + len(waiting)), context):
                return
            waiting = waiting[:0]

    def _hand_over(
        self, reply: _Reply, samples: NDArray[np.float32], words: tuple[WordSpan, ...], context: StageContext
    ) -> bool:
        reply.samples += len(samples)
        alive = context.emit(AudioDelta(pcm=float_to_pcm16(samples), words=words))
        reply.ladder.handed_over(len(samples) / OUTPUT_SAMPLE_RATE, time.monotonic())
        return alive

    def _timed(self, synthesiser: HarmonicNoiseSynthesiser, n_frames: int) -> NDArray[np.float32]:
        """The next chunk; remembers how fast it was, so that load slows the ladder down."""
        began = time.perf_counter()
        samples = synthesiser.synthesise(n_frames)
        if len(samples):
            factor = (time.perf_counter() - began) * SAMPLE_RATE / len(samples)
            with self._speed_lock:
                self._real_time_factor += 0.3 * (factor - self._real_time_factor)
        return samples


def _leading_silence(samples: NDArray[np.float32]) -> int | None:
    """Samples to leave out before the first audible one; None while there is none."""
    first = first_audible_sample(samples, SAMPLE_RATE)
    return None if first is None else max(0, first - round(LEADING_SILENCE_S * SAMPLE_RATE))


def _ended(words: list[FrameWord], clause_start: int, end: int) -> tuple[WordSpan, ...]:
    """Take from ``words`` those whose sound is over by sample ``end``."""
    spans = []
    while words and clause_start + words[0].end_frame * HOP <= end:
        word = words.pop(0)
        end_sample = max(0, clause_start + word.end_frame * HOP)
        spans.append(WordSpan(text_start=word.text_start, text_end=word.text_end, end_sample=end_sample))
    return tuple(spans)
