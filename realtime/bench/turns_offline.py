"""Turn detection without a network and without waiting: the real session core and the real detectors on a clock that
the samples drive.

A client appends 20 ms of audio (unless told otherwise) when its last sample would have been recorded. Voice activity
answers in the same moment (it takes a millisecond), the turn model after a stated time. So a run says exactly what a
server with time to spare would have decided, and when, as fast as the machine can compute it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from duologue.codecs.pcm import SAMPLE_BYTES, pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, resample
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
from duologue.sessions.effects import AskTurnModel, Effect, FeedVoiceActivity, Input, Send, TurnJudged, VoiceActivity
from duologue.sessions.machine import ConversationMachine
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Asked, Started, Stopped
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


@dataclass
class _Call:
    """One clip through one session core."""

    machine: ConversationMachine
    voice_activity: Callable[[int], VoiceActivityFrames]
    judge: Judge
    answer_s: float
    now: float = 0.0
    due: deque[tuple[float, Input]] = field(default_factory=deque)
    starts: list[float] = field(default_factory=list)
    onsets: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    _stream: tuple[int, VoiceActivityFrames] | None = None

    def until(self, now: float) -> None:
        """Let time pass; answers arrive when they are due."""
        while self.due and self.due[0][0] <= now:
            self.now, event = self.due.popleft()
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
                    self.do(VoiceActivity(stream, frame.probability, frame.quiet_ms))
            case AskTurnModel(question=question, pcm=pcm, sample_rate=sample_rate):
                self.due.append((self.now + self.answer_s, TurnJudged(question, self.judge(pcm, sample_rate))))


def run_core(
    clip: Clip,
    detection: TurnDetection,
    frames: Callable[[int], VoiceActivityFrames],
    judge: Judge,
    answer_s: float,
    chunk: int = CHUNK_SAMPLES,
) -> Heard:
    """What the session core makes of a clip. ``frames``: voice activity for input at a rate in hertz; the turn model's
    answers take ``answer_s`` seconds; audio comes ``chunk`` samples at a time."""
    numbers = itertools.count()
    session = RealtimeSession(
        id="sess_offline",
        model="offline",
        expires_at=0,
        instructions="",
        audio=Audio(output=AudioOutput(voice="none"), input=AudioInput(turn_detection=detection)),
    )
    context = SessionContext(names=NAMES, ids=lambda prefix: f"{prefix}_{next(numbers)}", judges_turns=True)
    machine = ConversationMachine(session, context, 0.0)
    machine.start()
    call = _Call(machine, frames, judge, answer_s)
    pcm, size = clip.pcm, chunk * SAMPLE_BYTES
    for index, first in enumerate(range(0, len(pcm), size)):
        call.until((index + 1) * chunk / SAMPLE_RATE)
        call.do(InputAudioAppend(audio=pcm[first : first + size]))
    call.until(call.now + answer_s)
    return Heard(tuple(call.starts), tuple(call.decisions), tuple(call.onsets))


def frames_of(clip: Clip, vad: FrameModel) -> list[VoiceFrame]:
    """Voice activity over a clip."""
    return list(OfflineVoiceActivity(vad, SAMPLE_RATE).feed(clip.pcm))


def run_policy(clip: Clip, frames: Sequence[VoiceFrame], policy: SilencePolicy, judge: Judge, answer_s: float) -> Heard:
    """What a policy by itself makes of a clip's frames, for settings that no session can ask for."""
    starts: list[float] = []
    onsets: list[float] = []
    decisions: list[float] = []
    ticks = TICKS_PER_SECOND // SAMPLE_RATE
    turn_start = 0
    now = 0.0
    for index, frame in enumerate(frames):
        start = index * VAD_FRAME_TICKS
        end = start + VAD_FRAME_TICKS
        now = max(now, end / TICKS_PER_SECOND)  # frames that come while the model thinks wait for its answer
        signals = deque(policy.frame(start, end, frame.probability, frame.quiet_ms * TICKS_PER_MS))
        while signals:
            match signals.popleft():
                case Started(start=turn_start):
                    starts.append(turn_start / TICKS_PER_SECOND)
                    onsets.append(now)
                case Asked(end=asked):
                    first = max(turn_start, asked - 8 * TICKS_PER_SECOND)
                    heard = clip.pcm[first // ticks * SAMPLE_BYTES : asked // ticks * SAMPLE_BYTES]
                    signals.extend(policy.judged(judge(heard, SAMPLE_RATE)))
                    now += answer_s
                case Stopped():
                    decisions.append(now)
    return Heard(tuple(starts), tuple(decisions), tuple(onsets))
