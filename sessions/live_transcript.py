"""The words of a turn that is still being spoken, from what a recogniser makes of ever more of its sound.

What a recogniser says of sound that goes on may change with the next word. So a hypothesis is not believed at once:

* words that two hypotheses in a row begin with are *agreed*: they stand (local agreement, after Liu et al. 2020,
  "Low-latency sequence-to-sequence speech recognition"; the last two words of a hypothesis never count: one may be
  half, and the other misheard for it);
* words before a pause are *settled*: their sound is never recognised again, so that the work for each hypothesis, and
  for the last one when the turn ends, does not grow with the turn.

Both together are :attr:`LiveTranscript.text`, which only ever grows at its end; the transcript of the whole turn
begins with it. Where a later hypothesis is of another opinion about words that stand, they stand, and it is taken to
go on where it fits best (least edit distance).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from duologue.engine.languages import WITHOUT_SPACES
from duologue.engine.requests import TokenLogprob, TranscriptDelta

HELD_BACK = 2
_PUNCTUATION = ".,;:!?…-\"'()。、，！？"


@dataclass(frozen=True)
class Word:
    """A word as it is written, with its punctuation; in a language without spaces a character."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    """Those that it is made of, where they are known."""

    @property
    def key(self) -> str:
        """What makes it the same word: not how it is written."""
        return self.text.strip(_PUNCTUATION).casefold() or self.text


@dataclass
class Words:
    """What a recogniser says of some sound."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    language: str | None = None
    end_sample: int | None = None

    def add(self, delta: TranscriptDelta) -> None:
        """The next piece of it."""
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.language = delta.language or self.language
        self.end_sample = delta.end_sample

    @property
    def spaced(self) -> bool:
        """Whether there are spaces between words."""
        return self.language not in WITHOUT_SPACES

    def split(self) -> list[Word]:
        """Word by word, with the tokens where they fall into as many words as the text."""
        if not self.spaced:
            return [Word(character) for character in "".join(self.text.split())]
        texts = self.text.split()
        groups: list[list[TokenLogprob]] = []
        for token in self.logprobs:
            if not groups or token.token.startswith(" "):
                groups.append([])
            groups[-1].append(token)
        if len(groups) != len(texts):
            return [Word(text) for text in texts]
        return [Word(text, tuple(tokens)) for text, tokens in zip(texts, groups, strict=True)]


class LiveTranscript:
    """What stands of one turn; see the module's text."""

    def __init__(self, held_back: int = HELD_BACK) -> None:
        """``held_back``: words at the end of a hypothesis that do not count."""
        self._held_back = held_back
        self.until = 0
        """Ticks from the turn's start up to which its sound is settled."""
        self._settled: list[Word] = []
        self._agreed: list[Word] = []
        """Of the sound after ``until``."""
        self._previous: list[Word] = []
        self._language: str | None = None
        self._spaced = True

    @property
    def settled_text(self) -> str:
        """Words of the sound before ``until``."""
        return self._joined(self._settled)

    @property
    def text(self) -> str:
        """Everything that stands. Punctuation after the last agreed word does not yet: the sound may just end there."""
        if not self._agreed:
            return self._joined(self._settled)
        last = self._agreed[-1]
        return self._joined([*self._settled, *self._agreed[:-1], Word(last.text.rstrip(_PUNCTUATION) or last.text)])

    def begun(self, words: Words) -> str:
        """What the turn most likely begins with, ``words`` being a hypothesis about the sound after ``until``.

        Unlike what stands it need not be true: another hypothesis may take all of it back.
        """
        return self._joined([*self._settled, *words.split()[: -self._held_back]])

    def hear(self, words: Words) -> None:
        """The next hypothesis about the sound after ``until``."""
        self._note_language(words)
        heard = words.split()
        new = self._going_on(heard)
        before = self._previous[_continuation(self._agreed, self._previous) :]
        same = _common_prefix(before, new[: -self._held_back])
        self._agreed += new[:same]
        self._previous = heard

    def settle(self, words: Words, until: int) -> None:
        """The words of the sound from the old ``until`` to the new one, behind which is a pause."""
        self._note_language(words)
        heard, agreed = words.split(), self._agreed
        table = _distances(agreed, heard)
        of_all_agreed = min(table[-1])
        of_all_heard = min(row[-1] for row in table)
        if of_all_heard < of_all_agreed:  # some of what was agreed on is said after the pause
            kept = _nearest([row[-1] for row in table], len(heard))
            self._settled += agreed[:kept]
            self._agreed = agreed[kept:]
        else:
            rest = self._going_on(heard)
            self._settled += [*agreed, *rest]
            self._agreed = []
        self._previous = []
        self.until = until

    def whole(self, words: Words) -> Words:
        """The whole turn, ``words`` being those of all the sound after ``until``."""
        if not self._settled and not self._agreed:
            return words
        self._note_language(words)
        rest = self._going_on(words.split())
        every = [*self._settled, *self._agreed, *rest]
        tokens = [token for number, word in enumerate(every) for token in self._placed(word, number)]
        complete = all(word.tokens for word in every)
        return Words(self._joined(every), tokens if complete else [], self._language, words.end_sample)

    def _going_on(self, heard: list[Word]) -> list[Word]:
        """What ``heard`` has after what is agreed, whose last word may get other punctuation now."""
        first = _continuation(self._agreed, heard)
        if self._agreed and first and heard[first - 1].key == self._agreed[-1].key:
            stands, now = self._agreed[-1].text.rstrip(_PUNCTUATION), heard[first - 1]
            end = now.text[len(now.text.rstrip(_PUNCTUATION)) :]
            self._agreed[-1] = Word(stands + end, now.tokens) if stands else now
        return heard[first:]

    def _note_language(self, words: Words) -> None:
        if words.language is not None:
            self._language, self._spaced = words.language, words.spaced

    def _joined(self, words: Iterable[Word]) -> str:
        return (" " if self._spaced else "").join(word.text for word in words)

    @staticmethod
    def _placed(word: Word, number: int) -> Iterable[TokenLogprob]:
        """A word's tokens with a space before the first, unless it is the first word."""
        for index, token in enumerate(word.tokens):
            if index:
                yield token
            else:
                space = " " if number else ""
                yield replace(token, token=space + token.token.lstrip(), bytes=space.encode() + token.bytes.lstrip())


def _common_prefix(one: Sequence[Word], other: Sequence[Word]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a.key != b.key),
        min(len(one), len(other)),
    )


def _continuation(stands: Sequence[Word], heard: Sequence[Word]) -> int:
    """Where ``heard`` goes on after what stands: its part before is as near to ``stands`` as any.

    One that ends in the same word is taken to be nearer by one: else that word would be said twice.
    """
    distances = _distances(stands, heard)[-1]
    same_end = (1 if stands and word.key == stands[-1].key else 0 for word in heard)
    return _nearest([distances[0], *(d - e for d, e in zip(distances[1:], same_end, strict=True))], len(stands))


def _nearest(distances: Sequence[int], length: int) -> int:
    """Index of the least distance; of several, the one nearest to ``length``."""
    return min(range(len(distances)), key=lambda index: (distances[index], abs(index - length)))


def _distances(one: Sequence[Word], other: Sequence[Word]) -> list[list[int]]:
    """Edit distances (Levenshtein 1966) of the first i words of one from the first j of the other, for all i and j."""
    table = [list(range(len(other) + 1))]
    for i, word in enumerate(one, 1):
        above, row = table[-1], [i]
        for j, with_word in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word.key != with_word.key)))
        table.append(row)
    return table
