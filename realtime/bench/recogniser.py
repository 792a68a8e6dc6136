"""What the recogniser costs and how often it is right: by model and padding, read along or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.engine.models import pull, require
from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.engine.silero import SileroModel
from duologue.engine.stages.recogniser import WhisperRecogniser
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.stages.whisper import LONGEST_S, SAMPLE_RATE, Recognition, Whisper
from duologue.engine.words import WordErrors, word_errors
from duologue.realtime.bench.listening_run import ListeningRun
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.utterances import transcripts
from duologue.sessions.config import Limits

PADDINGS: Final[Mapping[str, Callable[[float], float]]] = {
    "speech + 0.3 s": lambda seconds: seconds + 0.3,
    "speech + 1 s": lambda seconds: seconds + 1.0,
    "8 s": lambda seconds: 8.0,
    "15 s": lambda seconds: 15.0,
    "30 s": lambda seconds: 30.0,
    "as used": lambda seconds: 0.0,
}
"""Length of the window, by that of the recording. As used: by the rules of the stage, retries included."""

LEAD_S, TAIL_S = 0.5, 1.2
"""Silence before and after a recording that a session hears."""

Recording = tuple[NDArray[np.float32], str]


class PaddingReport(msgspec.Struct, frozen=True):
    """All recordings that fit, decoded one by one."""

    model: str
    padding: str
    word_errors: int
    words: int
    wall: Metric
    cpu: Metric


class SessionReport(msgspec.Struct, frozen=True):
    """A session that hears all recordings, one after the other."""

    read_along: bool
    word_errors: int
    words: int
    requests: int
    cpu_s_per_speech_s: float
    first_words: Metric
    word_delay: Metric
    final_delay: Metric


class RecogniserReport(msgspec.Struct, frozen=True):
    """Figures of one run."""

    recordings: int
    speech_s: float
    paddings: list[PaddingReport]
    sessions: list[SessionReport]


def run_recogniser(folder: Path, models: Iterable[str], on_step: Callable[[str], None]) -> RecogniserReport:
    """Measure every model on the recordings of ``folder``, and sessions with the first. Raises ``ModelUnavailable``,
    and ``ValueError`` for a folder without recordings."""
    let_waiting_threads_sleep()
    recordings = load_recordings(folder)
    names = list(models)
    paddings = []
    for name in names:
        on_step(f"fetching {name}")
        whisper = Whisper(pull(name), threads=1, workers=1)
        whisper.recognise(np.zeros(SAMPLE_RATE, np.float32))
        for padding in PADDINGS:
            on_step(f"{name}, padded to {padding}")
            paddings.append(measure_padding(whisper, name, padding, recordings))
    sessions = []
    for read_along in (False, True):
        on_step("reading along" if read_along else "not reading along")
        sessions.append(measure_sessions(names[0], recordings, read_along))
    seconds = sum(len(samples) for samples, _ in recordings.values()) / SAMPLE_RATE
    return RecogniserReport(len(recordings), round(seconds, 1), paddings, sessions)


def load_recordings(folder: Path) -> dict[str, Recording]:
    """Samples at 16 kHz and the words in them, by file name. Raises ``ValueError`` where there are none."""
    found = {}
    for name, spoken in transcripts(folder).items():
        samples, rate = read_wav(folder / name)
        found[name] = (resample(samples, rate, SAMPLE_RATE), spoken)
    if not found:
        raise ValueError(f"{folder} holds no recordings with known words")
    return found


def measure_padding(whisper: Whisper, model: str, padding: str, recordings: Mapping[str, Recording]) -> PaddingReport:
    """Decode every recording that fits into the window."""
    errors, walls, cpus = WordErrors(0, 0), [], []
    for samples, spoken in recordings.values():
        seconds = len(samples) / SAMPLE_RATE
        window_s = PADDINGS[padding](seconds)
        if seconds > (window_s or LONGEST_S):
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        if window_s:
            recognition = Recognition(whisper, samples)
            recognition.encoded = whisper.encode(samples, window_s)
            whisper.decode([recognition])
            assert recognition.first is not None
            heard = recognition.first.text
        else:
            heard = whisper.recognise(samples).text
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
        errors += word_errors(spoken, heard)
    return PaddingReport(
        model,
        padding,
        errors.errors,
        errors.words,
        metric(walls, "ms", "decode of one recording, one thread, time.perf_counter"),
        metric(cpus, "ms", "the same, time.process_time"),
    )


def measure_sessions(model: str, recordings: Mapping[str, Recording], read_along: bool) -> SessionReport:
    """One session hears each recording, on a simulated clock."""
    stage = WhisperRecogniser(model, workers=1, cpu_threads=1)
    stage.load()
    detector = SileroModel(require("silero-vad"))
    errors, cpu_s, requests, speech_s = WordErrors(0, 0), 0.0, 0, 0.0
    firsts: list[float] = []
    delays: list[float] = []
    finals: list[float] = []
    try:
        for samples, spoken in recordings.values():
            run = ListeningRun(stage, detector, read_along=read_along, limits=Limits())
            run.play(padded(samples))
            run.finish()
            errors += word_errors(spoken, " ".join(run.transcripts()))
            cpu_s += sum(work.cpu_s for work in run.work)
            requests += len(run.work)
            speech_s += len(samples) / SAMPLE_RATE
            if run.deltas():
                firsts.append((run.deltas()[0][0] - LEAD_S) * 1000)
                finals.append((run.deltas()[-1][0] - LEAD_S - len(samples) / SAMPLE_RATE) * 1000)
                delays += word_delays(stage.whisper, samples, run)
    finally:
        stage.close()
    return SessionReport(
        read_along,
        errors.errors,
        errors.words,
        requests,
        round(cpu_s / speech_s, 3),
        metric(firsts, "ms", "first delta - first sample of the recording, in time of the sound"),
        metric(delays, "ms", "delta with the word - end of the word by forced alignment, in time of the sound"),
        metric(finals, "ms", "last delta - last sample of the recording, silence window of 500 ms included"),
    )


def padded(samples: NDArray[np.float32]) -> bytes:
    """A recording between silences, as a client sends it: PCM16 at 24 kHz."""
    lead, tail = (np.zeros(int(seconds * SAMPLE_RATE), np.float32) for seconds in (LEAD_S, TAIL_S))
    return float_to_pcm16(resample(np.concatenate((lead, samples, tail)), SAMPLE_RATE, OUTPUT_SAMPLE_RATE))


def word_delays(whisper: Whisper, samples: NDArray[np.float32], run: ListeningRun) -> list[float]:
    """Milliseconds from the end of each word of a run's transcripts to the delta that brought it."""
    ends = whisper.word_ends(samples, " ".join(run.transcripts()))
    texts: dict[str, str] = {}
    arrivals: list[float] = []
    for at, item_id, text in run.deltas_by_item():
        texts[item_id] = texts.get(item_id, "") + text
        arrivals += [at] * (sum(len(text.split()) for text in texts.values()) - len(arrivals))
    return [(at - LEAD_S - end) * 1000 for at, (_, end) in zip(arrivals, ends, strict=False)]


def share(errors: int, words: int) -> str:
    """Word errors as people read them."""
    return f"{100 * errors / words:.1f} %" if words else "-"
