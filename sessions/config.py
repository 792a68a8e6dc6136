"""Session and response settings: their shapes, their defaults, and how a partial update is merged in.

An update is merged as plain data and then validated as a whole, so that the client sees one error that names the
field and no half-applied change (``realtime-protocol`` O2).
"""

from __future__ import annotations

from math import ceil, floor
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from duologue.engine.requests import FIRST_CHUNK_RANGE_S, ReasoningEffort
from duologue.sessions.errors import ProtocolError, from_validation_error
from duologue.sessions.items import InputItem, InputText
from duologue.sessions.shape import Shape
from duologue.sessions.tool_settings import McpServer, ToolChoiceSetting, ToolSetting

OutputModality = Literal["text", "audio"]
Eagerness = Literal["low", "medium", "high", "auto"]


# -- audio formats -----------------------------------------------------------------------------------------------------


class PcmFormat(Shape, frozen=True, tag_field="type", tag="audio/pcm"):
    rate: Literal[24000] = 24000


class PcmuFormat(Shape, frozen=True, tag_field="type", tag="audio/pcmu"):
    pass


class PcmaFormat(Shape, frozen=True, tag_field="type", tag="audio/pcma"):
    pass


AudioFormat = PcmFormat | PcmuFormat | PcmaFormat


def encoding(audio_format: AudioFormat) -> Literal["pcm", "pcmu", "pcma"]:
    """The name by which :mod:`duologue.codecs.wire_audio` knows a format."""
    match audio_format:
        case PcmFormat():
            return "pcm"
        case PcmuFormat():
            return "pcmu"
        case PcmaFormat():
            return "pcma"


# -- turn detection ----------------------------------------------------------------------------------------------------


class ServerVad(Shape, frozen=True, tag_field="type", tag="server_vad"):
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 500
    idle_timeout_ms: Annotated[int, msgspec.Meta(ge=5_000, le=30_000)] | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(Shape, frozen=True, tag_field="type", tag="semantic_vad"):
    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


# -- the session object ------------------------------------------------------------------------------------------------


class NoiseReduction(Shape, frozen=True):
    type: Literal["near_field", "far_field"]
    strength: Annotated[float, msgspec.Meta(ge=0)] = 1.0


class EchoCancellation(Shape, frozen=True):
    """Our own voice is taken out of the input: the client plays it aloud and has no cancellation of its own."""

    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=2_000)] = 0
    """How much later than it is sent the sound is known to come back at the least; the rest is found by itself."""


class Transcription(Shape, frozen=True):
    model: str = "default"
    language: str | UnsetType = UNSET
    languages: tuple[str, ...] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    keywords: tuple[str, ...] | UnsetType = UNSET
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | UnsetType = UNSET


class AudioInput(Shape, frozen=True):
    format: AudioFormat = PcmFormat()
    noise_reduction: NoiseReduction | None = None
    echo_cancellation: EchoCancellation | UnsetType = UNSET
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = ServerVad()


FirstChunkMs = Annotated[
    int, msgspec.Meta(ge=ceil(FIRST_CHUNK_RANGE_S[0] * 1000), le=floor(FIRST_CHUNK_RANGE_S[1] * 1000))
]
"""Length of an answer's first piece of sound; longer ones are safer against a gap, shorter ones are heard earlier."""


class AudioOutput(Shape, frozen=True):
    voice: str
    format: AudioFormat = PcmFormat()
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=1.5)] = 1.0
    first_chunk_ms: FirstChunkMs | UnsetType = UNSET
    """An extension, like ``echo_cancellation``. Without, the engine decides."""


class Audio(Shape, frozen=True):
    output: AudioOutput
    input: AudioInput = AudioInput()


# -- extensions: nothing of these is in a session unless its client asks for it ----------------------------------------

Extension = Literal["playback", "interruption"]
"""Events beyond the dialect's: ``playback.ack`` of the client, ``x.interruption.*`` of the server."""

EXTENSIONS: tuple[Extension, ...] = get_args(Extension)


class ImmediateInterruption(Shape, frozen=True, tag_field="mode", tag="immediate"):
    """Speech over the answer stops it at once."""


class AdaptiveInterruption(Shape, frozen=True, tag_field="mode", tag="adaptive"):
    """Speech over the answer holds it, and stops it once it is more than an acknowledgement."""

    min_duration_ms: Annotated[int, msgspec.Meta(ge=100, le=5_000)] = 800
    """Speech of this length interrupts, whatever its words, unless ``min_words`` asks for some."""
    min_words: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0
    """Fewer words never interrupt; 0: any word that is no acknowledgement does, and so does the length alone."""
    acknowledgements: Annotated[tuple[str, ...], msgspec.Meta(max_length=200)] | UnsetType = UNSET
    """Words and phrases that do not interrupt, in the place of the English ones that are built in."""


Interruption = ImmediateInterruption | AdaptiveInterruption


class Pacing(Shape, frozen=True):
    """Sound is sent as it is played."""

    lead_ms: Annotated[int, msgspec.Meta(ge=100, le=10_000)] = 300
    """How far it may be ahead."""


class StoredPrompt(Shape, frozen=True):
    """One of the server's prompts (:mod:`duologue.sessions.stored_prompts`)."""

    id: str
    version: str | UnsetType | None = UNSET
    variables: dict[str, str | InputText] | UnsetType | None = UNSET


class Reasoning(Shape, frozen=True):
    effort: ReasoningEffort


class Tracing(Shape, frozen=True):
    workflow_name: str | UnsetType = UNSET
    group_id: str | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class TokenLimits(Shape, frozen=True):
    post_instructions: Annotated[int, msgspec.Meta(ge=0)] | UnsetType = UNSET


class RetentionRatio(Shape, frozen=True, tag_field="type", tag="retention_ratio"):
    """Once the context is too long, cut it to this part of what it may be, so that cuts are rare."""

    retention_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]
    token_limits: TokenLimits | UnsetType = UNSET


Truncation = Literal["auto", "disabled"] | RetentionRatio
MaxOutputTokens = Annotated[int, msgspec.Meta(ge=1, le=4096)] | Literal["inf"]


Include = tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None


class RealtimeSession(Shape, frozen=True, tag_field="type", tag="realtime"):
    """A session that converses, as it is echoed, with every default filled in."""

    id: str
    model: str
    expires_at: int
    instructions: str
    audio: Audio
    object: Literal["realtime.session"] = "realtime.session"
    output_modalities: tuple[OutputModality] = ("audio",)
    include: Include = None
    max_output_tokens: MaxOutputTokens = "inf"
    parallel_tool_calls: bool | UnsetType = UNSET
    prompt: StoredPrompt | None = None
    reasoning: Reasoning | UnsetType = UNSET
    tools: tuple[ToolSetting, ...] = ()
    tool_choice: ToolChoiceSetting = "auto"
    tracing: Literal["auto"] | Tracing | None = None
    truncation: Truncation = "auto"
    extensions: tuple[Extension, ...] | UnsetType = UNSET
    interruption: Interruption | UnsetType = UNSET
    pacing: Pacing | UnsetType = UNSET


def lead_s(session: AnySession) -> float | None:
    """Seconds of sound that may be ahead of what the client plays; None: any number.

    What is to pause at a word must not have been sent already: adaptive interruption brings pacing with it.
    """
    if not isinstance(session, RealtimeSession):
        return None
    pacing = session.pacing
    if pacing is UNSET and isinstance(session.interruption, AdaptiveInterruption):
        pacing = Pacing()
    return None if pacing is UNSET else pacing.lead_ms / 1000


def extends(session: AnySession, extension: Extension) -> bool:
    """Whether the client has asked for an extension's events."""
    extensions = session.extensions if isinstance(session, RealtimeSession) else UNSET
    return extensions is not UNSET and extension in extensions


CLIENT_ENDPOINTED = frozenset({"gpt-realtime-whisper", "gpt-live-transcribe"})
"""Names of recognisers that come without turn detection at OpenAI: who opens a transcription session with one of them
commits by himself (LiveKit's plugin does, and says nothing of ``turn_detection``)."""


class TranscriptionAudio(Shape, frozen=True):
    input: AudioInput = AudioInput()


class TranscriptionSession(Shape, frozen=True, tag_field="type", tag="transcription"):
    """A session that only listens: the words of every committed item, and no responses."""

    id: str
    expires_at: int
    audio: TranscriptionAudio = TranscriptionAudio()
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    include: Include = None

    @classmethod
    def of(cls, session: RealtimeSession, model: str = "default") -> TranscriptionSession:
        """What ``session`` becomes that turns out to be for transcription. ``model``: its recogniser by default."""
        session_input = session.audio.input
        if session_input.transcription is None:
            session_input = replace(session_input, transcription=Transcription(model=model))
        if model in CLIENT_ENDPOINTED:
            session_input = replace(session_input, turn_detection=None)
        return cls(id=session.id, expires_at=session.expires_at, audio=TranscriptionAudio(input=session_input))


AnySession = RealtimeSession | TranscriptionSession
S = TypeVar("S", bound=AnySession)

READ_ONLY = ("id", "object", "expires_at")


def shown(session: S) -> S:
    """``session`` as clients may see it: without what opens the MCP servers, since a session can have observers."""
    if not isinstance(session, RealtimeSession) or not any(isinstance(tool, McpServer) for tool in session.tools):
        return session
    tools = (
        replace(tool, authorization=UNSET, headers=UNSET) if isinstance(tool, McpServer) else tool
        for tool in session.tools
    )
    return replace(session, tools=tuple(tools))


class Limits(Shape, frozen=True):
    """What a session may do, decided by the server's configuration."""

    max_duration_s: float = 3600.0
    max_idle_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Longest time without an event of the client, answers apart; None: no client of the protocol expects one."""
    max_turn_s: float = 120.0
    """Longest turn under voice-activity detection; a longer one is committed by force."""
    input_gap_ms: Annotated[float, msgspec.Meta(ge=0)] = 2000.0
    """When a client has sent no audio for so long in the middle of a turn (muted, a key let go, discontinuous
    transmission), the time without audio counts as silence; 0: never, the turn waits for audio."""
    wait_for_silence_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long a ``response.create`` waits while the user speaks; 0: it goes on at once."""
    max_manual_buffer_s: float = 900.0
    """Longest uncommitted input without turn detection; older audio is refused with an error."""
    kept_audio_s: float = 300.0
    """Audio kept for ``conversation.item.retrieve``, all items together; the oldest is dropped first."""
    max_image_bytes: Annotated[int, msgspec.Meta(ge=1)] = 5 * 2**20
    """Of all pictures of one item, so that the item with them stays below the 8 MiB that stock clients read."""
    max_image_pixels: Annotated[int, msgspec.Meta(ge=1)] = 50_000_000
    kept_images: Annotated[int, msgspec.Meta(ge=1)] = 32
    """Pictures kept in a conversation, for the model and for ``retrieve``; the oldest is dropped first."""
    max_video_frames: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Frames of a video track that one item of the user holds; the newest are taken."""
    kept_image_bytes: Annotated[int, msgspec.Meta(ge=1)] = 32 * 2**20
    max_items: int = 1000
    max_tools: int = 128
    max_tools_bytes: int = 256 * 1024
    """All tools of a session or response together, as JSON."""
    max_tool_rounds: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Answers in a row that the results of MCP calls bring about without the user."""
    max_parallel_responses: int = 8
    """Out-of-band responses in progress at the same time."""
    context_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Longest prompt in estimated tokens; None: the engine fits what it gets into what its model takes."""
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Responses that one session may begin; None: any number."""
    tokens_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Tokens that one session may read and write; None: any number."""


class Names(Shape, frozen=True):
    """The names that clients may use for models and voices: served names, and aliases that map to them.

    Each table maps an accepted name to the served one; served names map to themselves.
    """

    models: dict[str, str]
    voices: dict[str, str]
    transcription_models: dict[str, str]

    def resolve(self, kind: Literal["models", "voices", "transcription_models"], name: str, param: str) -> str:
        """The served name behind ``name``. Raises ``ProtocolError`` with the list of known names."""
        table: dict[str, str] = getattr(self, kind)
        if name in table:
            return table[name]
        served = ", ".join(sorted(set(table.values())))
        aliases = ", ".join(sorted(set(table) - set(table.values())))
        known = f"{served} (aliases: {aliases})" if aliases else served
        what = kind.replace("_", " ").removesuffix("s")
        raise ProtocolError("invalid_value", f"Unknown {what} '{name}'. Known: {known}.", param)


# -- merging -----------------------------------------------------------------------------------------------------------


_TAGS = ("type", "mode")
"""Fields that say which kind of object one is."""


def deep_merge(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the fields of ``patch`` put in, level by level. Neither argument is changed.

    An object whose ``type`` differs from the present one's replaces it whole (another kind of turn detection has other
    fields), and so does anything that is not an object.
    """
    merged = dict(base)
    for key, value in patch.items():
        present = merged.get(key)
        # The strength of noise reduction outlives a change of its kind. Another prompt has other variables.
        same_kind = (
            isinstance(present, dict)
            and isinstance(value, dict)
            and key != "prompt"
            and (key == "noise_reduction" or all(value.get(tag, present.get(tag)) == present.get(tag) for tag in _TAGS))
        )
        merged[key] = deep_merge(present, value) if same_kind else value  # type: ignore[arg-type]
    return merged


def merged(session: S, patch: dict[str, Any]) -> S:
    """``session`` with ``patch`` merged in and validated. Raises ``ProtocolError`` that names the field."""
    present: dict[str, Any] = msgspec.to_builtins(session)
    for name in READ_ONLY:
        if name in patch and patch[name] != present[name]:
            raise ProtocolError("invalid_value", f"'session.{name}' is set by the server.", f"session.{name}")
    try:
        return msgspec.convert(_without_nulls(deep_merge(present, _plain_voice(patch))), type(session))
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "session") from error


_NULL_UNSETS = {
    "": ("parallel_tool_calls", "reasoning", "extensions", "interruption", "pacing"),
    "audio": (),
    "input": ("echo_cancellation",),
    "output": ("first_chunk_ms",),
    "transcription": ("language", "languages", "prompt", "keywords", "delay"),
    "interruption": ("acknowledgements",),
}
"""Fields of a session, and of an object in it, that may be missing: null takes them away again."""


def _without_nulls(settings: dict[str, Any], within: str = "") -> dict[str, Any]:
    unset = _NULL_UNSETS.get(within, ())
    return {
        key: _without_nulls(value, key) if key in _NULL_UNSETS and isinstance(value, dict) else value
        for key, value in settings.items()
        if value is not None or key not in unset
    }


def _plain_voice(settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with a voice given as ``{"id": name}`` put as its name: clients read it back as a string."""
    match settings:
        case {"audio": {"output": {"voice": {"id": str(name), **rest}}}} if not rest:
            return deep_merge(settings, {"audio": {"output": {"voice": name}}})
    return settings


class ResponseAudioOutputOverride(Shape, frozen=True):
    format: AudioFormat | UnsetType = UNSET
    voice: str | UnsetType = UNSET
    first_chunk_ms: FirstChunkMs | UnsetType = UNSET


class ResponseAudioOverride(Shape, frozen=True):
    output: ResponseAudioOutputOverride = ResponseAudioOutputOverride()


MAX_METADATA = 16

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=MAX_METADATA),
]


class ResponseOverrides(Shape, frozen=True):
    """The ``response`` of ``response.create``: everything optional, for that response only."""

    conversation: Literal["auto", "none"] = "auto"
    input: tuple[InputItem, ...] | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    output_modalities: tuple[OutputModality] | UnsetType = UNSET
    max_output_tokens: MaxOutputTokens | UnsetType = UNSET
    metadata: Metadata | None = None
    audio: ResponseAudioOverride = ResponseAudioOverride()
    tools: tuple[ToolSetting, ...] | UnsetType = UNSET
    tool_choice: ToolChoiceSetting | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    prompt: StoredPrompt | UnsetType | None = UNSET
    reasoning: Reasoning | UnsetType = UNSET


def response_overrides(raw: dict[str, Any] | UnsetType) -> ResponseOverrides:
    """Validate a ``response.create``'s ``response``. Raises ``ProtocolError`` that names the field.

    Null stands for what is not given, as LiveKit's client writes it: a response has nothing that could be cleared.
    """
    if raw is UNSET:
        return ResponseOverrides()
    fields = ResponseOverrides.__struct_fields__
    given = {name: value for name, value in _plain_voice(raw).items() if value is not None or name not in fields}
    try:
        return msgspec.convert(given, ResponseOverrides)
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "response") from error
