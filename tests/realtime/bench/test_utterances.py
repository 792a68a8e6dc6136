"""The set of utterances: deterministic, without repetition, true about its own speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import write_wav
from duologue.realtime.bench import utterances as module
from duologue.realtime.bench.caller_audio import CallerAudio
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.noise import noise_loop
from duologue.realtime.bench.utterances import Library, Rendered, plan

KINDS = ("white", "pink", "hum")


def burst(*spans: tuple[float, float], seconds: float = 1.5, rate: int = 16_000) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    audio = np.zeros(len(time), np.float32)
    for start, end in spans:
        inside = (time >= start) & (time < end)
        audio[inside] = 0.3 * np.sin(2 * np.pi * 300 * time[inside])
    return audio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, spans in {
        "a.wav": [(0.2, 1.0)],
        "b.wav": [(0.1, 0.4), (0.5, 1.2)],
        "gap.wav": [(0.1, 0.4), (0.9, 1.2)],
    }.items():
        write_wav(tmp_path / name, float_to_pcm16(burst(*spans)), 16_000)
    (tmp_path / "transcripts.tsv").write_text("a.wav\tone two\nb.wav\tthree\ngap.wav\tfour\nmissing.wav\tfive\n")
    return tmp_path


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library whose sentences are tones: what is tested here is not the voice."""
    library = Library(folder)
    monkeypatch.setattr(library, "_speak", lambda text: burst((0.25, 1.0), rate=SAMPLE_RATE))
    return library


def conditions(utterances: list) -> list[tuple]:
    return [(u.source, u.name, u.gain_db, u.noise, u.snr_db) for u in utterances]


def test_no_condition_is_repeated_and_the_seed_fixes_everything(library: Library):
    first = plan(200, 5, library, seed=3, longest_pause_s=0.35)
    answers = [u for u in first if u.kind == "answer"]
    assert len(answers) == len(set(conditions(answers))) == 200
    assert len({u.lead_samples for u in answers}) > 150
    assert first == plan(200, 5, library, seed=3, longest_pause_s=0.35)
    assert first != plan(200, 5, library, seed=4, longest_pause_s=0.35)


def test_recordings_and_sentences_take_turns_and_begin_clean(library: Library):
    planned = plan(4, 0, library, seed=0, longest_pause_s=0.35)
    assert [(u.source, u.gain_db, u.noise) for u in planned] == [
        ("recording", 0.0, "none"),
        ("synthesised", 0.0, "none"),
    ] * 2
    assert [u.words for u in planned[::2]] == ["one two", "three"]


def test_a_recording_that_would_be_two_turns_is_left_out_with_the_reason(library: Library):
    plan(4, 0, library, seed=0, longest_pause_s=0.35)
    assert library.left_out == {"gap.wav": "pauses for 0.50 s inside"}


def test_more_than_there_is_cannot_be_asked_for(library: Library):
    with pytest.raises(ValueError, match="only 576 different conditions"):
        plan(100_000, 0, library, seed=0, longest_pause_s=0.35)


def test_without_a_folder_there_are_sentences_only(monkeypatch: pytest.MonkeyPatch):
    library = Library(None)
    planned = plan(10, 2, library, seed=0, longest_pause_s=0.35)
    assert {u.source for u in planned} == {"synthesised"}
    assert [u.kind for u in planned[10:]] == ["barge_in"] * 2
    assert all(u.interruption and 0.6 <= u.barge_in_after_s <= 1.6 for u in planned[10:])


def test_a_folder_without_known_words_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="known words"):
        Library(tmp_path)


def test_rendering_knows_its_true_bounds_level_and_noise(library: Library):
    planned = plan(120, 0, library, seed=1, longest_pause_s=0.35)
    chosen = next(u for u in planned if u.name == "a.wav" and u.noise == "white" and u.gain_db < 0)
    rendered = library.render(chosen)
    lead = chosen.lead_samples
    assert (rendered.start - lead) / SAMPLE_RATE == pytest.approx(0.2, abs=0.011)
    assert (rendered.end - lead) / SAMPLE_RATE == pytest.approx(1.0, abs=0.011)
    assert not rendered.speech[:lead].any()
    spoken = rendered.speech[rendered.start : rendered.end]
    level = 20 * np.log10(np.sqrt(np.mean(spoken**2)))
    assert level == pytest.approx(20 * np.log10(0.3 / np.sqrt(2)) + chosen.gain_db, abs=0.3)
    noise = 20 * np.log10(np.sqrt(np.mean(rendered.background**2)))
    assert level - noise == pytest.approx(chosen.snr_db, abs=0.1)
    again = library.render(chosen)
    assert np.array_equal(again.background, rendered.background)


def test_every_builtin_recording_has_words():
    assert all(words == words.lower().strip() and words for words in module.WORDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_unit_level_and_no_seam(kind: str):
    loop = noise_loop(kind, SAMPLE_RATE, np.random.default_rng(0))
    assert np.sqrt(np.mean(loop.astype(np.float64) ** 2)) == pytest.approx(1.0, abs=1e-4)
    if kind != "white":
        steps = np.abs(np.diff(loop))
        assert abs(loop[0] - loop[-1]) <= steps.max()


def test_pink_noise_falls_by_three_decibels_an_octave():
    loop = noise_loop("pink", SAMPLE_RATE, np.random.default_rng(0))
    power = np.abs(np.fft.rfft(loop)) ** 2
    frequency = np.fft.rfftfreq(len(loop), 1 / SAMPLE_RATE)
    octaves = [power[(frequency >= low) & (frequency < 2 * low)].mean() for low in (100, 200, 400, 800, 1600)]
    assert 10 * np.log10(octaves[0] / octaves[-1]) == pytest.approx(12.0, abs=1.5)


def test_the_microphone_says_what_it_is_told_from_the_next_sample_on():
    audio = CallerAudio()
    assert audio.take(480) == bytes(960)
    speech = np.full(500, 0.5, np.float32)
    background = np.array([0.25, -0.25], np.float32)
    assert audio.say(Rendered(speech, background, 0, 500)) == 480
    heard = np.frombuffer(audio.take(480) + audio.take(480), "<i2") / 32767
    assert heard[:500:2] == pytest.approx(0.75, abs=1e-4)
    assert heard[500::2] == pytest.approx(0.25, abs=1e-4)
    assert audio.position == 3 * 480
    audio.close()
    assert audio.take(480) is None
