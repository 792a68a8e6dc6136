"""``semantic_vad``: a model that has heard the turn says whether it sounds finished.

It is asked at :data:`ASK_MS` of silence, first at 200 ms and again as the silence grows. What it has said in this pause
is averaged, since its answers in doubtful places scatter, and compared with a threshold that begins at the session's
and falls to nothing by the longest wait: who sounds finished is answered at once, who certainly has not is waited for,
and the doubtful lie in between. Where the model does not answer, silence alone decides about the pause, with the window
that ``semantic_vad`` has without a model.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.sessions.config import Eagerness, SemanticVad, TurnDetection
from duologue.sessions.timebase import TICKS_PER_MS
from duologue.sessions.turns.policy import Asked, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SEMANTIC_SILENCE_MS, SilencePolicy, SilenceSettings, State

ASK_MS = (200, 400, 600, 800, 1000, 1300, 1600, 2000, 2500, 3000, 4000, 5000, 6000, 7000)
"""Silence at which the model is asked."""

FINISHED: dict[Eagerness, float] = {"low": 0.9, "medium": 0.7, "auto": 0.7, "high": 0.5}
"""Probability from which a turn counts as finished at the first question."""

LONGEST_WAIT_MS: dict[Eagerness, int] = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
"""Silence that ends a turn however unfinished it sounds."""


@dataclass(frozen=True, slots=True)
class SemanticSettings:
    """When a turn is taken for finished. Probabilities, and milliseconds of silence."""

    finished: float = FINISHED["auto"]
    ask_ms: tuple[int, ...] = ASK_MS
    longest_wait_ms: int = LONGEST_WAIT_MS["auto"]
    fallback_ms: int = SEMANTIC_SILENCE_MS["auto"]
    """Silence that ends the turn where the model does not answer."""

    @classmethod
    def of(cls, detection: SemanticVad) -> SemanticSettings:
        """The settings behind an eagerness."""
        eagerness = detection.eagerness
        return cls(
            finished=FINISHED[eagerness],
            longest_wait_ms=LONGEST_WAIT_MS[eagerness],
            fallback_ms=SEMANTIC_SILENCE_MS[eagerness],
        )

    def threshold(self, silence_ms: float) -> float:
        """Probability from which a turn is finished after so much silence."""
        return self.finished * max(0.0, 1 - (silence_ms - self.ask_ms[0]) / (self.longest_wait_ms - self.ask_ms[0]))


class SemanticPolicy(SilencePolicy):
    """Starts turns as :class:`SilencePolicy` does, and ends them by the model's answers; see the module's text."""

    def __init__(self, settings: SemanticSettings, common: SilenceSettings, position: int = 0) -> None:
        """``common``: what it shares with the silence policy; its silence window is not used."""
        self._semantic = settings
        self._questions = 0
        self._answers = 0
        self._mean = 0.0
        self._asked_at = 0
        self._limit = 0
        super().__init__(common, position)

    def take_over(self, other: SilencePolicy) -> None:
        super().take_over(other)
        if isinstance(other, SemanticPolicy):
            self._questions, self._asked_at = other._questions, other._asked_at
            self._answers, self._mean = other._answers, other._mean

    def reset(self, position: int) -> None:
        super().reset(position)
        self._new_pause()

    def judged(self, probability: float | None) -> list[TurnSignal]:
        if self._state is State.SILENT:
            return []
        silence = self._asked_at - self._speech_end
        if probability is None:
            self._questions = len(self._semantic.ask_ms)
            self._limit = min(self._limit, max(silence, self._semantic.fallback_ms * TICKS_PER_MS))
            return [self._stop(self._asked_at)] if silence >= self._limit else []
        self._answers += 1
        self._mean += (probability - self._mean) / self._answers
        if self._mean >= self._semantic.threshold(silence / TICKS_PER_MS):
            return [self._stop(self._asked_at)]
        return []

    def _in_silence(self, end: int) -> list[TurnSignal]:
        silence = end - self._speech_end
        if silence >= self._limit:
            return [self._stop(self._speech_end + self._limit)]
        signals = self._pause_at(end)
        asks = self._semantic.ask_ms
        if self._questions < len(asks) and silence >= asks[self._questions] * TICKS_PER_MS:
            while self._questions < len(asks) and silence >= asks[self._questions] * TICKS_PER_MS:
                self._questions += 1
            self._asked_at = end
            signals.append(Asked(end))
        return signals

    def _new_pause(self) -> None:
        self._questions = 0
        self._answers = 0
        self._mean = 0.0
        self._asked_at = 0
        self._limit = self._semantic.longest_wait_ms * TICKS_PER_MS

    def _move(self, signal: TurnSignal) -> TurnSignal:
        if isinstance(signal, Resumed | Started | Stopped):
            self._new_pause()
        return super()._move(signal)


def policy_for(detection: TurnDetection, max_turn_s: float, position: int, *, judged: bool) -> SilencePolicy:
    """The policy behind a session's ``turn_detection``. ``judged``: there is a model that judges turns."""
    common = SilenceSettings.of(detection, max_turn_s)
    if judged and isinstance(detection, SemanticVad):
        return SemanticPolicy(SemanticSettings.of(detection), common, position)
    return SilencePolicy(common, position)
