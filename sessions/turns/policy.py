"""What a turn policy is: voice-activity frames in, turn signals out. No clock: time is the position in the audio.

A policy that asks a model gets the answer before the next frame, so that its decisions too depend on nothing but the
audio and the answers: not on how long the model took, nor on how the audio came in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Started:
    """The user began to speak. ``start``: first tick of the turn, prefix padding included."""

    start: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The user may have finished: work on an answer may begin in secret. ``end``: last tick of speech."""

    end: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The user went on after :class:`Paused`: what was begun in secret is void."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The turn is over. ``end``: first tick after its audio, silence window included."""

    end: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Has the user finished? A model is to judge the turn up to tick ``end``; no later frame is taken before
    :meth:`TurnPolicy.judged`. Always the last signal of its frame."""

    end: int


TurnSignal = Started | Paused | Resumed | Stopped | Asked


NEVER: Final = 1 << 60
"""A position that no audio reaches."""


class TurnPolicy(Protocol):
    """Decides where turns begin and end. The same frames give the same signals, however the audio was chunked."""

    due: int
    """Where silence that goes on so far gives a signal, if that is before the end of the next frame: it need not be
    waited for. :data:`NEVER` otherwise."""

    @property
    def speaking(self) -> bool:
        """Between :class:`Started` and :class:`Stopped`."""

    @property
    def lookback(self) -> int:
        """Ticks of audio before the present frame that a coming :class:`Started` may reach back to."""

    def frame(self, start: int, end: int, probability: float, quiet: int = 0) -> list[TurnSignal]:
        """Take one voice-activity frame covering ticks [start, end), with nothing heard in the last ``quiet`` ticks."""

    def silent(self) -> list[TurnSignal]:
        """Nothing has been heard from the last frame up to :attr:`due`. Whoever does not look there need not say so:
        then the next frame gives the signals."""

    def judged(self, probability: float | None) -> list[TurnSignal]:
        """Take the answer to :class:`Asked`: how probable it is that the turn is over; None: there is none."""

    def worded(self, full_stop: float) -> None:
        """What the words of the turn say at the pause that goes on (:attr:`TranscriptDelta.full_stop`): it counts from
        the next frame on."""

    def reset(self, position: int) -> None:
        """Forget the turn in progress; no later turn reaches back before ``position``."""
