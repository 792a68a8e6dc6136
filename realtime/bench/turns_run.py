"""The turn benchmark: settings of a session through its core, two curves of others through policies alone, noises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from duologue.engine.models import require
from duologue.engine.stages.recogniser import MULTILINGUAL
from duologue.engine.stages.whisper import Whisper
from duologue.engine.turn_model import TurnModel
from duologue.engine.voice_activity import FrameModel, VoiceFrame
from duologue.realtime.bench.offline_voice_activity import ReplayedVoiceActivity
from duologue.realtime.bench.room_sounds import ROOM_SOUNDS, RoomSound
from duologue.realtime.bench.turns_clips import Clip, noise_clip, read_clips
from duologue.realtime.bench.turns_offline import Judge, Words, frames_of, run_core, run_policy
from duologue.realtime.bench.turns_report import CurvePoint, NoiseResult, Setting, TurnsReport, compared
from duologue.realtime.bench.turns_score import Truth, score
from duologue.sessions.config import Eagerness, SemanticVad, ServerVad, TurnDetection
from duologue.sessions.turns.semantic import SemanticPolicy, SemanticSettings
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

WINDOWS_MS: Final = (200, 300, 400, 500, 600, 800, 1000, 1500, 2000)
"""Silence windows of ``server_vad``; the same ones make the curve of silence alone."""
EAGERNESS: Final[tuple[Eagerness, ...]] = ("low", "auto", "high")
WAITS_MS: Final = (*range(100, 700, 5), *range(700, 1500, 25), *range(1500, 2600, 100))
"""What an undecided turn is waited for: the model's curve. Short waits are close together: several pauses may end in
a step that is nothing to a listener."""
NOISE_DBFS: Final = -30.0


@dataclass(frozen=True)
class TurnsOptions:
    """What to measure."""

    data: Path | None
    limit: int | None = None
    answer_ms: float = 70.0
    """How long the turn model takes to answer."""
    noise_minutes: float = 10.0
    """Of each noise; 0: none."""
    noises: tuple[RoomSound, ...] = ROOM_SOUNDS
    curve: bool = True


@dataclass
class Detectors:
    """The real models."""

    voice_activity: FrameModel
    turn_model: TurnModel
    words: Words | None = None
    """None: turns are judged without their words."""
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.turn_model)


def load_recogniser(language: str) -> Whisper:
    """The recogniser that the default pipeline uses for a language. Raises ``ModelUnavailable``."""
    return Whisper(require("whisper-tiny.en" if language == "en" else MULTILINGUAL), threads=1, workers=1)


OnStep = Callable[[str], None]
Frames = Sequence[VoiceFrame]
"""Voice activity over a clip."""


def run_turns(options: TurnsOptions, detectors: Detectors, on_step: OnStep = lambda text: None) -> TurnsReport:
    """Measure. Raises ``ValueError`` for a folder without recordings."""
    clips = read_clips(options.data, options.limit) if options.data is not None else []
    frames = [_frames(clip, detectors, on_step) for clip in clips]
    heard = list(zip(clips, frames, strict=True))
    settings = [_named(name, detection, heard, options, detectors, on_step) for name, detection in named() if clips]
    silence, semantic = _curves(heard, options, detectors, on_step) if clips and options.curve else ([], [])
    noises = [_noise(kind, options, detectors, on_step) for kind in options.noises if options.noise_minutes > 0]
    return TurnsReport(
        data=options.data.name if options.data is not None else None,
        clips=len(clips),
        hours=sum(clip.truth.duration for clip in clips) / 3600,
        answer_ms=options.answer_ms,
        words=detectors.words is not None,
        questions=detectors.judge.runs,
        settings=tuple(settings),
        silence=tuple(silence),
        semantic=tuple(semantic),
        compared=compared(silence, semantic),
        noises=tuple(noises),
    )


def named() -> list[tuple[str, TurnDetection]]:
    """What a client can ask for."""
    windows = [(f"server_vad {window} ms", ServerVad(silence_duration_ms=window)) for window in WINDOWS_MS]
    return [*windows, *((f"semantic_vad {eagerness}", SemanticVad(eagerness=eagerness)) for eagerness in EAGERNESS)]


def _named(
    name: str,
    detection: TurnDetection,
    clips: Sequence[tuple[Clip, Frames]],
    options: TurnsOptions,
    detectors: Detectors,
    on_step: OnStep,
) -> Setting:
    results = []
    for clip, frames in clips:
        on_step(name)
        replay = partial(ReplayedVoiceActivity, frames)
        heard = run_core(clip, detection, replay, detectors.judge, options.answer_ms / 1000, words=detectors.words)
        results.append((clip.truth, heard))
    return Setting(name, score(results))


def _frames(clip: Clip, detectors: Detectors, on_step: OnStep) -> Frames:
    on_step("voice activity")
    return frames_of(clip, detectors.voice_activity)


def _curves(
    clips: Sequence[tuple[Clip, Frames]], options: TurnsOptions, detectors: Detectors, on_step: OnStep
) -> tuple[list[CurvePoint], list[CurvePoint]]:
    """Silence alone over its windows, the model over its waits; all from the same frames and the same answers."""

    def point(make: Callable[[], SilencePolicy], words: Words | None, **setting: float) -> CurvePoint:
        results = [
            (clip.truth, run_policy(clip, frames, make(), detectors.judge, options.answer_ms / 1000, words))
            for clip, frames in clips
        ]
        on_step("curves")
        scores = score(results)
        return CurvePoint(
            setting={name: float(value) for name, value in setting.items()},
            cuts=scores.pause_cut_rate,
            mean_ms=scores.end_delay_mean_missed_ms,
            p50_ms=scores.end_delay_p50_ms,
            missed=scores.missed_end_rate,
        )

    silence = [
        point(lambda w=window: SilencePolicy(SilenceSettings(silence_duration_ms=w)), None, window_ms=window)  # type: ignore[misc]
        for window in WINDOWS_MS
    ]
    semantic = [
        point(
            lambda w=wait: SemanticPolicy(SemanticSettings(wait_ms=w), SilenceSettings()),  # type: ignore[misc]
            detectors.words,
            wait_ms=wait,
        )
        for wait in WAITS_MS
    ]
    return silence, semantic


def steps(options: TurnsOptions, clips: int) -> int:
    """How often ``on_step`` will be called, for a progress bar."""
    curves = len(WINDOWS_MS) + len(WAITS_MS) if options.curve and clips else 0
    return (1 + len(named())) * clips + curves + (len(options.noises) if options.noise_minutes > 0 else 0)


def _noise(kind: RoomSound, options: TurnsOptions, detectors: Detectors, on_step: OnStep) -> NoiseResult:
    clip = noise_clip(kind, options.noise_minutes, NOISE_DBFS)
    on_step(clip.name)
    frames = frames_of(clip, detectors.voice_activity)
    heard = run_policy(clip, frames, SilencePolicy(SilenceSettings()), detectors.judge, 0.0)
    scores = score([(Truth((), clip.truth.duration), heard)])
    return NoiseResult(
        name=clip.name,
        minutes=options.noise_minutes,
        false_starts=scores.false_starts,
        per_hour=scores.false_starts_per_hour,
        loudest_frame=max(frame.probability for frame in frames),
    )
