"""Text that says the same thing over and over, as a decoder does that has lost its way."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

_LONGEST_PHRASE: Final = 10
_FASTEST_SPEECH: Final = 4.5
"""Words per second that nobody keeps up: more words than that were not all said."""


def repeats(words: Sequence[str]) -> bool:
    """True when a word comes four times in a row, or a phrase of two to ten words three times."""
    for length in range(1, _LONGEST_PHRASE + 1):
        times = 4 if length == 1 else 3
        for start in range(len(words) - length * times + 1):
            phrase = words[start : start + length]
            if all(words[start + i * length : start + (i + 1) * length] == phrase for i in range(1, times)):
                return True
    return False


def runs_in_circles(words: Sequence[str], speech_s: float) -> bool:
    """True when ``words``, recognised in ``speech_s`` seconds of speech, repeat themselves too often to have been said.

    "No, no, no, no" in two seconds is said; a phrase of three words that comes twice faster than anyone speaks is not.
    """
    too_fast = len(words) > _FASTEST_SPEECH * speech_s
    return too_fast and (repeats(words) or _has_repeated_phrase(words, 3))


def _has_repeated_phrase(words: Sequence[str], length: int) -> bool:
    phrases = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    return len(set(phrases)) < len(phrases)


LONGEST_LOOP: Final = 500
"""Characters of the longest passage whose repetition is noticed."""
_LEAST_LOOP: Final = 200
"""Characters that must have been said in vain before a text is stopped, unless these are many repetitions."""
_MOST_REPETITIONS: Final = 24
"""Of a word, however short: "7 7 7 7" is stopped before anybody has listened to it for a minute."""
_PROBE: Final = 24


def ends_in_a_loop(text: str) -> bool:
    """True when ``text`` ends in the same passage four times or more, 200 characters or more in all, or 24 times.

    For text that a model is writing: it need not know words, so that it holds for any language. A list whose lines
    begin alike, or a rhyme with a refrain, is none, nor is a rule or a number of one character.
    """
    probe = text[-_PROBE:]
    at = len(text) - len(probe)
    while len(probe) == _PROBE and (at := text.rfind(probe, 0, at + len(probe) - 1)) >= 0:
        period = len(text) - len(probe) - at
        if period > LONGEST_LOOP:
            return False
        span = max(4 * period, _LEAST_LOOP)
        characters = set(text[-period:])
        if len(characters) > 1 and any(map(str.isalnum, characters)):
            span = min(span, _MOST_REPETITIONS * period)
        if len(text) >= span and text[-span + period :] == text[-span:-period]:
            return True
    return False


def collapse_repeats(text: str) -> str:
    """Keep one of each run of immediate repetitions of up to ten words: ``"a b a b a b c"`` -> ``"a b c"``."""
    words = text.split()
    kept: list[str] = []
    keys: list[str] = []
    for word in words:
        kept.append(word)
        keys.append(word.strip(".,!?;:").casefold())
        for length in range(_LONGEST_PHRASE, 0, -1):
            if len(keys) >= 2 * length and keys[-length:] == keys[-2 * length : -length]:
                del kept[-length:], keys[-length:]
                break
    return " ".join(kept)


def compression_ratio(text: str) -> float:
    """Bytes of ``text`` over bytes of its deflated form, without the 8 bytes of container: above 2.4 it stutters."""
    data = text.encode()
    return len(data) / max(1, len(zlib.compress(data)) - 8)
