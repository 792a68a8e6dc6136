"""Written text made speakable: no markup, addresses and amounts in words, emoji gone.

What the phonemiser reads well by itself (plain numbers, dates, times, units) is left to it. For every character of the
result it stays known which characters of the original it stands for, so that word times can be told in terms of the
original.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class SpokenWord:
    """A word to be spoken and where it was written."""

    text: str
    start: int
    end: int
    """Half-open range of characters in the original."""


class TracedText:
    """Text under substitution, each character with the range of the original that it stands for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._origins = [(i, i + 1) for i in range(len(text))]

    def substitute(self, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str]) -> None:
        """Replace every match. ``replacement`` may hold ``\\1``-style references, or be a function of the match."""
        text: list[str] = []
        origins: list[tuple[int, int]] = []
        last = 0
        for match in pattern.finditer(self.text):
            new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
            text += (self.text[last : match.start()], new)
            origins += self._origins[last : match.start()]
            origins += self._trace(match, new)
            last = match.end()
        self.text = "".join((*text, self.text[last:]))
        self._origins = origins + self._origins[last:]

    def _trace(self, match: re.Match[str], new: str) -> list[tuple[int, int]]:
        old = match.group()
        offset = old.find(new)
        if offset >= 0:  # only something around it went away
            first = match.start() + offset
            return self._origins[first : first + len(new)]
        covered = self._origins[match.start() : match.end()]
        whole = (covered[0][0], covered[-1][1]) if covered else (0, 0)
        return [whole] * len(new)

    def words(self) -> list[SpokenWord]:
        """The words between white space, in order."""
        found = []
        for match in re.finditer(r"\S+", self.text):
            origins = self._origins[match.start() : match.end()]
            found.append(SpokenWord(match.group(), min(o[0] for o in origins), max(o[1] for o in origins)))
        return found


def make_speakable(text: str) -> list[SpokenWord]:
    """Words to be spoken for one clause of ``text``; empty when there is nothing to say in it."""
    traced = TracedText(text)
    for pattern, replacement in _RULES:
        traced.substitute(pattern, replacement)
    return [word for word in traced.words() if not _SILENT.issuperset(word.text)]


_SILENT: Final = frozenset("*_`~|\"'“”‘’()[]{}<>\\#")
_AMOUNT: Final = r"(\d+(?:,\d{3})*)(?:\.(\d{2}))?(?![\d.,]*\d)"
_MAJOR: Final = {"$": ("dollar", "dollars"), "£": ("pound", "pounds"), "€": ("euro", "euros")}
_MINOR: Final = {"$": ("cent", "cents"), "£": ("penny", "pence"), "€": ("cent", "cents")}
_SCALES: Final = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "t": "trillion"}
_IN_ADDRESS: Final = {".": " dot ", "/": " slash ", "-": " dash ", "_": " underscore ", "@": " at ", "~": " tilde "}


def _digit_by_digit(match: re.Match[str]) -> str:
    """A number too long for anyone to say as one."""
    return " ".join(digit for digit in match.group() if digit != ",")


def _address(match: re.Match[str]) -> str:
    """``https://www.example.com/a?b=1`` -> ``example dot com slash a``: the query is for machines."""
    address = re.sub(r"^(?:[a-z]+://)?(?:www\.)?", "", match.group(), flags=re.IGNORECASE)
    address = re.split(r"[?#]", address)[0].rstrip("/")
    return re.sub(r" +", " ", "".join(_IN_ADDRESS.get(character, character) for character in address)).strip()


def _money(match: re.Match[str]) -> str:
    sign, whole, fraction = match.group(1), match.group(2), match.group(3)
    count, cents = int(whole.replace(",", "")), int(fraction or 0)
    words = []
    if count or not cents:
        words.append(f"{whole} {_MAJOR[sign][count != 1]}")
    if cents:
        words.append(f"{cents} {_MINOR[sign][cents != 1]}")
    return " and ".join(words)


def _large_money(match: re.Match[str]) -> str:
    sign, number, scale = match.groups()
    return f"{number} {_SCALES.get(scale.lower(), scale.lower())} {_MAJOR[sign][1]}"


def _is_pictograph(character: str) -> bool:
    """Emoji, their joiners and modifiers, and other signs that have no reading."""
    if character in _READ_AS_WORDS:
        return False
    return unicodedata.category(character) in ("So", "Sk", "Cs", "Co", "Cn", "Cf") or character in "\ufe0e\ufe0f\u20e3"


_READ_AS_WORDS: Final = frozenset("°©^`")
_PICTOGRAPHS: Final = re.compile(r"[^\x00-\x7f]")
_SCALE_WORD: Final = r"(hundred|thousand|million|billion|trillion|[kKmMbBtT]|bn)\b"

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_RULES: Final[tuple[_Rule, ...]] = (
    (re.compile(r"&(?:amp|#38);"), "&"),
    (re.compile(r"&(?:nbsp|#160);|\u00a0|\u200b"), " "),
    (re.compile(r"```\w*"), " "),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), " "),
    (re.compile(r"^[ \t]*(?:#{1,6}|>+|[-*+•‣▪●])[ \t]+", re.MULTILINE), ""),
    (re.compile(r"^[ \t]*(?:[-*_=][ \t]*){3,}$", re.MULTILINE), " "),
    (re.compile(r"\[[ xX]\] "), ""),
    (re.compile(r"(?:https?|ftp)://[^\s<>\"”)]*[^\s<>\"”).,;:!?]|\bwww\.[^\s<>\"”)]*[^\s<>\"”).,;:!?]"), _address),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), _address),
    (re.compile(r"`+|~~|\*{2,}|_{2,}"), ""),
    (re.compile(r"(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)"), ""),
    (re.compile(r"(?<=\d)\s?\*\s?(?=\d)"), " times "),
    (re.compile(r"\s*\|\s*(?=\S)"), ", "),
    (re.compile(r"\be\.\s?g\.,?", re.IGNORECASE), "for example,"),
    (re.compile(r"\bi\.\s?e\.,?", re.IGNORECASE), "that is,"),
    (re.compile(r"\betc\b"), "et cetera"),
    (re.compile(rf"([$£€])\s?(\d+(?:,\d{{3}})*(?:\.\d+)?)\s?{_SCALE_WORD}"), _large_money),
    (re.compile(rf"([$£€])\s?{_AMOUNT}"), _money),
    (re.compile(r"\d{1,3}(?:,\d{3}){4,}|\d{13,}"), _digit_by_digit),
    (re.compile(r"(?<=\d)\s?m/s\b"), " meters per second"),
    (re.compile(r"(?<=\d)\s?%"), " percent"),
    (re.compile(r"(?<=[A-Za-z])#(?!\w)"), " sharp"),
    (re.compile(r"(?<![\w.])\.(?=[A-Za-z])"), "dot "),
    (re.compile(r"≈"), " about "),
    (re.compile(r"≤"), " at most "),
    (re.compile(r"≥"), " at least "),
    (re.compile(r"≠"), " is not "),
    (_PICTOGRAPHS, lambda match: "" if _is_pictograph(match.group()) else match.group()),
)
