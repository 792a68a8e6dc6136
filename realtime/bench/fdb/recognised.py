"""Words recognised in the outputs, as the published figures use them: by a packaged Whisper model, with word times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.realtime.bench.fdb.artifacts import WordsFile, read_input, write_json
from duologue.realtime.bench.fdb.dataset import STEMS, Annotation, Task
from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.intelligibility import RECOGNISER_RATE, load_whisper

RecogniseWords = Callable[[NDArray[np.float32]], list[TimedWord]]
"""Mono float32 ``[n]`` at 16 kHz -> its words."""


def word_recogniser(name: str) -> RecogniseWords:
    """A packaged Whisper model on the CPU. Raises ``ModelUnavailable`` if it was not pulled."""
    model = load_whisper(name)

    def recognise(audio: NDArray[np.float32]) -> list[TimedWord]:
        segments, _ = model.transcribe(
            audio, language="en", beam_size=1, condition_on_previous_text=False, word_timestamps=True, vad_filter=True
        )
        return [
            TimedWord(word.word.strip(), round(float(word.start), 3), round(float(word.end), 3))
            for segment in segments
            for word in segment.words or ()
        ]

    return recognise


def recognise_sample(folder: Path, task: Task, annotation: Annotation, recognise: RecogniseWords) -> None:
    """Write ``output.json`` (and for overlaps those of all four recordings) from what is heard in the recordings.

    In an interruption only what follows the interrupting speech is looked at.
    """
    for stem in STEMS:
        if not (folder / f"{stem}output.wav").is_file():
            continue
        since = annotation.event[1] if task == "interruption" and annotation.event else 0.0
        _recognise_file(folder / f"{stem}output", since, recognise)
        if task == "overlap":
            _recognise_file(folder / f"{stem}input", 0.0, recognise)


def _recognise_file(base: Path, since: float, recognise: RecogniseWords) -> None:
    audio = read_input(base.with_suffix(".wav"), RECOGNISER_RATE)[round(since * RECOGNISER_RATE) :]
    words = [
        TimedWord(word.text, _later(word.start, since), _later(word.end, since))
        for word in (recognise(audio) if len(audio) else [])
    ]
    write_json(base.with_suffix(".json"), WordsFile.of(words, "asr"))


def _later(time: float | None, by: float) -> float | None:
    return None if time is None else round(time + by, 3)
