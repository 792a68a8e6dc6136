"""The output half of the session core: from a committed utterance to a response, and what was heard of it.

A turn that the detector ended is answered once its words are known; one without words is not answered. While a pause
of the user might be the end, the answer is prepared in secret (:class:`Speculation`): recogniser, language model,
talker and codec run, their output is held back. When the end is confirmed it is released in the same step; when the
user goes on it is aborted, and nothing of it was sent, entered the conversation or is counted.

Every engine request has an id of its own. What comes back under an id that is no longer known here is stale and
dropped: that is the fence behind which an interrupted answer cannot reach the client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    ChatMessage,
    Converse,
    Delta,
    EngineRequest,
    Finished,
    Payload,
    TextDelta,
    Transcribe,
    TranscriptDelta,
)
from duologue.sessions import server_events as events
from duologue.sessions.config import ResponseOverrides, ServerVad
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbortRequest, DropAudio, OpenRequest
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputAudio, MessageItem, OutputAudio
from duologue.sessions.listening import Utterance
from duologue.sessions.response import CancelReason, Outcome, ResponseLifecycle, ResponseSettings, State

TRUNCATE_TOLERANCE_MS = 20
"""A truncation may name up to one frame more than was made: clients round."""


@dataclass
class Transcription:
    """A recogniser request for an item of the conversation."""

    item_id: str
    seconds: float
    pieces: list[str] = field(default_factory=list)


@dataclass
class Speculation:
    """An answer in preparation for a turn that has not been confirmed to be over."""

    transcribe_id: str
    seconds: float
    pieces: list[str] = field(default_factory=list)
    transcript: str | None = None
    converse_id: str | None = None
    premise: tuple[int, int] | None = None
    """Versions of conversation and settings that the answer rests on."""
    settings: ResponseSettings | None = None
    held: list[Delta] = field(default_factory=list)


class Answering:
    """Owns the active response, the transcriptions under way, and the speculation."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._active: ResponseLifecycle | None = None
        self._transcriptions: dict[str, Transcription] = {}
        self._speculation: Speculation | None = None
        self._unanswered: str | None = None
        self.voice_used = False
        """True once sound has been sent: the voice is fixed from then on."""
        self.idle_since: float | None = None
        """When the last answer's sound has been (or will have been) played; None while something goes on."""
        self.speculations_wasted = 0

    @property
    def busy(self) -> bool:
        """True while an answer is being made or is about to be."""
        return self._active is not None or self._unanswered is not None

    @property
    def responding(self) -> bool:
        return self._active is not None

    # -- turns of the user (TurnListener) ------------------------------------------------------------------------------

    def turn_started(self, now: float) -> None:
        self.idle_since = None
        detection = self._core.session.audio.input.turn_detection
        if detection is None or not detection.interrupt_response:
            return
        self._unanswered = None
        if self._active is not None or self._core.ledger.unplayed(now):
            self._core.ledger.interrupt(now)
            self._core.conversation.version += 1
        if self._active is not None:
            self._cancel(self._active, "turn_detected", now)

    def turn_paused(self, utterance: Utterance, now: float) -> None:
        detection = self._core.session.audio.input.turn_detection
        if detection is None or not detection.create_response or self.busy or self._speculation is not None:
            return
        if self._core.context.may_speculate():
            request_id = self._open(self._transcribe(utterance))
            self._speculation = Speculation(request_id, _seconds(utterance))

    def turn_resumed(self) -> None:
        speculation, self._speculation = self._speculation, None
        if speculation is None:
            return
        self.speculations_wasted += 1
        for request_id in (speculation.transcribe_id, speculation.converse_id):
            if request_id is not None:
                self._core.effects.append(AbortRequest(request_id))

    def turn_committed(self, entry: Entry, now: float) -> None:
        detection = self._core.session.audio.input.turn_detection
        speculation, self._speculation = self._speculation, None
        if speculation is not None and not self._still_holds(speculation):
            self._abandon(speculation)
            speculation.converse_id = None
        if speculation is None:
            self.transcribe(entry)
        elif speculation.transcript is None:
            transcription = Transcription(entry.id, speculation.seconds, speculation.pieces)
            self._transcriptions[speculation.transcribe_id] = transcription
        else:
            self._transcribed(entry, speculation.transcript, speculation.seconds)
        if detection is None or not detection.create_response:
            return
        self._unanswered = entry.id
        if entry.transcript is not None:
            self._answer(entry, now, speculation)

    # -- what the client asks for --------------------------------------------------------------------------------------

    def create(self, overrides: ResponseOverrides, now: float) -> None:
        """Begin a response in the default conversation."""
        if self._active is not None:
            raise _already_active(self._active)
        settings = self._settings(overrides)
        self._unanswered = None
        self.idle_since = None
        self._active = self._begin(settings)
        self._pursue()

    def cancel(self, response_id: str | None, now: float) -> None:
        if self._active is None or response_id not in (None, self._active.id):
            raise ProtocolError("response_cancel_not_active", "Cancellation failed: no active response found")
        self._cancel(self._active, "client_cancelled", now)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int, now: float) -> None:
        """The client has played ``audio_end_ms`` of an item and no more."""
        core = self._core
        generated = core.ledger.item(item_id).generated if item_id in core.ledger else 0
        generated_ms = generated * 1000 // OUTPUT_SAMPLE_RATE
        if core.conversation.find(item_id) is not None and audio_end_ms > generated_ms + TRUNCATE_TOLERANCE_MS:
            message = f"Audio content of {generated_ms}ms is already shorter than {audio_end_ms}ms"
            raise ProtocolError("invalid_value", message, "audio_end_ms")
        entry = core.conversation.truncate(item_id, content_index)
        heard = core.ledger.truncate(item_id, audio_end_ms * OUTPUT_SAMPLE_RATE // 1000, now)
        if entry.recording is not None:
            del entry.recording.pcm[heard * 2 :]
        core.emit(events.ItemTruncated, item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms)

    def deleted(self, item_id: str) -> None:
        """An item has left the conversation."""
        if self._active is not None and self._active.item_id == item_id:
            self._active.item_deleted = True
        if self._unanswered == item_id:
            self._unanswered = None
        self._core.ledger.forget(item_id)
        self._pursue()

    def transcribe(self, entry: Entry) -> None:
        """Have an item's sound turned into words."""
        recording = entry.recording
        if recording is None or not recording.pcm:
            entry.transcript = entry.transcript or ""
            return
        utterance = Utterance(bytes(recording.pcm), recording.sample_rate)
        request_id = self._open(self._transcribe(utterance))
        self._transcriptions[request_id] = Transcription(entry.id, _seconds(utterance))

    # -- what the engine says ------------------------------------------------------------------------------------------

    def engine_output(self, request_id: str, delta: Delta, now: float) -> None:
        speculation = self._speculation
        if request_id in self._transcriptions:
            self._transcription_output(request_id, delta, now)
        elif self._active is not None and request_id == self._active.request_id:
            self._response_output(self._active, delta, now)
        elif speculation is not None and request_id == speculation.transcribe_id:
            self._speculative_words(speculation, delta)
        elif speculation is not None and request_id == speculation.converse_id:
            speculation.held.append(delta)

    def _transcription_output(self, request_id: str, delta: Delta, now: float) -> None:
        transcription = self._transcriptions[request_id]
        if isinstance(delta, TranscriptDelta):
            transcription.pieces.append(delta.text)
        if not isinstance(delta, Finished):
            return
        del self._transcriptions[request_id]
        entry = self._core.conversation.find(transcription.item_id)
        if entry is not None:
            if delta.reason == "failed":
                self._not_transcribed(entry)
            else:
                self._transcribed(entry, "".join(transcription.pieces).strip(), transcription.seconds)
            if self._unanswered == entry.id:
                self._answer(entry, now)
        self._pursue()

    def _not_transcribed(self, entry: Entry) -> None:
        entry.transcript = ""
        if self._core.session.audio.input.transcription is not None:
            error = events.TranscriptionErrorBody()
            self._core.emit(events.TranscriptionFailed, item_id=entry.id, content_index=0, error=error)

    def _transcribed(self, entry: Entry, transcript: str, seconds: float) -> None:
        entry.transcript = transcript
        self._core.conversation.version += 1
        if self._core.session.audio.input.transcription is None or not isinstance(entry.item, MessageItem):
            return
        index = next(i for i, part in enumerate(entry.item.content) if isinstance(part, InputAudio))
        content = list(entry.item.content)
        content[index] = InputAudio(transcript=transcript)
        entry.item = replace(entry.item, content=tuple(content))
        place: dict[str, Any] = {"item_id": entry.id, "content_index": index}
        if transcript:
            self._core.emit(events.TranscriptionDelta, **place, delta=transcript)
        usage = events.TranscriptionUsage(seconds=round(seconds, 3))
        self._core.emit(events.TranscriptionCompleted, **place, transcript=transcript, usage=usage)

    def _response_output(self, response: ResponseLifecycle, delta: Delta, now: float) -> None:
        match delta:
            case TextDelta(text=text):
                entry = self._output_entry(response)
                response.add_text(text)
                if entry is not None:
                    entry.spoken_text += text
            case AudioDelta(pcm=pcm, words=words):
                entry = self._output_entry(response)
                self._core.ledger.generated(str(response.item_id), len(pcm) // 2)
                response.add_audio(pcm)
                self.voice_used = True
                if entry is not None:
                    entry.words.extend(words)
                    self._core.conversation.keep_audio(entry, pcm)
            case Finished(reason=reason, usage=usage, error=error):
                response.usage = usage
                if reason in ("failed", "aborted"):
                    self._core.emit_server_error(error or "The answer could not be finished.")
                self._finish(response, Outcome.of(reason, error), now)

    # -- how a response goes -------------------------------------------------------------------------------------------

    def _answer(self, entry: Entry, now: float, speculation: Speculation | None = None) -> None:
        """Create the response that a detected turn calls for, from what was prepared if that still holds."""
        self._unanswered = None
        if not entry.transcript:
            self._abandon(speculation)
            return
        if self._active is not None:
            self._abandon(speculation)
            self._core.emit_error(_already_active(self._active))
            return
        self.idle_since = None
        if speculation is None or speculation.converse_id is None or speculation.settings is None:
            self._active = self._begin(self._settings(ResponseOverrides()))
            self._pursue()
            return
        self._active = self._begin(speculation.settings)
        self._active.request_id = speculation.converse_id
        for delta in speculation.held:
            if self._active is not None:
                self._response_output(self._active, delta, now)

    def _still_holds(self, speculation: Speculation) -> bool:
        """Whether nothing but the turn itself has changed since the answer was begun."""
        present = (self._core.conversation.version - 1, self._core.settings_version)
        return speculation.premise is None or speculation.premise == present

    def _abandon(self, speculation: Speculation | None) -> None:
        if speculation is not None and speculation.converse_id is not None:
            self.speculations_wasted += 1
            self._core.effects.append(AbortRequest(speculation.converse_id))

    def _speculative_words(self, speculation: Speculation, delta: Delta) -> None:
        if isinstance(delta, TranscriptDelta):
            speculation.pieces.append(delta.text)
        if not isinstance(delta, Finished):
            return
        if delta.reason == "failed":
            self.turn_resumed()
            return
        speculation.transcript = "".join(speculation.pieces).strip()
        if not speculation.transcript or self.busy:
            return
        speculation.settings = self._settings(ResponseOverrides())
        speculation.premise = (self._core.conversation.version, self._core.settings_version)
        user = ChatMessage(role="user", text=speculation.transcript)
        messages = (*self._messages(speculation.settings), user)
        speculation.converse_id = self._open(self._converse(speculation.settings, messages))

    def _begin(self, settings: ResponseSettings) -> ResponseLifecycle:
        return ResponseLifecycle(self._core.context.ids("resp"), settings, self._core.emit)

    def _pursue(self) -> None:
        """Open the active response's request as soon as every utterance in its context has its words."""
        response = self._active
        if response is None or response.request_id is not None:
            return
        waiting = False
        for entry in self._core.conversation:
            if entry.awaits_transcript and not self._transcription_of(entry.id):
                self.transcribe(entry)
            waiting = waiting or entry.awaits_transcript
        if not waiting:
            messages = self._messages(response.settings)
            response.request_id = self._open(self._converse(response.settings, messages))

    def _output_entry(self, response: ResponseLifecycle) -> Entry | None:
        """The conversation's entry of a response's output item, made at its first delta; None once it was deleted."""
        if response.state is State.CREATED:
            item_id = self._core.context.ids("item")
            entry = Entry(response.open(item_id))
            self._core.conversation.insert(entry)
            if response.spoken:
                self._core.ledger.item(item_id)
            response.announce(self._core.conversation.previous_id(item_id))
            return entry
        return self._core.conversation.find(str(response.item_id))

    def _cancel(self, response: ResponseLifecycle, reason: CancelReason, now: float) -> None:
        if response.request_id is not None:
            self._core.effects.append(AbortRequest(response.request_id))
        self._core.effects.append(DropAudio(response.id))
        self._finish(response, Outcome("cancelled", reason), now)

    def _finish(self, response: ResponseLifecycle, outcome: Outcome, now: float) -> None:
        response.finish(outcome)
        self._active = None
        core, item_id = self._core, str(response.item_id)
        entry = core.conversation.find(item_id) if response.item_id is not None else None
        if entry is not None:
            entry.item = response.item
            if entry.truncated and isinstance(entry.item, MessageItem):
                entry.item = replace(entry.item, content=(OutputAudio(),))
            core.conversation.version += 1
        if response.spoken and outcome.status in ("cancelled", "failed") and item_id in core.ledger:
            core.ledger.stop(item_id)
        unsent = core.ledger.unsent(item_id) if outcome.status in ("completed", "incomplete") else 0
        self.idle_since = max(now, core.ledger.queue_ends_at) + unsent / OUTPUT_SAMPLE_RATE

    # -- requests ------------------------------------------------------------------------------------------------------

    def _open(self, payload: Payload) -> str:
        request_id = self._core.context.ids("req")
        request = EngineRequest(request_id=request_id, session_id=self._core.session.id, payload=payload)
        self._core.effects.append(OpenRequest(request))
        return request_id

    def _transcribe(self, utterance: Utterance) -> Transcribe:
        transcription = self._core.session.audio.input.transcription
        language = transcription.language if transcription is not None else UNSET
        prompt = transcription.prompt if transcription is not None else UNSET
        return Transcribe(
            audio=utterance.pcm,
            sample_rate=utterance.sample_rate,
            language=None if language is UNSET else language,
            prompt=None if prompt is UNSET else prompt,
        )

    def _converse(self, settings: ResponseSettings, messages: tuple[ChatMessage, ...]) -> Converse:
        limit = settings.max_output_tokens
        return Converse(
            messages=messages,
            modalities=("text", "audio") if settings.modality == "audio" else ("text",),
            max_output_tokens=limit if isinstance(limit, int) else None,
            voice=settings.served_voice,
            speed=settings.speed,
        )

    def _messages(self, settings: ResponseSettings) -> tuple[ChatMessage, ...]:
        return self._core.conversation.messages(settings.instructions, self._core.ledger.heard)

    def _settings(self, overrides: ResponseOverrides) -> ResponseSettings:
        """The session's settings with a response's own put in."""
        session, output = self._core.session, overrides.audio.output
        if overrides.conversation == "none" or overrides.input is not UNSET:
            param = "response.conversation" if overrides.conversation == "none" else "response.input"
            raise ProtocolError("invalid_value", "Out-of-band responses are not available yet.", param)
        modalities = session.output_modalities if overrides.output_modalities is UNSET else overrides.output_modalities
        voice = session.audio.output.voice if output.voice is UNSET else output.voice
        limit = session.max_output_tokens if overrides.max_output_tokens is UNSET else overrides.max_output_tokens
        names = self._core.context.names
        return ResponseSettings(
            modality=modalities[0],
            audio_format=session.audio.output.format if output.format is UNSET else output.format,
            voice=voice,
            served_voice=names.resolve("voices", voice, "response.audio.output.voice"),
            speed=session.audio.output.speed,
            max_output_tokens=limit,
            instructions=session.instructions if overrides.instructions is UNSET else overrides.instructions,
            conversation_id=self._core.conversation_id,
            metadata=overrides.metadata,
        )

    def _transcription_of(self, item_id: str) -> bool:
        return any(transcription.item_id == item_id for transcription in self._transcriptions.values())


def idle_timeout_s(core: SessionCore) -> float | None:
    """The session's idle timeout in seconds; None where there is none."""
    detection = core.session.audio.input.turn_detection
    if not isinstance(detection, ServerVad) or detection.idle_timeout_ms is None:
        return None
    return detection.idle_timeout_ms / 1000


def _seconds(utterance: Utterance) -> float:
    return len(utterance.pcm) / 2 / utterance.sample_rate


def _already_active(response: ResponseLifecycle) -> ProtocolError:
    message = (
        f"Conversation already has an active response in progress: {response.id}. "
        "Wait until the response is finished before creating a new one."
    )
    return ProtocolError("conversation_already_has_active_response", message)
