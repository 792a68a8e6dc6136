"""The GA dialect's bytes: text frames to client events and server events to text frames. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duologue.sessions.client_events import (
    AnyClientEvent,
    ClientEvent,
    InputAudioAppend,
    InvalidEvent,
    ResponseCreate,
    SessionUpdate,
)
from duologue.sessions.errors import ProtocolError, from_validation_error
from duologue.sessions.items import Content, Item
from duologue.sessions.server_events import ServerEvent
from duologue.sessions.translation_events import TranslationAppend, TranslationUpdate

MAX_APPEND_BYTES = 15 * 2**20
"""Most audio in one ``input_audio_buffer.append``, after base64 decoding."""

MAX_EVENT_CHARACTERS = 21 * 2**20
"""Longest text frame that is read as an event: the largest legal append in base64 plus 1 MiB for the rest."""

MAX_FRAME_BYTES = 32 * 2**20
"""Longest frame the transport takes in at all; above it the WebSocket is closed with 1009."""

MAX_DEPTH = 64
"""Deepest nesting of objects and arrays inside a ``session`` or ``response``; far beyond any real tool schema."""

_QUOTED_CHARACTERS = 120
"""How much of a client's own text an error repeats."""


def _tags(union: Any) -> tuple[str, ...]:
    return tuple(str(member.__struct_config__.tag) for member in get_args(union))


CLIENT_EVENT_TYPES = _tags(AnyClientEvent)

_SUPPORTED_TYPES = {"item": _tags(Item), "content": _tags(Content)}

_OTHER_DIALECTS = {
    "transcription_session.update": "It belongs to the beta dialect; send 'session.update' with type 'transcription'.",
    "session.input_audio_buffer.append": "It belongs to the translation dialect, at /v1/realtime/translations.",
    "session.close": "It belongs to the translation dialect; close the WebSocket instead.",
    "session.start": "It belongs to the Live dialect, which is not implemented.",
}
"""Client events of neighbouring dialects: refused like any unknown type, but with a hint."""


@dataclass(frozen=True)
class Vocabulary:
    """The events that a client may send on a connection."""

    decoder: msgspec.json.Decoder[Any]
    types: tuple[str, ...]
    hints: Mapping[str, str]
    """What to say of a type that belongs elsewhere."""

    @classmethod
    def of(cls, union: Any, hints: Mapping[str, str]) -> Vocabulary:
        return cls(msgspec.json.Decoder(union), _tags(union), hints)


GA = Vocabulary.of(AnyClientEvent, _OTHER_DIALECTS)
_encoder = msgspec.json.Encoder()


class _Envelope(msgspec.Struct):
    """The two keys that are worth reading of an event that is otherwise wrong."""

    type: Raw | UnsetType = UNSET
    event_id: Raw | UnsetType = UNSET


_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode(event: ServerEvent) -> str:
    """The JSON text of a server event. Absent keys are left out, audio becomes base64."""
    return _encoder.encode(event).decode()


def frames(event: ServerEvent) -> tuple[bytes]:
    """The one text frame, in UTF-8, that says a server event in the GA dialect."""
    return (_encoder.encode(event),)


def decode(frame: str | bytes) -> AnyClientEvent | InvalidEvent:
    """The client event in a text frame of the GA dialect, as :func:`decode_as` says."""
    event: AnyClientEvent | InvalidEvent = decode_as(GA, frame)
    return event


def decode_as(vocabulary: Vocabulary, frame: str | bytes) -> Any:
    """The client event in a text frame. Never raises: what cannot be read comes back as an ``InvalidEvent``.

    Its error names the field, as a dotted path in ``param``, and carries the client's ``event_id`` where that can be
    read.
    """
    if len(frame) > MAX_EVENT_CHARACTERS:
        return _invalid(frame, _too_long(len(frame)))
    try:
        event = vocabulary.decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return _invalid(frame, _explain(frame, error, vocabulary))
    if type(event) is InputAudioAppend and len(event.audio) <= MAX_APPEND_BYTES:
        return event  # fifty times a second: there is nothing else to check
    problem = _over_limit(event)
    return event if problem is None else InvalidEvent(error=problem, event_id=event.event_id)


# -- limits that the types do not express ------------------------------------------------------------------------------


def _too_long(characters: int) -> ProtocolError:
    return ProtocolError(
        "invalid_event",
        f"The event is {characters} characters long; at most {MAX_EVENT_CHARACTERS} are accepted. It was ignored.",
    )


def _over_limit(event: ClientEvent) -> ProtocolError | None:
    match event:
        case InputAudioAppend(audio=audio) | TranslationAppend(audio=audio) if len(audio) > MAX_APPEND_BYTES:
            return ProtocolError(
                "invalid_value",
                f"Invalid 'audio': {len(audio)} bytes in one append; at most {MAX_APPEND_BYTES} (15 MiB) are accepted.",
                "audio",
            )
        case SessionUpdate(session=settings) | TranslationUpdate(session=settings) if _deeper_than(settings, MAX_DEPTH):
            return _too_deep("session")
        case ResponseCreate(response=settings) if _deeper_than(settings, MAX_DEPTH):
            return _too_deep("response")
    return None


def _too_deep(param: str | None) -> ProtocolError:
    what = f"'{param}'" if param else "The event"
    return ProtocolError("invalid_value", f"{what} is nested more than {MAX_DEPTH} levels deep.", param)


def _deeper_than(value: Any, limit: int) -> bool:
    """Whether ``value`` nests more than ``limit`` containers, found without recursion."""
    level = [value]
    for _ in range(limit + 1):
        containers = [part for part in level if isinstance(part, (dict, list))]
        if not containers:
            return False
        level = [child for part in containers for child in (part.values() if isinstance(part, dict) else part)]
    return True


# -- explaining what is wrong ------------------------------------------------------------------------------------------


def _envelope(frame: str | bytes) -> _Envelope | Literal["not JSON", "not an object", "too deep"]:
    try:
        return _envelope_decoder.decode(frame)
    except msgspec.ValidationError:
        return "not an object"
    except RecursionError:
        return "too deep"
    except (msgspec.DecodeError, UnicodeError):
        return "not JSON"


def _text(raw: Raw | UnsetType) -> str | None:
    """The string in a raw JSON value, or None if it is anything else."""
    if raw is UNSET:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _invalid(frame: str | bytes, error: ProtocolError) -> InvalidEvent:
    envelope = _envelope(frame)
    event_id = _text(envelope.event_id) if isinstance(envelope, _Envelope) else None
    if event_id is not None and len(event_id) > 512:
        event_id = None
    return InvalidEvent(error=error, event_id=event_id)


def _explain(frame: str | bytes, error: Exception, vocabulary: Vocabulary) -> ProtocolError:
    envelope = _envelope(frame)
    if envelope == "too deep" or isinstance(error, RecursionError):
        return _too_deep(None)
    if envelope == "not an object":
        return ProtocolError("invalid_event", "The event is not a JSON object.")
    if not isinstance(envelope, _Envelope) or not isinstance(error, msgspec.ValidationError):
        return ProtocolError("invalid_event", f"The event is not valid JSON: {_lowered(str(error))}.")
    if (problem := _explain_type(envelope.type, vocabulary)) is not None:
        return problem
    return _shortened(_with_supported_types(from_validation_error(error)))


def _explain_type(raw: Raw | UnsetType, vocabulary: Vocabulary) -> ProtocolError | None:
    known = f"Supported types: {', '.join(vocabulary.types)}."
    if raw is UNSET:
        return ProtocolError("invalid_event", f"The event has no 'type'. {known}", "type")
    name = _text(raw)
    if name is None:
        return ProtocolError("invalid_event", f"The event's 'type' is not a string. {known}", "type")
    if name in vocabulary.types:
        return None
    hint = vocabulary.hints.get(name, known)
    return ProtocolError("invalid_event", f"Unknown event type '{_cut(name)}'. {hint}", "type")


def _with_supported_types(error: ProtocolError) -> ProtocolError:
    """For an unknown kind of item or content, say which kinds there are."""
    path = (error.param or "").split(".")
    if error.code != "invalid_value" or path[-1] != "type" or len(path) < 2:
        return error
    supported = _SUPPORTED_TYPES.get(path[-2].partition("[")[0])
    if supported is None:
        return error
    return ProtocolError(error.code, f"{error.message} Supported: {', '.join(supported)}.", error.param)


def _shortened(error: ProtocolError) -> ProtocolError:
    """The error with a field name or value that the client made megabytes long cut down."""
    if len(error.message) <= 4 * _QUOTED_CHARACTERS:
        return error
    param = _cut(error.param) if error.param is not None else None
    return ProtocolError(error.code, _cut(error.message, 4 * _QUOTED_CHARACTERS), param)


def _cut(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
