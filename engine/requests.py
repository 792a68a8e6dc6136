"""What crosses the border between a session and the engine: requests in, deltas out.

Everything here is plain, frozen data, safe to hand between threads and to send between processes. This module
imports no inference library, so that the session core may use it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Modality = Literal["text", "audio"]
FinishReason = Literal["completed", "length", "aborted", "failed"]

OUTPUT_SAMPLE_RATE = 24_000
"""Rate in hertz of every :class:`AudioDelta`; word positions and playout are counted in samples at this rate."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the structs of this module."""


class ChatMessage(Frozen, frozen=True):
    """One message of the conversation as a language model is shown it."""

    role: Literal["system", "user", "assistant"]
    text: str


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
    """Tokens as the language model counted them."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


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


Delta = TranscriptDelta | TextDelta | AudioDelta | Finished
