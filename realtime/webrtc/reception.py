"""What a receiver report (RFC 3550, section 6.4.1) says about one source. Pure."""

from __future__ import annotations

from typing import Final

_CLOCK: Final = 48_000


class Reception:
    """Counts one source's packets; has the attributes that aiortc's receiver reads when it makes a report."""

    def __init__(self) -> None:
        self.packets_received = 0
        self._first = 0
        self._highest = -1
        self._transit = 0.0
        self._jitter = 0.0
        self._expected_before = 0
        self._received_before = 0

    def add(self, number: int, timestamp: int, now: float) -> None:
        """A packet has come: its sequence number (16 bits), timestamp (32 bits) and the time in seconds."""
        self.packets_received += 1
        transit = now - timestamp / _CLOCK
        if self._highest < 0:
            self._first = self._highest = number
        else:
            ahead = (number - self._highest + 0x8000 & 0xFFFF) - 0x8000
            if ahead <= 0:
                return
            self._highest += ahead
            change = abs(transit - self._transit)
            # A step of a minute is the wrap of the timestamp (or a pause that it did not count), not jitter.
            if change < 60:
                self._jitter += (change - self._jitter) / 16
        self._transit = transit

    @property
    def max_seq(self) -> int:
        """Highest sequence number, wraps counted in its upper half."""
        return self._highest & 0xFFFFFFFF

    @property
    def jitter(self) -> int:
        """Interarrival jitter in timestamp units (RFC 3550, appendix A.8)."""
        return int(self._jitter * _CLOCK)

    @property
    def packets_expected(self) -> int:
        """How many would have come if none had been lost."""
        return self._highest - self._first + 1 if self._highest >= 0 else 0

    @property
    def packets_lost(self) -> int:
        """Expected less received: below zero when packets came twice. Within 24 bits."""
        return max(-(1 << 23), min(self.packets_expected - self.packets_received, (1 << 23) - 1))

    @property
    def fraction_lost(self) -> int:
        """Lost share since this was last read, in 256ths."""
        expected = self.packets_expected - self._expected_before
        received = self.packets_received - self._received_before
        self._expected_before, self._received_before = self.packets_expected, self.packets_received
        lost = expected - received
        return min((lost << 8) // expected, 255) if expected > 0 and lost > 0 else 0
