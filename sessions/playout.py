"""The playout ledger: per spoken item, how much was generated, projected onto the wire, sent, and played.

Invariant at all times: played <= sent <= projected <= generated, each of them monotone. All counts are samples at
``OUTPUT_SAMPLE_RATE``; times are seconds of the session's clock.

A client without a playback report is taken for a serialised player that starts each piece when it arrives or when the
one before has ended (``benchmarks`` section 0.3). That is also the documented default for clients that never truncate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duologue.engine.requests import OUTPUT_SAMPLE_RATE


@dataclass(slots=True)
class ItemPlayout:
    """The five facts about one item's sound. ``accepted`` (a request was opened for it) is that this object exists."""

    generated: int = 0
    projected: int = 0
    sent: int = 0
    ends_at: float | None = None
    """When the last sample sent so far will have been played; None before anything was sent."""
    cut: int | None = None
    """Samples heard, once a truncation or an interruption has fixed it."""

    def played(self, now: float) -> int:
        """Samples heard by now, by the client's word or else by the clock."""
        if self.cut is not None:
            return self.cut
        if self.ends_at is None:
            return 0
        left = max(0.0, self.ends_at - now) * OUTPUT_SAMPLE_RATE
        return max(0, self.sent - round(left))


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
        return self._items.setdefault(item_id, ItemPlayout())

    def forget(self, item_id: str) -> None:
        self._items.pop(item_id, None)

    def generated(self, item_id: str, samples: int) -> None:
        """The engine made ``samples`` more; they go to the wire at once."""
        item = self.item(item_id)
        item.generated += samples
        item.projected += samples

    def sent(self, item_id: str, samples: int, now: float) -> None:
        """The transport has written ``samples`` more."""
        if item_id not in self._items:
            return
        item = self._items[item_id]
        item.sent = min(item.sent + samples, item.projected)
        if item.cut is not None:
            return
        self._queue_ends_at = max(self._queue_ends_at, now) + samples / OUTPUT_SAMPLE_RATE
        item.ends_at = self._queue_ends_at

    def unplayed(self, now: float) -> bool:
        """True while something that was sent or is on its way has not been heard."""
        return now < self._queue_ends_at

    def interrupt(self, now: float) -> None:
        """The player has been stopped: whatever is unheard stays unheard. A later truncation may correct it."""
        for item in self._items.values():
            if item.cut is None and (item.ends_at is None or item.ends_at > now or item.sent < item.projected):
                item.cut = item.played(now)
        self._queue_ends_at = min(self._queue_ends_at, now)

    def stop(self, item_id: str) -> None:
        """Nothing more of this item will be sent: what has not been sent will not be heard."""
        item = self.item(item_id)
        if item.cut is None:
            item.cut = item.sent

    def heard(self, item_id: str) -> int | None:
        """Samples that were heard; None if all of it was or will be."""
        item = self._items.get(item_id)
        return None if item is None else item.cut

    def unsent(self, item_id: str) -> int:
        """Samples on their way to the wire."""
        item = self._items.get(item_id)
        return 0 if item is None else item.projected - item.sent

    def truncate(self, item_id: str, samples: int, now: float) -> int:
        """The client says that it played ``samples``. Returns what is believed: never more than was sent."""
        item = self.item(item_id)
        was_queued = item.cut is None and item.ends_at is not None and item.ends_at > now
        item.cut = min(samples, item.sent)
        if was_queued:
            self._queue_ends_at = min(self._queue_ends_at, now)
        return item.cut


class ReportedLedger(PlayoutLedger):
    """The ledger of a session whose sound leaves by a clock of ours (WebRTC): what is reported as sent is played."""

    def sent(self, item_id: str, samples: int, now: float) -> None:
        """The media track has played ``samples`` more."""
        if (item := self._items.get(item_id)) is not None:
            item.sent = min(item.sent + samples, item.projected)
            item.ends_at = self._queue_ends_at = now

    def unplayed(self, now: float) -> bool:
        return any(self.unheard())

    def unheard(self) -> Iterator[tuple[str, ItemPlayout]]:
        """Items of which something is still to be played."""
        return (
            (item_id, item) for item_id, item in self._items.items() if item.cut is None and item.sent < item.projected
        )

    def stop(self, item_id: str) -> None:
        """What has been generated is played to its end, unless the track is told to stop."""
