"""What a session says, in the GA dialect's own terms (``realtime-protocol`` section 3): the core's output vocabulary.

Keys that may be null are ``| None`` and always present; keys that may be absent are ``| UnsetType``. Audio is bytes
here and base64 on the wire.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from duologue.sessions.config import AnySession, AudioFormat, OutputModality
from duologue.sessions.items import Item, ItemId


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: str


# -- shared parts ------------------------------------------------------------------------------------------------------


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["invalid_request_error", "server_error"]
    code: str | None = None
    message: str
    param: str | None = None
    event_id: str | None = None


class TranscriptionErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "transcription_error"
    code: str = "audio_unintelligible"
    message: str = "The audio could not be transcribed."


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class Language(msgspec.Struct, frozen=True, kw_only=True):
    code: str


class TranscriptionUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    seconds: float


class CachedTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokenDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: CachedTokensDetails = CachedTokensDetails()


class OutputTokenDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int = 0
    audio_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: InputTokenDetails = InputTokenDetails()
    output_token_details: OutputTokenDetails = OutputTokenDetails()


class StatusError(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    code: str
    message: str


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["completed", "cancelled", "failed", "incomplete"]
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"] | UnsetType = UNSET
    error: StatusError | UnsetType = UNSET


class ResponseAudioOutput(msgspec.Struct, frozen=True, kw_only=True):
    format: AudioFormat
    voice: str


class ResponseAudio(msgspec.Struct, frozen=True, kw_only=True):
    output: ResponseAudioOutput


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
    status_details: StatusDetails | None = None
    output: tuple[Item, ...] = ()
    conversation_id: str | None
    output_modalities: tuple[OutputModality, ...]
    max_output_tokens: int | Literal["inf"]
    audio: ResponseAudio
    metadata: dict[str, str] | None = None
    usage: ResponseUsage | None = None


class ResponsePart(msgspec.Struct, frozen=True, kw_only=True):
    """The ``part`` of ``response.content_part.*``; its types are ``audio`` and ``text``, not the item's."""

    type: Literal["audio", "text"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


# -- session and errors ------------------------------------------------------------------------------------------------


class ErrorEvent(ServerEvent, frozen=True, tag="error"):
    error: ErrorBody


class SessionCreated(ServerEvent, frozen=True, tag="session.created"):
    session: AnySession


class SessionUpdated(ServerEvent, frozen=True, tag="session.updated"):
    session: AnySession


# -- conversation ------------------------------------------------------------------------------------------------------


class ItemAdded(ServerEvent, frozen=True, tag="conversation.item.added"):
    previous_item_id: ItemId | None
    item: Item


class ItemDone(ServerEvent, frozen=True, tag="conversation.item.done"):
    previous_item_id: ItemId | None
    item: Item


class ItemRetrieved(ServerEvent, frozen=True, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(ServerEvent, frozen=True, tag="conversation.item.deleted"):
    item_id: ItemId


class ItemTruncated(ServerEvent, frozen=True, tag="conversation.item.truncated"):
    item_id: ItemId
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.delta"):
    item_id: ItemId
    content_index: int
    delta: str
    logprobs: tuple[Logprob, ...] | UnsetType = UNSET


class TranscriptionCompleted(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.completed"):
    item_id: ItemId
    content_index: int
    transcript: str
    usage: TranscriptionUsage
    languages: tuple[Language, ...] | UnsetType = UNSET
    logprobs: tuple[Logprob, ...] | UnsetType = UNSET


class TranscriptionFailed(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.failed"):
    item_id: ItemId
    content_index: int
    error: TranscriptionErrorBody


# -- input audio -------------------------------------------------------------------------------------------------------


class InputAudioCommitted(ServerEvent, frozen=True, tag="input_audio_buffer.committed"):
    item_id: ItemId
    previous_item_id: ItemId | None


class InputAudioCleared(ServerEvent, frozen=True, tag="input_audio_buffer.cleared"):
    pass


class SpeechStarted(ServerEvent, frozen=True, tag="input_audio_buffer.speech_started"):
    audio_start_ms: int
    item_id: ItemId


class SpeechStopped(ServerEvent, frozen=True, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: ItemId


class IdleTimeoutTriggered(ServerEvent, frozen=True, tag="input_audio_buffer.timeout_triggered"):
    audio_start_ms: int
    audio_end_ms: int
    item_id: ItemId


class DtmfReceived(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.dtmf_event_received"):
    """The only event without an id (O3). ``received_at``: seconds since 1970."""

    event_id: UnsetType = UNSET  # type: ignore[assignment]
    event: str
    received_at: int


class OutputAudioStarted(ServerEvent, frozen=True, tag="output_audio_buffer.started"):
    """These three: only where the server owns the clock of the playout, over WebRTC."""

    response_id: str


class OutputAudioStopped(ServerEvent, frozen=True, tag="output_audio_buffer.stopped"):
    response_id: str


class OutputAudioCleared(ServerEvent, frozen=True, tag="output_audio_buffer.cleared"):
    response_id: str


# -- responses ---------------------------------------------------------------------------------------------------------


class ResponseCreated(ServerEvent, frozen=True, tag="response.created"):
    response: Response


class ResponseDone(ServerEvent, frozen=True, tag="response.done"):
    response: Response


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    name: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerEvent, frozen=True, tag="rate_limits.updated"):
    rate_limits: tuple[RateLimit, ...]


class OfResponse(ServerEvent, frozen=True):
    response_id: str


class OutputItemAdded(OfResponse, frozen=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(OfResponse, frozen=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class OfItem(OfResponse, frozen=True):
    item_id: ItemId
    output_index: int


class OfPart(OfItem, frozen=True):
    content_index: int


class ContentPartAdded(OfPart, frozen=True, tag="response.content_part.added"):
    part: ResponsePart


class ContentPartDone(OfPart, frozen=True, tag="response.content_part.done"):
    part: ResponsePart


class OutputTextDelta(OfPart, frozen=True, tag="response.output_text.delta"):
    delta: str


class OutputTextDone(OfPart, frozen=True, tag="response.output_text.done"):
    text: str


class OutputAudioTranscriptDelta(OfPart, frozen=True, tag="response.output_audio_transcript.delta"):
    delta: str


class OutputAudioTranscriptDone(OfPart, frozen=True, tag="response.output_audio_transcript.done"):
    transcript: str


class OutputAudioDelta(OfPart, frozen=True, tag="response.output_audio.delta"):
    delta: bytes


class OutputAudioDone(OfPart, frozen=True, tag="response.output_audio.done"):
    pass


class FunctionCallArgumentsDelta(OfItem, frozen=True, tag="response.function_call_arguments.delta"):
    call_id: str
    delta: str


class FunctionCallArgumentsDone(OfItem, frozen=True, tag="response.function_call_arguments.done"):
    call_id: str
    name: str
    arguments: str


class OfMcpList(ServerEvent, frozen=True):
    item_id: ItemId


class McpListToolsInProgress(OfMcpList, frozen=True, tag="mcp_list_tools.in_progress"):
    pass


class McpListToolsCompleted(OfMcpList, frozen=True, tag="mcp_list_tools.completed"):
    pass


class McpListToolsFailed(OfMcpList, frozen=True, tag="mcp_list_tools.failed"):
    pass


class McpCallArgumentsDelta(OfItem, frozen=True, tag="response.mcp_call_arguments.delta"):
    delta: str
    obfuscation: str = ""
    """Nothing is hidden; the JavaScript agents client ignores the event without the key."""


class McpCallArgumentsDone(OfItem, frozen=True, tag="response.mcp_call_arguments.done"):
    arguments: str


class OfMcpCall(ServerEvent, frozen=True):
    output_index: int
    item_id: ItemId


class McpCallInProgress(OfMcpCall, frozen=True, tag="response.mcp_call.in_progress"):
    pass


class McpCallCompleted(OfMcpCall, frozen=True, tag="response.mcp_call.completed"):
    pass


class McpCallFailed(OfMcpCall, frozen=True, tag="response.mcp_call.failed"):
    pass


# -- extension "interruption" ------------------------------------------------------------------------------------------


class OfInterruption(ServerEvent, frozen=True):
    response_id: str
    item_id: ItemId


class InterruptionPending(OfInterruption, frozen=True, tag="x.interruption.pending"):
    """The user speaks over the answer, which pauses until it is known whether it is meant."""

    audio_start_ms: int


class InterruptionDismissed(OfInterruption, frozen=True, tag="x.interruption.dismissed"):
    """It was not, and the answer goes on at its next sample."""

    audio_end_ms: int
    transcript: str
    """What was heard; empty if it held no words."""
