"""Backchannels: words by which a listener says no more than that he listens.

A transcript is an acknowledgement if it is made of nothing but phrases of the list: "Mm-hmm, yeah. I see." is one,
"yes but" is not. Answers to a question ("yes", "okay") are in the list too: it is asked only while an answer goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from duologue.engine.words import normalise_words

ENGLISH: Final = (
    "yeah",
    "yes",
    "yep",
    "yup",
    "right",
    "okay",
    "sure",
    "of course",
    "exactly",
    "true",
    "indeed",
    "fine",
    "good",
    "great",
    "nice",
    "cool",
    "wow",
    "really",
    "oh",
    "ah",
    "alright",
    "i see",
    "i know",
    "i understand",
    "understood",
    "got it",
    "gotcha",
    "makes sense",
    "that makes sense",
    "thanks",
    "thank you",
    "thank you very much",
    "go on",
    "interesting",
    "very good",
    "absolutely",
    "definitely",
)

_HUM: Final = re.compile(r"m+|h+m+|m+h+m*|u+h+|a+h+|h+u+h+|o+h+|e+h+m*|a+h+a+|u+m+|h+a+|h+e+h+")
"""A hum in any of a recogniser's spellings: "mhm" comes as "Mm-hmm", "Hmm", "Mhmm" or "Uh-huh"."""


class Acknowledgements:
    """A list of words and phrases, in any spelling that :func:`normalise_words` makes the same."""

    def __init__(self, phrases: Iterable[str] = ENGLISH) -> None:
        self._phrases = {tuple(words) for phrase in phrases if (words := normalise_words(phrase))}
        self._longest = max(map(len, self._phrases), default=1)

    def cover(self, words: Sequence[str]) -> bool:
        """Whether ``words`` (normalised) can be read as a row of the list's phrases and hums."""
        reached = {0}
        for start in range(len(words)):
            if start not in reached:
                continue
            if _HUM.fullmatch(words[start]):
                reached.add(start + 1)
            for length in range(1, min(self._longest, len(words) - start) + 1):
                if tuple(words[start : start + length]) in self._phrases:
                    reached.add(start + length)
        return len(words) in reached
