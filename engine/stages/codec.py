"""The codec: acoustic frames to sound, in chunks that are ready before they are needed."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.harmonic_noise import HOP, SAMPLE_RATE, AcousticFrames, HarmonicNoiseSynthesiser
from duologue.codecs.levels import first_audible_sample
from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.requests import (
    FIRST_CHUNK_RANGE_S,
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    Converse,
    EngineRequest,
    Speak,
    WordSpan,
)
from duologue.engine.stage import Stage, StageContext
from duologue.engine.stages.pieces import SpokenClause

FIRST_CHUNK_S: Final = 0.0625
"""Five frames: long enough to find the first audible sample in."""
LONGEST_CHUNK_S: Final = 2.0
LEADING_SILENCE_S: Final = 0.003
"""Silence left before the first audible sample of a reply."""

_SAFETY: Final = 0.5
"""Part of the time until the deadline that a chunk may take at the speed measured last."""
_ROUNDING: Final = 1e-6
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

    @property
    def first_s(self) -> float | None:
        """Seconds of the first chunk; None once it has gone out."""
        return self._first_s if self._started is None else None

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
    """One request. Positions are samples of the reply; while nothing was audible, its head is still to be cut."""

    seed: int
    ladder: ChunkLadder
    clauses: int = 0
    handed_over: int = 0
    waiting: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Made and not handed over."""
    words: deque[WordSpan] = field(default_factory=deque)
    """Words whose sound is not handed over."""
    audible: bool = False
    pause_s: float = 0.0
    """Due before the next clause."""

    def add_clause(self, clause: SpokenClause) -> None:
        """Append the pause that is due, and note where the clause's words will end."""
        if self.clauses:
            self.add(np.zeros(round(self.pause_s * SAMPLE_RATE), np.float32))
        self.clauses, self.pause_s = self.clauses + 1, clause.pause_s
        start = self.handed_over + len(self.waiting)
        self.words += (
            WordSpan(text_start=w.text_start, text_end=w.text_end, end_sample=start + w.end_frame * HOP)
            for w in clause.words
        )

    def add(self, samples: NDArray[np.float32]) -> None:
        """Append sound."""
        self.waiting = np.concatenate((self.waiting, samples))

    def cut_leading_silence(self) -> None:
        """Drop what comes before the first audible sample, as soon as that is known."""
        first = None if self.audible else first_audible_sample(self.waiting, SAMPLE_RATE)
        if first is not None:
            cut = max(0, first - round(LEADING_SILENCE_S * SAMPLE_RATE))
            self.waiting, self.audible = self.waiting[cut:], True
            self.words = deque(
                msgspec.structs.replace(word, end_sample=max(0, word.end_sample - cut)) for word in self.words
            )

    @property
    def lacking_s(self) -> float | None:
        """What the first chunk, which may take several clauses, still lacks; None once it has gone out."""
        first_s = self.ladder.first_s
        if first_s is None:
            return None
        return max(0.0, first_s - len(self.waiting) / SAMPLE_RATE) if self.audible else first_s

    def take(self) -> AudioDelta:
        """Everything that waits, with the words that end in it."""
        self.handed_over += len(self.waiting)
        ended = []
        while self.words and self.words[0].end_sample <= self.handed_over:
            ended.append(self.words.popleft())
        delta = AudioDelta(pcm=float_to_pcm16(self.waiting), words=tuple(ended))
        self.waiting = self.waiting[:0]
        return delta


class HarmonicNoiseCodec(Stage):
    """Takes :class:`SpokenClause`, emits :class:`AudioDelta`.

    All of a clause's sound comes out, sample for sample what synthesis in one go would give for the same seed: that of
    the payload, else one derived from the request's id. Only silence before the reply's first audible sample is left
    out, down to 3 ms. After an abort no more than the chunk in hand is made: at most two seconds of sound, some 20 ms
    of work on one core.
    """

    def __init__(self, first_chunk_s: float = FIRST_CHUNK_S, initial_codec_chunk_frames: int | None = None) -> None:
        """The first chunk's length unless the request sets it, in seconds or in frames of 12.5 ms; frames win.

        Raises ``ValueError`` for one outside :data:`~duologue.engine.requests.FIRST_CHUNK_RANGE_S`.
        """
        low, high = FIRST_CHUNK_RANGE_S
        if initial_codec_chunk_frames is not None:
            first_chunk_s = initial_codec_chunk_frames * HOP / SAMPLE_RATE
        if not low <= first_chunk_s <= high:
            raise ValueError(f"the first chunk is {first_chunk_s:g} s; it is from {low:g} to {high:g} s")
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
        return _Reply(abs(seed), ChunkLadder(request.first_chunk_s or self._first_chunk_s))

    def process(self, state: _Reply, piece: SpokenClause, context: StageContext) -> None:
        """Synthesise one clause, chunk by chunk."""
        synthesiser = HarmonicNoiseSynthesiser(piece.frames, (state.seed + state.clauses * _SEED_STEP) % 2**32)
        state.add_clause(piece)
        while not synthesiser.finished and not context.aborted:
            length_s = state.lacking_s
            if length_s is None:
                length_s = state.ladder.next_length(time.monotonic(), self._real_time_factor)
            state.add(self._timed(synthesiser, max(1, math.ceil(length_s * SAMPLE_RATE / HOP - _ROUNDING))))
            state.cut_leading_silence()
            if not state.lacking_s and not self._hand_over(state, context):
                return

    def finish(self, state: _Reply, context: StageContext) -> None:
        """A reply that never became audible, or is shorter than its first chunk, is handed over as it is."""
        if len(state.waiting):
            self._hand_over(state, context)

    def _hand_over(self, reply: _Reply, context: StageContext) -> bool:
        delta = reply.take()
        seconds = len(delta.pcm) / 2 / OUTPUT_SAMPLE_RATE
        context.made(seconds)
        alive = context.emit(delta)
        reply.ladder.handed_over(seconds, time.monotonic())
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
