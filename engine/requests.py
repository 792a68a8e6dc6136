"""What crosses the border between a session and the engine: requests in, deltas out.

Everything here is plain, frozen data, safe to hand between threads and to send between processes. This module
imports no inference library, so that the session core may use it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Modality = Literal["text", "audio"]
FinishReason = Literal["completed", "length", "aborted", "failed"]
AbortReason = Literal["client_abort", "client_disconnect", "superseded", "unknown"]
"""Why a reader ends a request: its client cancelled or interrupted it, has gone, never knew of it (it was prepared in
vain), or something else."""

OUTPUT_SAMPLE_RATE = 24_000
"""Rate in hertz of every :class:`AudioDelta`; word positions and playout are counted in samples at this rate."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the structs of this module."""


class ToolCall(Frozen, frozen=True):
    """A call that a language model has made of one of its tools."""

    call_id: str
    name: str
    arguments: str
    """A JSON object as text, as the model wrote it."""


class ChatMessage(Frozen, frozen=True):
    """One message of the conversation as a language model is shown it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant's message; each is followed by a message of role ``tool`` with its result."""
    tool_call_id: str | None = None
    """Of a message of role ``tool``: the call of which ``text`` is the result."""


class Tool(Frozen, frozen=True):
    """A function that the language model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of its arguments; empty: it takes none."""


class NamedTool(Frozen, frozen=True):
    """The choice of one tool that has to be called."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool
ReasoningEffort = Literal["minimal", "low", "medium", "high", "xhigh"]


class Transcribe(Frozen, frozen=True, tag="transcribe"):
    """Turn recorded speech into words (enters at the recogniser)."""

    audio: bytes
    """Mono PCM, signed 16-bit little-endian."""
    sample_rate: int
    language: str | None = None
    prompt: str | None = None


class Converse(Frozen, frozen=True, tag="converse"):
    """Answer a conversation (enters at the language model)."""

    messages: tuple[ChatMessage, ...]
    modalities: tuple[Modality, ...] = ("text", "audio")
    """``("text",)`` stops after the language model; with ``"audio"`` the talker and the codec run as well."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    voice: str = "default"
    speed: float = 1.0
    """Relative speaking rate, 0.25 to 4."""
    seed: int | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls; None: as the model likes."""
    reasoning_effort: ReasoningEffort | None = None
    """For models that think before they answer; others ignore it."""


class Speak(Frozen, frozen=True, tag="speak"):
    """Speak given text (enters at the talker)."""

    text: str
    voice: str = "default"
    speed: float = 1.0
    seed: int | None = None


Payload = Transcribe | Converse | Speak


class EngineRequest(Frozen, frozen=True):
    """One piece of work for the engine, alive from ``Engine.open`` to its single :class:`Finished`."""

    request_id: str
    session_id: str
    payload: Payload
    timeout_s: float = 60.0
    """Longest time without any progress of any stage before the request fails with a typed error."""


class Usage(Frozen, frozen=True):
    """Tokens as the language model counted them. A pipeline whose model takes text only counts text only."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Part of ``input_tokens`` that had been read before."""
    output_tokens: int = 0
    audio_input_tokens: int = 0
    """Part of ``input_tokens``; what is neither sound nor image is text."""
    image_input_tokens: int = 0
    audio_output_tokens: int = 0
    """Part of ``output_tokens``."""


class WordSpan(Frozen, frozen=True):
    """Where a word of the response's text lies in the response's audio."""

    text_start: int
    text_end: int
    """Half-open range of characters in the joined text deltas of the response."""
    end_sample: int
    """First sample after the word's sound, counted from the response's first sample at ``OUTPUT_SAMPLE_RATE``."""


class TranscriptDelta(Frozen, frozen=True, tag="transcript"):
    """Recognised words, to be appended to those before."""

    text: str


class TextDelta(Frozen, frozen=True, tag="text"):
    """Text written by the language model, to be appended to that before."""

    text: str


class ToolCallDelta(Frozen, frozen=True, tag="tool_call"):
    """A piece of a call's arguments, to be appended to those before of the same call. It goes to the client only, not
    from stage to stage."""

    call_id: str
    """Tells the calls of one request apart; need not be unique beyond it."""
    name: str
    arguments: str


class AudioDelta(Frozen, frozen=True, tag="audio"):
    """Sound, to be played right after that before."""

    pcm: bytes
    """Mono PCM, signed 16-bit little-endian at ``OUTPUT_SAMPLE_RATE``."""
    words: tuple[WordSpan, ...] = ()
    """The words whose sound ends in this delta."""


class Finished(Frozen, frozen=True, tag="finished"):
    """The one terminal delta of a request; nothing follows it."""

    reason: FinishReason
    usage: Usage = Usage()
    error: str | None = None
    """A sentence for people, set if and only if ``reason`` is ``"failed"``."""


Delta = TranscriptDelta | TextDelta | ToolCallDelta | AudioDelta | Finished
