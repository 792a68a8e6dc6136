"""Cutting text that is still being written into clauses to be spoken.

The first clause should be spoken as soon as possible, so it is short; later ones are whole sentences where those are
not too long, because a voice model phrases a whole sentence best. Every character of the text belongs to exactly one
clause, and where the cuts fall does not depend on how the text arrived, unless somebody is in a :meth:`hurry
<ClauseSplitter.hurry>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Ending(Enum):
    """How a clause ends, which decides the pause after it."""

    OPEN = "open"
    """In the middle of a phrase."""
    CLAUSE = "clause"
    """At a comma, semicolon, colon or dash."""
    SENTENCE = "sentence"
    PARAGRAPH = "paragraph"
    """At the end of a line."""


@dataclass(frozen=True)
class Clause:
    """A piece of text to be spoken in one go."""

    text: str
    """As written, the white space after it included."""
    start: int
    """Offset of ``text`` in all text so far, in characters."""
    ending: Ending


WORDS: Final = ((3, 6), (8, 18), (14, 36))
"""Of the first clause, the second, and every later one: words before a comma may end it, and before it is cut without
any punctuation. The first is to be spoken soon, the others each while the one before it sounds."""
GROWTH: Final = 2.5
"""A clause is cut after so many times the words before it, if not sooner: a word is written in less than half the time
that it takes to be said, even where eight answers share two cores.

Words are counted as they are said, and about as they are written, token by token: "1.6-meter-tall" is four."""
CHARACTERS: Final = 10
"""A clause is also cut after so many characters for each word that it may have: a word may have no end
("old-old-old-old"). Addresses are left whole."""
LONGEST_CHARACTERS: Final = 280
"""Characters of a clause, whatever they are."""

HURRIED: Final = 3
"""Fewest words of a clause that is cut because its end cannot be waited for."""

_CLOSERS: Final = "\"'”’)]}*_`~"
_SENTENCE_END: Final = re.compile(rf"[.!?…。！？][{re.escape(_CLOSERS)}]*$")
_CLAUSE_END: Final = re.compile(rf"(?:[,;:—–]|--)[{re.escape(_CLOSERS)}]*$|(?:^|\s)-$")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(\"“])(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Gen|Sen|Rep|Gov|Capt|Lt|Col|Sgt|Rev|Hon|Jr|Sr|vs|No|Nos|Fig|approx|"
    r"e\.g|i\.e|cf|[A-Z])\.$"
)
_LIST_NUMBER: Final = re.compile(r"^\s*\(?\d{1,3}[.)]$")
_LEADS_ON: Final = frozenset(
    re.findall(
        r"\w+",
        "and but or nor so because that which who when where while if unless although though until before after since "
        "to in on at with for of from by into about through between as than is are was were will can could would",
    )
)
"""Words that begin a phrase: a cut before one of these is heard least."""
_SAID: Final = re.compile(r"[^\W\d_]+(?:['’.][^\W\d_]+)*|\d")
_DIGIT_AROUND: Final = re.compile(r"\d[^\w\s]*$")
_SAME_DIGIT: Final = re.compile(r"\b(\d)\s+\1$")
_LIST_OF_NUMBERS: Final = re.compile(r"\d,\s+\d[\d.]*,$")
_LAST_WORD: Final = re.compile(r"\S+\s*$")
_PART_OF_WORD: Final = re.compile(r"\w[^\w'’]+")
_OPEN_LINK: Final = re.compile(r"\]\([^)]*$")


class ClauseSplitter:
    """Takes text in pieces and gives back clauses as soon as their end is certain."""

    def __init__(self) -> None:
        self._text = ""
        self._start = 0
        self._seen = 0
        self._words = 0
        self._word_start = 0
        self._cuts = 0
        self._said = 0
        """Words of all clauses so far."""
        self._longest = WORDS[0][1]
        """Words of the present clause before it is cut without any punctuation."""

    def push(self, text: str) -> list[Clause]:
        """Add text; the clauses that it completes."""
        self._text += text
        clauses: list[Clause] = []
        while self._seen < len(self._text):
            ending = self._ending_before(self._seen)
            if ending is None:
                self._seen += 1
                continue
            clauses.append(self._cut(self._place_of_cut(ending), ending))
        return clauses

    def hurry(self) -> list[Clause]:
        """As much of the clause in hand as can be spoken now, for a listener who would otherwise hear nothing more: its
        whole words, less those that lead on to the next. Nothing where those are few, or within an amount or a link.
        """
        at = self._word_start
        while (word := _LAST_WORD.search(self._text[:at])) and word[0].strip().lower() in _LEADS_ON:
            at = word.start()
        written = self._text[:at].rstrip()
        amount = _DIGIT_AROUND.search(written) or self._text[at : at + 1].isdigit()
        if _said(written) < HURRIED or amount or _inside_link(written):
            return []
        return [self._cut(at, Ending.CLAUSE if _CLAUSE_END.search(written) else Ending.OPEN)]

    def finish(self) -> list[Clause]:
        """The text is complete: what is left of it."""
        return [self._cut(len(self._text), Ending.PARAGRAPH)] if self._text else []

    def _place_of_cut(self, ending: Ending) -> int:
        """Here, or before the last word if the phrase goes on; in a word that does not end, after a part of it."""
        if ending is not Ending.OPEN:
            return self._seen
        if self._text[: self._word_start].strip():
            return self._word_start
        parts = [part.end() for part in _PART_OF_WORD.finditer(self._text[: self._seen])]
        return parts[-1] if parts else self._seen

    def _cut(self, at: int, ending: Ending) -> Clause:
        clause = Clause(self._text[:at], self._start, ending)
        self._text = self._text[at:]
        self._start += at
        self._seen = self._words = self._word_start = 0
        said = _said(clause.text)
        self._said += said
        self._cuts += said > 0
        self._longest = max(WORDS[0][1], min(self._limits[1], int(GROWTH * self._said)))
        return clause

    def _ending_before(self, at: int) -> Ending | None:
        """Whether the clause ends somewhere before character ``at``, judged by what is known up to that character."""
        if at >= LONGEST_CHARACTERS or (at >= CHARACTERS * self._longest and not self._inside_address(at)):
            return Ending.OPEN
        if not self._text[at].isspace() and (at == 0 or self._text[at - 1].isspace()):
            before, ending = self._text[:at], None
            if before.strip():
                self._words += max(0, _said(before[self._word_start :]) - 1)
                ending = self._ending_at_word(before, self._text[at])
            if ending is None:
                self._words += 1
                self._word_start = at
            return ending
        return None

    def _ending_at_word(self, before: str, following: str) -> Ending | None:
        written = before.rstrip()
        if _LIST_NUMBER.search(written):
            return None
        if "\n" in before[len(written) :]:
            return Ending.PARAGRAPH
        if _inside_link(written):
            return None
        if _SENTENCE_END.search(written) and not _ABBREVIATION.search(written) and not following.islower():
            return Ending.SENTENCE
        if _CLAUSE_END.search(written):
            numbers = following.isdigit() and _DIGIT_AROUND.search(written) and not _LIST_OF_NUMBERS.search(written)
            return Ending.CLAUSE if self._words >= self._shortest and not numbers else None
        return Ending.OPEN if self._may_be_cut_before_last_word(written) else None

    def _inside_address(self, at: int) -> bool:
        return "://" in self._text[self._word_start : at] or _inside_link(self._text[:at])

    def _may_be_cut_before_last_word(self, written: str) -> bool:
        """True when the last word written may begin the next clause."""
        head, last = written[: self._word_start], written[self._word_start :]
        if self._words <= self._longest // 2 or _inside_link(head.rstrip()):
            return False
        row = _SAME_DIGIT.search(written)  # no amount: "5 5 5 5 5", as a small model writes that has lost its way
        amount = not row and (_DIGIT_AROUND.search(head.rstrip()) or last[0].isdigit())
        if amount and self._words <= 2 * self._longest:  # more than that is none either
            return False
        hurries = self._cuts < 2 and self._longest < WORDS[1][1]
        return self._words > self._longest or (hurries and (row is not None or last.lower() in _LEADS_ON))

    @property
    def _limits(self) -> tuple[int, int]:
        return WORDS[min(self._cuts, len(WORDS) - 1)]

    @property
    def _shortest(self) -> int:
        return min(self._limits[0], self._longest // 2)


def _said(text: str) -> int:
    """Words as they are said."""
    return len(_SAID.findall(text))


def _inside_link(written: str) -> bool:
    """True within the brackets of a ``[text](address)`` that is not complete."""
    opened = written.rfind("[")
    return opened >= 0 and ("]" not in written[opened:] or _OPEN_LINK.search(written[opened:]) is not None)
