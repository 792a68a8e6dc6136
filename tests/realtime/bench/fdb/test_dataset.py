"""Folders in the layout of Full-Duplex-Bench: read as they are, refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duologue.codecs.wav import write_wav
from duologue.realtime.bench.fdb.dataset import AnnotationError, load_annotation, load_set, load_sets


def sample(root: Path, name: str, **files: object) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    write_wav(folder / "input.wav", bytes(320), 16_000)
    for file, value in files.items():
        (folder / f"{file}.json").write_text(json.dumps(value))
    return folder


def test_the_annotations_of_every_task(tmp_path: Path):
    one = sample(
        tmp_path,
        "1",
        pause=[{"text": "[PAUSE]", "timestamp": [1.5, 2]}],
        turn_taking=[{"timestamp": [3.25, 9.0]}],
        interrupt=[{"context": "c", "interrupt": "i", "timestamp": [4, 5.5]}],
        metadata={"context_text": "c", "current_turn_text": "o", "timestamps": [6, 7], "more": 1},
        echo={"gain_db": -20, "delay_ms": 80},
        turns={"turns": [{"start": 0.5, "end": 1.5, "pauses": [[0.8, 1.1]]}], "duration": 9.0},
    )
    assert load_annotation(one, "pause").pauses == [(1.5, 2)]
    assert load_annotation(one, "turn_taking").turn_end == 3.25
    interruption = load_annotation(one, "interruption")
    assert (interruption.event, interruption.context, interruption.event_text) == ((4, 5.5), "c", "i")
    assert load_annotation(one, "overlap").event == (6, 7)
    assert load_annotation(one, "echo").echo.delay_ms == 80
    assert load_annotation(one, "noise").turns == [(0.5, 1.5)]


def test_samples_are_in_the_order_of_their_numbers_and_bad_ones_say_why(tmp_path: Path):
    good = [{"timestamp": [1.0]}]
    sample(tmp_path, "10", turn_taking=good)
    sample(tmp_path, "2", turn_taking=good)
    sample(tmp_path, "3")
    sample(tmp_path, "4", turn_taking=[])
    sample(tmp_path, "5", turn_taking=[{"timestamp": ["a"]}])
    (tmp_path / "6").mkdir()
    loaded = load_set(tmp_path, "turn_taking")
    assert [item.id for item in loaded.usable] == ["2", "10"]
    problems = {item.id: item.problem for item in loaded.samples if item.problem}
    assert problems["3"] == "turn_taking.json is missing"
    assert "an entry with a timestamp" in problems["4"]
    assert "turn_taking.json" in problems["5"]
    assert "$[0].timestamp[0]" in problems["5"]
    assert problems["6"] == "input.wav is missing"


def test_clean_inputs_are_found(tmp_path: Path):
    folder = sample(tmp_path, "1", metadata={"timestamps": [1, 2]})
    assert load_set(tmp_path, "overlap").samples[0].stems == [""]
    write_wav(folder / "clean_input.wav", bytes(320), 16_000)
    assert load_set(tmp_path, "overlap").samples[0].stems == ["", "clean_"]


def test_a_collection_names_its_sets(tmp_path: Path):
    sample(tmp_path / "a", "1", turn_taking=[{"timestamp": [1.0]}])
    sample(tmp_path / "b", "1", pause=[])
    (tmp_path / "sets.json").write_text('[{"name":"a","task":"turn_taking"},{"name":"b","task":"pause"}]')
    assert [(item.name, item.task) for item in load_sets(tmp_path, ())] == [("a", "turn_taking"), ("b", "pause")]
    assert [item.name for item in load_sets(tmp_path, ("pause",))] == ["b"]
    with pytest.raises(AnnotationError, match="no set of the task echo"):
        load_sets(tmp_path, ("echo",))
    with pytest.raises(AnnotationError, match="name its one task"):
        load_sets(tmp_path / "a", ())


def test_an_empty_folder_and_no_folder_are_errors(tmp_path: Path):
    with pytest.raises(AnnotationError, match="no samples"):
        load_set(tmp_path, "pause")
    with pytest.raises(AnnotationError, match="no such folder"):
        load_set(tmp_path / "x", "pause")
