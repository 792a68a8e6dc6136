"""The conversation as its client sees it: turns, responses and when each step of them arrived.

A pure fold over received events, fed live by ``talk`` and the callers of a benchmark, and from a file when figures are
computed. Times are on whatever clock the events carry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from duologue.realtime.client import AUDIO_DELTA, Received, ServerMessage
from duologue.realtime.event_log import LogEntry

TEXT_DELTAS = ("response.output_audio_transcript.delta", "response.output_text.delta")
TRANSCRIPTION = "conversation.item.input_audio_transcription."


@dataclass
class Turn:
    """One turn of the user, from ``speech_started`` on."""

    item_id: str
    started_s: float
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None
    stopped_s: float | None = None
    committed_s: float | None = None
    transcript: str | None = None
    transcribed_s: float | None = None
    transcription_failed: bool = False


@dataclass(frozen=True)
class AudioChunk:
    """One audio delta; ``offset`` is its first sample's place in the audio of the whole connection."""

    at: float
    samples: int
    offset: int


@dataclass
class SeenResponse:
    """One response, with the turn that it answers: the last one committed before it was created."""

    response_id: str
    created_s: float
    turn_item_id: str | None
    item_ids: list[str] = field(default_factory=list)
    first_text_s: float | None = None
    text: str = ""
    audio: list[AudioChunk] = field(default_factory=list)
    done_s: float | None = None
    status: str | None = None
    reason: str | None = None
    output_tokens: int | None = None

    @property
    def first_audio_s(self) -> float | None:
        return self.audio[0].at if self.audio else None

    @property
    def samples(self) -> int:
        return sum(chunk.samples for chunk in self.audio)


class Conversation:
    """Folds events into turns and responses."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.responses: dict[str, SeenResponse] = {}
        self.errors: list[str] = []
        """``code: message`` of each ``error`` event."""
        self.last_activity_s: float | None = None
        """When the last ``input_audio_buffer.*`` or ``response.*`` event arrived."""
        self._last_committed: str | None = None
        self._audio_samples = 0

    @property
    def speech_open(self) -> bool:
        return any(turn.stopped_s is None and turn.committed_s is None for turn in self.turns.values())

    @property
    def response_open(self) -> bool:
        return any(response.done_s is None for response in self.responses.values())

    def responses_to(self, item_id: str) -> list[SeenResponse]:
        return [response for response in self.responses.values() if response.turn_item_id == item_id]

    def handle(self, received: Received) -> None:
        """Take one server event into account."""
        message = received.message
        if message.type.startswith(("input_audio_buffer.", "response.")):
            self.last_activity_s = received.at
        if message.type == "error" and message.error:
            self.errors.append(f"{message.error.code}: {message.error.message}")
        elif message.type.startswith("input_audio_buffer."):
            self._input(message, received.at)
        elif message.type.startswith(TRANSCRIPTION):
            self._transcription(message, received.at)
        elif message.type in ("response.created", "response.done") and message.response:
            self._response(message, received.at)
        elif message.response_id in self.responses:
            self._delta(self.responses[message.response_id], received)

    def _input(self, message: ServerMessage, at: float) -> None:
        if message.item_id is None:
            return
        turn = self.turns.get(message.item_id)
        if turn is None:
            turn = self.turns[message.item_id] = Turn(message.item_id, at)
        match message.type:
            case "input_audio_buffer.speech_started":
                turn.audio_start_ms = message.audio_start_ms
            case "input_audio_buffer.speech_stopped":
                turn.stopped_s = at
                turn.audio_end_ms = message.audio_end_ms
            case "input_audio_buffer.committed":
                turn.committed_s = at
                self._last_committed = message.item_id

    def _transcription(self, message: ServerMessage, at: float) -> None:
        turn = self.turns.get(message.item_id or "")
        if turn is None:
            return
        if message.type.endswith(".completed"):
            turn.transcript = message.transcript or ""
            turn.transcribed_s = at
        elif message.type.endswith(".failed"):
            turn.transcription_failed = True

    def _response(self, message: ServerMessage, at: float) -> None:
        view = message.response
        assert view is not None
        if message.type == "response.created":
            self.responses[view.id] = SeenResponse(view.id, at, self._last_committed)
        elif view.id in self.responses:
            response = self.responses[view.id]
            response.done_s = at
            response.status = view.status
            response.reason = view.status_details.reason if view.status_details else None
            response.output_tokens = view.usage.output_tokens if view.usage else None

    def _delta(self, response: SeenResponse, received: Received) -> None:
        message = received.message
        if message.item_id and message.item_id not in response.item_ids:
            response.item_ids.append(message.item_id)
        if message.type in TEXT_DELTAS and message.delta:
            response.text += message.delta
            if response.first_text_s is None:
                response.first_text_s = received.at
        elif message.type == AUDIO_DELTA and received.audio_bytes:
            samples = received.audio_bytes // 2
            response.audio.append(AudioChunk(received.at, samples, self._audio_samples))
            self._audio_samples += samples


def received_events(entries: Iterable[LogEntry]) -> Iterable[Received]:
    """The server's events of a log, as they were when they arrived (but for the audio itself)."""
    for entry in entries:
        if entry.dir == "s2c":
            yield Received(entry.t_s, msgspec.convert(entry.event, ServerMessage), entry.event.get("bytes", 0))
