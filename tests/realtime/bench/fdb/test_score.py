"""Scores of folders made by hand: what each task reports, and each quirk of the published scripts on and off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import write_wav
from duologue.realtime.bench.fdb.dataset import Task
from duologue.realtime.bench.fdb.formulas import backchannel_jsd
from duologue.realtime.bench.fdb.judge import Behaviour, Overheard, Rating, Verdicts
from duologue.realtime.bench.fdb.score import ScoreError, Scorer, Seconds, SetScores, Sounds

TURN = [("one", 5.35, 5.6), ("two", 5.6, 6.0), ("three", 6.0, 6.3), ("four", 6.3, 6.5)]


def loud(audio: np.ndarray) -> np.ndarray:
    """Speech is what is loud: sounds at known places without a model."""
    padded = np.pad(audio, (0, -len(audio) % 512)).reshape(-1, 512)
    return (np.abs(padded).max(axis=1) > 0.05).astype(np.float32)


def sound(path: Path, seconds: float, *spans: tuple[float, float], rate: int = 24_000) -> None:
    time = np.arange(round(seconds * rate)) / rate
    audio = np.zeros(len(time), np.float32)
    for start, end in spans:
        inside = (time >= start) & (time < end)
        audio[inside] = 0.3 * np.sin(2 * np.pi * 300 * time[inside])
    write_wav(path, float_to_pcm16(audio), rate)


def sample(root: Path, name: str, words: list | None = None, file: str = "output.json", **files: object) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    if words is not None:
        chunks = [{"text": text, "timestamp": [start, end]} for text, start, end in words]
        (folder / file).write_text(json.dumps({"text": " ".join(w[0] for w in words), "chunks": chunks}))
    for annotation, value in files.items():
        (folder / f"{annotation}.json").write_text(json.dumps(value))
    return folder


def score(root: Path, task: Task, *, quirks: bool = False, judge: object = None) -> SetScores:
    return Scorer(root, task, Sounds(loud), Verdicts(judge), quirks=quirks).score()  # type: ignore[arg-type]


def test_seconds_are_numpys_percentiles():
    assert Seconds.of([0.1, 0.2, 0.3, 0.4]) == Seconds(4, 0.25, 0.25, 0.385)
    assert Seconds.of([]) == Seconds(0)


def test_turn_taking_means_over_takeovers_and_samples_that_cannot_be_scored(tmp_path: Path):
    sample(tmp_path, "1", TURN, turn_taking=[{"timestamp": [5.0]}])
    sample(tmp_path, "2", [], turn_taking=[{"timestamp": [5.0]}])
    sample(tmp_path, "3", TURN)
    sample(tmp_path, "4", turn_taking=[{"timestamp": [5.0]}])
    scores = score(tmp_path, "turn_taking")
    assert (scores.attempted, scores.n, scores.failed, scores.excluded) == (4, 2, 0, 2)
    assert scores.tor == 0.5
    assert scores.latency_s == Seconds(1, 0.35, 0.35, 0.35)
    assert scores.reasons == {"3": "turn_taking.json is missing", "4": "output.json is missing"}
    assert scores.jsd is None
    assert scores.stop_latency_s.all.n == 0


def test_a_failed_replay_is_counted_and_not_scored(tmp_path: Path):
    folder = sample(tmp_path, "1", TURN, pause=[])
    lag = {"n": 0, "unit": "ms", "formula": ""}
    counts = {"responses": 0, "responses_interrupted": 0, "late_audio_ms": 0, "clipped_ms": 0, "pacing_lag": lag}
    result = {"ok": False, "failures": ["gone"], "warnings": [], "duration_s": 1.0, **counts}
    (folder / "result.json").write_text(json.dumps(result))
    sample(tmp_path, "2", TURN, pause=[])
    scores = score(tmp_path, "pause")
    assert (scores.attempted, scores.n, scores.failed, scores.excluded) == (2, 1, 1, 0)
    assert scores.reasons == {"1": "gone"}


def test_quirk_turn_taking_pairs_by_position(tmp_path: Path):
    sample(tmp_path, "1", TURN, turn_taking=[{"timestamp": [5.0]}])
    sample(tmp_path, "2", TURN)
    sample(tmp_path, "3", TURN, turn_taking=[{"timestamp": [5.25]}])
    right = score(tmp_path, "turn_taking")
    assert [(s.id, round(s.latency_s, 3)) for s in right.samples] == [("1", 0.35), ("3", 0.1)]
    shifted = score(tmp_path, "turn_taking", quirks=True)
    assert [(s.id, round(s.latency_s, 3)) for s in shifted.samples] == [("1", 0.35), ("2", 0.1)]


def test_quirk_no_turn_taken_is_an_error(tmp_path: Path):
    sample(tmp_path, "1", [], turn_taking=[{"timestamp": [5.0]}])
    assert score(tmp_path, "turn_taking").latency_s.mean is None
    with pytest.raises(ScoreError) as caught:
        score(tmp_path, "turn_taking", quirks=True)
    assert caught.value.code == "no_turn_taken"


def test_quirk_pause_counts_every_output(tmp_path: Path):
    sample(tmp_path, "1", [], pause=[])
    sample(tmp_path, "1", TURN, file="clean_output.json")
    assert score(tmp_path, "pause").tor == 0.0
    quirky = score(tmp_path, "pause", quirks=True)
    assert (quirky.n, quirky.tor) == (2, 0.5)


def interruption(root: Path) -> None:
    annotation = [{"context": "tell me", "interrupt": "why", "timestamp": [4.0, 5.0]}]
    before = [("was", 1.0, 2.0), ("saying", 2.0, 4.9)]
    for name, words in (("1", before + TURN), ("2", before)):
        folder = sample(root, name, words, interrupt=annotation)
        sound(folder / "input.wav", 8, (1.0, 2.0), (4.0, 5.0))
        sound(folder / "output.wav", 8, (3.0, 4.32), (5.35, 6.5))


def test_of_an_interruption_only_the_words_after_it_count(tmp_path: Path):
    interruption(tmp_path)
    scores = score(tmp_path, "interruption")
    assert [sample.tor for sample in scores.samples] == [1, 0]
    assert scores.latency_s.mean == pytest.approx(0.35)
    assert scores.rating is None


class Stubborn:
    """Rates after two answers that could not be read."""

    kind, fingerprint = "stub", "stub"

    def rate(self, context: str, interrupt: str, answer: str) -> Rating:
        assert (context, interrupt, answer) == ("tell me", "why", "one two three four")
        return Rating(4.0, unparsed=2)

    def behaviour(self, heard: Overheard) -> Behaviour:
        return "C_RESUME" if "sea" in heard.clean_output else "C_RESPOND"


def test_quirk_ratings_are_appended_twice_and_retries_enter_the_takeovers_again(tmp_path: Path):
    interruption(tmp_path)
    scores = score(tmp_path, "interruption", judge=Stubborn())
    assert (scores.rating.n, scores.rating.mean, scores.tor) == (1, 4.0, 0.5)
    quirky = score(tmp_path, "interruption", quirks=True, judge=Stubborn())
    assert (quirky.rating.n, quirky.rating.mean, quirky.tor) == (2, 4.0, 0.75)


def backchannel(root: Path, *spans: tuple[float, float], name: str = "1", words: list | None = None) -> None:
    folder = sample(root, name, words or [])
    sound(folder / "output.wav", 6.0, *spans)


def reference(root: Path, **distributions: list[float]) -> None:
    (root / "reference.json").write_text(json.dumps(distributions))


def test_backchannels_of_a_recording(tmp_path: Path):
    backchannel(tmp_path, (1.0, 1.5), (3.0, 3.4))
    reference(tmp_path, **{"1": [1, 1]})
    (one,) = score(tmp_path, "backchannel").samples
    assert (one.tor, one.frequency) == (0, pytest.approx(2 / 6))
    assert one.jsd == pytest.approx(backchannel_jsd([(0.98, 1.54), (2.98, 3.43)], 6.0, [1, 1]), abs=0.05)


def test_without_a_reference_there_is_no_distance(tmp_path: Path):
    backchannel(tmp_path, (1.0, 1.5))
    scores = score(tmp_path, "backchannel")
    assert scores.jsd is None
    assert "no reference" in scores.reasons["1"]


def test_quirk_24_khz_are_read_as_16(tmp_path: Path):
    backchannel(tmp_path, (1.0, 1.8))
    reference(tmp_path, **{"1": [1, 1]})
    assert score(tmp_path, "backchannel").samples[0].tor == 0  # 0.8 s and no words
    assert score(tmp_path, "backchannel", quirks=True).samples[0].tor == 1  # 1.2 s


def test_quirk_times_are_rounded_to_a_tenth_first(tmp_path: Path):
    # At 16 kHz, so that only the rounding differs: the segment is 0.418 to 3.422 s.
    folder = sample(tmp_path, "1", [])
    sound(folder / "output.wav", 6.0, (0.45, 3.385), rate=16_000)
    reference(tmp_path, **{"1": [1, 1]})
    assert score(tmp_path, "backchannel").samples[0].frequency == 0  # 3.004 s: too long to be kept
    assert score(tmp_path, "backchannel", quirks=True).samples[0].frequency == pytest.approx(1 / 6)  # 0.4 to 3.4


def test_a_sample_whose_sound_is_missing_or_broken_is_left_out(tmp_path: Path):
    sample(tmp_path, "1", [])
    (sample(tmp_path, "2", []) / "output.wav").write_bytes(b"no sound")
    backchannel(tmp_path, (1.0, 1.4), name="3")
    scores = score(tmp_path, "backchannel")
    assert (scores.n, scores.excluded) == (1, 2)
    assert "output.wav" in scores.reasons["1"]
    assert "not a RIFF" in scores.reasons["2"]


def test_quirk_only_folders_that_are_numbers(tmp_path: Path):
    backchannel(tmp_path, (1.0, 1.4))
    backchannel(tmp_path, (1.0, 1.4), name="icc_2")
    assert score(tmp_path, "backchannel").n == 2
    assert score(tmp_path, "backchannel", quirks=True).n == 1


def test_quirk_without_output_the_sample_before_counts_again(tmp_path: Path):
    backchannel(tmp_path, (0.5, 3.0), name="1")
    sample(tmp_path, "2")
    reference(tmp_path, **{"1": [1, 1]})
    plain = score(tmp_path, "backchannel")
    assert (plain.n, plain.excluded) == (1, 1)
    quirky = score(tmp_path, "backchannel", quirks=True)
    assert [(s.id, s.tor) for s in quirky.samples] == [("1", 1), ("2", 1)]
    assert (quirky.samples[1].frequency, quirky.samples[1].jsd) == (0.0, 1.0)


def test_quirk_the_first_sample_needs_output(tmp_path: Path):
    sample(tmp_path, "1")
    with pytest.raises(ScoreError, match=r"no output\.json"):
        score(tmp_path, "backchannel", quirks=True)


def test_overlaps_over_all_intervals_and_at_the_event(tmp_path: Path):
    folder = sample(
        tmp_path, "1", [*TURN, ("five", 9.0, 10.0)], metadata={"timestamps": [6.0, 8.0], "current_turn_text": "hm"}
    )
    sample(tmp_path, "1", [("the", 1.0, 1.2), ("sea", 1.2, 1.5)], file="clean_output.json")
    sound(folder / "clean_output.wav", 12, (4.0, 6.5))
    sound(folder / "input.wav", 12, (1.0, 3.0), (6.0, 8.0))
    sound(folder / "output.wav", 12, (4.0, 6.5), (9.0, 10.0))
    scores = score(tmp_path, "overlap", judge=Stubborn())
    assert (scores.stop_latency_s.all.n, scores.stop_latency_s.event.n) == (1, 1)
    assert scores.stop_latency_s.event.mean == pytest.approx(0.56, abs=0.07)  # 0.5 s and two pads
    assert (scores.response_latency_s.all.n, scores.response_latency_s.event.n) == (2, 1)
    assert scores.response_latency_s.event.mean == pytest.approx(0.94, abs=0.07)
    assert scores.behaviour == {"C_RESUME": 1.0}
    assert scores.tor is None
    intervals = json.loads((folder / "latency_intervals.json").read_text())
    assert sorted(intervals) == ["latency_resp_list", "latency_stop_list"]
    assert scores.before_after["level_db"].n == 1
    rates = scores.clean_after["words_per_minute"]
    assert (rates.mean_a, rates.mean_b) == (240.0, 60.0)
