"""The beta dialect of the Realtime API: other names for the same events (``realtime-protocol`` section 9).

Pure functions, JSON objects in and out. What is named alike in both dialects passes through :mod:`wire` untouched,
which is nearly everything that comes in often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from duologue.realtime import wire
from duologue.sessions import server_events as events
from duologue.sessions.client_events import AnyClientEvent, InvalidEvent
from duologue.sessions.config import RealtimeSession
from duologue.sessions.core import conversation_id
from duologue.sessions.errors import ProtocolError

Json = dict[str, Any]

FORMATS: Final[dict[str, Json]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
_FORMAT_NAMES: Final = {shape["type"]: name for name, shape in FORMATS.items()}

_PLACES: Final[dict[str, tuple[str, ...]]] = {
    "voice": ("audio", "output", "voice"),
    "speed": ("audio", "output", "speed"),
    "output_audio_format": ("audio", "output", "format"),
    "input_audio_format": ("audio", "input", "format"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "input_audio_noise_reduction": ("audio", "input", "noise_reduction"),
    "turn_detection": ("audio", "input", "turn_detection"),
    "modalities": ("output_modalities",),
    "max_response_output_tokens": ("max_output_tokens",),
}
"""Where a field of the flat session stands in the GA one."""
_GA_ONLY: Final = (
    "audio",
    "output_modalities",
    "max_output_tokens",
    "type",
    "truncation",
    "reasoning",
    "parallel_tool_calls",
)

TEMPERATURE: Final = 0.8
"""What is echoed; a client's own value is checked and then ignored."""
_TEMPERATURES: Final = (0.6, 1.2)

_EVENT_NAMES: Final = {
    "conversation.item.added": "conversation.item.created",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
_CONTENT_TO_BETA: Final = {"output_text": "text", "output_audio": "audio"}
_CONTENT_TO_GA: Final = {"text": "output_text", "audio": "output_audio"}


# -- from the client ---------------------------------------------------------------------------------------------------


def decode(frame: str | bytes) -> AnyClientEvent | InvalidEvent:
    """The client event in a text frame of this dialect. Never raises."""
    if len(frame) > wire.MAX_EVENT_CHARACTERS or not (translate := _translation(frame)):
        return _in_beta_terms(wire.decode(frame))
    try:
        event = msgspec.json.decode(frame)
        translated = translate(event)
    except (msgspec.DecodeError, RecursionError, UnicodeError, AttributeError, TypeError):
        return wire.decode(frame)  # it is wrong in either dialect, and there it is said how
    except ProtocolError as error:
        event_id = event.get("event_id")
        return InvalidEvent(error=error, event_id=event_id if isinstance(event_id, str) else None)
    return _in_beta_terms(wire.decode(msgspec.json.encode(translated).decode()))


def _translation(frame: str | bytes) -> Callable[[Json], Json] | None:
    """How events of the frame's type are translated; None if they are alike in both dialects."""
    try:
        kind = _kind_decoder.decode(frame).type
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return _TRANSLATIONS.get(kind)


class _Kind(msgspec.Struct):
    type: str = ""


_kind_decoder = msgspec.json.Decoder(_Kind)


def _session_update(event: Json) -> Json:
    return {**event, "session": nested(event["session"])} if "session" in event else event


def _transcription_session_update(event: Json) -> Json:
    session = {**nested(event.get("session", {})), "type": "transcription"}
    session.pop("output_modalities", None)
    return {**event, "type": "session.update", "session": session}


def _response_create(event: Json) -> Json:
    if "response" not in event:
        return event
    response = nested(event["response"], "response", keep=("max_output_tokens",))
    if isinstance(response.get("input"), list):
        response["input"] = [_item_to_ga(item) for item in response["input"]]
    return {**event, "response": response}


def _item_create(event: Json) -> Json:
    return {**event, "item": _item_to_ga(event["item"])} if "item" in event else event


_TRANSLATIONS: Final[dict[str, Callable[[Json], Json]]] = {
    "session.update": _session_update,
    "transcription_session.update": _transcription_session_update,
    "response.create": _response_create,
    "conversation.item.create": _item_create,
}


def nested(flat: Json, where: str = "session", keep: Sequence[str] = ()) -> Json:
    """The GA shape of a flat session or response. Raises ``ProtocolError`` that names the field in the flat shape."""
    shaped: Json = {}
    for name, value in flat.items():
        param = f"{where}.{name}"
        if name in _GA_ONLY and name not in keep:
            raise ProtocolError("unknown_parameter", f"Unknown parameter: '{param}'.", param)
        if name == "temperature":
            _check_temperature(value, param)
            continue
        if name.endswith("_audio_format"):
            value = _format_to_ga(value, param)
        elif name == "modalities":
            value = _modalities_to_ga(value, param)
        *path, last = _PLACES.get(name, (name,))
        inner = shaped
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return shaped


def _check_temperature(value: object, param: str) -> None:
    low, high = _TEMPERATURES
    if value is not None and not (isinstance(value, int | float) and low <= value <= high):
        raise ProtocolError("invalid_value", f"Invalid value for '{param}': expected {low} to {high}.", param)


def _format_to_ga(value: object, param: str) -> Json:
    if not isinstance(value, str) or value not in FORMATS:
        known = ", ".join(FORMATS)
        raise ProtocolError("invalid_value", f"Invalid value for '{param}'. Supported: {known}.", param)
    return FORMATS[value]


def _modalities_to_ga(value: object, param: str) -> list[str]:
    if isinstance(value, list) and set(value) == {"text"}:
        return ["text"]
    if isinstance(value, list) and set(value) in ({"audio"}, {"audio", "text"}):
        return ["audio"]
    message = f"Invalid value for '{param}'. Supported: ['text'] and ['audio', 'text']."
    raise ProtocolError("invalid_value", message, param)


def _item_to_ga(item: Json) -> Json:
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    content = [_renamed(part, _CONTENT_TO_GA) if isinstance(part, dict) else part for part in item["content"]]
    return {**item, "content": content}


def _in_beta_terms(event: AnyClientEvent | InvalidEvent) -> AnyClientEvent | InvalidEvent:
    """An error of the decoder names fields as this dialect does."""
    if isinstance(event, InvalidEvent):
        error = event.error
        in_beta = ProtocolError(error.code, error.message, param_to_beta(error.param))
        return InvalidEvent(error=in_beta, event_id=event.event_id)
    return event


# -- to the client -----------------------------------------------------------------------------------------------------


def encode(event: events.ServerEvent) -> Sequence[bytes]:
    """The text frames, in UTF-8, that say a server event in this dialect."""
    return [msgspec.json.encode(shaped) for shaped in translated(event)]


def translated(event: events.ServerEvent) -> Sequence[Json]:
    """A server event in this dialect, as JSON objects: none for what only GA says, two for a new session."""
    if isinstance(event, events.ItemDone):
        return ()
    shaped: Json = msgspec.to_builtins(event)
    shaped["type"] = _EVENT_NAMES.get(shaped["type"], shaped["type"])
    if "item" in shaped:
        shaped["item"] = _item_to_beta(shaped["item"])
    match event:
        case events.SessionCreated() | events.SessionUpdated():
            return _session_events(event, shaped)
        case events.ResponseCreated() | events.ResponseDone():
            shaped["response"] = _response_to_beta(shaped["response"])
        case events.ErrorEvent(error=error):
            # a GA name that is unknown here stays as the client wrote it
            if error.code != "unknown_parameter" or (error.param or "").removeprefix("session.") not in _GA_ONLY:
                shaped["error"]["param"] = param_to_beta(error.param)
    return (shaped,)


def param_to_beta(param: str | None) -> str | None:
    """The dotted path of a GA field in the flat shape."""
    for name, place in _PLACES.items():
        for where in ("session", "response"):
            path = ".".join((where, *place))
            if param is not None and (param == path or param.startswith((f"{path}.", f"{path}["))):
                rest = param[len(path) :]
                return f"{where}.{name}" if name.endswith("_audio_format") else f"{where}.{name}{rest}"
    return param


def _session_events(event: events.SessionCreated | events.SessionUpdated, shaped: Json) -> Sequence[Json]:
    created = isinstance(event, events.SessionCreated)
    shaped["session"] = flat(shaped["session"])
    if not isinstance(event.session, RealtimeSession):
        return ({**shaped, "type": f"transcription_{shaped['type']}"},)
    if not created:
        return (shaped,)
    conversation = {
        "type": "conversation.created",
        "event_id": f"{shaped['event_id']}_conversation",
        "conversation": {"id": conversation_id(event.session.id), "object": "realtime.conversation"},
    }
    return (shaped, conversation)


def flat(session: Json) -> Json:
    """The flat shape of a GA session."""
    rest = {key: value for key, value in session.items() if key not in _GA_ONLY}
    session_input = session["audio"]["input"]
    rest["input_audio_format"] = _FORMAT_NAMES[session_input["format"]["type"]]
    rest["input_audio_transcription"] = session_input["transcription"]
    rest["input_audio_noise_reduction"] = session_input["noise_reduction"]
    rest["turn_detection"] = session_input["turn_detection"]
    if session["type"] == "realtime":
        output = session["audio"]["output"]
        rest["modalities"] = _modalities_to_beta(session["output_modalities"])
        rest["voice"], rest["speed"] = output["voice"], output["speed"]
        rest["output_audio_format"] = _FORMAT_NAMES[output["format"]["type"]]
        rest["max_response_output_tokens"] = session["max_output_tokens"]
        rest["temperature"] = TEMPERATURE
    return rest


def _response_to_beta(response: Json) -> Json:
    output = response.pop("audio")["output"]
    return {
        **{key: value for key, value in response.items() if key != "output_modalities"},
        "output": [_item_to_beta(item) for item in response["output"]],
        "modalities": _modalities_to_beta(response["output_modalities"]),
        "voice": output["voice"],
        "output_audio_format": _FORMAT_NAMES[output["format"]["type"]],
        "temperature": TEMPERATURE,
    }


def _modalities_to_beta(modalities: Sequence[str]) -> list[str]:
    return ["text"] if list(modalities) == ["text"] else ["audio", "text"]


def _item_to_beta(item: Json) -> Json:
    if "content" not in item:
        return item
    return {**item, "content": [_renamed(part, _CONTENT_TO_BETA) for part in item["content"]]}


def _renamed(part: Json, names: dict[str, str]) -> Json:
    kind = part.get("type")
    return {**part, "type": names[kind]} if isinstance(kind, str) and kind in names else part
