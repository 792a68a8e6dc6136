"""What was heard: a serialised player as a pure function of what arrived and when (``benchmarks`` section 0.3).

A delta of ``d`` seconds received at ``r`` becomes a segment ``[s, s + d)``, ``s`` being the later of ``r`` and the end
of the segment before. A flush at ``x`` keeps what was played before ``x``; audio that still arrives for a flushed
response is dropped and counted as late. Times are seconds on any one clock, audio is counted in samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from duologue.engine.continuity import RealTimePlayer
from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.realtime.client import AUDIO_DELTA, Received

Policy = Literal["obey", "deaf"]

# Positions are sums of quotients: without this allowance a sample that ends exactly at the flush could be lost.
_ROUNDING_S = 1e-7


@dataclass(frozen=True)
class Segment:
    """A stretch of a response's audio as it sounds at the client."""

    response_id: str
    item_id: str
    received_s: float
    start_s: float
    samples: int
    offset: int
    """Position of its first sample in the audio received for the response."""
    rate: int
    cut: bool = False

    @property
    def end_s(self) -> float:
        return self.start_s + self.samples / self.rate


@dataclass(frozen=True)
class Cut:
    """An item whose unheard rest was thrown away."""

    response_id: str
    item_id: str
    heard_samples: int
    rate: int

    @property
    def heard_ms(self) -> int:
        return self.heard_samples * 1000 // self.rate


class Player:
    """The queue of a loudspeaker. ``buffer_s`` delays the first segment after silence."""

    def __init__(self, *, rate: int = OUTPUT_SAMPLE_RATE, buffer_s: float = 0.0) -> None:
        self.rate = rate
        self.segments: list[Segment] = []
        self.late_samples: dict[str, int] = {}
        self._buffer_s = buffer_s
        self._queue_end_s = -math.inf
        self._received: dict[str, int] = {}

    def receive(self, response_id: str, item_id: str, samples: int, at: float) -> Segment | None:
        """Queue a delta; ``None`` if its response was flushed before, so that it is never heard."""
        offset = self._received.get(response_id, 0)
        self._received[response_id] = offset + samples
        if response_id in self.late_samples:
            self.late_samples[response_id] += samples
            return None
        start = self._queue_end_s if at <= self._queue_end_s else at + self._buffer_s
        segment = Segment(response_id, item_id, at, start, samples, offset, self.rate)
        self.segments.append(segment)
        self._queue_end_s = segment.end_s
        return segment

    def flush(self, at: float, response_ids: Collection[str] | None = None) -> list[Cut]:
        """Stop the given responses (default: all that have unplayed audio) at ``at``; the items that lost audio."""
        if response_ids is None:
            response_ids = {segment.response_id for segment in self.segments if segment.end_s > at + _ROUNDING_S}
        kept: list[Segment] = []
        cut_items: dict[tuple[str, str], None] = {}
        for segment in self.segments:
            if segment.response_id not in response_ids or segment.end_s <= at + _ROUNDING_S:
                kept.append(segment)
                continue
            cut_items[segment.response_id, segment.item_id] = None
            heard = max(0, math.floor((at - segment.start_s + _ROUNDING_S) * self.rate))
            if heard:
                kept.append(replace(segment, samples=heard, cut=True))
        for response_id in response_ids:
            self.late_samples.setdefault(response_id, 0)
        self.segments = kept
        if cut_items:
            self._queue_end_s = max([at, *(segment.end_s for segment in kept)])
        return [
            Cut(response_id, item_id, self._item_samples(response_id, item_id), self.rate)
            for response_id, item_id in cut_items
        ]

    def of_response(self, response_id: str) -> list[Segment]:
        return [segment for segment in self.segments if segment.response_id == response_id]

    def heard_samples(self, response_id: str) -> int:
        """Samples of the response that were or, if nothing more happens, will be heard."""
        return sum(segment.samples for segment in self.of_response(response_id))

    def unplayed_s(self, at: float) -> float:
        """Seconds of queued audio that have not sounded at ``at``."""
        return sum(segment.end_s - max(at, segment.start_s) for segment in self.segments if segment.end_s > at)

    def time_of(self, response_id: str, sample: int) -> float | None:
        """When sample ``sample`` of the response's received audio sounds; ``None`` if it does not."""
        for segment in self.of_response(response_id):
            if segment.offset <= sample < segment.offset + segment.samples:
                return segment.start_s + (sample - segment.offset) / self.rate
        return None

    def _item_samples(self, response_id: str, item_id: str) -> int:
        return sum(segment.samples for segment in self.of_response(response_id) if segment.item_id == item_id)


class ClientPlayback:
    """A player together with what its client does on server events.

    ``obey`` stops playing on ``speech_started`` (if the session interrupts and audio is unplayed), on a cancelled
    ``response.done`` and on ``output_audio_buffer.cleared``. ``deaf`` plays everything.
    """

    def __init__(self, policy: Policy = "obey", player: Player | None = None) -> None:
        self.policy = policy
        self.player = player or Player()
        self.interrupt_response = True

    def handle(self, received: Received) -> list[Cut]:
        """Apply one server event; the items to be truncated."""
        message = received.message
        match message.type:
            case "session.created" | "session.updated" if message.session:
                self.interrupt_response = message.session.interrupt_response
            case t if t == AUDIO_DELTA and received.audio_bytes >= 2:
                samples = received.audio_bytes // 2
                self.player.receive(message.response_id or "", message.item_id or "", samples, received.at)
            case _ if self.policy == "deaf":
                return []
            case "input_audio_buffer.speech_started":
                if self.interrupt_response and self.player.unplayed_s(received.at) > 0:
                    return self.player.flush(received.at)
            case "response.done" if message.response and message.response.status == "cancelled":
                return self.player.flush(received.at, {message.response.id})
            case "output_audio_buffer.cleared" if message.response_id:
                return self.player.flush(received.at, {message.response_id})
        return []


@dataclass(frozen=True)
class Underrun:
    """How a real-time player fared that starts at the first delta (plus its buffer)."""

    seconds: float
    """Total silence between the deltas, which equals the largest deficit of a player that does not wait."""
    stalls: int
    longest_s: float


def underrun(arrivals_s: Sequence[float], durations_s: Sequence[float], buffer_s: float = 0.0) -> Underrun | None:
    """Stalls of a player (:class:`RealTimePlayer`) fed with deltas of ``durations_s`` at ``arrivals_s``.

    ``None`` below two deltas.
    """
    if len(arrivals_s) < 2:
        return None
    player = RealTimePlayer(buffer_s)
    for arrival, duration in zip(arrivals_s, durations_s, strict=True):
        player.receive(arrival, duration)
    return Underrun(player.underrun_s, player.stalls, player.longest_s)
