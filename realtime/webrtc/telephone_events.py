"""Keys of a telephone in RTP (RFC 4733). Pure."""

from __future__ import annotations

from typing import Final

KEYS: Final = "0123456789*#ABCD"
"""By event code (RFC 4733, section 3.2). Codes beyond them are flash, tones and signals: no keys."""
_MOST_DURATION: Final = 0xFFFF


class TelephoneEvents:
    """Packets of one payload type to keys, each once, when it is pressed.

    All packets of an event have its beginning as their timestamp; they are repeated while the key is held, and the last
    one three times, in case some are lost. None of them need have the marker bit.
    """

    def __init__(self) -> None:
        self._code = -1
        self._timestamp: int | None = None
        self._duration = 0

    def add(self, timestamp: int, payload: bytes) -> str | None:
        """The key that this packet is the first to tell of; None for repetitions, codes that are no keys, and debris.

        ``timestamp`` as in the RTP header.
        """
        if len(payload) < 4:
            return None
        code, duration = payload[0], int.from_bytes(payload[2:4], "big")
        ahead = _ahead(timestamp, self._timestamp)
        if ahead <= 0:
            if ahead == 0:
                self._duration = max(self._duration, duration)
            return None
        # A key held for longer than a duration can say goes on as a new event that begins where the last one ended.
        goes_on = code == self._code and self._duration == _MOST_DURATION == ahead
        self._code, self._timestamp, self._duration = code, timestamp, duration
        return KEYS[code] if code < len(KEYS) and not goes_on else None


def _ahead(timestamp: int, last: int | None) -> int:
    """Ticks from the last event to this one; below zero: it is older, and came late."""
    return 1 if last is None else ((timestamp - last + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
