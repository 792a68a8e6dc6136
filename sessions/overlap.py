"""Adaptive interruption: what of the user's speech over an answer is let through as a turn.

While an answer sounds, the signals of a turn that begins are held back and the answer pauses. Either the speech turns
out to be meant as a turn, by its length or by its words: then the signals follow one after the other as if nothing had
been, and the first of them interrupts the answer. Or it ends as a cough or an acknowledgement: then it is forgotten,
and the answer goes on at its next sample. Near its end an answer does not pause: who speaks there replies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET

from duologue.engine.requests import Delta, Finished, TranscriptDelta
from duologue.engine.words import normalise_words
from duologue.sessions import server_events as events
from duologue.sessions.acknowledgements import ENGLISH, Acknowledgements
from duologue.sessions.config import AdaptiveInterruption, RealtimeSession, extends
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbortRequest
from duologue.sessions.timebase import TICKS_PER_MS
from duologue.sessions.turns.policy import Paused, Resumed, Started, Stopped, TurnSignal

if TYPE_CHECKING:
    from duologue.sessions.listening import Utterance

LEAST_LEFT_S = 0.8
"""An answer with less to be heard than this is over for a listener."""

Held = tuple[TurnSignal, int]
"""A signal, and the position at which it came."""


class Speaker(Protocol):
    """Who gives the answer that is spoken over."""

    def left_s(self, now: float) -> float:
        """Seconds of it that are still to be heard; 0: nothing sounds."""

    def pause(self, now: float) -> None: ...

    def resume(self, now: float) -> None:
        """Go on at the next sample. Harmless for an answer that did not pause, or is over."""

    def recognise(self, utterance: Utterance) -> str:
        """Have sound turned into words, out of everybody's sight; returns the engine request's id."""

    @property
    def spoken(self) -> tuple[str, str] | None:
        """Response and item that are being spoken."""


@dataclass
class Overlap:
    """Speech over an answer that has not been judged."""

    start: int
    """First tick of the turn that it may become, prefix padding included."""
    found_at: int
    """Where it was known to be speech."""
    held: list[Held]
    speaking: bool = True
    request_id: str | None = None
    asked_at: int = 0
    """Position up to which the recogniser has been asked."""
    words: list[str] = field(default_factory=list)


class OverlapGate:
    """Between the turn policy and whoever follows its signals. Positions are in ticks, times in seconds."""

    def __init__(
        self,
        core: SessionCore,
        speaker: Speaker,
        cut: Callable[[int, int], Utterance],
        wire_ms: Callable[[int], int],
    ) -> None:
        self._core = core
        self._speaker = speaker
        self._cut = cut
        self._wire_ms = wire_ms
        self.open: Overlap | None = None
        """Speech that has not been judged."""
        self._acknowledgements = Acknowledgements()
        self._phrases: tuple[str, ...] = ENGLISH

    @property
    def start(self) -> int | None:
        """Where the speech begins that has not been judged."""
        return None if self.open is None else self.open.start

    @property
    def _settings(self) -> AdaptiveInterruption | None:
        session = self._core.session
        if not isinstance(session, RealtimeSession) or not isinstance(session.interruption, AdaptiveInterruption):
            return None
        detection = session.audio.input.turn_detection
        return session.interruption if detection is not None and detection.interrupt_response else None

    def signal(self, signal: TurnSignal, position: int, now: float) -> Sequence[Held]:
        """Take a signal of the policy; returns those that are to be followed now."""
        overlap = self.open
        if overlap is None:
            if isinstance(signal, Started) and self._settings and self._speaker.left_s(now) >= LEAST_LEFT_S:
                self._begin(signal, position, now)
                return ()
            return ((signal, position),)
        overlap.held.append((signal, position))
        match signal:
            case Paused() | Stopped():
                overlap.speaking = False
                if overlap.request_id is None:
                    self._recognise(overlap, position)
            case Resumed():
                overlap.speaking = True
                self._stop_recognising(overlap)
        return ()

    def frame(self, position: int, now: float) -> Sequence[Held]:
        """So much has been heard; returns the signals that are to be followed now."""
        overlap = self.open
        if overlap is None:
            return ()
        settings = self._settings
        if settings is None or not self._speaker.left_s(now):
            return self._let_through(overlap)
        least = settings.min_duration_ms * TICKS_PER_MS
        if overlap.speaking and position - overlap.found_at >= least:
            if not settings.min_words:
                return self._let_through(overlap)
            if overlap.request_id is None and position - overlap.asked_at >= least:
                self._recognise(overlap, position)
        return ()

    def break_off(self, position: int) -> None:
        """Nothing comes any more, as when a key is let go: what has come is all there is."""
        overlap = self.open
        if overlap is not None and overlap.speaking:
            overlap.speaking = False
            if overlap.request_id is None:
                self._recognise(overlap, position)

    def owns(self, request_id: str) -> bool:
        return self.open is not None and self.open.request_id == request_id

    def output(self, delta: Delta, now: float) -> Sequence[Held] | None:
        """What the recogniser says; returns the signals that are to be followed now. None: the speech is to be
        forgotten, and :meth:`dismiss` called."""
        overlap, settings = self.open, self._settings
        assert overlap is not None
        if isinstance(delta, TranscriptDelta):
            overlap.words.append(delta.text)
        if not isinstance(delta, Finished):
            return ()
        overlap.request_id = None
        if settings is None or delta.reason == "failed" or self._interrupts("".join(overlap.words), settings):
            return self._let_through(overlap)
        return () if overlap.speaking else None

    def dismiss(self, position: int, now: float) -> None:
        """The speech, if there is any, was not meant: the answer goes on."""
        overlap, self.open = self.open, None
        if overlap is None:
            return
        self._stop_recognising(overlap)
        words = "".join(overlap.words).strip()
        self._tell(events.InterruptionDismissed, audio_end_ms=self._wire_ms(position), transcript=words)
        self._speaker.resume(now)

    def _begin(self, signal: Started, position: int, now: float) -> None:
        self.open = Overlap(signal.start, position, [(signal, position)], asked_at=position)
        self._tell(events.InterruptionPending, audio_start_ms=self._wire_ms(signal.start))
        self._speaker.pause(now)

    def _let_through(self, overlap: Overlap) -> Sequence[Held]:
        self._stop_recognising(overlap)
        self.open = None
        return overlap.held

    def _interrupts(self, text: str, settings: AdaptiveInterruption) -> bool:
        words = normalise_words(text)
        phrases = ENGLISH if settings.acknowledgements is UNSET else settings.acknowledgements
        if phrases != self._phrases:
            self._phrases, self._acknowledgements = phrases, Acknowledgements(phrases)
        return len(words) >= max(1, settings.min_words) and not self._acknowledgements.cover(words)

    def _recognise(self, overlap: Overlap, position: int) -> None:
        overlap.words.clear()
        overlap.asked_at = position
        overlap.request_id = self._speaker.recognise(self._cut(overlap.start, position))

    def _stop_recognising(self, overlap: Overlap) -> None:
        if overlap.request_id is not None:
            self._core.effects.append(AbortRequest(overlap.request_id, "superseded"))
            overlap.request_id = None

    def _tell(self, kind: type[events.OfInterruption], **fields: Any) -> None:
        if (spoken := self._speaker.spoken) is not None and extends(self._core.session, "interruption"):
            self._core.emit(kind, response_id=spoken[0], item_id=spoken[1], **fields)
