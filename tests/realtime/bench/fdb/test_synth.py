"""Generated sets: every time is where the annotation says, to the sample, and the seed fixes every byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.wav import read_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.dataset import PARTS_FILE, TURNS_FILE, Part, Sample, Turns, load_sets, read_json
from duologue.realtime.bench.fdb.synth import ECHO_DB, NATURAL_PAUSE_S, SETS, SynthOptions, synthesise

QUIET = 10 ** (-57 / 20)
"""Above every peak of the room, below every edge of speech."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, speech_dir: Path) -> Path:
    out = tmp_path_factory.mktemp("sets")
    synthesise(SynthOptions(out, count=4, speech=speech_dir, monologue_s=6, noise_s=2))
    return out


@pytest.fixture(scope="module")
def samples(root: Path) -> dict[str, list[Sample]]:
    return {item.name: item.samples for item in load_sets(root, ())}


def test_all_sets_are_there_and_can_be_read(samples: dict[str, list[Sample]]):
    assert list(samples) == list(SETS)
    assert all(len(items) == 4 and not any(item.problem for item in items) for items in samples.values())


@pytest.mark.parametrize("name", [name for name in SETS if name != "noise"])
def test_parts_are_where_they_are_said_to_be(samples: dict[str, list[Sample]], name: str):
    for sample in samples[name]:
        audio, rate = read_wav(sample.folder / "input.wav")
        assert rate == SAMPLE_RATE
        parts = read_json(sample.folder / PARTS_FILE, list[Part])
        outside = np.ones(len(audio), bool)
        for part in parts:
            outside[part.start_sample : part.end_sample] = False
            edges = audio[part.start_sample : part.start_sample + 1200], audio[part.end_sample - 1200 : part.end_sample]
            assert all(np.abs(edge).max() > QUIET * 10 ** (part.gain_db / 20) for edge in edges), part
        assert np.abs(audio[outside]).max() < QUIET
        turns = read_json(sample.folder / TURNS_FILE, Turns)
        assert turns.duration == len(audio) / rate
        spans = [part.span for part in parts if part.kind == "turn"]
        assert [(turn.start, turn.end) for turn in turns.turns] == spans


def test_recordings_and_sentences_take_turns(samples: dict[str, list[Sample]]):
    for name in ("pause", "turn_taking", "interruption", "user_interruption", "talking_to_other"):
        sources = [read_json(sample.folder / PARTS_FILE, list[Part])[-1].source for sample in samples[name]]
        assert sources == ["synthesised", "recording"] * 2, name


def test_pauses_are_silent_inside_one_sentence(samples: dict[str, list[Sample]]):
    for index, sample in enumerate(samples["pause"]):
        audio, rate = read_wav(sample.folder / "input.wav")
        (part,) = read_json(sample.folder / PARTS_FILE, list[Part])
        pauses = sample.annotation.pauses
        assert pauses
        for start, end in pauses:
            assert part.span[0] < start < end < part.span[1]
            if index != 3:  # a speaker's own pause is as quiet as the room was
                assert NATURAL_PAUSE_S <= end - start <= 1.6
                assert np.abs(audio[round(start * rate) : round(end * rate)]).max() < QUIET
        assert len(audio) / rate - part.span[1] == pytest.approx(0.1, abs=0.001)
    natural = read_json(samples["pause"][3].folder / PARTS_FILE, list[Part])[0]
    assert natural.source == "recording"


def test_the_clean_input_is_the_same_but_for_the_event(samples: dict[str, list[Sample]]):
    for name in ("user_interruption", "user_backchannel", "talking_to_other", "background_speech"):
        for sample in samples[name]:
            noisy, _ = read_wav(sample.folder / "input.wav")
            clean, _ = read_wav(sample.folder / "clean_input.wav")
            start, end = (round(time * SAMPLE_RATE) for time in sample.annotation.event)
            differs = np.flatnonzero(noisy != clean)
            assert start <= differs[0] < start + 1200
            assert end - 1200 <= differs[-1] < end


def test_an_event_lies_in_time_for_the_answer(samples: dict[str, list[Sample]]):
    for sample in samples["interruption"]:
        question, second = read_json(sample.folder / PARTS_FILE, list[Part])
        assert second.span[0] - question.span[1] == pytest.approx(4.0, abs=1e-4)
        assert sample.annotation.event == second.span
        for name, part in (("context", question), ("interrupt", second)):
            audio, _ = read_wav(sample.folder / f"{name}.wav")
            assert len(audio) == part.end_sample - part.start_sample


def test_backchannels_have_a_reference_after_each_clause(root: Path, samples: dict[str, list[Sample]]):
    references = read_json(root / "backchannel" / "reference.json", dict[str, list[float]])
    for sample in samples["backchannel"]:
        parts = read_json(sample.folder / PARTS_FILE, list[Part])
        windows = references[sample.id]
        for part in parts:
            assert windows[round(part.span[1] * 1000) // 200] == 1.0
        assert windows[round(parts[0].span[0] * 1000) // 200] == 0.0


def test_echoes_and_noises(samples: dict[str, list[Sample]]):
    echoes = [sample.annotation.echo for sample in samples["echo"]]
    assert {echo.gain_db for echo in echoes} == {ECHO_DB}
    assert all(80 <= echo.delay_ms <= 200 for echo in echoes)
    assert [echo.timestamps is not None for echo in echoes] == [False, True] * 2
    for sample in samples["noise"]:
        audio, _ = read_wav(sample.folder / "input.wav")
        level = 20 * np.log10(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))
        assert level == pytest.approx(-30, abs=0.5)
        assert sample.annotation.turns == []


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_seed_fixes_every_byte_whichever_sets_are_made(tmp_path: Path):
    def make(name: str, seed: int, *sets: str) -> dict[str, bytes]:
        out = tmp_path / name
        synthesise(SynthOptions(out, sets, count=2, seed=seed, noise_s=1, tail_s=1))  # type: ignore[arg-type]
        return {file: data for file, data in contents(out).items() if file.startswith("turn_taking")}

    first = make("a", 1, "turn_taking", "noise")
    assert first == make("b", 1, "turn_taking")
    assert first != make("c", 2, "turn_taking")
