"""The recogniser: recorded speech to words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from duologue.codecs.levels import dbfs
from duologue.codecs.pcm import pcm16_to_float
from duologue.codecs.resample import resample
from duologue.engine.cores import usable_cores
from duologue.engine.languages import WITHOUT_SPACES, primary
from duologue.engine.models import pull, require
from duologue.engine.requests import EngineRequest, TokenLogprob, Transcribe, TranscriptDelta, Urgency
from duologue.engine.stage import Ability, Stage, StageContext
from duologue.engine.stages.decode_queue import DecodeQueue, Ticket
from duologue.engine.stages.lazy_model import LazyModel
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.stages.whisper import (
    LONGEST_S,
    SAMPLE_RATE,
    TRAILING_SILENCE_S,
    WINDOWS_S,
    Hypothesis,
    Recognition,
    Whisper,
)
from duologue.engine.text.repetition import compression_ratio

_WORKING_S: Final = 1.0
"""How often a request that waits for a model says so."""

MULTILINGUAL: Final = "whisper-base"

_SILENT_DBFS: Final = -65.0
"""A recording whose loudest 100 ms are below this is not worth a decode."""

_CONTEXT_CHARACTERS: Final = 200
_UNSURE: Final = -0.6
"""A partial hypothesis of so little log-probability is mostly another one with the next word."""
_FRAME: Final = SAMPLE_RATE // 50
_PAUSE_POWER: Final = 0.05
_UNSETTLED: Final = SAMPLE_RATE // 2
"""The end of a recording in which no pause is looked for: a word may follow that changes what is before it."""

SILENCE: Final = Hypothesis("", 1.0, 0.0)
"""What is taken for a recording in which nobody speaks."""


class WhisperRecogniser(Stage):
    """Takes :class:`Transcribe`; emits a :class:`TranscriptDelta` for each part of the sound: its words, or ``""``
    where nobody speaks.

    Recordings of any length and rate: longer ones than the model's window are split where they are quietest. All
    requests share one :class:`~duologue.engine.stages.decode_queue.DecodeQueue`. A request is released as soon as it is
    aborted; what the model still computes for it is the step in hand: an encoding or a decode of one window.

    A language that the model does not know goes to ``multilingual``, which is fetched and loaded when it is first asked
    for.
    """

    def __init__(
        self,
        model: str = "whisper-tiny.en",
        max_num_seqs: int = 16,
        workers: int | None = None,
        cpu_threads: int | None = None,
        language: str = "en",
        multilingual: str | None = MULTILINGUAL,
    ) -> None:
        """``workers``: windows that are worked on at the same time, by ``cpu_threads`` each. ``multilingual``: a model
        for the languages that ``model`` does not know; None: they are refused."""
        cores = usable_cores()
        self._name = model
        self._workers = workers or min(max_num_seqs, max(2, cores // 4))
        self._threads = cpu_threads or max(1, min(4, cores // self._workers))
        self._language = language
        self._multilingual = multilingual

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """Other languages than English, unless there is no model for them."""
        english_only = str(arguments.get("model", "")).endswith(".en")
        others = arguments.get("multilingual", MULTILINGUAL) is not None
        return frozenset({"multilingual"}) if others or not english_only else frozenset()

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        let_waiting_threads_sleep()
        self._whisper = self._load(require(self._name))
        self._other = LazyModel(self._fetch_other)
        self._queue = DecodeQueue(self._workers)
        self._queue.start()

    def warm_up(self) -> None:
        """One second of noise through the shortest window."""
        noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE).astype(np.float32) * np.float32(0.01)
        self._whisper.recognise(noise, "en")

    def start(self, request: EngineRequest) -> Listener:
        """Nothing is kept between requests."""
        return Listener(self._queue, request.due_in_s)

    def process(self, state: Listener, piece: Transcribe, context: StageContext) -> None:
        """Recognise the recording, part by part."""
        language = primary(piece.language or self._language)
        whisper = self._model_for(language, state, context)
        if whisper is None:
            return
        samples = resample(pcm16_to_float(piece.audio), piece.sample_rate, SAMPLE_RATE)
        parts = split_at_pauses(samples, LONGEST_S)
        if piece.settle:
            parts = [] if (cut := pause_in_second_half(samples)) is None else [samples[:cut]]
        position, said = 0, ""
        for part in parts:
            position += len(part)
            hypothesis = SILENCE
            if _loudest_dbfs(part) >= _SILENT_DBFS:
                prompt = context_prompt(piece.prompt, f"{piece.before} {said}")
                recognition = Recognition(
                    whisper, part, language, prompt, logprobs=piece.logprobs, full_stop=piece.full_stop
                )
                heard = state.hear(recognition, piece.urgency)
                if heard is None or context.aborted:
                    return
                if piece.urgency == "partial" and not piece.settle and heard.log_probability < _UNSURE:
                    return  # the next one will be of more sound
                hypothesis = heard if was_spoken(heard) else SILENCE
            spaced = bool(said and hypothesis.text) and language not in WITHOUT_SPACES
            text = f" {hypothesis.text}" if spaced else hypothesis.text
            said += text
            context.emit(
                TranscriptDelta(
                    text=text,
                    logprobs=hypothesis.tokens if spaced else tuple(without_space(hypothesis.tokens)),
                    language=whisper.language_of(language) if text else None,
                    end_sample=position * piece.sample_rate // SAMPLE_RATE,
                    full_stop=hypothesis.full_stop,
                )
            )

    @property
    def whisper(self) -> Whisper:
        """The model, once it is loaded."""
        return self._whisper

    def interrupt(self, state: Listener) -> None:
        """Nobody waits for the words any more."""
        state.leave()

    def close(self) -> None:
        """Free the weights."""
        self._queue.close()
        del self._whisper, self._other

    def _model_for(self, language: str, state: Listener, context: StageContext) -> Whisper | None:
        """The model that knows ``language``, once it is there; None: the request was aborted meanwhile.

        Raises ``ValueError`` where there is none.
        """
        if self._whisper.multilingual or language == "en":
            return self._whisper
        if self._multilingual is None:
            raise ValueError(f"language: the recogniser knows English only, not '{language}'")
        while not self._other.wait(_WORKING_S):
            if state.left:
                return None
            context.working()
        return self._other.model

    def _fetch_other(self) -> Whisper:
        assert self._multilingual is not None
        is_path = os.sep in self._multilingual
        return self._load(require(self._multilingual) if is_path else pull(self._multilingual))

    def _load(self, folder: Path) -> Whisper:
        return Whisper(folder, threads=self._threads, workers=self._workers)


class Listener:
    """One request's side of the queue."""

    def __init__(self, queue: DecodeQueue, due_in_s: float) -> None:
        self._queue = queue
        self._due_in_s = due_in_s
        self._ticket: Ticket | None = None
        self.left = False

    def hear(self, recognition: Recognition, urgency: Urgency) -> Hypothesis | None:
        """Wait for what a recording is taken for; None: the request has been aborted, or it is too late."""
        ticket = self._ticket = self._queue.put(recognition, urgency, self._due_in_s)
        if self.left:
            self._queue.cancel(ticket)
        return self._queue.wait(ticket)

    def leave(self) -> None:
        """Wait no longer, now and from now on."""
        self.left = True
        if self._ticket is not None:
            self._queue.cancel(self._ticket)


def context_prompt(prompt: str | None, before: str) -> str | None:
    """What the decoder is told: the session's prompt, and the last words of what came before, from a word's start."""
    last = before.strip()[-_CONTEXT_CHARACTERS:]
    if len(last) == _CONTEXT_CHARACTERS:
        last = last.partition(" ")[2]
    return " ".join(text for text in (prompt, last) if text) or None


def without_space(tokens: Sequence[TokenLogprob]) -> Iterator[TokenLogprob]:
    """``tokens`` without the space that the first begins with: the text has none there either."""
    for index, token in enumerate(tokens):
        yield replace(token, token=token.token.lstrip(), bytes=token.bytes.lstrip()) if index == 0 else token


def was_spoken(hypothesis: Hypothesis) -> bool:
    """False for what a Whisper model writes when it is given clicks, breath or noise.

    It then gives high probability to silence and little to its own words (either alone also happens with real speech),
    or stutters within a word. Thresholds: round figures that keep all recordings of the tests, softer and in noise too
    (the least sure were two words at 0.49 and -1.33); of 702 noises none is believed (the nearest at 0.50 and -1.50).
    Another library for products of matrices, so another processor, moves these figures by 0.02 and 0.09.
    """
    if not any(character.isalnum() for character in hypothesis.text):
        return False
    no_speech, log_probability = hypothesis.no_speech, hypothesis.log_probability
    if log_probability < max(-1.5, 2 * no_speech - 2.4) or compression_ratio(hypothesis.text) > 2.4:
        return False
    return no_speech < 0.5 or log_probability > -0.5


def split_at_pauses(samples: NDArray[np.float32], longest_s: float) -> list[NDArray[np.float32]]:
    """Cut ``samples`` (16 kHz) into parts of at most ``longest_s`` seconds that together are all of it.

    Each cut lies in the quietest 200 ms of the second half of what fits.
    """
    longest = int(longest_s * SAMPLE_RATE)
    parts = []
    while len(samples) > longest:
        power, first = _smooth_power(samples, longest // 2, longest)
        cut = first + (int(power.argmin()) + 5) * _FRAME
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples] if len(samples) else parts


def pause_in_second_half(samples: NDArray[np.float32]) -> int | None:
    """Where ``samples`` (16 kHz) may be cut for good: in the middle of a pause in their second half.

    None where the quietest 200 ms of it are not 13 dB below the mean, unless there are so many samples that a longer
    window would have to be used: then it is these 200 ms all the same.
    """
    power, first = _smooth_power(samples, len(samples) // 2, len(samples) - _UNSETTLED)
    if not len(power):
        return None
    quietest = int(power.argmin())
    forced = len(samples) > (WINDOWS_S[1] - TRAILING_SILENCE_S) * SAMPLE_RATE
    if power[quietest] > _PAUSE_POWER * np.square(samples).mean() and not forced:
        return None
    return first + (quietest + 5) * _FRAME


def _smooth_power(samples: NDArray[np.float32], first: int, last: int) -> tuple[NDArray[np.float32], int]:
    """Mean power of each 200 ms between two positions, every 20 ms, and where the first of them begins."""
    first = first // _FRAME * _FRAME
    frames = samples[first : max(first, last // _FRAME * _FRAME)].reshape(-1, _FRAME)
    if len(frames) < 10:
        return np.empty(0, np.float32), first
    power = np.square(frames).mean(axis=1)
    return np.convolve(power, np.full(10, 0.1, np.float32), mode="valid"), first


def _loudest_dbfs(samples: NDArray[np.float32]) -> float:
    step = SAMPLE_RATE // 10
    return max((dbfs(samples[i : i + step]) for i in range(0, len(samples), step)), default=-np.inf)
