"""The hibari acoustic model: words to acoustic frames, and which frames belong to which word.

The model's graph computes how many frames each phoneme lasts but does not return it. A serialised ``ModelProto`` that
holds nothing but one more graph output is appended to the model's bytes; protocol buffers define the concatenation of
two messages as their merger, so the graph gains that output without any ONNX library to edit it.
"""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.harmonic_noise import FFT_LENGTH, SAMPLE_RATE, AcousticFrames

logger = logging.getLogger(__name__)

LONGEST_PHONEMES: Final = 400
"""Phonemes in one run of the model: it was trained on no longer ones."""

_DURATIONS: Final = "/Clip_output_0"
"""The graph's tensor ``[phonemes]``: rounded, clipped duration of each phoneme."""
_FRAMES_PER_UNIT: Final = 2
_OUTPUTS: Final = ("lh", "theta", "ln", "lr", "phi", "f0", _DURATIONS)
_UNREADABLE: Final = (LookupError, ValueError, TypeError)
"""What the phonemiser's rules raise for text that nobody thought of."""
_PAD: Final = 0
_PUNCTUATION: Final = frozenset(' ;:,.!?—…"()“”')


@dataclass(frozen=True)
class PhonemeWord:
    """What is pronounced for a word."""

    phonemes: str
    """In the model's alphabet; attached punctuation and the space after it included."""
    word: int
    """Index of the word that was given; several in a row may stand for one (``"$5"``)."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Frames of one run of the model."""

    frames: AcousticFrames
    word_ends: tuple[tuple[int, int], ...]
    """``(index of the word, first frame after it)`` in order, for each word that has any sound."""


class HibariModel:
    """The loaded model and its phonemiser. Safe to use from several threads."""

    def __init__(self, path: Path, *, threads: int) -> None:
        import hibari
        import onnxruntime
        from hibari.g2p import G2P

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # clauses differ in length: the arena would keep the largest of everything
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            _with_output(path.read_bytes(), _DURATIONS), options, providers=["CPUExecutionProvider"]
        )
        assets = Path(hibari.__file__).parent / "assets"
        self._ids: dict[str, int] = json.loads((assets / "vocab.json").read_text(encoding="utf-8"))
        self._g2p = G2P()
        self._g2p_lock = threading.Lock()

    def phonemes(self, words: Sequence[str]) -> list[PhonemeWord]:
        """Pronunciation of ``words``, which are one clause: numbers, dates, units and abbreviations are read out.

        A word that the phonemiser cannot read is left out: one odd word must not cost the rest of a reply.
        """
        try:
            return self._pronounced(words, range(len(words)))
        except _UNREADABLE:
            readable = [index for index, word in enumerate(words) if self._can_read(word)]
            logger.warning("%d of %d words of a clause cannot be pronounced", len(words) - len(readable), len(words))
            return self._pronounced([words[index] for index in readable], readable)

    def _pronounced(self, words: Sequence[str], indices: Sequence[int]) -> list[PhonemeWord]:
        from hibari.g2p.normalize import normalize

        if not words:
            return []
        with self._g2p_lock:  # it keeps no state between calls, but nothing says that it never will
            tokens = self._g2p.phonemize_tokens(self._g2p.tokenize(normalize(" ".join(words))))
        texts: list[str] = [""]
        sounds: list[str] = [""]
        for token in tokens:
            texts[-1] += token.text
            sounds[-1] += token.phonemes or ""
            if token.whitespace:
                texts.append("")
                sounds.append("")
        origins = align_words(words, texts)
        return [
            PhonemeWord(sound if last else sound + " ", indices[origin])
            for sound, origin, last in zip(sounds, origins, [False] * (len(sounds) - 1) + [True], strict=True)
            if sound
        ]

    def _can_read(self, word: str) -> bool:
        try:
            self._pronounced([word], [0])
        except _UNREADABLE:
            return False
        return True

    def predict(self, words: Sequence[PhonemeWord], speed: float) -> Prediction:
        """Frames for at most ``LONGEST_PHONEMES`` phonemes; none when no phoneme is in the model's alphabet."""
        ids = [_PAD]
        ends: list[tuple[int, int]] = []
        for word in words:
            last = None
            for phoneme in word.phonemes:
                if (number := self._ids.get(phoneme)) is not None:
                    ids.append(number)
                    if phoneme not in _PUNCTUATION:
                        last = len(ids)
            if last is not None:
                ends.append((word.word, last))
        if len(ids) == 1:
            return Prediction(_no_frames(), ())
        ids.append(_PAD)
        feeds = {"ids": np.array([ids], np.int64), "speed": np.array([speed], np.float32)}
        *tensors, durations = self._session.run(_OUTPUTS, feeds)
        frames = AcousticFrames(*(tensor[0].T for tensor in tensors))
        end_of_phoneme = np.cumsum(durations).astype(np.int64) * _FRAMES_PER_UNIT
        return Prediction(frames, tuple((word, int(end_of_phoneme[last - 1])) for word, last in ends))


def in_runs(words: Sequence[PhonemeWord], longest: int = LONGEST_PHONEMES) -> list[list[PhonemeWord]]:
    """Split ``words`` into runs of at most ``longest`` phonemes, at word borders where one word is not longer."""
    runs: list[list[PhonemeWord]] = []
    size = longest
    for word in words:
        for start in range(0, len(word.phonemes), longest):
            piece = PhonemeWord(word.phonemes[start : start + longest], word.word)
            if size + len(piece.phonemes) > longest:
                runs.append([])
                size = 0
            runs[-1].append(piece)
            size += len(piece.phonemes)
    return runs


def align_words(given: Sequence[str], spoken: Sequence[str]) -> list[int]:
    """For each of ``spoken``, what the phonemiser made of ``given``, the index of the word that it came from.

    Words that are unchanged fix the alignment; a stretch that was rewritten in between is divided evenly. The result
    never decreases.
    """
    matcher = difflib.SequenceMatcher(None, [_key(w) for w in given], [_key(w) for w in spoken], autojunk=False)
    origins: list[int] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            origins += range(i1, i2)
        elif tag == "insert":
            origins += [max(0, i1 - 1)] * (j2 - j1)
        elif tag == "replace":
            origins += [i1 + (j - j1) * (i2 - i1) // (j2 - j1) for j in range(j1, j2)]
    return origins


def frame_levels(frames: AcousticFrames) -> NDArray[np.float64]:
    """Expected level of each frame, in decibels of full scale ``[frames]``.

    From the magnitudes by Parseval's theorem for a Hann window: a harmonic of magnitude m has amplitude 4 m / N and
    there is one every f0 hertz; of noise and residual every bin counts.
    """
    voiced = frames.f0 > 40
    harmonics = np.where(voiced, SAMPLE_RATE / FFT_LENGTH / np.maximum(frames.f0, 40.0), 0.0)
    power = 8 * harmonics * _squares(frames.log_harmonic)
    power += 2 / 0.375 * (2 * _squares(frames.log_noise) + _squares(frames.log_residual))
    return 10 * np.log10(np.maximum(power / FFT_LENGTH**2, 1e-12))


def _squares(log_magnitude: NDArray[np.float32]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.exp(2 * np.minimum(log_magnitude, 7)).sum(axis=1, dtype=np.float64)
    return squares


def _key(word: str) -> str:
    return "".join(character for character in word.casefold() if character.isalnum())


def _no_frames() -> AcousticFrames:
    spectrum = np.empty((0, FFT_LENGTH // 2 + 1), np.float32)
    return AcousticFrames(spectrum, spectrum, spectrum, spectrum, spectrum, np.empty(0, np.float32))


def _with_output(model: bytes, tensor: str) -> bytes:
    """``model`` with one more graph output: ``ModelProto{graph{output{name}}}`` appended (fields 7, 12 and 1)."""
    message = tensor.encode()
    for field in (1, 12, 7):
        if len(message) > 127:
            raise ValueError("longer names need a longer length prefix")
        message = bytes((field << 3 | 2, len(message))) + message
    return model + message
