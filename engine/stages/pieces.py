"""What the stages of the embedded pipeline hand to each other, beside the deltas that also go to the client."""

from __future__ import annotations

from dataclasses import dataclass

from duologue.codecs.harmonic_noise import AcousticFrames


@dataclass(frozen=True)
class FrameWord:
    """Where a word of the request's text ends in a clause's frames."""

    text_start: int
    text_end: int
    """Half-open range of characters in all text of the request."""
    end_frame: int
    """First frame after the word's sound."""


@dataclass(frozen=True, eq=False)
class SpokenClause:
    """Acoustic frames of one clause, without silence at either end, from the talker to the codec."""

    frames: AcousticFrames
    words: tuple[FrameWord, ...]
    """In the order in which they end."""
    pause_s: float
    """Silence that belongs between this clause and the next, if one comes."""
