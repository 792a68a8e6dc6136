"""Events on their way to the transport: in order, merged while the reader is slow, bounded by the sound they hold.

A delta joins a queued delta of the same part and kind, so a slow reader gets fewer and larger pieces and nothing is
lost or reordered within a part (``realtime-protocol`` O35). Events that end something are never held back or merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from duologue.sessions import server_events as events
from duologue.sessions.translation_events import TranslatedAudioDelta, TranslatedTextDelta

SOUNDS = (events.OutputAudioDelta, TranslatedAudioDelta)
TIMED = (TranslatedAudioDelta, TranslatedTextDelta)
DELTAS = (
    *SOUNDS,
    events.OutputAudioTranscriptDelta,
    events.OutputTextDelta,
    events.FunctionCallArgumentsDelta,
    events.McpCallArgumentsDelta,
    TranslatedTextDelta,
)


class Outgoing:
    """An event, and the 24 kHz samples of sound in it."""

    __slots__ = ("event", "pieces", "samples")

    def __init__(self, event: events.ServerEvent, samples: int = 0) -> None:
        self.event = event
        self.samples = samples
        self.pieces: list[Any] | None = None
        """The deltas that it stands for, once there is more than the event's own, unless it is :meth:`joined`."""

    @property
    def size(self) -> int:
        """Bytes of its sound."""
        return sum(map(len, self.pieces)) if self.pieces else len(self.event.delta)  # type: ignore[attr-defined]

    def joined(self) -> Outgoing:
        if self.pieces is None:
            return self
        joined = self.pieces[0][:0].join(self.pieces)
        return Outgoing(replace(self.event, delta=joined), self.samples)


class Outbox:
    """A queue of events for one writer."""

    def __init__(self) -> None:
        self.slots: list[Outgoing] = []
        """What waits, in order; for others to see whether there is anything."""
        self.audio_bytes = 0
        """Bytes of queued sound."""

    def __len__(self) -> int:
        return len(self.slots)

    def push(self, event: events.ServerEvent, samples: int = 0) -> None:
        if type(event) in SOUNDS:
            self.audio_bytes += len(event.delta)  # type: ignore[attr-defined]
        slot = self._open_for(event) if self.slots else None
        if slot is None:
            self.slots.append(Outgoing(event, samples))
            return
        slot.pieces = slot.pieces or [slot.event.delta]  # type: ignore[attr-defined]
        slot.pieces.append(event.delta)  # type: ignore[attr-defined]
        slot.samples += samples

    def _open_for(self, event: events.ServerEvent) -> Outgoing | None:
        """The delta that waits for an event to join it. What is no delta is a barrier: what comes after stays after."""
        kind = type(event)
        if kind in DELTAS:
            for slot in reversed(self.slots):
                if type(slot.event) not in DELTAS:
                    break
                if type(slot.event) is kind and _part(slot.event) == _part(event):
                    return slot
        return None

    def drop_audio(self, response_id: str) -> None:
        """Forget queued sound of a response; its words and everything else stay."""
        kept = []
        for slot in self.slots:
            if isinstance(slot.event, events.OutputAudioDelta) and slot.event.response_id == response_id:
                self.audio_bytes -= slot.size
            else:
                kept.append(slot)
        self.slots = kept

    def take(self) -> Sequence[Outgoing]:
        """Remove and return what :meth:`peek` gives."""
        batch = self.peek()
        self.drop(len(batch))
        return batch

    def peek(self) -> Sequence[Outgoing]:
        """Everything up to and including the next sound: little enough that an interruption still finds the rest."""
        if len(self.slots) == 1 and self.slots[0].pieces is None:  # nearly always
            return (self.slots[0],)
        count = 0
        for slot in self.slots:
            count += 1
            if type(slot.event) in SOUNDS:
                break
        return [*map(Outgoing.joined, self.slots[:count])]

    def drop(self, count: int) -> None:
        """Remove the first ``count`` events."""
        if count == len(self.slots):  # nearly always: what comes is written at once
            self.slots, self.audio_bytes = [], 0
            return
        for slot in self.slots[:count]:
            if type(slot.event) in SOUNDS:
                self.audio_bytes -= slot.size
        del self.slots[:count]


def _part(event: events.ServerEvent) -> Any:
    """What of one kind belongs together: an item (what a response makes has one part), or a time in a translation."""
    return getattr(event, "elapsed_ms" if type(event) in TIMED else "item_id")
