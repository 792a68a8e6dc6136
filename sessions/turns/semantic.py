"""``semantic_vad``: a model that has heard the turn says how long more speech is waited for.

It is asked at :data:`ASK_MS` of silence, first at 100 ms and again as the silence grows. Its answers in this pause are
averaged as log-odds, since those in doubtful places scatter, and the less finished a turn sounds the longer is waited:

    wait = wait_ms * exp(-SWAY * log-odds - WORDS_SWAY * words), at least the first question, at most the longest wait

Words are what the recogniser says of the sentence, once it has: how much likelier than a comma it would write a full
stop behind the last word (a logarithm), less what is usual. They come with an answer that is prepared in the pause
(:mod:`duologue.sessions.answering`); without one the model's answers stand alone.

Why a factor. Who waits on through a silence of t loses time if the turn is over, and saves it from a cut if the pause
ends now; the two are even where odds * (loss by delay) = f(t) * (loss by a cut), f the density of the lengths of pauses
and odds those that the turn is over. Pauses are mostly short with a long tail, f about t ** -k, and the model's
log-odds are worth a of themselves: so t at the even point is proportional to exp(-a / k * log-odds).

So an eagerness is one number, the silence that ends a turn of which the model knows nothing (log-odds 0), and silence
alone is the case in which answers move nothing. Where the model does not answer, silence alone decides about the pause,
with the window that ``semantic_vad`` has without a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from duologue.sessions.config import Eagerness, SemanticVad, TurnDetection
from duologue.sessions.timebase import TICKS_PER_MS
from duologue.sessions.turns.policy import NEVER, Asked, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SEMANTIC_SILENCE_MS, SilencePolicy, SilenceSettings, State

ASK_MS = (100, 200, 300, 500, 800, 1200, 1800, 2500, 3500, 5000, 6500)
"""Silence at which the model is asked."""

SWAY = 0.1
"""How much a unit of log-odds changes the logarithm of the wait: fitted to real speech, docs/benchmarks.md, where from
0.10 to 0.12 it made no difference. The lengths of the same pauses (k = 3.0) and the model's answers there (a = 0.45,
standard error 0.09) give 0.15."""

WORDS_SWAY = 0.15
"""How much a unit of what the words say does; fitted to the same speech, where 0.12 to 0.18 is nearly as good."""

USUAL_WORDS = 3.5
"""What they say on the average of pauses and ends: a full stop is much the likelier everywhere."""

WORDS_REACH = 3.0
"""How much more or less than that counts."""

CERTAIN = 4.0
"""Greatest log-odds of one answer: what a model says beyond 98 % does not count for more."""

WAIT_MS: dict[Eagerness, float] = {"low": 1000, "medium": 650, "auto": 650, "high": 300}
"""Silence that ends a turn which sounds as finished as not."""

LONGEST_WAIT_MS: dict[Eagerness, int] = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
"""Silence that ends a turn however unfinished it sounds."""


@dataclass(frozen=True, slots=True)
class SemanticSettings:
    """How long is waited for more. Milliseconds of silence; the sways have no unit."""

    wait_ms: float = WAIT_MS["auto"]
    sway: float = SWAY
    words_sway: float = WORDS_SWAY
    ask_ms: tuple[int, ...] = ASK_MS
    longest_wait_ms: int = LONGEST_WAIT_MS["auto"]
    fallback_ms: int = SEMANTIC_SILENCE_MS["auto"]
    """Silence that ends the turn where the model does not answer."""

    @classmethod
    def of(cls, detection: SemanticVad) -> SemanticSettings:
        """The settings behind an eagerness."""
        eagerness = detection.eagerness
        return cls(
            wait_ms=WAIT_MS[eagerness],
            longest_wait_ms=LONGEST_WAIT_MS[eagerness],
            fallback_ms=SEMANTIC_SILENCE_MS[eagerness],
        )

    def wait(self, log_odds: float, full_stop: float = USUAL_WORDS) -> float:
        """Silence in ms that ends a turn which is over with these odds, and of which the words say this."""
        words = min(max(full_stop - USUAL_WORDS, -WORDS_REACH), WORDS_REACH)
        wait = self.wait_ms * math.exp(-self.sway * log_odds - self.words_sway * words)
        return min(max(wait, self.ask_ms[0]), self.longest_wait_ms)


def log_odds(probability: float) -> float:
    """Natural logarithm of the odds, within :data:`CERTAIN`."""
    if not 0.0 < probability < 1.0:
        return math.copysign(CERTAIN, probability - 0.5)
    return min(max(math.log(probability / (1 - probability)), -CERTAIN), CERTAIN)


class SemanticPolicy(SilencePolicy):
    """Starts turns as :class:`SilencePolicy` does, and ends them by the model's answers; see the module's text."""

    def __init__(self, settings: SemanticSettings, common: SilenceSettings, position: int = 0) -> None:
        """``common``: what it shares with the silence policy; its silence window is not used."""
        self._semantic = settings
        self._questions = 0
        self._answers = 0
        self._mean = 0.0
        self._full_stop = USUAL_WORDS
        self._asked_at = 0
        self._limit = 0
        super().__init__(common, position)

    def configure(self, settings: SilenceSettings) -> None:
        super().configure(settings)
        # No question without a pause, so that every pause which was asked about ends in Resumed or Stopped.
        self._pause = min(self._pause, self._semantic.ask_ms[0] * TICKS_PER_MS)

    def take_over(self, other: SilencePolicy) -> None:
        super().take_over(other)
        if isinstance(other, SemanticPolicy):
            self._questions, self._asked_at = other._questions, other._asked_at
            self._answers, self._mean, self._full_stop = other._answers, other._mean, other._full_stop
            self._follow_answers()

    def reset(self, position: int) -> None:
        super().reset(position)
        self._new_pause()

    def judged(self, probability: float | None) -> list[TurnSignal]:
        if self._state is State.SILENT:
            return []
        silence = self._asked_at - self._speech_end
        if probability is None:
            self._questions, self._answers = len(self._semantic.ask_ms), 0
            self._limit = min(self._limit, max(silence, self._semantic.fallback_ms * TICKS_PER_MS))
        else:
            self._answers += 1
            self._mean += (log_odds(probability) - self._mean) / self._answers
            self._follow_answers()
        if silence >= self._limit:
            return [self._stop(self._asked_at)]
        self._expect()
        return []

    def worded(self, full_stop: float) -> None:
        if self._state is State.PAUSED:
            self._full_stop = full_stop
            self._follow_answers()

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

    def _next_silence(self) -> int:
        asks = self._semantic.ask_ms
        ask = asks[self._questions] * TICKS_PER_MS if self._questions < len(asks) else NEVER
        return min(super()._next_silence() if self._state is State.SPEAKING else NEVER, ask, self._limit)

    def _follow_answers(self) -> None:
        """The silence that ends the turn, after what model and words have said in this pause."""
        if self._answers:
            self._limit = round(self._semantic.wait(self._mean, self._full_stop) * TICKS_PER_MS)

    def _new_pause(self) -> None:
        self._questions = 0
        self._answers = 0
        self._mean = 0.0
        self._full_stop = USUAL_WORDS
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
