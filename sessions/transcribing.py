"""Turning the user's sound into words: recogniser requests, and what the client is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from duologue.engine.requests import Delta, Finished, TokenLogprob, Transcribe, TranscriptDelta
from duologue.sessions import server_events as events
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.listening import Utterance


@dataclass
class Words:
    """What a recogniser has said so far."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    language: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    def add(self, delta: TranscriptDelta) -> None:
        self.pieces.append(delta.text)
        self.logprobs += delta.logprobs
        self.language = delta.language or self.language


@dataclass
class Transcription:
    """A recogniser request for an item."""

    entry: Entry
    seconds: float
    words: Words = field(default_factory=Words)


class Transcribing:
    """Owns the transcriptions under way."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._open: dict[str, Transcription] = {}

    def owns(self, request_id: str) -> bool:
        return request_id in self._open

    def begin(self, entry: Entry) -> None:
        """Have an item's sound turned into words, unless that is under way."""
        recording = entry.recording
        if recording is None or not recording.pcm:
            entry.transcript = entry.transcript or ""
        elif not any(transcription.entry is entry for transcription in self._open.values()):
            utterance = Utterance(bytes(recording.pcm), recording.sample_rate)
            self.adopt(self._core.open_request(self.payload(utterance)), Transcription(entry, utterance.seconds))

    def adopt(self, request_id: str, transcription: Transcription) -> None:
        """Take over a request that is already open."""
        self._open[request_id] = transcription

    def output(self, request_id: str, delta: Delta) -> Entry | None:
        """Take what the recogniser says; returns the item whose words have become known (or will not be)."""
        transcription = self._open[request_id]
        if isinstance(delta, TranscriptDelta):
            transcription.words.add(delta)
        if not isinstance(delta, Finished):
            return None
        del self._open[request_id]
        entry = transcription.entry
        if delta.reason == "failed":
            self._failed(entry)
        else:
            self.complete(entry, transcription.words, transcription.seconds)
        return entry

    def complete(self, entry: Entry, words: Words, seconds: float) -> None:
        """An item's words are known."""
        transcript = entry.transcript = words.text
        if self._core.conversation.find(entry.id) is entry:
            self._core.conversation.version += 1
        if not self._announced(entry) or not isinstance(entry.item, MessageItem):
            return
        index = _sound_of(entry.item)
        content = list(entry.item.content)
        content[index] = InputAudio(transcript=transcript)
        entry.item = replace(entry.item, content=tuple(content))
        place: dict[str, Any] = {"item_id": entry.id, "content_index": index}
        logprobs = self._logprobs(words)
        if transcript:
            self._core.emit(events.TranscriptionDelta, **place, delta=transcript, logprobs=logprobs)
        self._core.emit(
            events.TranscriptionCompleted,
            **place,
            transcript=transcript,
            usage=events.TranscriptionUsage(seconds=round(seconds, 3)),
            languages=UNSET if words.language is None else (events.Language(code=words.language),),
            logprobs=logprobs,
        )

    def _logprobs(self, words: Words) -> tuple[events.Logprob, ...] | UnsetType:
        """What the session's ``include`` asks for."""
        if not self._core.session.include:
            return UNSET
        return tuple(
            events.Logprob(token=logprob.token, logprob=round(logprob.logprob, 6), bytes=tuple(logprob.bytes))
            for logprob in words.logprobs
        )

    def payload(self, utterance: Utterance) -> Transcribe:
        transcription = self._core.session.audio.input.transcription
        language = transcription.language if transcription is not None else UNSET
        prompt = transcription.prompt if transcription is not None else UNSET
        return Transcribe(
            audio=utterance.pcm,
            sample_rate=utterance.sample_rate,
            language=None if language is UNSET else language,
            prompt=None if prompt is UNSET else prompt,
            logprobs=bool(self._core.session.include),
        )

    def _failed(self, entry: Entry) -> None:
        entry.transcript = ""
        if self._announced(entry) and isinstance(entry.item, MessageItem):
            place: dict[str, Any] = {"item_id": entry.id, "content_index": _sound_of(entry.item)}
            self._core.emit(events.TranscriptionFailed, **place, error=events.TranscriptionErrorBody())

    def _announced(self, entry: Entry) -> bool:
        """Whether the client has asked for transcripts and knows the item."""
        wanted = self._core.session.audio.input.transcription is not None
        return wanted and self._core.conversation.find(entry.id) is entry


def _sound_of(item: MessageItem) -> int:
    """Which part of a message is its sound."""
    return next(index for index, part in enumerate(item.content) if isinstance(part, InputAudio))
