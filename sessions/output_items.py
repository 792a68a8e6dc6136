"""The items that a response makes: an answer in words, and calls of functions. Each emits its own events in order.

Calls to MCP servers are in :mod:`duologue.sessions.mcp.outputs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from duologue.codecs.wire_audio import WireEncoder
from duologue.sessions import server_events as events
from duologue.sessions.items import FunctionCallItem, ItemStatus, MessageItem, OutputAudio, OutputText

Emit = Callable[..., None]
"""``emit(EventType, samples=0, **fields)``: sends an event with a fresh id."""
EmitAudio = Callable[[str, str, int, bytes, int], None]
"""``emit_audio(response_id, item_id, output_index, delta, samples)``: sends sound."""


@dataclass
class OutputItemBase:
    emit: Emit
    response_id: str
    id: str
    index: int
    """Place in the response's output."""
    status: ItemStatus = "in_progress"
    deleted: bool = False
    """The client has deleted it from the conversation while it was being made."""

    @property
    def open(self) -> bool:
        """Whether more of it is to come from the engine."""
        return self.status == "in_progress"

    @property
    def place(self) -> dict[str, Any]:
        return {"response_id": self.response_id, "item_id": self.id, "output_index": self.index}


@dataclass
class MessageOutput(OutputItemBase):
    """Words of the assistant, written or spoken: one content part."""

    emit_audio: EmitAudio | None = None
    encoder: WireEncoder | None = None
    """Makes the response's audio format. There for a spoken answer, as is ``emit_audio``."""
    text: list[str] = field(default_factory=list)
    _encoding: int = 0
    """Samples whose last bytes the encoder still holds."""

    @property
    def spoken(self) -> bool:
        return self.encoder is not None

    @property
    def item(self) -> MessageItem:
        """The item as it stands; without content while it is in progress."""
        if self.status == "in_progress":
            content: tuple[OutputAudio | OutputText, ...] = ()
        else:
            text = "".join(self.text)
            content = (OutputAudio(transcript=text),) if self.spoken else (OutputText(text=text),)
        return MessageItem(id=self.id, status=self.status, role="assistant", content=content)

    def begin(self) -> None:
        self.emit(events.ContentPartAdded, **self.place, content_index=0, part=self._part(""))

    def add_text(self, delta: str) -> None:
        self.text.append(delta)
        kind = events.OutputAudioTranscriptDelta if self.spoken else events.OutputTextDelta
        self.emit(kind, **self.place, content_index=0, delta=delta)

    def add_audio(self, pcm: bytes) -> None:
        """24 kHz PCM16; leaves in the response's own format."""
        if self.encoder is not None:
            self._encoding += len(pcm) // 2
            self._emit_audio(self.encoder.encode(pcm))

    def _emit_audio(self, data: bytes) -> None:
        if data:
            samples, self._encoding = self._encoding, 0
            assert self.emit_audio is not None
            self.emit_audio(self.response_id, self.id, self.index, data, samples)

    def end(self, *, flush: bool) -> None:
        """Close the part. ``flush``: what the audio encoder still holds is part of the answer."""
        text, place = "".join(self.text), {**self.place, "content_index": 0}
        if self.encoder is not None:
            if flush:
                self._emit_audio(self.encoder.flush())
            self.emit(events.OutputAudioDone, **place)
            self.emit(events.OutputAudioTranscriptDone, **place, transcript=text)
        else:
            self.emit(events.OutputTextDone, **place, text=text)
        self.emit(events.ContentPartDone, **place, part=self._part(text))

    def _part(self, text: str) -> events.ResponsePart:
        if self.spoken:
            return events.ResponsePart(type="audio", transcript=text)
        return events.ResponsePart(type="text", text=text)


@dataclass
class CallOutput(OutputItemBase):
    """A call of one of the client's functions. Its arguments arrive piece by piece."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def item(self) -> FunctionCallItem:
        """The item as it stands; without arguments while it is in progress."""
        arguments = "" if self.status == "in_progress" else "".join(self.arguments)
        return FunctionCallItem(
            id=self.id, status=self.status, name=self.name, arguments=arguments, call_id=self.call_id
        )

    def begin(self) -> None:
        """Nothing: name and ``call_id`` are in the item already."""

    def add_arguments(self, delta: str) -> None:
        self.arguments.append(delta)
        if delta:
            self.emit(events.FunctionCallArgumentsDelta, **self.place, call_id=self.call_id, delta=delta)

    def end(self, *, flush: bool) -> None:
        self.emit(
            events.FunctionCallArgumentsDone,
            **self.place,
            call_id=self.call_id,
            name=self.name,
            arguments="".join(self.arguments),
        )
