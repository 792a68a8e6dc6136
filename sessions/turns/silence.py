"""Turn detection by voice activity and silence: ``server_vad``, and ``semantic_vad`` where there is no model for it.

A frame is *speech* at or above the threshold, *silence* below threshold - 0.15, and in between it prolongs whatever
was before. Speech for :data:`MIN_SPEECH_MS` (:data:`DOUBTFUL_SPEECH_MS` where it might be noise) starts a turn; silence
for :func:`pause_ms` is a pause; silence for the session's window ends the turn; a turn that reaches its greatest length
is ended and the next one started at the same tick, so that no sample is lost or doubled.

The model holds the fading end of a word for speech. Once it says silence, that is counted from the last sound that was
heard, up to :data:`HANGOVER_MS` before the model's last frame of speech. And where the window is short, a pause begins
when nothing has been heard for :data:`QUIET_MS` and the model has begun to doubt, before it says silence.

Where silence alone decides, no frame is waited for: a pause begins, and a turn ends, at the very sample at which it has
been silent for long enough (:attr:`SilencePolicy.due`), up to 32 ms before the frame that holds it is complete.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from duologue.sessions.config import SemanticVad, ServerVad, TurnDetection
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import NEVER, Asked, Paused, Resumed, Started, Stopped, TurnSignal

HYSTERESIS = 0.15
MIN_SPEECH_MS = 64
"""A click is not speech, "no" is."""
DOUBTFUL_SPEECH_MS = 192
"""Where the model is not sure: a noise that sets in after a silence passes for a voice for a moment."""
SURE = 0.7
"""How far above the threshold, of what there is, it is sure: 0.85 for a threshold of 0.5. Of a voice it soon is."""

PAUSE_MS = 128
"""Silence after which an answer may be prepared in secret. Shorter pauses lie between most words."""
EARLY_PAUSE_MS = 64
"""The same where the window is too short for an answer to be ready at its end."""
PREPARATION_MS = 330
"""About what an answer takes from the words' recognition to its first sound, with the packaged models."""

HANGOVER_MS = 64
"""Silence that is dated back at most, where nothing was heard while the model still said speech. With more, a last
consonant after a stop would be cut off."""
QUIET_MS = 64
DOUBT = 0.95
"""Probability of speech below which the model doubts. In the middle of a word it has none, however quiet a stop is."""

SEMANTIC_SILENCE_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
"""Silence that ends a turn under ``semantic_vad``, by eagerness, while no model judges it."""


@dataclass(frozen=True, slots=True)
class SilenceSettings:
    """Thresholds as probabilities, everything else in milliseconds."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    max_turn_ms: int = 120_000

    @classmethod
    def of(cls, detection: TurnDetection, max_turn_s: float) -> SilenceSettings:
        """The settings behind a session's ``turn_detection``."""
        max_turn_ms = round(max_turn_s * 1000)
        match detection:
            case ServerVad():
                return cls(detection.threshold, detection.prefix_padding_ms, detection.silence_duration_ms, max_turn_ms)
            case SemanticVad():
                return cls(silence_duration_ms=SEMANTIC_SILENCE_MS[detection.eagerness], max_turn_ms=max_turn_ms)


def pause_ms(window_ms: int) -> int:
    """Silence in ms after which an answer may be prepared, where so much silence ends the turn."""
    return PAUSE_MS if window_ms - PAUSE_MS >= PREPARATION_MS else min(window_ms, EARLY_PAUSE_MS)


class State(enum.Enum):
    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSED = "paused"


TRANSITIONS: dict[tuple[State, type[TurnSignal]], State] = {
    (State.SILENT, Started): State.SPEAKING,
    (State.SPEAKING, Paused): State.PAUSED,
    (State.PAUSED, Resumed): State.SPEAKING,
    (State.SPEAKING, Stopped): State.SILENT,
    (State.PAUSED, Stopped): State.SILENT,
}
"""Where each signal leads; there are no other moves."""


class SilencePolicy:
    """Ends a turn after a stretch of silence; see the module's text for its transitions."""

    def __init__(self, settings: SilenceSettings, position: int = 0) -> None:
        self._state = State.SILENT
        self._floor = position
        self._onset: int | None = None
        self._turn_start = position
        self._voiced_end = position
        self._speech_end = position
        self._frame_end = position
        self._doubted_until = NEVER
        """Where a pause begins although the model still says speech."""
        self.due = NEVER
        self.configure(settings)
        self.reset(position)

    def configure(self, settings: SilenceSettings) -> None:
        """Go on with other settings; a turn in progress stays in progress."""
        self._settings = settings
        self._sure = settings.threshold + SURE * (1 - settings.threshold)
        self._prefix = settings.prefix_padding_ms * TICKS_PER_MS
        self.lookback = self._prefix + DOUBTFUL_SPEECH_MS * TICKS_PER_MS + VAD_FRAME_TICKS
        self._silence = settings.silence_duration_ms * TICKS_PER_MS
        pause = pause_ms(settings.silence_duration_ms)
        self._pause = pause * TICKS_PER_MS
        self._doubt = DOUBT if pause <= EARLY_PAUSE_MS else 0.0
        self._max_turn = max(settings.max_turn_ms * TICKS_PER_MS, TICKS_PER_SECOND)

    def take_over(self, other: SilencePolicy) -> None:
        """Go on where a policy of another kind was; a turn in progress stays in progress."""
        self._state, self._floor, self._onset = other._state, other._floor, other._onset
        self._turn_start, self._voiced_end, self._speech_end = other._turn_start, other._voiced_end, other._speech_end
        self.due = NEVER

    def reset(self, position: int) -> None:
        self._state = State.SILENT
        self._floor = position
        self._onset = None
        self._turn_start = position
        self._voiced_end = self._speech_end = position
        self.due = NEVER

    @property
    def speaking(self) -> bool:
        return self._state is not State.SILENT

    def judged(self, probability: float | None) -> list[TurnSignal]:
        return []  # it asks nobody

    def worded(self, full_stop: float) -> None:
        pass  # nor does it listen to words

    def frame(self, start: int, end: int, probability: float, quiet: int = 0) -> list[TurnSignal]:
        if self._state is State.SILENT:
            return self._while_silent(start, end, probability)
        self._frame_end = end
        signals = self._while_speaking(end, probability, quiet)
        doubts = probability < self._doubt and quiet > 0
        self._doubted_until = end - quiet + QUIET_MS * TICKS_PER_MS if doubts else NEVER
        self._expect()
        return signals

    def silent(self) -> list[TurnSignal]:
        doubted = self._voiced_end == self._frame_end
        signals = [self._move(Paused(self._speech_end))] if doubted else self._in_silence(self.due)
        self._expect()
        return signals

    def _expect(self) -> None:
        """Set :attr:`due` after a frame or a signal within one."""
        if self._state is State.SILENT:
            due = NEVER
        elif self._voiced_end < self._frame_end:
            due = self._speech_end + self._next_silence()
        else:
            due = self._doubted_until if self._state is State.SPEAKING else NEVER
        self.due = due if self._frame_end < due < self._frame_end + VAD_FRAME_TICKS else NEVER

    def _next_silence(self) -> int:
        """Length in ticks of the silence that gives the next signal."""
        return self._pause if self._state is State.SPEAKING else self._silence

    def _while_silent(self, start: int, end: int, probability: float) -> list[TurnSignal]:
        if probability < self._settings.threshold - (HYSTERESIS if self._onset is not None else 0.0):
            self._onset = None
            return []
        if self._onset is None:
            self._onset = start
        if end - self._onset < (MIN_SPEECH_MS if probability >= self._sure else DOUBTFUL_SPEECH_MS) * TICKS_PER_MS:
            return []
        start = max(self._onset - self._prefix, self._floor)
        self._onset, self._voiced_end, self._speech_end = None, end, end
        return [self._start(start)]

    def _while_speaking(self, end: int, probability: float, quiet: int) -> list[TurnSignal]:
        in_silence = end - self._voiced_end > VAD_FRAME_TICKS
        if probability >= self._settings.threshold - (0.0 if in_silence else HYSTERESIS):
            self._voiced_end = end
            self._speech_end = max(end - quiet, end - HANGOVER_MS * TICKS_PER_MS)
            signals = self._in_speech(probability, quiet)
        else:
            signals = self._in_silence(end)
        if self._state is not State.SILENT and end - self._turn_start >= self._max_turn:
            cut = self._turn_start + self._max_turn
            signals = [signal for signal in signals if not isinstance(signal, Asked)]
            signals += [self._stop(cut), self._start(cut)]
            self._voiced_end, self._speech_end = max(cut, self._voiced_end), max(cut, self._speech_end)
        return signals

    def _in_speech(self, probability: float, quiet: int) -> list[TurnSignal]:
        if self._state is State.PAUSED:
            return [self._move(Resumed())] if quiet < VAD_FRAME_TICKS else []
        if probability < self._doubt and quiet >= QUIET_MS * TICKS_PER_MS:
            return [self._move(Paused(self._speech_end))]
        return []

    def _in_silence(self, end: int) -> list[TurnSignal]:
        """A frame without speech that ends at ``end``."""
        if end - self._speech_end >= self._silence:
            # The frame that confirms may reach past the window: the rest of it belongs to what comes next.
            return [self._stop(self._speech_end + self._silence)]
        return self._pause_at(end)

    def _pause_at(self, end: int) -> list[TurnSignal]:
        if self._state is State.SPEAKING and end - self._speech_end >= self._pause:
            return [self._move(Paused(self._speech_end))]
        return []

    def _start(self, position: int) -> TurnSignal:
        self._turn_start = position
        return self._move(Started(position))

    def _stop(self, end: int) -> TurnSignal:
        self._floor, self.due = end, NEVER
        return self._move(Stopped(end))

    def _move(self, signal: TurnSignal) -> TurnSignal:
        self._state = TRANSITIONS[self._state, type(signal)]
        return signal
