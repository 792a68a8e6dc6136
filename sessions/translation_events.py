"""The vocabulary of a translation session (``realtime-protocol`` section 8): settings, and what either side says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from duologue.sessions.client_events import ClientEvent
from duologue.sessions.config import NoiseReduction
from duologue.sessions.server_events import ServerEvent
from duologue.sessions.shape import Shape

Language = Annotated[str, msgspec.Meta(pattern="^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)]
"""A language tag (BCP 47): ``es``, ``pt-BR``."""


# -- settings ----------------------------------------------------------------------------------------------------------


class SourceTranscription(Shape, frozen=True):
    model: str = "default"


class TranslationInput(Shape, frozen=True):
    transcription: SourceTranscription | None = None
    """Without it the words of the source are not sent."""
    noise_reduction: NoiseReduction | None = None


class TranslationOutput(Shape, frozen=True):
    language: Language = "en"


class TranslationAudio(Shape, frozen=True):
    input: TranslationInput = TranslationInput()
    output: TranslationOutput = TranslationOutput()


class TranslationSession(Shape, frozen=True, tag_field="type", tag="translation"):
    """The session as it is echoed, with every default filled in."""

    id: str
    model: str
    expires_at: int
    audio: TranslationAudio = TranslationAudio()


# -- from the client ---------------------------------------------------------------------------------------------------


class TranslationUpdate(ClientEvent, frozen=True, tag="session.update"):
    session: dict[str, Any]


class TranslationAppend(ClientEvent, frozen=True, tag="session.input_audio_buffer.append"):
    audio: bytes
    """Mono PCM, signed 16-bit little-endian at 24 kHz."""


class TranslationClose(ClientEvent, frozen=True, tag="session.close"):
    pass


AnyTranslationEvent = TranslationUpdate | TranslationAppend | TranslationClose


# -- to the client -----------------------------------------------------------------------------------------------------


class TranslationCreated(ServerEvent, frozen=True, tag="session.created"):
    session: TranslationSession


class TranslationUpdated(ServerEvent, frozen=True, tag="session.updated"):
    session: TranslationSession


class TranslationClosed(ServerEvent, frozen=True, tag="session.closed"):
    pass


class Timed(ServerEvent, frozen=True):
    elapsed_ms: int
    """Position in the input, in steps of one frame, up to which this delta's source was heard."""


class SourceTranscriptDelta(Timed, frozen=True, tag="session.input_transcript.delta"):
    delta: str


class TranslatedTextDelta(Timed, frozen=True, tag="session.output_transcript.delta"):
    delta: str


class TranslatedAudioDelta(Timed, frozen=True, tag="session.output_audio.delta"):
    delta: bytes
    sample_rate: Literal[24000] = 24000
    channels: Literal[1] = 1
    format: Literal["pcm16"] = "pcm16"
