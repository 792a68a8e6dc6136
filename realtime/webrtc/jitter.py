"""The audio jitter buffer of a call: RTP packets in any order, sound in playing order. Pure: no clock, no I/O.

Nobody plays this sound, it goes to a recogniser, so nothing is gained by holding it: a packet that is next in order is
given out in the moment in which it comes, and a burst drains at once. Only a hole makes packets wait, and only until
the deadline of the first missing one: its usual time of arrival plus what the jitter of late makes likely. Then what
is missing is reported as :class:`Lost`, to be hidden.

Sequence numbers say what was lost, timestamps how long it was: where the numbers go on and the timestamps jump, the
sender was silent (DTX). While such a silence lasts it is filled as time goes by, so that the end of a turn is seen in
time; a stream that stops in the middle of speech is filled only after :data:`STALL_S`, since late speech is worth more
than a guess. If late packets still come for time that was filled, they are heard, and the surplus is taken out of the
next silence.

The time of arrival that a timestamp is expected at follows the fastest packets of the last seconds, so a sender whose
clock runs fast or slow neither fills nor empties anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

RTP_RATE: Final = 48_000
"""Ticks a second of the timestamps of Opus, at whatever rate it is encoded or decoded (RFC 7587, section 4.1)."""
FRAME_TICKS: Final = RTP_RATE // 50

REORDER_S: Final = 0.010
"""How much longer than a frame a missing packet is waited for when there is no jitter."""
MOST_ALLOWANCE_S: Final = 0.100
"""Longest that a packet may be behind the fastest ones before it is given up."""
STALL_S: Final = 0.200
"""How long a stream may stop in the middle of speech before the time is filled."""
FILL_LIMIT_S: Final = 10.0
"""After so long without any packet nothing is filled any more: the sender is gone or has paused."""
MOST_WAITING: Final = 50
"""Packets behind a hole; one more and the hole is given up."""

_QUANTILE: Final = 0.97
_STEP_S: Final = 0.004
_BASE_WINDOW_S: Final = 2.0
_RESTART_S: Final = 1.0
_MOST_GAP_TICKS: Final = RTP_RATE
_MOST_DROPOUT: Final = 3000
_MOST_MISORDER: Final = 100
_DTX_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Received:
    """A packet to decode."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """``ticks`` (at :data:`RTP_RATE`) of sound that will not come; ``following``: the packet after it, if here."""

    ticks: int
    following: bytes | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """``ticks`` (at :data:`RTP_RATE`) in which nothing was sent."""

    ticks: int


Piece = Received | Lost | Silence


@dataclass(slots=True)
class JitterStats:
    """Counts since the beginning of the stream; packets, but for the times (seconds)."""

    received: int = 0
    lost: int = 0
    late: int = 0
    """Came after they had been given up, or twice."""
    silence_ticks: int = 0
    stall_ticks: int = 0
    held_s: float = 0.0
    """Sum over the packets that had to wait behind a hole."""
    most_held_s: float = 0.0

    @property
    def mean_held_s(self) -> float | None:
        """Over all packets, nearly all of which did not wait at all."""
        return self.held_s / self.received if self.received else None


@dataclass(slots=True)
class _Waiting:
    timestamp: int
    ticks: int
    payload: bytes
    arrived: float


class JitterBuffer:
    """One RTP stream. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.stats = JitterStats()
        self._waiting: dict[int, _Waiting] = {}
        self._given_up: deque[int] = deque(maxlen=_MOST_MISORDER)
        self._next_number: int | None = None
        self._next_timestamp = 0
        self._last_arrival = 0.0
        self._resting = False
        self._filling = False
        self._surplus = 0
        self._restart_number: int | None = None
        self._arrivals = _Arrivals()

    @property
    def deadline(self) -> float | None:
        """When :meth:`poll` will give up the hole that packets wait behind; None while none waits."""
        if not self._waiting:
            return None
        first = self._waiting[min(self._waiting)]
        expected = self._arrivals.expected(self._next_timestamp) + self._arrivals.allowance
        return min(expected, first.arrived + self._arrivals.allowance)

    def add(self, number: int, timestamp: int, ticks: int, payload: bytes, now: float) -> list[Piece]:
        """What can be given out once this packet has come.

        ``number`` and ``timestamp`` as in the RTP header (16 and 32 bits), ``ticks``: how long its sound is. A packet
        without sound (``ticks`` 0: padding, a key of the telephone) only shows that nothing is missing in its place.
        """
        extended = self._place(number)
        if extended is None:
            return []
        timestamp = _unwrapped(timestamp, self._next_timestamp, 32) if ticks else self._next_timestamp
        if self._next_number is None:
            self._next_number, self._next_timestamp = extended, timestamp
        if extended < self._next_number or extended in self._waiting:
            self.stats.late += 1
            if extended in self._given_up:
                self._arrivals.missed(timestamp, now)
            return []
        if ticks and self._arrivals.note(timestamp, now) and not self._waiting:
            self._next_timestamp, self._surplus, self._filling = timestamp, 0, False
        self.stats.received += 1
        self._last_arrival = now
        if extended == self._next_number and not self._waiting:
            pieces: list[Piece] = []
            self._give(pieces, timestamp, ticks, payload)
            return pieces
        self._waiting[extended] = _Waiting(timestamp, ticks, payload, now)
        return self._release(now)

    def poll(self, now: float) -> list[Piece]:
        """What has to be given out because time has gone by: holes given up, silence and stalls filled."""
        if self._next_number is None:
            return []
        if self._waiting:
            return self._release(now)
        if now - self._last_arrival > FILL_LIMIT_S:
            return []
        patience = self._arrivals.allowance if self._resting or self._filling else STALL_S
        behind = now - patience - self._arrivals.expected(self._next_timestamp)
        frames = int(behind * 50)
        if frames <= 0:
            return []
        self._filling = True
        ticks = min(frames * FRAME_TICKS, _MOST_GAP_TICKS)
        self._next_timestamp += frames * FRAME_TICKS
        if not self._resting:
            self.stats.stall_ticks += ticks
            return [Lost(ticks)]
        pieces: list[Piece] = []
        self._be_silent(pieces, ticks)
        return pieces

    def _place(self, number: int) -> int | None:
        """The packet's number without the wrap at 16 bits; None for one that fits nowhere."""
        if self._next_number is None:
            return number
        extended = _unwrapped(number, self._next_number, 16)
        if -_MOST_MISORDER <= extended - self._next_number <= _MOST_DROPOUT:
            self._restart_number = None
            return extended
        # RFC 3550, appendix A.1: two packets in a row with odd numbers are a sender that has started anew.
        if number != self._restart_number:
            self._restart_number = (number + 1) & 0xFFFF
            return None
        self._waiting.clear()
        self._given_up.clear()
        self._next_number, self._restart_number = None, None
        self._filling, self._surplus = False, 0
        self._arrivals = _Arrivals()
        return number

    def _release(self, now: float) -> list[Piece]:
        pieces: list[Piece] = []
        while self._waiting:
            assert self._next_number is not None
            packet = self._waiting.pop(self._next_number, None)
            if packet is None:
                deadline = self.deadline
                if len(self._waiting) <= MOST_WAITING and deadline is not None and now < deadline:
                    break
                self._give_up(pieces)
                continue
            held = now - packet.arrived
            self.stats.held_s += held
            self.stats.most_held_s = max(self.stats.most_held_s, held)
            self._give(pieces, packet.timestamp, packet.ticks, packet.payload)
        return pieces

    def _give_up(self, pieces: list[Piece]) -> None:
        """Skip to the first packet that waits."""
        assert self._next_number is not None
        found = min(self._waiting)
        following = self._waiting[found]
        missing = found - self._next_number
        self._given_up.extend(range(max(self._next_number, found - _MOST_MISORDER), found))
        self._next_number = found
        self.stats.lost += missing
        gap = following.timestamp - self._next_timestamp
        lost = min(gap, missing * following.ticks, _MOST_GAP_TICKS)
        if gap > lost:
            self._be_silent(pieces, min(gap - lost, _MOST_GAP_TICKS))
        if lost > 0:
            pieces.append(Lost(lost, following.payload))
            self._next_timestamp = following.timestamp

    def _give(self, pieces: list[Piece], timestamp: int, ticks: int, payload: bytes) -> None:
        """Give out the packet that is next in order."""
        assert self._next_number is not None
        self._next_number += 1
        if not ticks:
            self._resting = True
            return
        gap = timestamp - self._next_timestamp
        if gap > 0:
            self._be_silent(pieces, min(gap, _MOST_GAP_TICKS))
        elif gap < 0:
            self._surplus = min(self._surplus - gap, _MOST_GAP_TICKS)
        self._next_timestamp = timestamp + ticks
        self._resting, self._filling = len(payload) <= _DTX_BYTES, False
        pieces.append(Received(payload))

    def _be_silent(self, pieces: list[Piece], ticks: int) -> None:
        paid = min(self._surplus, ticks)
        self._surplus -= paid
        if ticks > paid:
            self.stats.silence_ticks += ticks - paid
            pieces.append(Silence(ticks - paid))


class _Arrivals:
    """When a timestamp is expected to arrive, and how far behind that packets may be."""

    def __init__(self) -> None:
        self._fastest: float | None = None
        self._fastest_lately = 0.0
        self._window_ends = 0.0
        self._behind = 0.0

    @property
    def allowance(self) -> float:
        """Seconds: the lateness that 97 of 100 packets keep to, within its bounds."""
        return min(max(self._behind, FRAME_TICKS / RTP_RATE) + REORDER_S, MOST_ALLOWANCE_S)

    def expected(self, timestamp: int) -> float:
        """When a packet as fast as the fastest would bring this timestamp."""
        return (self._fastest or 0.0) + timestamp / RTP_RATE

    def note(self, timestamp: int, now: float) -> bool:
        """Learn from a packet; True if the timestamps have left the clock and everything starts anew."""
        transit = now - timestamp / RTP_RATE
        if self._fastest is None:
            self._fastest = self._fastest_lately = transit
            self._window_ends = now + _BASE_WINDOW_S
            return False
        late = transit - self._fastest
        if late > _RESTART_S or late < -_RESTART_S:
            self._fastest = self._fastest_lately = transit
            self._window_ends = now + _BASE_WINDOW_S
            return True
        if now >= self._window_ends:
            self._fastest, self._fastest_lately = min(self._fastest_lately, transit), transit
            self._window_ends = now + _BASE_WINDOW_S
        elif transit < self._fastest_lately:
            self._fastest_lately = transit
            self._fastest = min(self._fastest, transit)
        # A quantile of what comes one by one (Robbins-Monro): up by the share above it, down by the share below.
        self._behind += _STEP_S * (_QUANTILE if late > self._behind else _QUANTILE - 1)
        self._behind = max(self._behind, 0.0)
        return False

    def missed(self, timestamp: int, now: float) -> None:
        """A packet came after it had been given up: the next one as late as that shall not be."""
        late = now - self.expected(timestamp)
        self._behind = max(self._behind, min(late, MOST_ALLOWANCE_S))


def _unwrapped(value: int, near: int, bits: int) -> int:
    """The number nearest to ``near`` whose low ``bits`` are ``value``."""
    half = 1 << (bits - 1)
    return near + ((value - near + half) & ((1 << bits) - 1)) - half
