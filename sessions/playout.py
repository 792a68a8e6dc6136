"""The playout ledger: per spoken item, how much was generated, projected onto the wire, sent, and played.

Invariant at all times: played <= sent <= projected <= generated, each of them monotone until a cut. All counts are
samples at ``OUTPUT_SAMPLE_RATE``; times are seconds of the session's clock.

What was played is known in one of three ways, each better than the one before. A client that says nothing is taken for
a serialised player that starts each piece when it arrives or when the one before has ended (``benchmarks`` section
0.3). One that reports its playback is believed instead of the clock: sound that was sent is never counted as played
beyond the last report. And a truncation is the client's last word on an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duologue.engine.requests import OUTPUT_SAMPLE_RATE


@dataclass(slots=True)
class ItemPlayout:
    """The five facts about one item's sound. ``accepted`` (a request was opened for it) is that this object exists."""

    response_id: str = ""
    generated: int = 0
    projected: int = 0
    sent: int = 0
    ends_at: float | None = None
    """When the last sample sent so far will have been played; None before anything was sent."""
    reported: int | None = None
    """Samples played by the client's last report; None while it has reported nothing of this item."""
    committed: int = 0
    """Samples that the client's reports hold for certainly heard; at most ``reported``."""
    cut: int | None = None
    """Samples heard, once a truncation or an interruption has fixed it."""
    limit: int | None = None
    """Samples that will have been sent when all is over; None: all."""
    stopped: bool = False
    """Nothing more of it will be sent, whatever was made."""
    settled: bool = False
    """Nothing changes the cut any more but a truncation: the client has made one, or a model was shown the cut."""

    def played(self, now: float) -> int:
        """Samples heard by now, by the client's word or else by the clock."""
        if self.cut is not None:
            return self.cut
        if self.reported is not None:
            return self.reported
        if self.ends_at is None:
            return 0
        left = max(0.0, self.ends_at - now) * OUTPUT_SAMPLE_RATE
        return max(0, self.sent - round(left))

    @property
    def unsent(self) -> int:
        """Samples on their way to the wire."""
        return 0 if self.stopped else self.projected - self.sent

    @property
    def audible(self) -> int:
        """Samples that will have been heard if nobody interrupts."""
        if self.stopped:
            return self.sent
        return self.generated if self.limit is None else self.limit

    @property
    def heard(self) -> int | None:
        """Samples that a model is shown the words of; None for all."""
        if self.cut is None and self.stopped:
            return self.sent if self.reported is None else self.committed
        if self.cut is None and self.limit is not None and self.limit < self.generated:
            return self.limit
        return self.cut


class PlayoutLedger:
    """All spoken items of a session, in one serialised playback queue."""

    def __init__(self) -> None:
        self._items: dict[str, ItemPlayout] = {}
        self._queue_ends_at = 0.0

    @property
    def queue_ends_at(self) -> float:
        """When everything sent so far will have been played."""
        return self._queue_ends_at

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def item(self, item_id: str) -> ItemPlayout:
        item = self._items.get(item_id)
        if item is None:
            item = self._items[item_id] = ItemPlayout()
        return item

    def begin(self, item_id: str, response_id: str) -> None:
        """A response has begun to speak."""
        self.item(item_id).response_id = response_id

    def forget(self, item_id: str) -> None:
        self._items.pop(item_id, None)

    def generated(self, item_id: str, samples: int) -> None:
        """The engine made ``samples`` more."""
        item = self._items.get(item_id) or self.item(item_id)
        item.generated += samples

    def projected(self, item_id: str, samples: int) -> None:
        """``samples`` more are on their way to the wire."""
        item = self._items.get(item_id) or self.item(item_id)
        item.projected = min(item.projected + samples, item.generated)

    def sent(self, item_id: str, samples: int, now: float) -> float | None:
        """The transport has written ``samples`` more. Returns when they begin to sound; None if they never will."""
        item = self._items.get(item_id)
        if item is None:
            return None
        samples = min(samples, item.projected - item.sent)
        item.sent += samples
        if item.cut is not None:
            return None
        begins_at = now if now > self._queue_ends_at else self._queue_ends_at
        item.ends_at = self._queue_ends_at = begins_at + samples / OUTPUT_SAMPLE_RATE
        return begins_at

    def unplayed(self, now: float) -> bool:
        """True while something that was made has not been heard, and may yet be."""
        return any(item.cut is None and item.played(now) < item.audible for item in self._items.values())

    def left_s(self, now: float) -> float:
        """Seconds of sound that were made and have not been heard."""
        items = (item for item in self._items.values() if item.cut is None)
        return sum(item.audible - item.played(now) for item in items) / OUTPUT_SAMPLE_RATE

    def ahead_s(self, item_id: str, now: float) -> float:
        """Seconds between what is heard now and the last sound of an item that is on its way to the client."""
        return max(0.0, self._queue_ends_at - now) + self.item(item_id).unsent / OUTPUT_SAMPLE_RATE

    def interrupt(self, now: float) -> list[str]:
        """The player has been stopped: whatever is unheard stays unheard, until a truncation or a late report corrects
        it. Returns the responses of which something has not left yet."""
        queued: dict[str, None] = {}
        for item in self._items.values():
            if item.cut is None and item.played(now) < item.audible:
                if item.unsent:
                    queued[item.response_id] = None
                item.cut = item.committed if item.reported is not None else item.played(now)
        self._queue_ends_at = min(self._queue_ends_at, now)
        return list(queued)

    def stop(self, item_id: str) -> None:
        """Nothing more of this item will be sent: what has not been sent will not be heard."""
        self.item(item_id).stopped = True

    def settle(self) -> None:
        """A model is about to be shown what was heard: late reports no longer change it."""
        for item in self._items.values():
            item.settled = item.settled or item.cut is not None

    def heard(self, item_id: str) -> int | None:
        """Samples that were heard; None if all of it was or will be."""
        item = self._items.get(item_id)
        return None if item is None else item.heard

    def unsent(self, item_id: str) -> int:
        """Samples on their way to the wire."""
        item = self._items.get(item_id)
        return 0 if item is None else item.unsent

    def truncate(self, item_id: str, samples: int, now: float) -> int:
        """The client says that it played ``samples``. Returns what is believed: never more than was sent."""
        item = self.item(item_id)
        was_queued = item.cut is None and item.ends_at is not None and item.ends_at > now
        item.cut, item.settled = min(samples, item.sent), True
        if was_queued:
            self._queue_ends_at = min(self._queue_ends_at, now)
        return item.cut

    def report(self, item_id: str, played: int, committed: int, now: float) -> bool:
        """The client reports that it has played so much of an item, of which ``committed`` was certainly heard.

        Never more than was sent, and never less than it said before. Returns whether what was heard of an interrupted
        item has been corrected by it.
        """
        item = self.item(item_id)
        item.reported = max(item.reported or 0, min(played, item.sent))
        item.committed = max(item.committed, min(committed, item.reported))
        if item.cut is not None:
            corrected = not item.settled and item.committed > item.cut
            if corrected:
                item.cut = item.committed
            return corrected
        if item.ends_at is not None and (item.reported < item.sent or now < item.ends_at):
            self._shift(item.ends_at, now + (item.sent - item.reported) / OUTPUT_SAMPLE_RATE)
        return False

    def _shift(self, was: float, ends_at: float) -> None:
        """An item ends at another time than was thought, and with it whatever is queued behind."""
        for item in self._items.values():
            if item.ends_at is not None and item.ends_at >= was and item.cut is None:
                item.ends_at += ends_at - was
        self._queue_ends_at += ends_at - was


class ReportedLedger(PlayoutLedger):
    """The ledger of a session whose sound leaves by a clock of ours (WebRTC): what is reported as sent is played."""

    def sent(self, item_id: str, samples: int, now: float) -> float | None:
        """The media track has played ``samples`` more."""
        if (item := self._items.get(item_id)) is None:
            return None
        item.sent = min(item.sent + samples, item.projected)
        if item.cut is not None and not item.settled:
            item.cut = item.sent
        item.ends_at = self._queue_ends_at = now
        return now

    def unplayed(self, now: float) -> bool:
        return any(self.unheard())

    def cut_to_sent(self, item_id: str) -> int:
        """The media track is told to stop. Returns the samples of an item that it has played, as far as is known: the
        report of a frame that leaves meanwhile may be on its way, and still moves the cut."""
        item = self.item(item_id)
        item.cut = item.sent
        return item.sent

    def unheard(self) -> Iterator[tuple[str, ItemPlayout]]:
        """Items of which something is still to be played."""
        return (
            (item_id, item) for item_id, item in self._items.items() if item.cut is None and item.sent < item.audible
        )

    def stop(self, item_id: str) -> None:
        """What is on the track is played to its end, unless that is told to stop; what was held back is not."""
        item = self.item(item_id)
        item.limit = item.projected
