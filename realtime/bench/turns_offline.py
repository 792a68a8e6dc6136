"""Turn detection without a network and without waiting: the real session core and the real detectors on a clock that
the samples drive.

A client appends 20 ms of audio (unless told otherwise) when its last sample would have been recorded. Voice activity
answers in the same moment (it takes a millisecond), turn model and recogniser after a stated time. So a run says
exactly what a server with time to spare would have decided, and when, as fast as the machine can compute it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter

from duologue.codecs.pcm import SAMPLE_BYTES, pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, resample
from duologue.engine.requests import Finished, Transcribe, TranscriptDelta
from duologue.engine.sound_levels import PART_MS, heard
from duologue.engine.stages.recogniser import split_at_pauses, was_spoken
from duologue.engine.stages.whisper import LONGEST_S, Whisper
from duologue.engine.turn_model import SAMPLE_RATE as MODEL_RATE
from duologue.engine.turn_model import TurnModel
from duologue.engine.voice_activity import FrameModel, VoiceFrame
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.offline_voice_activity import OfflineVoiceActivity, VoiceActivityFrames
from duologue.realtime.bench.turns_clips import Clip
from duologue.realtime.bench.turns_score import Heard
from duologue.sessions import server_events as events
from duologue.sessions.client_events import InputAudioAppend
from duologue.sessions.config import Audio, AudioInput, AudioOutput, Names, RealtimeSession, TurnDetection
from duologue.sessions.core import SessionContext
from duologue.sessions.effects import (
    AbortRequest,
    AskTurnModel,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    Input,
    OpenRequest,
    Send,
    TurnJudged,
    VoiceActivity,
)
from duologue.sessions.listening import JUDGED_S
from duologue.sessions.machine import ConversationMachine
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS, ticks_per_sample
from duologue.sessions.turns.policy import NEVER, Asked, Paused, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SilencePolicy

CHUNK_SAMPLES = SAMPLE_RATE // 50
"""20 ms."""
NAMES = Names(models={"offline": "offline"}, voices={"none": "none"}, transcription_models={})


class Judge:
    """The turn model, asked at most once about the same sound."""

    def __init__(self, model: TurnModel) -> None:
        self._model = model
        self._answers: dict[tuple[int, bytes], float] = {}
        """By rate and digest of the sound."""
        self.asked = 0
        """Questions that were put, the ones about the same sound too."""

    def __call__(self, pcm: bytes, sample_rate: int) -> float:
        self.asked += 1
        key = sample_rate, hashlib.sha1(pcm, usedforsecurity=False).digest()
        if key not in self._answers:
            heard = resample(pcm16_to_float(pcm), sample_rate, MODEL_RATE, VOICE_ACTIVITY_QUALITY)
            self._answers[key] = self._model.finished(heard)
        return self._answers[key]

    @property
    def runs(self) -> int:
        """Different questions."""
        return len(self._answers)


class Words:
    """The recogniser, asked at most once about the same sound."""

    def __init__(self, load: Callable[[str], Whisper], english_s: float, other_s: float) -> None:
        """``load``: the model for a language. English words take ``english_s`` seconds, others ``other_s``."""
        self._model = cache(load)
        self._english_s, self._other_s = english_s, other_s
        self._answers: dict[bytes, TranscriptDelta] = {}

    def seconds(self, language: str) -> float:
        """How long an answer takes."""
        return self._english_s if language == "en" else self._other_s

    def __call__(self, pcm: bytes, sample_rate: int, language: str) -> TranscriptDelta:
        """The words of a turn, and what they say of its end."""
        key = hashlib.sha1(pcm, usedforsecurity=False).digest()
        if key not in self._answers:
            samples = resample(pcm16_to_float(pcm), sample_rate, MODEL_RATE)
            model = self._model(language)
            parts = split_at_pauses(samples, LONGEST_S)
            heard = [model.recognise(part, model.language_of(language), full_stop=True) for part in parts]
            text = " ".join(part.text for part in heard if was_spoken(part))
            full_stop = heard[-1].full_stop if was_spoken(heard[-1]) else None
            self._answers[key] = TranscriptDelta(text=text, full_stop=full_stop)
        return self._answers[key]


@dataclass
class _Call:
    """One clip through one session core."""

    machine: ConversationMachine
    language: str
    voice_activity: Callable[[int], VoiceActivityFrames]
    judge: Judge
    answer_s: float
    words: Words | None
    now: float = 0.0
    due: list[tuple[float, Input]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    onsets: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    _stream: tuple[int, VoiceActivityFrames] | None = None

    def until(self, now: float) -> None:
        """Let time pass; answers arrive when they are due."""
        while self.due and self.due[0][0] <= now:
            self.now, event = self.due.pop(0)
            self.do(event)
        self.now = now

    def do(self, event: Input) -> None:
        for effect in self.machine.handle(event, self.now):
            self._carry(effect)

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(event=events.SpeechStarted(audio_start_ms=start_ms)):
                self.starts.append(start_ms / 1000)
                self.onsets.append(self.now)
            case Send(event=events.SpeechStopped()):
                self.decisions.append(self.now)
            case FeedVoiceActivity(stream=stream, pcm=pcm, sample_rate=sample_rate):
                if self._stream is None or self._stream[0] != stream:
                    self._stream = stream, self.voice_activity(sample_rate)
                for frame in self._stream[1].feed(pcm):
                    self.do(VoiceActivity(stream, frame.probability, frame.quiet_ms, frame.heard_from))
            case AskTurnModel(question=question, pcm=pcm, sample_rate=sample_rate):
                self._answer(TurnJudged(question, self.judge(pcm, sample_rate)), self.answer_s)
            case OpenRequest(request=request) if self.words is not None and isinstance(request.payload, Transcribe):
                said = self.words(request.payload.audio, request.payload.sample_rate, self.language)
                for delta in (said, Finished(reason="completed")):
                    self._answer(EngineOutput(request.request_id, delta), self.words.seconds(self.language))
            case AbortRequest(request_id=request_id):
                self.due = [
                    (at, event)
                    for at, event in self.due
                    if not (isinstance(event, EngineOutput) and event.request_id == request_id)
                ]

    def _answer(self, event: Input, after_s: float) -> None:
        insort(self.due, (self.now + after_s, event), key=itemgetter(0))


def run_core(
    clip: Clip,
    detection: TurnDetection,
    frames: Callable[[int], VoiceActivityFrames],
    judge: Judge,
    answer_s: float,
    chunk: int = CHUNK_SAMPLES,
    words: Words | None = None,
) -> Heard:
    """What the session core makes of a clip. ``frames``: voice activity for input at a rate in hertz; the turn model's
    answers take ``answer_s`` seconds; audio comes ``chunk`` samples at a time. ``words``: answers are prepared in
    pauses, and this recogniser is what is known of them."""
    numbers = itertools.count()
    session = RealtimeSession(
        id="sess_offline",
        model="offline",
        expires_at=0,
        instructions="",
        audio=Audio(output=AudioOutput(voice="none"), input=AudioInput(turn_detection=detection)),
    )
    context = SessionContext(
        names=NAMES,
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
        judges_turns=True,
        may_speculate=lambda: words is not None,
    )
    machine = ConversationMachine(session, context, 0.0)
    machine.start()
    call = _Call(machine, clip.truth.language, frames, judge, answer_s, words)
    pcm, size = clip.pcm, chunk * SAMPLE_BYTES
    for index, first in enumerate(range(0, len(pcm), size)):
        call.until((index + 1) * chunk / SAMPLE_RATE)
        call.do(InputAudioAppend(audio=pcm[first : first + size]))
    call.until(call.now + answer_s)
    return Heard(tuple(call.starts), tuple(call.decisions), tuple(call.onsets))


def frames_of(clip: Clip, vad: FrameModel) -> list[VoiceFrame]:
    """Voice activity over a clip."""
    return list(OfflineVoiceActivity(vad, SAMPLE_RATE).feed(clip.pcm))


def run_policy(
    clip: Clip,
    frames: Sequence[VoiceFrame],
    policy: SilencePolicy,
    judge: Judge,
    answer_s: float,
    words: Words | None = None,
) -> Heard:
    """What a policy by itself makes of a clip's frames, for settings that no session can ask for."""
    run = _PolicyRun(clip, policy, judge, answer_s, words)
    for index, frame in enumerate(frames):
        start, end = index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS
        run.reach(end)
        run.follow(policy.frame(start, end, frame.probability, frame.quiet_ms * TICKS_PER_MS), end)
        while end < (due := policy.due) < NEVER:
            if heard(run.sound(min(end, due - PART_MS * TICKS_PER_MS), due), SAMPLE_RATE, frame.heard_from):
                break
            run.reach(due)
            run.follow(policy.silent(), due)
    return Heard(tuple(run.starts), tuple(run.decisions), tuple(run.onsets))


@dataclass
class _PolicyRun:
    """One clip through one policy."""

    clip: Clip
    policy: SilencePolicy
    judge: Judge
    answer_s: float
    words: Words | None
    starts: list[float] = field(default_factory=list)
    onsets: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    _turn_start: int = 0
    _now: float = 0.0
    _full_stop: float | None = None
    _worded_at: float = math.inf

    def reach(self, position: int) -> None:
        """The sound has come up to there. What comes while the model thinks waits for its answer."""
        self._now = max(self._now, position / TICKS_PER_SECOND)
        if self._now >= self._worded_at:
            self._worded_at = math.inf
            if self._full_stop is not None:
                self.policy.worded(self._full_stop)

    def follow(self, first: Sequence[TurnSignal], position: int) -> None:
        """Take the policy's signals at a position."""
        signals = deque(first)
        while signals:
            match signals.popleft():
                case Started(start=start):
                    self._turn_start = start
                    self.starts.append(start / TICKS_PER_SECOND)
                    self.onsets.append(self._now)
                case Paused() if self.words is not None:
                    language, heard_so_far = self.clip.truth.language, self.sound(self._turn_start, position)
                    self._full_stop = self.words(heard_so_far, SAMPLE_RATE, language).full_stop
                    self._worded_at = self._now + self.words.seconds(language)
                case Resumed():
                    self._worded_at = math.inf
                case Asked(end=asked):
                    start = max(self._turn_start, asked - JUDGED_S * TICKS_PER_SECOND)
                    signals.extend(self.policy.judged(self.judge(self.sound(start, asked), SAMPLE_RATE)))
                    self._now += self.answer_s
                case Stopped():
                    self._worded_at = math.inf
                    self.decisions.append(self._now)

    def sound(self, start: int, end: int) -> bytes:
        """PCM16 between two positions."""
        ticks = ticks_per_sample(SAMPLE_RATE)
        return self.clip.pcm[start // ticks * SAMPLE_BYTES : end // ticks * SAMPLE_BYTES]
