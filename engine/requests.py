"""What crosses the border between a session and the engine: requests in, deltas out.

Everything here is plain, frozen data, safe to hand between threads and to send between processes. This module
imports no inference library, so that the session core may use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self

import msgspec

Modality = Literal["text", "audio"]
FinishReason = Literal["completed", "length", "aborted", "failed"]
AbortReason = Literal["client_abort", "client_disconnect", "superseded", "unknown"]
"""Why a reader ends a request: its client cancelled or interrupted it, has gone, never knew of it (it was prepared in
vain), or something else."""

OUTPUT_SAMPLE_RATE = 24_000
"""Rate in hertz of every :class:`AudioDelta`; word positions and playout are counted in samples at this rate."""


FIRST_CHUNK_RANGE_S = (0.0125, 2.0)


class RequestRefused(ValueError):
    """A request that cannot be accepted; the message says which rule it breaks."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the structs of this module."""


class ToolCall(Frozen, frozen=True):
    """A call that a language model has made of one of its tools."""

    call_id: str
    name: str
    arguments: str
    """A JSON object as text, as the model wrote it."""


class ImagePart(Frozen, frozen=True):
    """A picture that the user shows, encoded as it came."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg"]
    detail: Literal["auto", "low", "high"] = "auto"
    """How closely the model is to look, for those that can tell the difference."""


class ChatMessage(Frozen, frozen=True):
    """One message of the conversation as a language model is shown it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    """All its words."""
    parts: tuple[str | ImagePart, ...] = ()
    """Of a user's message that holds pictures: words and pictures in their order; ``text`` is then the words alone,
    joined by spaces. Empty: ``text`` is all there is. See :meth:`of_parts` and :attr:`content`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant's message; each is followed by a message of role ``tool`` with its result."""
    tool_call_id: str | None = None
    """Of a message of role ``tool``: the call of which ``text`` is the result."""

    @classmethod
    def of_parts(cls, role: Literal["system", "user", "assistant", "tool"], parts: Iterable[str | ImagePart]) -> Self:
        """A message of words and pictures in this order."""
        parts = tuple(part for part in parts if part != "")
        text = " ".join(part for part in parts if isinstance(part, str))
        return cls(role=role, text=text, parts=parts if any(isinstance(p, ImagePart) for p in parts) else ())

    @property
    def content(self) -> tuple[str | ImagePart, ...]:
        """Words and pictures in their order; no empty words."""
        return self.parts or ((self.text,) if self.text else ())

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The pictures alone."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))


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


Urgency = Literal["final", "speculative", "partial"]
"""Who waits for words: the answer to a turn that is over, one to a turn that may be over, who reads along."""


class Transcribe(Frozen, frozen=True, tag="transcribe"):
    """Turn recorded speech into words (enters at the recogniser)."""

    audio: bytes
    """Mono PCM, signed 16-bit little-endian. Empty: the recogniser gets ready for the language, and says nothing."""
    sample_rate: int
    language: str | None = None
    """Code or tag, as ``de`` or ``de-AT``; None: the recogniser's own choice."""
    prompt: str | None = None
    before: str = ""
    """Words of the sound before, of which this is the continuation."""
    logprobs: bool = False
    """Whether the words are to come with the log-probabilities of their tokens."""
    urgency: Urgency = "final"
    """A partial that has waited for so long that a newer one must be due ends without words."""
    settle: bool = False
    """Recognise only what comes before a pause in the second half of ``audio``; without such a pause, say nothing."""
    full_stop: bool = False
    """Whether to say how likely the words are a whole sentence (:attr:`TranscriptDelta.full_stop`)."""


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
    prepare: bool = False
    """Only read the messages, so that a later request which begins with them is answered sooner. Nothing is written,
    and nothing is counted. Backends without the ability ``reads_ahead`` do nothing."""
    begun: str = ""
    """With ``prepare``: what the user's next message begins with, as far as it has been heard."""
    reasoning_effort: ReasoningEffort | None = None
    """For models that think before they answer; others ignore it."""


class Speak(Frozen, frozen=True, tag="speak"):
    """Speak given text (enters at the talker)."""

    text: str
    voice: str = "default"
    speed: float = 1.0
    seed: int | None = None


Payload = Transcribe | Converse | Speak


def speaking_rate(payload: Converse | Speak) -> float:
    """The relative rate at which a voice speaks what is asked for: its ``speed``, within 0.25 to 4."""
    return min(max(payload.speed, 0.25), 4.0)


class EngineRequest(Frozen, frozen=True):
    """One piece of work for the engine, alive from ``Engine.open`` to its single :class:`Finished`."""

    request_id: str
    session_id: str
    payload: Payload
    timeout_s: float = 60.0
    """Longest time without any progress of any stage before the request fails with a typed error."""
    due_in_s: float = 0.0
    """When its first output is wanted, in seconds from now: requests that wait for the same stage are worked on in the
    order of that. More than 0 for work in advance."""
    first_chunk_s: float | None = None
    """Length of the first piece of sound, within :data:`FIRST_CHUNK_RANGE_S`; None: the stage's own, as short as it can
    afford. Longer ones are safer against a gap, shorter ones are heard earlier."""


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

    def since(self, earlier: Usage) -> Usage:
        """What came on top of ``earlier``."""
        return Usage(**{name: getattr(self, name) - getattr(earlier, name) for name in self.__struct_fields__})


class WordSpan(Frozen, frozen=True):
    """Where a word of the response's text lies in the response's audio."""

    text_start: int
    text_end: int
    """Half-open range of characters in the joined text deltas of the response."""
    end_sample: int
    """First sample after the word's sound, counted from the response's first sample at ``OUTPUT_SAMPLE_RATE``."""


class TokenLogprob(Frozen, frozen=True):
    """A token of a transcript, and how sure the recogniser was of it."""

    token: str
    logprob: float
    """Natural logarithm of the token's probability, given those before it."""
    bytes: bytes
    """The token in UTF-8; a character may be spread over several tokens, whose ``token`` is then no text."""


class TranscriptDelta(Frozen, frozen=True, tag="transcript"):
    """Recognised words, to be appended to those before."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens that ``text`` is made of, where they were asked for and are known."""
    language: str | None = None
    """ISO 639-1 code of what was spoken; None: the recogniser does not say."""
    end_sample: int | None = None
    """First sample of the request's sound that is not covered by the words so far; None: the recogniser does not say.
    A request that ends without any delta has told nothing of its sound."""
    full_stop: float | None = None
    """Natural logarithm of how much likelier the end of a sentence is than its going on, behind the last word; None:
    it was not asked for, or the recogniser does not say."""


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
