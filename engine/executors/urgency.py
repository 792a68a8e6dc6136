"""Which of the requests that wait for a stage is worked on next: earliest deadline first.

In this order: an answer that sounds and is about to run dry; what somebody waits for now, the one who has waited
longest first; what is wanted later, such as an answer prepared for a turn that may not be over, or the rest of one that
is far ahead of its listener. Where there is more to do than can be done, answers that sound could keep others from ever
beginning: who has waited for :data:`STARVING_S` therefore ranks with them. Times are seconds of ``time.monotonic``.
"""

from __future__ import annotations

from typing import Final

RUNNING_DRY_S: Final = 1.5
"""An answer with less left to be heard goes before everything else: about the time that a sentence takes to be written
and spoken on a busy machine of two cores."""
STARVING_S: Final = 2.0
RESTS_S: Final = 3.0
"""An answer with so much left to be heard rests while another one needs the processor, even where there is a place for
both: side by side each is slower, and what is far ahead is often never heard."""
RESTED_S: Final = 1.8
"""With less left it needs the processor again."""


class Urgency:
    """Of one request at one stage."""

    __slots__ = ("_dry_at", "_due")

    def __init__(self, due: float) -> None:
        """``due``: when its first output is wanted."""
        self._due = due
        self._dry_at: float | None = None
        """When what was made will have been heard; None: nothing has been made."""

    def made(self, seconds: float, now: float) -> None:
        """There is sound (or text to be spoken) for so many seconds more. It is heard from ``due`` on, not before."""
        self._dry_at = max(now, self._due, self._dry_at or 0.0) + seconds

    def had_a_turn(self, now: float) -> None:
        """A piece has been worked on: requests that say nothing of their sound take turns."""
        self._due = max(self._due, now)

    def left_s(self, now: float) -> float:
        """What is left to be heard of what was made; 0: somebody waits."""
        return 0.0 if self._dry_at is None else max(0.0, self._dry_at - now)

    def rank(self, now: float) -> tuple[bool, float]:
        """The smaller, the more urgent."""
        if self._dry_at is None:
            starves = now - self._due > STARVING_S
            return not starves, self._due + (STARVING_S if starves else 0.0)
        if self._dry_at - now < RUNNING_DRY_S:
            return False, self._dry_at
        return True, self._dry_at - RUNNING_DRY_S
