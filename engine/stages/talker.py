"""The talker: written text to acoustic frames, clause by clause, while the text is still being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np

from duologue.codecs.harmonic_noise import HOP, SAMPLE_RATE, AcousticFrames
from duologue.engine.models import require
from duologue.engine.requests import Converse, EngineRequest, Speak, TextDelta, speaking_rate
from duologue.engine.stage import Stage, StageContext, StageFinish
from duologue.engine.stages.hibari import HibariModel, Prediction, frame_levels, in_runs
from duologue.engine.stages.pieces import FrameWord, SpokenClause
from duologue.engine.text.clauses import Clause, ClauseSplitter, Ending
from duologue.engine.text.speakable import SpokenWord, make_speakable

PAUSE_S: Final = {Ending.OPEN: 0.0, Ending.CLAUSE: 0.12, Ending.SENTENCE: 0.28, Ending.PARAGRAPH: 0.35}
"""Silence after a clause at normal speed, in place of what the model would make at its ends."""

HURRY_S: Final = 0.25
"""With less sound left to be heard the end of a clause is not waited for: about what it takes to speak one on a busy
machine of two cores."""

_SILENT_DBFS: Final = -56.0
_MARGIN_FRAMES: Final = 2
"""Frames kept around the first and the last one that is not silent."""
_STOPS: Final = ".!?…,;:—–"


@dataclass
class _Talk:
    """One request."""

    splitter: ClauseSplitter = field(default_factory=ClauseSplitter)
    speed: float = 1.0
    spoken_s: float = 0.0
    over: bool = False
    may_hurry: bool = True
    """Whether the sound may depend on how fast the text came."""


class HibariTalker(Stage):
    """Takes :class:`TextDelta` or one :class:`Speak`, emits :class:`SpokenClause`.

    One voice with fixed weights: speaker and pitch do not change from clause to clause. Text in which nothing can be
    said (emoji, rules) makes no clause. After ``longest_reply_s`` seconds of speech a reply ends, between two clauses,
    as ``length``. After an abort no more than the run of a clause in hand is predicted: at most 400 phonemes.
    """

    def __init__(self, model: str = "hibari-heart", threads: int = 1, longest_reply_s: float = 900.0) -> None:
        self._name = model
        self._threads = threads
        self._longest_reply_s = longest_reply_s

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        self._model = HibariModel(require(self._name), threads=self._threads)

    def warm_up(self) -> None:
        """A sentence with an unknown word, so that the phonemiser's own network is loaded too."""
        words = self._model.phonemes(["Hello,", "this", "is", "a", "duologuish", "warm-up."])
        for run in in_runs(words):
            self._model.predict(run, 1.0)

    def start(self, request: EngineRequest) -> _Talk:
        """Speed comes with the payload."""
        payload = request.payload
        talk = _Talk()
        if isinstance(payload, Converse | Speak):
            talk.speed = speaking_rate(payload)
            talk.may_hurry = payload.seed is None
        return talk

    def process(self, state: _Talk, piece: TextDelta | Speak, context: StageContext) -> None:
        """Speak the clauses that the new text completes, and what there is of the next one if the listener has heard
        nearly everything (but a request with a seed is the same each time)."""
        self._speak(state, state.splitter.push(piece.text), context)
        if state.may_hurry and state.spoken_s and context.left_s < HURRY_S:
            self._speak(state, state.splitter.hurry(), context)

    def finish(self, state: _Talk, context: StageContext) -> None:
        """Speak the rest."""
        self._speak(state, state.splitter.finish(), context)

    def close(self) -> None:
        """Free the weights."""
        del self._model

    def _speak(self, talk: _Talk, clauses: Sequence[Clause], context: StageContext) -> None:
        for clause in clauses:
            words = make_speakable(clause.text)
            if not words:
                continue
            if talk.over or context.aborted:
                return
            if talk.spoken_s >= self._longest_reply_s:
                talk.over = True
                context.emit(StageFinish("length"))
                return
            pause_s = PAUSE_S[clause.ending] / talk.speed
            runs = in_runs(self._model.phonemes(_with_stop([word.text for word in words], clause.ending)))
            for i, run in enumerate(runs):
                prediction = self._model.predict(run, talk.speed)
                if not prediction.word_ends:  # punctuation alone
                    continue
                spoken = _spoken_clause(prediction, clause, words, pause_s if i == len(runs) - 1 else 0.0)
                seconds = len(spoken.frames) * HOP / SAMPLE_RATE
                talk.spoken_s += seconds
                context.made(seconds + spoken.pause_s)
                if context.aborted or not context.emit(spoken):
                    return


def _with_stop(words: list[str], ending: Ending) -> list[str]:
    """A line without punctuation (a heading, a list item) is spoken like a sentence."""
    if ending is Ending.PARAGRAPH and words[-1].rstrip("\"'”’)]")[-1:] not in _STOPS:
        return [*words[:-1], words[-1] + "."]
    return words


def _spoken_clause(prediction: Prediction, clause: Clause, words: Sequence[SpokenWord], pause_s: float) -> SpokenClause:
    """Cut the silence at both ends and express word ends in the text of the request."""
    first, end = audible_range(prediction.frames)
    frames = AcousticFrames(
        *(getattr(prediction.frames, column.name)[first:end] for column in fields(prediction.frames))
    )
    ends: dict[tuple[int, int], int] = {}
    for index, frame in prediction.word_ends:
        word = words[min(index, len(words) - 1)]
        ends[word.start, word.end] = min(max(frame - first, 0), end - first)
    return SpokenClause(
        frames,
        tuple(
            FrameWord(clause.start + a, clause.start + b, frame) for (a, b), frame in _whole_words(ends, clause.text)
        ),
        pause_s,
    )


def _whole_words(ends: dict[tuple[int, int], int], text: str) -> list[tuple[tuple[int, int], int]]:
    """Merge spans that lie in one written word (``$9.99`` is five spoken ones) and widen them to all of it."""
    merged: dict[tuple[int, int], int] = {}
    for (start, end), frame in ends.items():
        while start > 0 and not text[start - 1].isspace():
            start -= 1
        while start < end and text[start].isspace():
            start += 1
        while end < len(text) and not text[end].isspace():
            end += 1
        merged[start, end] = max(frame, merged.get((start, end), 0))
    return sorted(merged.items(), key=lambda item: (item[1], item[0]))


def audible_range(frames: AcousticFrames) -> tuple[int, int]:
    """First frame and end of what is not silence, with a margin; all of it where nothing is."""
    audible = np.flatnonzero(frame_levels(frames) > _SILENT_DBFS)
    if not len(audible):
        return 0, len(frames)
    return max(0, int(audible[0]) - _MARGIN_FRAMES), min(len(frames), int(audible[-1]) + 1 + _MARGIN_FRAMES)
