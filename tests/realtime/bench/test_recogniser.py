"""A session that listens, with the real detector and recogniser: chunkings, monologues, and the bench's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.engine.models import pull
from duologue.engine.silero import SileroModel
from duologue.engine.stages.recogniser import WhisperRecogniser
from duologue.engine.words import word_errors
from duologue.realtime.bench import recogniser as bench
from duologue.realtime.bench.listening_run import ListeningRun
from duologue.sessions.config import Transcription

pytestmark = pytest.mark.models
RATE = 24_000


@pytest.fixture(scope="module")
def stage() -> Iterator[WhisperRecogniser]:
    pull("whisper-tiny.en")
    stage = WhisperRecogniser(workers=1, cpu_threads=1)
    stage.load()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def detector(silero_path: Path) -> SileroModel:
    return SileroModel(silero_path)


@pytest.fixture(scope="module")
def recordings(speech_dir: Path) -> dict[str, bench.Recording]:
    return bench.load_recordings(speech_dir)


def heard(stage: WhisperRecogniser, detector: SileroModel, pcm: bytes, chunk: int) -> list[tuple[float, str]]:
    run = ListeningRun(stage, detector, instant=True)
    run.play(pcm, chunk)
    (transcript,) = run.transcripts()
    assert "".join(text for _, text in run.deltas()) == transcript
    # When something is said depends on when the chunk with its frame came in, and on nothing else.
    return [(round(at, 1), text) for at, text in run.deltas()]


def test_fc_041_any_chunking_gives_the_same_words(stage, detector, recordings):
    pcm = bench.padded(recordings["goforward.wav"][0])
    expected = [text for _, text in heard(stage, detector, pcm, 480)]
    assert len(expected) > 1
    for samples in (1, 240, 2040, 4800):
        assert [text for _, text in heard(stage, detector, pcm, samples)] == expected, samples


def test_words_come_while_they_are_spoken_at_known_offsets(stage, detector, recordings):
    samples, spoken = recordings["librivox-austen-0870.wav"]
    run = ListeningRun(stage, detector, instant=True)
    run.play(bench.padded(samples))
    assert word_errors(spoken, run.transcripts()[0]).errors <= 3
    # One that stands has been heard twice, 400 ms apart.
    delays = bench.word_delays(stage.whisper, samples, run)
    assert len(delays) == len(run.transcripts()[0].split())
    assert min(delays) > -300
    assert sorted(delays)[len(delays) // 2] < 1500


def monologue(recordings, seconds: float) -> tuple[bytes, str]:
    """Recordings one after the other, with pauses that end no turn."""
    names = [name for name in sorted(recordings) if name.startswith("librivox")]
    sounds, words, total = [np.zeros(RATE // 2, np.float32)], [], 0.0
    while total < seconds:
        samples, spoken = recordings[names[len(words) % len(names)]]
        sounds += [resample(samples, 16_000, RATE), np.zeros(RATE * 3 // 10, np.float32)]
        words.append(spoken)
        total = sum(map(len, sounds)) / RATE
    return float_to_pcm16(np.concatenate(sounds)), " ".join(words)


def check_monologue(stage, detector, recordings, seconds: float) -> None:
    pcm, spoken = monologue(recordings, seconds)
    rarely = Transcription(model="whisper", language="en", delay="xhigh")
    run = ListeningRun(stage, detector, turn_detection=None, transcription=rarely, instant=True)
    run.play(pcm, 2400)
    before = len(run.work)
    run.commit()
    (last,) = run.work[before:]
    assert len(last.payload.audio) / 2 / RATE < 15
    assert max(len(work.payload.audio) for work in run.work) / 2 / RATE < 16
    (transcript,) = run.transcripts()
    assert word_errors(spoken, transcript).rate < 0.12, transcript
    assert "".join(text for _, text in run.deltas()) == transcript


def test_a_monologue_of_two_minutes_keeps_its_tail_short(stage, detector, recordings):
    check_monologue(stage, detector, recordings, 120)


@pytest.mark.soak
def test_a_monologue_of_ten_minutes_keeps_its_tail_short(stage, detector, recordings):
    check_monologue(stage, detector, recordings, 600)


def test_the_bench_measures_sessions_and_paddings(stage, recordings):
    one = {"goforward.wav": recordings["goforward.wav"]}
    report = bench.measure_sessions("whisper-tiny.en", one, read_along=True)
    assert (report.word_errors, report.words) == (0, 4)
    assert report.requests > 2
    assert report.word_delay.n == 4
    padding = bench.measure_padding(stage.whisper, "whisper-tiny.en", "15 s", one)
    assert (padding.word_errors, padding.words) == (0, 4)
    assert padding.cpu.p50


def test_a_folder_without_recordings_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no recording"):
        bench.load_recordings(tmp_path)
