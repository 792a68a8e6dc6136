"""Word error rate, and the spelling that makes two transcripts comparable.

A recogniser may write "33" for "thirty three" and "Mr." for "mister"; neither is an error. Both sides go through
:func:`normalise_words` first, then edit distance over words gives the usual word error rate.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_SAME_WORD = {"mr": "mister", "mrs": "missus", "dr": "doctor", "ok": "okay", "alright": "all right", "vs": "versus"}
_TOKEN = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?(?:st|nd|rd|th)?|\d+(?:\.\d+)?(?:st|nd|rd|th)?|[^\W\d_]+(?:'[^\W\d_]+)*")


def cardinal(number: int) -> str:
    """``692`` -> ``"six hundred ninety two"`` (no "and", no hyphen). Raises ``ValueError`` below zero."""
    if number < 0:
        raise ValueError("number must not be negative")
    if number < 20:
        return _UNITS[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return _TENS[tens] + (f" {_UNITS[unit]}" if unit else "")
    scale, name = next((scale, name) for scale, name in _SCALES if number >= scale)
    count, rest = divmod(number, scale)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """``21`` -> ``"twenty first"``."""
    head, _, last = cardinal(number).rpartition(" ")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return f"{head} {last}".strip()


def _spoken_number(token: str) -> str:
    digits = token.replace(",", "")
    if digits[-2:] in ("st", "nd", "rd", "th"):
        return ordinal(int(digits[:-2].partition(".")[0]))
    whole, point, fraction = digits.partition(".")
    if whole[0] == "0" and len(whole) > 1:  # a code, read digit by digit
        words = " ".join(_UNITS[int(digit)] for digit in whole)
    else:
        words = cardinal(int(whole))
    return words + (" point " + " ".join(_UNITS[int(digit)] for digit in fraction) if point else "")


def normalise_words(text: str) -> list[str]:
    """Lower-case words without punctuation, numbers written out: ``"Mr. X, 33."`` -> ``mister x thirty three``."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = text.replace("%", " percent ").replace("&", " and ")
    words: list[str] = []
    for token in _TOKEN.findall(text):
        spoken = _spoken_number(token) if token[0].isdecimal() else token.replace("'", "")
        words.extend(_SAME_WORD.get(spoken, spoken).split())
    return words


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Fewest substitutions, deletions and insertions that turn one sequence into the other (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, found in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (expected != found))
    return row[-1]


@dataclass(frozen=True)
class WordErrors:
    """Errors and reference words, summed over any number of utterances."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Errors per reference word; 0.0 for no words and no errors, 1.0 for words invented out of nothing."""
        return self.errors / self.words if self.words else float(self.errors > 0)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(self.errors + other.errors, self.words + other.words)


def word_errors(reference: str, hypothesis: str) -> WordErrors:
    """Compare two transcripts of one utterance after :func:`normalise_words`."""
    expected = normalise_words(reference)
    return WordErrors(edit_distance(expected, normalise_words(hypothesis)), len(expected))


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Word error rate over ``(reference, hypothesis)`` pairs: all errors over all reference words."""
    return sum((word_errors(reference, hypothesis) for reference, hypothesis in pairs), WordErrors(0, 0)).rate
