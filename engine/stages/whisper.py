"""Whisper through CTranslate2: from samples to text with the figures that tell whether to believe it.

The model is trained on windows of 30 s. Run on a shorter one its encoder is faster in proportion and just as good, as
long as silence follows the speech; with too little of it the decoder tends to say everything twice. So a recording is
padded with silence to the next of ``WINDOWS_S``, and a decode that still runs in circles is repeated with a penalty
on repetition, then in the next longer window.

What was said before helps with names, and makes words of breath. So words that the model doubts are only believed if it
finds some without being told what went before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duologue.engine.requests import TokenLogprob
from duologue.engine.text.repetition import collapse_repeats, runs_in_circles
from duologue.engine.words import normalise_words

SAMPLE_RATE: Final = 16_000
WINDOWS_S: Final = (8, 15, 30)
TRAILING_SILENCE_S: Final = 0.5
"""Least silence after the last sample of a recording; less costs its last words."""
LONGEST_S: Final = WINDOWS_S[-1] - TRAILING_SILENCE_S
"""Longest recording that one window takes."""

_MEL_FRAMES_PER_SECOND: Final = 100
_LONGEST_TEXT: Final = 224
_LONGEST_PROMPT: Final = 200
_TOKENS_PER_SECOND: Final = 6
"""More than anyone says; bounds the time lost to a decode that runs in circles."""


_ENDS: Final = (".", "?", "!", "。", "？", "！", "؟", "।")
"""Marks behind which a sentence is over."""
_GO_ON: Final = (",", "...", "-", "、", "，", "،")
"""Marks behind which it goes on. Of either only those count that are one token of the vocabulary."""
_DOUBTFUL_NO_SPEECH: Final = 0.2
_DOUBTFUL_LOG_PROBABILITY: Final = -0.7
"""Breath and clicks that became words by what was said before had 0.28 and more, -0.75 and less."""


@dataclass(frozen=True)
class Hypothesis:
    """What one window was taken for."""

    text: str
    no_speech: float
    """Probability that nobody speaks, of the token ``<|nospeech|>`` at the first step."""
    log_probability: float
    """Mean natural logarithm of the probabilities of the tokens chosen."""
    tokens: tuple[TokenLogprob, ...] = ()
    """Where they were asked for, the tokens of ``text`` with their own; empty for a text that had to be mended."""
    full_stop: float | None = None
    """Where it was asked for, the natural logarithm of the odds of a sentence's end (``.``, ``?``, ``!``) against its
    going on (a comma, a dash, an ellipsis), of the decoder behind the last word."""

    @property
    def doubtful(self) -> bool:
        """Whether it may be no speech at all."""
        return self.no_speech > _DOUBTFUL_NO_SPEECH and self.log_probability < _DOUBTFUL_LOG_PROBABILITY


class Recognition:
    """One recording on its way through a model, in steps: encode and decode, the latter again if it ran in circles.

    Between two steps others may have their turn, and recordings of the same :attr:`key` may share a decode.
    """

    def __init__(
        self,
        whisper: Whisper,
        samples: NDArray[np.float32],
        language: str = "en",
        prompt: str | None = None,
        *,
        logprobs: bool = False,
        full_stop: bool = False,
    ) -> None:
        """``samples``: mono at 16 kHz, at most ``LONGEST_S``. ``language``: an ISO 639-1 code; an English-only model
        knows no other. ``prompt``: text that goes before. The last two: what the hypothesis is to hold beside its text.

        Raises ``ValueError`` for a recording that is too long or a language that the model does not know.
        """
        seconds = len(samples) / SAMPLE_RATE
        if seconds > LONGEST_S:
            raise ValueError(f"a recording of {seconds:.1f} s is longer than {LONGEST_S} s")
        self.whisper = whisper
        self.language = language
        self.logprobs = logprobs
        self.full_stop = full_stop
        self.prompt = whisper.prompt_tokens(language, prompt)
        self._told = bool(prompt)
        self.room = min(_LONGEST_TEXT, 12 + int(seconds * _TOKENS_PER_SECOND))
        """Longest text, in tokens."""
        self.encoded: Any = None
        """What the model made of the sound; None: that is the next step."""
        self.result: Hypothesis | None = None
        self._samples = samples
        self._speech_s = audible_seconds(samples)
        windows = [window for window in WINDOWS_S if seconds + TRAILING_SILENCE_S <= window]
        self._attempts = [(windows[0], 1.0), (windows[0], 1.1), (windows[min(1, len(windows) - 1)], 1.2)]
        self.first: Hypothesis | None = None
        """What the first decode gave, believed or not."""

    @property
    def penalty(self) -> float:
        """On repetition, for the next decode."""
        return self._attempts[0][1]

    @property
    def key(self) -> tuple[Whisper, int, float, int, bool]:
        """Recordings that agree in it can be decoded together."""
        window_s, penalty = self._attempts[0]
        return self.whisper, window_s, penalty, len(self.prompt), self.needs_scores

    @property
    def needs_scores(self) -> bool:
        """Whether the decode has to hand out what it gave every token of the vocabulary."""
        return self.logprobs or self.full_stop

    def encode(self) -> None:
        """The first step, and the one before a decode in another window."""
        self.encoded = self.whisper.encode(self._samples, self._attempts[0][0])

    def take(self, hypothesis: Hypothesis) -> None:
        """What the decode gave: the result, unless it is in doubt or ran in circles and there is another way to try."""
        if self._told and hypothesis.doubtful:
            self._told = False
            self.prompt = self.whisper.prompt_tokens(self.language, None)
            return
        self.first = self.first or hypothesis
        if not runs_in_circles(normalise_words(hypothesis.text), self._speech_s):
            self.result = hypothesis
            return
        window_s, _ = self._attempts.pop(0)
        if not self._attempts:
            first = self.first
            self.result = Hypothesis(collapse_repeats(first.text), first.no_speech, first.log_probability)
        elif self._attempts[0][0] != window_s:
            self.encoded = None


class Whisper:
    """A loaded model. Safe to use from several threads; ``workers`` windows are worked on at the same time."""

    def __init__(self, folder: Path, *, threads: int, workers: int) -> None:
        import ctranslate2
        import tokenizers
        from faster_whisper.feature_extractor import FeatureExtractor
        from faster_whisper.tokenizer import Tokenizer

        self._ctranslate2 = ctranslate2
        self._model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="int8", intra_threads=threads, inter_threads=workers
        )
        self._tokenizer_of_language: dict[str, Tokenizer] = {}
        vocabulary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._make_tokenizer: Callable[[str], Any] = lambda language: Tokenizer(
            vocabulary, self._model.is_multilingual, task="transcribe", language=language
        )
        self._mel = FeatureExtractor(feature_size=self._model.n_mels)
        tokens = (
            [vocabulary.encode(mark, add_special_tokens=False).ids for mark in marks] for marks in (_ENDS, _GO_ON)
        )
        self._ends, self._go_on = ([ids[0] for ids in of_marks if len(ids) == 1] for of_marks in tokens)

    @property
    def multilingual(self) -> bool:
        """False: it takes everything for English."""
        return bool(self._model.is_multilingual)

    def recognise(
        self,
        samples: NDArray[np.float32],
        language: str = "en",
        prompt: str | None = None,
        *,
        logprobs: bool = False,
        full_stop: bool = False,
    ) -> Hypothesis:
        """All steps of a :class:`Recognition` at once; see there for arguments and errors."""
        recognition = Recognition(self, samples, language, prompt, logprobs=logprobs, full_stop=full_stop)
        while recognition.result is None:
            if recognition.encoded is None:
                recognition.encode()
            else:
                self.decode([recognition])
        return recognition.result

    def prompt_tokens(self, language: str, prompt: str | None) -> list[int]:
        """What the decoder starts from."""
        tokenizer = self._tokenizer(language)
        before: list[int] = []
        if prompt:
            before = [tokenizer.sot_prev, *tokenizer.encode(" " + prompt.strip())[-_LONGEST_PROMPT:]]
        return [*before, *tokenizer.sot_sequence, tokenizer.no_timestamps]

    def language_of(self, language: str) -> str:
        """The language that words asked for in ``language`` are in: an English-only model writes English."""
        return language if self.multilingual else "en"

    def _tokenizer(self, language: str) -> Any:
        language = self.language_of(language)
        if language not in self._tokenizer_of_language:
            try:
                self._tokenizer_of_language[language] = self._make_tokenizer(language)
            except ValueError as error:
                raise ValueError(f"language: the recogniser does not know '{language}'") from error
        return self._tokenizer_of_language[language]

    def encode(self, samples: NDArray[np.float32], window_s: float) -> NDArray[np.float32]:
        """``samples``, followed by silence up to ``window_s``, as the decoder sees it: ``[1, frames, width]``."""
        padded = np.zeros(int(window_s * SAMPLE_RATE), np.float32)
        padded[: len(samples)] = samples
        mel = self._mel(padded, padding=0)[:, : int(window_s * _MEL_FRAMES_PER_SECOND)]
        batch = np.ascontiguousarray(mel[np.newaxis], dtype=np.float32)
        return np.asarray(self._model.encode(self._ctranslate2.StorageView.from_array(batch), to_cpu=True))

    def decode(self, batch: Sequence[Recognition]) -> None:
        """One decode for recordings that have been encoded and agree in their key: each takes what came of it."""
        first = batch[0]
        encoded = np.concatenate([recognition.encoded for recognition in batch])
        room = max(recognition.room for recognition in batch)
        results = self._model.generate(
            self._ctranslate2.StorageView.from_array(encoded),
            [recognition.prompt for recognition in batch],
            beam_size=1,
            # The library lets a text be as long as half of this, and as what the prompt leaves of it.
            max_length=max(2 * room, room + len(first.prompt)),
            repetition_penalty=first.penalty,
            return_scores=True,
            return_logits_vocab=first.needs_scores,
            return_no_speech_prob=True,
        )
        for recognition, result in zip(batch, results, strict=True):
            tokenizer, ids = self._tokenizer(recognition.language), result.sequences_ids[0]
            of_tokens = tuple(self._logprobs(tokenizer, ids, result.logits[0])) if recognition.logprobs else ()
            full_stop = self._full_stop(tokenizer, ids, result.logits[0]) if recognition.full_stop else None
            text = tokenizer.decode(ids).strip()
            recognition.take(Hypothesis(text, result.no_speech_prob, result.scores[0], of_tokens, full_stop))

    def word_ends(self, samples: NDArray[np.float32], text: str, language: str = "en") -> list[tuple[str, float]]:
        """Each word of ``text`` and when it ends, in seconds, by the decoder's attention (dynamic time warping).

        ``samples`` as for :class:`Recognition`. About a tenth of a second exact.
        """
        tokenizer = self._tokenizer(language)
        window_s = next(window for window in WINDOWS_S if len(samples) / SAMPLE_RATE + TRAILING_SILENCE_S <= window)
        encoded = self._ctranslate2.StorageView.from_array(self.encode(samples, window_s))
        ids = tokenizer.encode(" " + text.strip())
        frames = len(samples) * _MEL_FRAMES_PER_SECOND // SAMPLE_RATE
        pairs = self._model.align(encoded, tokenizer.sot_sequence, [ids], frames)[0].alignments
        last_frame = dict(pairs)  # of each token, in frames of the encoder: two of the spectrogram's
        ends: list[tuple[str, float]] = []
        for index, token_id in enumerate(ids):
            token, end = tokenizer.decode([token_id]), last_frame.get(index, 0) * 2 / _MEL_FRAMES_PER_SECOND
            if ends and not token.startswith(" "):
                ends[-1] = (ends[-1][0] + token, end)
            else:
                ends.append((token.strip(), end))
        return ends

    @staticmethod
    def _logprobs(tokenizer: Any, ids: list[int], logits: list[Any]) -> Iterator[TokenLogprob]:
        """Of the tokens that are text. ``logits``: for each step one score a token of the vocabulary."""
        for token_id, step in zip(ids, logits, strict=False):  # the last step may be the one that ends the text
            scores = np.array(step, dtype=np.float32).reshape(-1)
            logprob = float(scores[token_id] - np.logaddexp.reduce(scores.astype(np.float64)))
            if token_id < tokenizer.eot:
                data = token_bytes(tokenizer.tokenizer.id_to_token(token_id))
                yield TokenLogprob(token=data.decode(errors="replace"), logprob=min(logprob, 0.0), bytes=data)

    def _full_stop(self, tokenizer: Any, ids: list[int], logits: list[Any]) -> float | None:
        """See :attr:`Hypothesis.full_stop`; None where the text broke off before its end."""
        last = len(ids)
        while last and (ids[last - 1] >= tokenizer.eot or ids[last - 1] in self._ends or ids[last - 1] in self._go_on):
            last -= 1
        if last == len(logits):
            return None
        scores = np.array(logits[last], dtype=np.float64).reshape(-1)
        return float(np.logaddexp.reduce(scores[self._ends]) - np.logaddexp.reduce(scores[self._go_on]))


def token_bytes(token: str) -> bytes:
    """The bytes behind a token of a byte-level vocabulary, in which each byte is a printable character.

    The alphabet is GPT-2's: the 188 printable characters of Latin-1 are themselves, the other bytes follow from 256 on.
    """
    return bytes(_BYTE_OF[character] for character in token)


def _bytes_of_characters() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF: Final = _bytes_of_characters()


def audible_seconds(samples: NDArray[np.float32]) -> float:
    """Time, in seconds, during which ``samples`` at 16 kHz are within 35 dB of their loudest 20 ms."""
    frame = SAMPLE_RATE // 50
    power = np.square(samples[: len(samples) // frame * frame].reshape(-1, frame)).mean(axis=1)
    return float(np.count_nonzero(power > power.max(initial=0.0) * 10**-3.5)) / 50
