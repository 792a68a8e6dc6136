"""Turns out of continuous speech: a recording is cut into its sentences, each of them a turn with its real pauses.

Whoever reads or speaks in public makes pauses inside sentences and between them. What the speaker says after a full
stop is no news to a listener who would have answered there, so a sentence is taken for a turn: it ends where the text
ends a sentence *and* the speaker is silent. Its prosody is untouched: the sound up to the next sentence, silence
included, is that of the recording, and room tone at the recording's own floor follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav, write_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.intelligibility import RECOGNISER_RATE, load_whisper
from duologue.realtime.bench.levels import frame_levels, speech_bounds
from duologue.realtime.bench.turns_clips import ANNOTATION, LEAD_S, TAIL_S
from duologue.realtime.bench.turns_score import PAUSE_S, Truth, Turn

STOPS: Final = (".", "?", "!")
ELLIPSES: Final = ("...", "…")
"""The text breaks off here: no end of a sentence."""
LONGEST_SENTENCE_S: Final = 30.0
"""What is longer is more likely to be a text without full stops."""
GUARD_S: Final = 0.02
"""The silence before the next sentence loses so much, lest that sentence's first sound be in it."""

RecogniseWords = Callable[[NDArray[np.float32]], list[TimedWord]]
"""Mono float32 ``[n]`` at 16 kHz -> its words, with punctuation."""


def recogniser(name: str, language: str) -> RecogniseWords:
    """A packaged Whisper model on the CPU. Raises ``ModelUnavailable`` if it was not pulled."""
    model = load_whisper(name)

    def recognise(audio: NDArray[np.float32]) -> list[TimedWord]:
        segments, _ = model.transcribe(
            audio, language=language, beam_size=1, condition_on_previous_text=False, word_timestamps=True
        )
        return [
            TimedWord(word.word.strip(), round(float(word.start), 3), round(float(word.end), 3))
            for segment in segments
            for word in segment.words or ()
        ]

    return recognise


def sentences(runs: Sequence[tuple[float, float]], words: Sequence[TimedWord]) -> list[Turn]:
    """The sentences of a recording, by its runs of sound and its words, in seconds.

    A silence of at least a pause's length that follows a word with a full stop, question or exclamation mark ends a
    sentence; every other one is a pause inside. A word lies before a silence if its middle does: recognisers stretch
    words into silences. Sentences without such an end, the recording's last words cut short among them, are left out,
    and so is sound between two such silences that has no word of its own: a breath, a click.
    """
    found: list[Turn] = []
    first, pauses, told = runs[0][0], list[tuple[float, float]](), 0
    for (_, end), following in pairwise([*runs, (np.inf, np.inf)]):
        begin = following[0]
        if begin - end < PAUSE_S[0]:
            continue
        before = _words_before(words, end)
        if not before or not _ends_sentence(before[-1].text):
            pauses.append((end, begin))
            continue
        if len(before) > told and end - first <= LONGEST_SENTENCE_S:
            found.append(Turn(first, end, tuple(pauses)))
        first, pauses, told = begin, [], len(before)
    return found


def _words_before(words: Sequence[TimedWord], silence: float) -> list[TimedWord]:
    timed = (word for word in words if word.start is not None and word.end is not None)
    return [word for word in timed if (word.start + word.end) / 2 < silence]  # type: ignore[operator]


def _ends_sentence(text: str) -> bool:
    return text.endswith(STOPS) and not text.endswith(ELLIPSES)


def cut_recording(path: Path, recognise: RecogniseWords, out: Path, language: str = "en") -> int:
    """Write each sentence of a WAV file as ``NAME-NN.wav`` with its annotation; how many there are.

    ``language``: the ISO 639-1 code of what is spoken."""
    audio, rate = read_wav(path)
    samples = resample(audio, rate, SAMPLE_RATE)
    bounds = speech_bounds(samples, SAMPLE_RATE)
    if bounds is None:
        return 0
    words = recognise(resample(audio, rate, RECOGNISER_RATE))
    runs = [(start / SAMPLE_RATE, end / SAMPLE_RATE) for start, end in bounds.runs]
    found = sentences(runs, words)
    floor = 10 ** (float(np.percentile(frame_levels(samples, SAMPLE_RATE), 5)) / 20)
    rng = np.random.default_rng(len(samples))

    def tone(seconds: float) -> NDArray[np.float32]:
        return (rng.standard_normal(round(seconds * SAMPLE_RATE)) * floor).astype(np.float32)

    for number, turn in enumerate(found):
        following = min((start for start, _ in runs if start > turn.end), default=turn.end + GUARD_S)
        begin, end = round(turn.start * SAMPLE_RATE), round((following - GUARD_S) * SAMPLE_RATE)
        whole = np.concatenate([tone(LEAD_S), samples[begin:end], tone(TAIL_S)])
        shift = LEAD_S - turn.start
        moved = Turn(LEAD_S, turn.end + shift, tuple((s + shift, e + shift) for s, e in turn.pauses))
        base = out / f"{path.stem}-{number:02d}"
        write_wav(base.with_suffix(".wav"), float_to_pcm16(whole), SAMPLE_RATE)
        annotation = msgspec.json.encode(Truth((moved,), len(whole) / SAMPLE_RATE, language))
        base.with_name(base.name + ANNOTATION).write_bytes(annotation)
    return len(found)
