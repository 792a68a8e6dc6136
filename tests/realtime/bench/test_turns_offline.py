"""Turns through the session core and the real detectors, on a clock that the samples drive."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.engine.silero import SileroModel
from duologue.engine.stages.whisper import Hypothesis
from duologue.engine.turn_model import SmartTurnModel
from duologue.engine.voice_activity import VoiceFrame
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.offline_voice_activity import OfflineVoiceActivity, ReplayedVoiceActivity
from duologue.realtime.bench.room_sounds import ROOM_SOUNDS, RoomSound
from duologue.realtime.bench.turns_clips import Clip, noise_clip, read_clips
from duologue.realtime.bench.turns_offline import (
    Judge,
    Words,
    frames_of,
    run_core,
    run_policy,
)
from duologue.realtime.bench.turns_run import Detectors, TurnsOptions, run_turns, steps
from duologue.realtime.bench.turns_score import Heard, Truth, Turn, score
from duologue.sessions.config import SemanticVad, ServerVad, TurnDetection
from duologue.sessions.turns.semantic import SemanticSettings, policy_for

Samples = NDArray[np.float32]
CHUNKS = [1, SAMPLE_RATE // 100, SAMPLE_RATE // 50, SAMPLE_RATE * 85 // 1000, SAMPLE_RATE // 5]
"""1 sample, 10, 20, 85 and 200 ms."""
PREFIX_S = 0.3
DETECTIONS: list[TurnDetection] = [ServerVad(silence_duration_ms=200), ServerVad(), SemanticVad(eagerness="high")]


class LoudModel:
    """Speech wherever it is loud."""

    def step(self, frames: Samples, state: Samples) -> tuple[Samples, Samples]:
        return (np.abs(frames[:, -512:]).mean(axis=1) > 0.01).astype(np.float32), state


class LengthModel:
    """An answer that depends on nothing but what is heard."""

    def __init__(self) -> None:
        self.asked = 0

    def finished(self, samples: Samples) -> float:
        self.asked += 1
        return len(samples) % 89 / 89


class HalfModel:
    """One that cannot tell."""

    def finished(self, samples: Samples) -> float:
        return 0.5


def beeps(*seconds: float) -> Clip:
    """Silence and noise in turns, of these lengths, beginning with silence."""
    rng = np.random.default_rng(0)
    pieces = [rng.uniform(-0.5, 0.5, round(length * SAMPLE_RATE)) * (index % 2) for index, length in enumerate(seconds)]
    samples = np.concatenate(pieces).astype(np.float32)
    return Clip("beeps", samples, Truth((Turn(seconds[0], sum(seconds[:-1])),), len(samples) / SAMPLE_RATE))


def heard(clip: Clip, detection: TurnDetection, chunk: int = SAMPLE_RATE // 50, answer_s: float = 0.07) -> Heard:
    frames = partial(OfflineVoiceActivity, LoudModel())
    return run_core(clip, detection, frames, Judge(LengthModel()), answer_s, chunk)


def test_the_clock_is_that_of_the_samples() -> None:
    result = heard(beeps(1.0, 0.5, 1.5), ServerVad(prefix_padding_ms=0, silence_duration_ms=500))
    assert result.starts == pytest.approx((1.0,), abs=0.032)
    assert result.decisions == pytest.approx((2.0,), abs=0.06)
    assert result.onsets == pytest.approx((1.064,), abs=0.06)


@pytest.mark.parametrize("answer_s", [0.0, 0.3])
def test_the_models_time_is_in_its_decisions(answer_s: float) -> None:
    clip = beeps(1.0, 0.5, 3.0)
    at_once, later = (heard(clip, SemanticVad(), answer_s=seconds) for seconds in (0.0, answer_s))
    assert len(at_once.decisions) == len(later.decisions)
    assert later.decisions[0] - at_once.decisions[0] >= answer_s - 1e-9
    assert later.starts == at_once.starts


@pytest.mark.parametrize("detection", DETECTIONS, ids=["200 ms", "500 ms", "semantic"])
def test_the_policy_alone_decides_as_the_core_does(detection: TurnDetection) -> None:
    clip = beeps(0.7, 0.9, 0.3, 0.4, 0.8, 0.6, 3.5)
    core = heard(clip, detection)
    policy = policy_for(detection, 120.0, 0, judged=True)
    alone = run_policy(clip, frames_of(clip, LoudModel()), policy, Judge(LengthModel()), 0.07)
    assert alone.starts == pytest.approx(core.starts, abs=0.001)
    assert alone.decisions == pytest.approx(core.decisions, abs=0.03), "chunks of 20 ms and the filter's reach"


class Sentence:
    """A recogniser that takes every sound for the same whole sentence."""

    def __init__(self, full_stop: float) -> None:
        self.asked = 0
        self._full_stop = full_stop

    def language_of(self, language: str) -> str:
        return language

    def recognise(self, samples: Samples, language: str, *, full_stop: bool) -> Hypothesis:
        self.asked += 1
        return Hypothesis("That is all.", 0.0, -0.1, full_stop=self._full_stop if full_stop else None)


@pytest.mark.parametrize(("words_s", "full_stop"), [(0.1, 8.0), (0.1, -2.0), (0.5, 8.0)])
def test_words_count_from_when_they_are_there_in_the_core_and_the_policy_alone(
    words_s: float, full_stop: float
) -> None:
    clip = beeps(0.7, 0.9, 3.5)
    model = Sentence(full_stop)
    words = Words(lambda language: model, words_s, 9.0)  # type: ignore[arg-type,return-value]
    frames = partial(OfflineVoiceActivity, LoudModel())
    results = [
        run_core(clip, SemanticVad(), frames, Judge(HalfModel()), 0.07, words=words),
        run_policy(
            clip,
            frames_of(clip, LoudModel()),
            policy_for(SemanticVad(), 120.0, 0, judged=True),
            Judge(HalfModel()),
            0.07,
            words,
        ),
    ]
    noticed = 0.128 + words_s
    expected = max(SemanticSettings().wait(0.0, full_stop) / 1000, min(noticed, SemanticSettings().wait(0.0) / 1000))
    for result in results:
        assert [at - 1.6 for at in result.decisions] == pytest.approx([expected], abs=0.06)
    assert model.asked == 1, "both heard the same"


def test_frames_that_were_kept_come_when_they_would_have_been_made() -> None:
    clip = beeps(0.5, 0.7, 1.0)
    kept = frames_of(clip, LoudModel())
    made, replayed = OfflineVoiceActivity(LoudModel(), SAMPLE_RATE), ReplayedVoiceActivity(kept, SAMPLE_RATE)
    for first in range(0, len(clip.pcm), 962):
        piece = clip.pcm[first : first + 962]
        assert list(made.feed(piece)) == list(replayed.feed(piece))


def test_a_judge_asks_the_model_once_about_the_same_sound() -> None:
    model = LengthModel()
    judge = Judge(model)
    assert judge(b"\x01\x00" * 48, 24_000) == judge(b"\x01\x00" * 48, 24_000)
    assert (judge.asked, judge.runs, model.asked) == (2, 1, 1)


@pytest.mark.parametrize("detection", DETECTIONS, ids=["200 ms", "500 ms", "semantic"])
def test_fc_041_every_chunk_size_gives_the_same_turns(detection: TurnDetection) -> None:
    clip = beeps(0.3, 0.5, 0.35, 0.2, 0.9, 0.1, 2.5)
    results = [heard(clip, detection, chunk) for chunk in CHUNKS]
    for result in results[1:]:
        assert result.starts == results[0].starts
        assert result.decisions == pytest.approx(results[0].decisions, abs=0.2), "known with the chunk that brings it"


# -- with the real models ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def silero(silero_path: Path) -> SileroModel:
    return SileroModel(silero_path)


@pytest.fixture(scope="module")
def detectors(silero: SileroModel, smart_turn_path: Path) -> Detectors:
    return Detectors(silero, SmartTurnModel(smart_turn_path))


@pytest.fixture(scope="module")
def clips(speech_dir: Path, silero: SileroModel) -> list[tuple[Clip, list[VoiceFrame]]]:
    return [(clip, frames_of(clip, silero)) for clip in read_clips(speech_dir)]


def with_kept(
    clip: Clip, frames: list[VoiceFrame], detection: TurnDetection, judge: Judge, chunk: int = SAMPLE_RATE // 50
) -> Heard:
    return run_core(clip, detection, partial(ReplayedVoiceActivity, frames), judge, 0.07, chunk)


@pytest.mark.models
def test_no_recording_loses_its_beginning(clips: list[tuple[Clip, list[VoiceFrame]]]) -> None:
    results = [(clip.truth, with_kept(clip, kept, ServerVad(), Judge(LengthModel()))) for clip, kept in clips]
    scores = score(results)
    assert scores.turns >= 10
    assert scores.clipped_share == 0
    for truth, heard in results:  # one of them ends in a breath, half a second after its last word
        assert truth.turns[-1].end - 0.1 < heard.decisions[-1] < truth.turns[-1].end + 1


@pytest.mark.models
def test_fc_041_real_speech_gives_the_same_turns_at_every_chunk_size(
    clips: list[tuple[Clip, list[VoiceFrame]]], detectors: Detectors
) -> None:
    clip, kept = next(pair for pair in clips if pair[0].name == "cards-001")
    short = Clip(clip.name, clip.samples[: round((clip.truth.turns[0].end + 0.8) * SAMPLE_RATE)], clip.truth)
    for detection in (ServerVad(), SemanticVad()):
        first, *others = (with_kept(short, kept, detection, detectors.judge, chunk) for chunk in CHUNKS)
        assert len(first.decisions) == 1
        for result in others:
            assert result.starts == first.starts
            assert result.decisions == pytest.approx(first.decisions, abs=0.2)


@pytest.mark.models
def test_fc_033_a_word_of_a_fifth_of_a_second_is_a_turn_at_every_chunk_size(
    clips: list[tuple[Clip, list[VoiceFrame]]], silero: SileroModel
) -> None:
    """The second "five" of a recording, by itself between silences."""
    clip, _ = next(pair for pair in clips if pair[0].name == "cards-004")
    end = clip.truth.turns[-1].end
    word = clip.samples[round((end - 0.45) * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
    quiet = np.zeros(SAMPLE_RATE * 7 // 10, np.float32)
    samples = np.concatenate([quiet, word, quiet])
    alone = Clip("five", samples, Truth((Turn(0.7, 1.15),), len(samples) / SAMPLE_RATE))
    kept = frames_of(alone, silero)
    for chunk in CHUNKS:
        result = with_kept(alone, kept, ServerVad(), Judge(LengthModel()), chunk)
        assert len(result.starts) == len(result.decisions) == 1
        assert result.starts[0] <= 0.7


@pytest.mark.models
@pytest.mark.parametrize("kind", ROOM_SOUNDS)
def test_fc_036_rooms_without_speech_start_no_turn(kind: RoomSound, silero: SileroModel) -> None:
    clip = noise_clip(kind, 0.5, -30.0)
    assert with_kept(clip, frames_of(clip, silero), ServerVad(), Judge(LengthModel())) == Heard((), (), ())


@pytest.mark.models
@pytest.mark.parametrize("kind", ["hum", "fan", "comfort_noise", "keyboard"])
def test_fc_043_fc_051_the_turn_ends_in_time_over_noise(
    kind: RoomSound, silero: SileroModel, clips: list[tuple[Clip, list[VoiceFrame]]]
) -> None:
    clip, _ = next(pair for pair in clips if pair[0].name == "librivox-austen-0880")
    noise = noise_clip(kind, 0.5, -30.0, seed=1).samples[: len(clip.samples)]
    noisy = Clip(kind, clip.samples + noise, clip.truth)
    result = with_kept(noisy, frames_of(noisy, silero), ServerVad(), Judge(LengthModel()))
    scores = score([(noisy.truth, result)])
    assert scores.missed_end_rate == scores.premature_cut_rate == scores.clipped_share == 0
    assert scores.end_delay_p50_ms is not None
    assert scores.end_delay_p50_ms < 1200


@pytest.mark.models
def test_a_run_measures_every_setting_and_counts_its_steps(
    speech_dir: Path, tmp_path: Path, detectors: Detectors
) -> None:
    for name in ("cards-001.wav", "cards-003.wav"):
        (tmp_path / name).write_bytes((speech_dir / name).read_bytes())
    options = TurnsOptions(tmp_path, noise_minutes=0.05, noises=("hum",), curve=False)
    seen: list[str] = []
    report = run_turns(options, detectors, seen.append)
    assert len(seen) == steps(options, 2)
    assert report.clips == 2
    by_name = {setting.name: setting.scores for setting in report.settings}
    fast, slow, model = (by_name[name] for name in ("server_vad 200 ms", "server_vad 1000 ms", "semantic_vad auto"))
    assert fast.end_delay_p50_ms is not None
    assert slow.end_delay_p50_ms is not None
    assert slow.end_delay_p50_ms - fast.end_delay_p50_ms == pytest.approx(800, abs=40)
    assert model.end_delay_p50_ms is not None
    assert model.end_delay_p50_ms < by_name["server_vad 500 ms"].end_delay_p50_ms  # type: ignore[operator]
    assert [noise.false_starts for noise in report.noises] == [0]
