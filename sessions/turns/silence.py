"""Turn detection by voice activity and silence: ``server_vad``, and ``semantic_vad`` until it has a model of its own.

States and transitions of one policy (a frame is *speech* at or above the threshold, *silence* below threshold - 0.15,
and in between it prolongs whatever was before):

    SILENT   --speech for min_speech-->                         SPEAKING   Started
    SPEAKING --silence for pause-->                             PAUSED     Paused
    PAUSED   --speech-->                                        SPEAKING   Resumed
    SPEAKING, PAUSED --silence for silence_duration-->          SILENT     Stopped
    SPEAKING, PAUSED --turn as long as max_turn-->              SPEAKING   Stopped, Started (no sample lost or doubled)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from duologue.sessions.config import SemanticVad, ServerVad, TurnDetection
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Paused, Resumed, Started, Stopped, TurnSignal

HYSTERESIS = 0.15
MIN_SPEECH_MS = 64
"""A click is not speech, "no" is."""

PAUSE_MS = 128
"""Silence after which an answer may be prepared in secret. Shorter pauses lie between most words."""

SEMANTIC_SILENCE_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
"""Silence that ends a turn under ``semantic_vad``, by eagerness, while no model judges the words."""


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


class _State(enum.Enum):
    SILENT = enum.auto()
    SPEAKING = enum.auto()
    PAUSED = enum.auto()


class SilencePolicy:
    """Ends a turn after a stretch of silence; see the module's text for its transitions."""

    def __init__(self, settings: SilenceSettings, position: int = 0) -> None:
        self.configure(settings)
        self.reset(position)

    def configure(self, settings: SilenceSettings) -> None:
        """Go on with other settings; a turn in progress stays in progress."""
        self._settings = settings
        self._min_speech = MIN_SPEECH_MS * TICKS_PER_MS
        self._prefix = settings.prefix_padding_ms * TICKS_PER_MS
        self._silence = settings.silence_duration_ms * TICKS_PER_MS
        self._pause = min(PAUSE_MS * TICKS_PER_MS, self._silence)
        self._max_turn = max(settings.max_turn_ms * TICKS_PER_MS, TICKS_PER_SECOND)

    def reset(self, position: int) -> None:
        self._state = _State.SILENT
        self._floor = position
        self._onset: int | None = None
        self._turn_start = position
        self._speech_end = position

    @property
    def speaking(self) -> bool:
        return self._state is not _State.SILENT

    @property
    def lookback(self) -> int:
        return self._prefix + self._min_speech + VAD_FRAME_TICKS

    def frame(self, start: int, end: int, probability: float) -> list[TurnSignal]:
        if self._state is _State.SILENT:
            return self._while_silent(start, end, probability)
        return self._while_speaking(end, probability)

    def _while_silent(self, start: int, end: int, probability: float) -> list[TurnSignal]:
        if probability < self._settings.threshold - (HYSTERESIS if self._onset is not None else 0.0):
            self._onset = None
            return []
        if self._onset is None:
            self._onset = start
        if end - self._onset < self._min_speech:
            return []
        self._turn_start = max(self._onset - self._prefix, self._floor)
        self._state, self._onset, self._speech_end = _State.SPEAKING, None, end
        return [Started(self._turn_start)]

    def _while_speaking(self, end: int, probability: float) -> list[TurnSignal]:
        signals: list[TurnSignal] = []
        in_silence = end - self._speech_end > VAD_FRAME_TICKS
        if probability >= self._settings.threshold - (0.0 if in_silence else HYSTERESIS):
            self._speech_end = end
            if self._state is _State.PAUSED:
                self._state = _State.SPEAKING
                signals.append(Resumed())
        elif end - self._speech_end >= self._silence:
            # The frame that confirms may reach past the window: the rest of it belongs to what comes next.
            return self._stop(self._speech_end + self._silence)
        elif self._state is _State.SPEAKING and end - self._speech_end >= self._pause:
            self._state = _State.PAUSED
            signals.append(Paused(self._speech_end))
        if end - self._turn_start >= self._max_turn:
            cut = self._turn_start + self._max_turn
            signals += self._stop(cut)
            self._state, self._turn_start, self._speech_end = _State.SPEAKING, cut, max(cut, self._speech_end)
            signals.append(Started(cut))
        return signals

    def _stop(self, end: int) -> list[TurnSignal]:
        self._state, self._floor = _State.SILENT, end
        return [Stopped(end)]
