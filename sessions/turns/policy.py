"""What a turn policy is: voice-activity frames in, turn signals out. No clock: time is the position in the audio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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


TurnSignal = Started | Paused | Resumed | Stopped


class TurnPolicy(Protocol):
    """Decides where turns begin and end. The same frames give the same signals, however the audio was chunked."""

    @property
    def speaking(self) -> bool:
        """Between :class:`Started` and :class:`Stopped`."""

    @property
    def lookback(self) -> int:
        """Ticks of audio before the present frame that a coming :class:`Started` may reach back to."""

    def frame(self, start: int, end: int, probability: float) -> list[TurnSignal]:
        """Take one voice-activity frame covering ticks [start, end)."""

    def reset(self, position: int) -> None:
        """Forget the turn in progress; no later turn reaches back before ``position``."""
