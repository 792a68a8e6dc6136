"""The recogniser: recorded speech to words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from duologue.codecs.levels import dbfs
from duologue.codecs.pcm import pcm16_to_float
from duologue.codecs.resample import resample
from duologue.engine.models import require
from duologue.engine.requests import EngineRequest, TokenLogprob, Transcribe, TranscriptDelta
from duologue.engine.stage import Stage, StageContext
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.stages.whisper import LONGEST_S, SAMPLE_RATE, Hypothesis, Whisper
from duologue.engine.text.repetition import compression_ratio

_SILENT_DBFS: Final = -65.0
"""A recording whose loudest 100 ms are below this is not worth a decode."""


class WhisperRecogniser(Stage):
    """Takes :class:`Transcribe`, emits one :class:`TranscriptDelta`: all words, or ``""`` where nobody speaks.

    Recordings of any length and rate: longer ones than the model's window are split where they are quietest. A decode
    cannot be interrupted: after an abort the part in hand, at most one window of the model, is decoded to its end.
    """

    def __init__(
        self,
        model: str = "whisper-tiny.en",
        max_num_seqs: int = 2,
        cpu_threads: int | None = None,
        language: str = "en",
    ) -> None:
        self._name = model
        self._workers = max_num_seqs
        self._threads = cpu_threads or max(1, min(4, (os.cpu_count() or 1) // max_num_seqs))
        self._language = language

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        let_waiting_threads_sleep()
        self._whisper = Whisper(require(self._name), threads=self._threads, workers=self._workers)

    def warm_up(self) -> None:
        """One second of noise through the shortest window."""
        noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE).astype(np.float32) * np.float32(0.01)
        self._whisper.recognise(noise, self._language)

    def start(self, request: EngineRequest) -> None:
        """Nothing is kept between requests."""

    def process(self, state: None, piece: Transcribe, context: StageContext) -> None:
        """Recognise the whole recording."""
        samples = resample(pcm16_to_float(piece.audio), piece.sample_rate, SAMPLE_RATE)
        parts = []
        for part in split_at_pauses(samples, LONGEST_S):
            if context.aborted:
                return
            if (hypothesis := self._words_in(part, piece)) is not None:
                parts.append(hypothesis)
        text = " ".join(hypothesis.text for hypothesis in parts)
        tokens = [token for hypothesis in parts for token in hypothesis.tokens]
        language = self._whisper.language_of(piece.language or self._language) if parts else None
        context.emit(TranscriptDelta(text=text, logprobs=tuple(without_space(tokens)), language=language))

    def close(self) -> None:
        """Free the weights."""
        del self._whisper

    def _words_in(self, samples: NDArray[np.float32], piece: Transcribe) -> Hypothesis | None:
        if _loudest_dbfs(samples) < _SILENT_DBFS:
            return None
        language = piece.language or self._language
        hypothesis = self._whisper.recognise(samples, language, piece.prompt, logprobs=piece.logprobs)
        return hypothesis if was_spoken(hypothesis) else None


def without_space(tokens: Sequence[TokenLogprob]) -> Iterator[TokenLogprob]:
    """``tokens`` without the space that the first begins with: the text has none there either."""
    for index, token in enumerate(tokens):
        yield replace(token, token=token.token.lstrip(), bytes=token.bytes.lstrip()) if index == 0 else token


def was_spoken(hypothesis: Hypothesis) -> bool:
    """False for what a Whisper model writes when it is given clicks, breath or noise.

    It then gives high probability to silence and little to its own words (either alone also happens with real speech),
    or stutters within a word. Thresholds: the smallest round figures that keep all recordings of the tests.
    """
    if not any(character.isalnum() for character in hypothesis.text):
        return False
    if hypothesis.log_probability < -1.2 or compression_ratio(hypothesis.text) > 2.4:
        return False
    return hypothesis.no_speech < 0.5 or hypothesis.log_probability > -0.5


def split_at_pauses(samples: NDArray[np.float32], longest_s: float) -> list[NDArray[np.float32]]:
    """Cut ``samples`` (16 kHz) into parts of at most ``longest_s`` seconds that together are all of it.

    Each cut lies in the quietest 200 ms of the second half of what fits.
    """
    longest, frame = int(longest_s * SAMPLE_RATE), SAMPLE_RATE // 50
    parts = []
    while len(samples) > longest:
        first = longest // 2 // frame * frame
        power = np.square(samples[first : longest // frame * frame].reshape(-1, frame)).mean(axis=1)
        smooth = np.convolve(power, np.ones(10), mode="valid")
        cut = first + (int(smooth.argmin()) + 5) * frame
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples] if len(samples) else parts


def _loudest_dbfs(samples: NDArray[np.float32]) -> float:
    step = SAMPLE_RATE // 10
    return max((dbfs(samples[i : i + step]) for i in range(0, len(samples), step)), default=-np.inf)
