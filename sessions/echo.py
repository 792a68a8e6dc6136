"""The far end of an echo: what of our own sound a client was playing while it recorded what it sends.

Two clocks meet here. Sound that was sent sounds from a moment of the session's clock on, by the playout ledger. The
user's sound has positions, which are tied to that clock by when it arrives: the earliest arrival, of all that have been
seen, is the one that was held up least. The tie is an even number of samples and is left alone as long as it holds, for
a canceller follows an echo that moves by a sample a minute worse than one that jumps once an hour.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from duologue.codecs.echo import echo_share
from duologue.codecs.noise_suppression import FRAMES_PER_SECOND
from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.sessions.timebase import TICKS_PER_SECOND

FRAME = OUTPUT_SAMPLE_RATE // FRAMES_PER_SECOND
KEPT_S = 2.0
"""Sound is kept so long after it was played: the input that holds its echo may come late."""
RING_S = 0.3
"""So long what was cut off may still sound: until the client has heard of it."""
LONGEST_S = 0.4
"""Latest echo, after ``delay_s``, that is recognised as one."""
ECHO_SHARE = 0.7
"""What is this much an echo is not the user: who speaks half as loud as the echo is heard."""
_SLACK_S = 0.02
"""By how much the tie between the clocks may be wrong before it is made anew."""
_GAP_S = 0.5
"""Input so much later than the tie says has not been held up: the client has sent nothing for a while."""
_DRIFT = 0.0005
"""Clocks of sound cards differ by less than this."""


@dataclass(slots=True)
class _Segment:
    start: int
    """Sample of the session's clock, at ``OUTPUT_SAMPLE_RATE``."""
    pcm: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.pcm) // 2


class EchoReference:
    """What sounded when. ``delay_s``: how much later it is known to come back at the least."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay = round(delay_s * OUTPUT_SAMPLE_RATE)
        self._unsent: dict[str, bytearray] = {}
        self._segments: deque[_Segment] = deque()
        self._offset_s: float | None = None
        """Session's clock less position of the input, by the arrivals so far."""
        self._offset_at = 0.0
        self._tie: int | None = None
        """The same in samples, as it is used."""

    # -- our own sound -------------------------------------------------------------------------------------------------

    def made(self, item_id: str, pcm: bytes) -> None:
        """Sound of an item is on its way to the wire: PCM16 at ``OUTPUT_SAMPLE_RATE``."""
        self._unsent.setdefault(item_id, bytearray()).extend(pcm)

    def sent(self, item_id: str, samples: int, begins_at: float | None) -> None:
        """So much of it has left, and sounds from ``begins_at`` on; None: it never will."""
        waiting = self._unsent.get(item_id)
        if waiting is None:
            return
        pcm = bytes(waiting[: samples * 2])
        del waiting[: samples * 2]
        if not waiting:
            del self._unsent[item_id]
        if begins_at is not None and pcm:
            start = round(begins_at * OUTPUT_SAMPLE_RATE)
            if self._segments and abs(start - self._segments[-1].end) < _SLACK_S * OUTPUT_SAMPLE_RATE:
                start = self._segments[-1].end  # a media clock says to the frame when, not to the sample
            self._segments.append(_Segment(start, pcm))

    def stopped(self, now: float) -> None:
        """What has not sounded by now will not, but for what sounds until the client knows."""
        self._unsent.clear()
        end = round((now + RING_S) * OUTPUT_SAMPLE_RATE)
        while self._segments and self._segments[-1].start >= end:
            self._segments.pop()
        for segment in self._segments:
            if segment.end > end:
                segment.pcm = segment.pcm[: max(0, end - segment.start) * 2]

    # -- the user's sound ----------------------------------------------------------------------------------------------

    def arrived(self, position: int, now: float) -> None:
        """Input up to ``position`` (ticks) has come."""
        offset_s = now - position / TICKS_PER_SECOND
        expected = math.inf if self._offset_s is None else self._offset_s + _DRIFT * (now - self._offset_at)
        if offset_s < expected or offset_s > expected + _GAP_S:
            expected = offset_s
        self._offset_s, self._offset_at = expected, now
        tie = round(expected * OUTPUT_SAMPLE_RATE)
        if self._tie is None or abs(tie - self._tie) > _SLACK_S * OUTPUT_SAMPLE_RATE:
            self._tie = tie

    def frame(self, position: int) -> bytes:
        """What sounded during the 10 ms of input from ``position`` on: PCM16 at ``OUTPUT_SAMPLE_RATE``."""
        start = self._sample_at(position)
        while self._segments and self._segments[0].end < start - round(KEPT_S * OUTPUT_SAMPLE_RATE):
            self._segments.popleft()
        return self._cut(start, FRAME)

    def echoes(self, sound: bytes, sample_rate: int, position: int) -> bool:
        """Whether ``sound`` (PCM16), input as it came that ends at ``position``, is little but our own.

        A canceller leaves much of an echo that comes at another delay than before, until it has found it.
        """
        samples = round((len(sound) / 2 / sample_rate + LONGEST_S) * OUTPUT_SAMPLE_RATE)
        played = self._cut(self._sample_at(position) - samples, samples)
        return played.count(0) < len(played) and echo_share(sound, sample_rate, played, OUTPUT_SAMPLE_RATE) > ECHO_SHARE

    def _sample_at(self, position: int) -> int:
        tie = 0 if self._tie is None else self._tie
        return position * OUTPUT_SAMPLE_RATE // TICKS_PER_SECOND + tie - self._delay

    def _cut(self, start: int, samples: int) -> bytes:
        """Samples of the session's clock."""
        sound = bytearray(samples * 2)
        for segment in self._segments:
            if segment.start >= start + samples:
                break
            first, last = max(start, segment.start), min(start + samples, segment.end)
            if first < last:
                piece = segment.pcm[(first - segment.start) * 2 : (last - segment.start) * 2]
                sound[(first - start) * 2 : (last - start) * 2] = piece
        return bytes(sound)
