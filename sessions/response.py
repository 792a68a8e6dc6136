"""One response from ``response.created`` to ``response.done``: the event sequence of ``realtime-protocol`` O15 to O20.

A response is created, opened by its first delta (which announces its item and part), and finished. Every path ends in
``finish``, which closes what is open and sends exactly one ``response.done``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from duologue.codecs.wire_audio import WireEncoder
from duologue.engine.requests import FinishReason, Usage
from duologue.sessions import server_events as events
from duologue.sessions.config import AudioFormat, MaxOutputTokens, OutputModality, encoding
from duologue.sessions.items import Item, ItemStatus, MessageItem, OutputAudio, OutputText

Emit = Callable[..., None]
"""``emit(EventType, samples=0, **fields)``: sends an event with a fresh id."""

Status = Literal["completed", "cancelled", "failed", "incomplete"]
CancelReason = Literal["turn_detected", "client_cancelled"]


class State(enum.Enum):
    CREATED = "created"
    OPEN = "open"
    DONE = "done"


TRANSITIONS: dict[tuple[State, Literal["open", "finish"]], State] = {
    (State.CREATED, "open"): State.OPEN,
    (State.CREATED, "finish"): State.DONE,
    (State.OPEN, "finish"): State.DONE,
}
"""Where each step leads; there are no other moves."""


@dataclass(frozen=True)
class Outcome:
    """How a response ended."""

    status: Status
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | UnsetType = UNSET
    error: str | None = None

    @classmethod
    def of(cls, reason: FinishReason, error: str | None) -> Outcome:
        """The outcome behind the engine's terminal delta."""
        match reason:
            case "completed":
                return cls("completed")
            case "length":
                return cls("incomplete", "max_output_tokens")
            case "aborted" | "failed":
                return cls("failed", error=error or "The request was aborted by the server.")


@dataclass(frozen=True)
class ResponseSettings:
    """The effective settings of one response."""

    modality: OutputModality
    audio_format: AudioFormat
    voice: str
    served_voice: str
    speed: float
    max_output_tokens: MaxOutputTokens
    instructions: str
    conversation_id: str | None
    metadata: dict[str, str] | None = None


@dataclass
class ResponseLifecycle:
    """Emits the events of one response in their order, and remembers what was said."""

    id: str
    settings: ResponseSettings
    emit: Emit
    state: State = State.CREATED
    request_id: str | None = None
    """The engine request behind it, once one is open."""
    item_id: str | None = None
    item_deleted: bool = False
    text: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._encoder = WireEncoder(encoding(self.settings.audio_format))
        self._status: ItemStatus = "in_progress"
        self._previous_item_id: str | None = None
        self.emit(events.ResponseCreated, response=self._snapshot("in_progress", None))

    @property
    def spoken(self) -> bool:
        return self.settings.modality == "audio"

    @property
    def item(self) -> Item:
        """The output item as it stands; without content while it is in progress."""
        if self._status == "in_progress":
            content: tuple[OutputAudio | OutputText, ...] = ()
        else:
            text = "".join(self.text)
            content = (OutputAudio(transcript=text),) if self.spoken else (OutputText(text=text),)
        return MessageItem(id=str(self.item_id), status=self._status, role="assistant", content=content)

    def open(self, item_id: str) -> Item:
        """Name the output item; :meth:`announce` follows once it stands in the conversation."""
        self.item_id, self.state = item_id, TRANSITIONS[self.state, "open"]
        return self.item

    def announce(self, previous_item_id: str | None) -> None:
        self._previous_item_id = previous_item_id
        self.emit(events.OutputItemAdded, response_id=self.id, output_index=0, item=self.item)
        self.emit(events.ItemAdded, previous_item_id=previous_item_id, item=self.item)
        self.emit(events.ContentPartAdded, **self._place(), part=self._part(""))

    def add_text(self, delta: str) -> None:
        self.text.append(delta)
        kind = events.OutputAudioTranscriptDelta if self.spoken else events.OutputTextDelta
        self.emit(kind, **self._place(), delta=delta)

    def add_audio(self, pcm: bytes) -> None:
        """24 kHz PCM16; leaves in the response's own format."""
        if data := self._encoder.encode(pcm):
            self.emit(events.OutputAudioDelta, samples=len(pcm) // 2, **self._place(), delta=data)

    def finish(self, outcome: Outcome) -> None:
        """Close what is open and say how it ended; nothing of this response follows."""
        was_open, self.state = self.state is State.OPEN, TRANSITIONS[self.state, "finish"]
        if was_open:
            self._status = "completed" if outcome.status == "completed" else "incomplete"
            self._close_part(flush=outcome.status in ("completed", "incomplete"))
            if not self.item_deleted:
                self.emit(events.ItemDone, previous_item_id=self._previous_item_id, item=self.item)
            self.emit(events.OutputItemDone, response_id=self.id, output_index=0, item=self.item)
        details = events.StatusDetails(type=outcome.status, reason=outcome.reason, error=_status_error(outcome))
        self.emit(events.ResponseDone, response=self._snapshot(outcome.status, details))

    def _close_part(self, flush: bool) -> None:
        text, place = "".join(self.text), self._place()
        if self.spoken:
            if flush and (rest := self._encoder.flush()):
                self.emit(events.OutputAudioDelta, **place, delta=rest)
            self.emit(events.OutputAudioDone, **place)
            self.emit(events.OutputAudioTranscriptDone, **place, transcript=text)
        else:
            self.emit(events.OutputTextDone, **place, text=text)
        self.emit(events.ContentPartDone, **place, part=self._part(text))

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> events.ResponsePart:
        if self.spoken:
            return events.ResponsePart(type="audio", transcript=text)
        return events.ResponsePart(type="text", text=text)

    def _snapshot(self, status: Any, details: events.StatusDetails | None) -> events.Response:
        settings = self.settings
        over = status != "in_progress"
        return events.Response(
            id=self.id,
            status=status,
            status_details=details,
            output=(self.item,) if self.item_id is not None and over else (),
            conversation_id=settings.conversation_id,
            output_modalities=(settings.modality,),
            max_output_tokens=settings.max_output_tokens,
            audio=events.ResponseAudio(
                output=events.ResponseAudioOutput(format=settings.audio_format, voice=settings.voice)
            ),
            metadata=settings.metadata,
            usage=_usage(self.usage) if over else None,
        )


def _status_error(outcome: Outcome) -> events.StatusError | UnsetType:
    if outcome.error is None:
        return UNSET
    return events.StatusError(type="server_error", code="server_error", message=outcome.error)


def _usage(usage: Usage) -> events.ResponseUsage:
    cached = events.CachedTokensDetails(text_tokens=usage.cached_tokens)
    return events.ResponseUsage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=events.InputTokenDetails(
            text_tokens=usage.input_tokens, cached_tokens=usage.cached_tokens, cached_tokens_details=cached
        ),
        output_token_details=events.OutputTokenDetails(text_tokens=usage.output_tokens),
    )
