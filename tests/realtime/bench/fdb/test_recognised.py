"""Words recognised in outputs: with the packaged recogniser at known places, and cut as the published tools cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import write_wav
from duologue.engine.models import pull
from duologue.engine.words import normalise_words
from duologue.realtime.bench.fdb.artifacts import WordsFile
from duologue.realtime.bench.fdb.dataset import Annotation, read_json
from duologue.realtime.bench.fdb.formulas import TimedWord
from duologue.realtime.bench.fdb.recognised import recognise_sample, word_recogniser
from duologue.realtime.bench.utterances import Library

SENTENCE = "What is the capital of France?"


@pytest.mark.models
def test_the_packaged_recogniser_gives_words_their_times(tmp_path: Path):
    audio, bounds = Library(None).sound("synthesised", SENTENCE)
    sound = np.concatenate(
        [np.zeros(48_000, np.float32), audio[bounds.start : bounds.end], np.zeros(48_000, np.float32)]
    )
    write_wav(tmp_path / "output.wav", float_to_pcm16(sound), 24_000)
    pull("whisper-tiny.en")
    recognise_sample(tmp_path, "turn_taking", Annotation(), word_recogniser("whisper-tiny.en"))
    found = read_json(tmp_path / "output.json", WordsFile)
    assert (found.source, found.timing) == ("asr", "recognised")
    assert normalise_words(found.text) == normalise_words(SENTENCE)
    length = (bounds.end - bounds.start) / 24_000
    assert found.words[0].start == pytest.approx(2.0, abs=0.4)
    assert found.words[-1].end == pytest.approx(2.0 + length, abs=0.4)


def test_of_an_interruption_only_what_follows_it_is_recognised(tmp_path: Path):
    given: list[int] = []

    def recognise(audio: np.ndarray) -> list[TimedWord]:
        given.append(len(audio))
        return [TimedWord("yes", 0.5, None)]

    write_wav(tmp_path / "output.wav", bytes(2 * 24_000 * 6), 24_000)
    recognise_sample(tmp_path, "interruption", Annotation(event=(3.0, 4.0)), recognise)
    assert given == [2 * 16_000]
    assert read_json(tmp_path / "output.json", WordsFile).words == [TimedWord("yes", 4.5, None)]


def test_of_an_overlap_all_four_recordings_are_recognised(tmp_path: Path):
    for name in ("input", "output", "clean_input", "clean_output"):
        write_wav(tmp_path / f"{name}.wav", bytes(4800), 24_000)
    recognise_sample(tmp_path, "overlap", Annotation(), lambda audio: [])
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "clean_input.json",
        "clean_output.json",
        "input.json",
        "output.json",
    ]
