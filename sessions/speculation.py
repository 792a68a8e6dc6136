"""Whether the server can afford an answer that may be thrown away.

Who speaks with long pauses makes nearly every speculation vain. What all of them have cost is bounded by what has been
of use: in the long run a server that speculates works at most 1.3 times as much as one that does not.
"""

from __future__ import annotations

from typing import Final

WASTED_SHARE: Final = 0.3
"""Of the work that was of use."""
ALLOWANCE_S: Final = 10.0
"""Seconds of work that may be in vain on top of that, so that a fresh server may begin."""


def affordable(useful_s: float, wasted_s: float) -> bool:
    """Whether another answer may be prepared after so much work of use, and in vain."""
    return wasted_s <= WASTED_SHARE * useful_s + ALLOWANCE_S
