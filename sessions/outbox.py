"""Events on their way to the transport: in order, merged while the reader is slow, bounded by the sound they hold.

A delta joins a queued delta of the same part and kind, so a slow reader gets fewer and larger pieces and nothing is
lost or reordered within a part (``realtime-protocol`` O35). Events that end something are never held back or merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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

_Key = tuple[type[events.ServerEvent], str | int]
"""Kind and item (an item that a response makes has one part), or kind and time in a translation."""


@dataclass(slots=True)
class Outgoing:
    """An event, and the 24 kHz samples of sound in it."""

    event: events.ServerEvent
    samples: int = 0
    pieces: list[bytes] | list[str] = field(default_factory=list)
    """The deltas that it stands for; the event carries the first, unless it is :meth:`joined`."""

    def joined(self) -> Outgoing:
        if len(self.pieces) < 2:
            return self
        joined = self.pieces[0][:0].join(self.pieces)  # type: ignore[arg-type]
        return Outgoing(replace(self.event, delta=joined), self.samples)


class Outbox:
    """A queue of events for one writer."""

    def __init__(self) -> None:
        self.slots: list[Outgoing] = []
        """What waits, in order; for others to see whether there is anything."""
        self._open: dict[_Key, Outgoing] = {}
        self.audio_bytes = 0
        """Bytes of queued sound."""

    def __len__(self) -> int:
        return len(self.slots)

    def push(self, event: events.ServerEvent, samples: int = 0) -> None:
        kind = type(event)
        if not isinstance(event, DELTAS):
            # An event that is no delta is a barrier: what comes after it stays after it.
            self._open.clear()
            self.slots.append(Outgoing(event, samples))
            return
        if kind in SOUNDS:
            self.audio_bytes += len(event.delta)
        key = (kind, getattr(event, "elapsed_ms" if kind in TIMED else "item_id"))
        slot = self._open.get(key)
        if slot is None:
            slot = self._open[key] = Outgoing(event, 0)
            self.slots.append(slot)
        slot.samples += samples
        slot.pieces.append(event.delta)  # type: ignore[arg-type]

    def drop_audio(self, response_id: str) -> None:
        """Forget queued sound of a response; its words and everything else stay."""
        self._open.clear()
        kept = []
        for slot in self.slots:
            if isinstance(slot.event, events.OutputAudioDelta) and slot.event.response_id == response_id:
                self.audio_bytes -= sum(map(len, slot.pieces))
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
        count = 0
        for slot in self.slots:
            count += 1
            if type(slot.event) in SOUNDS:
                break
        return [slot.joined() for slot in self.slots[:count]]

    def drop(self, count: int) -> None:
        """Remove the first ``count`` events."""
        self._open.clear()
        for slot in self.slots[:count]:
            if type(slot.event) in SOUNDS:
                self.audio_bytes -= sum(map(len, slot.pieces))
        del self.slots[:count]
