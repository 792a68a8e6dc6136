"""The messages of a media stream, both ways: JSON text frames told apart by ``event``, names in camel case.

The shape is that of Twilio's bidirectional media streams, which other providers speak too. Keys that are not read here
are ignored: providers add some as they please.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec


class Inbound(msgspec.Struct, frozen=True, tag_field="event", rename="camel"):
    """Base of what a provider says."""


class Connected(Inbound, frozen=True, tag="connected"):
    """The first message. Nothing follows from it."""


class MediaFormat(msgspec.Struct, frozen=True, rename="camel"):
    encoding: str = "audio/x-mulaw"
    sample_rate: int = 8000
    channels: int = 1


class StreamStart(msgspec.Struct, frozen=True, rename="camel"):
    """What the stream is: whose call, which sound, and what the caller's TwiML gave as parameters."""

    call_sid: str = ""
    account_sid: str = ""
    media_format: MediaFormat = MediaFormat()
    custom_parameters: dict[str, str] = {}


class Start(Inbound, frozen=True, tag="start"):
    stream_sid: str
    start: StreamStart


class MediaPayload(msgspec.Struct, frozen=True, rename="camel"):
    payload: bytes
    """G.711 mu-law at 8 kHz (base64 on the wire)."""
    timestamp: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,15}$")] | Annotated[int, msgspec.Meta(ge=0)] = 0
    """Milliseconds since the stream began; most providers write it as text."""
    track: str = "inbound"


class Sound(Inbound, frozen=True, tag="media"):
    media: MediaPayload


class MarkName(msgspec.Struct, frozen=True):
    name: str = ""


class MarkReached(Inbound, frozen=True, tag="mark"):
    """Everything that was sent before the mark of this name has been played, or was dropped by ``clear``."""

    mark: MarkName


class Digit(msgspec.Struct, frozen=True):
    digit: str


class Dtmf(Inbound, frozen=True, tag="dtmf"):
    dtmf: Digit


class Stop(Inbound, frozen=True, tag="stop"):
    """The caller has hung up, or the provider has gone on with something else."""


AnyInbound = Connected | Start | Sound | MarkReached | Dtmf | Stop


class Outbound(msgspec.Struct, frozen=True, tag_field="event", rename="camel"):
    """Base of what we say."""

    stream_sid: str


class _Payload(msgspec.Struct, frozen=True):
    payload: bytes


class PlaySound(Outbound, frozen=True, tag="media"):
    media: _Payload


class PlaceMark(Outbound, frozen=True, tag="mark"):
    mark: MarkName


class Clear(Outbound, frozen=True, tag="clear"):
    """Drop what has not been played."""


DIGITS: Final = frozenset("0123456789*#ABCD")

_decoder = msgspec.json.Decoder(AnyInbound)
_encoder = msgspec.json.Encoder()


def decode(text: str | bytes) -> AnyInbound:
    """Raises ``msgspec.DecodeError`` (``ValidationError`` included) for anything that is no message."""
    message: AnyInbound = _decoder.decode(text)
    return message


def sound(stream_sid: str, ulaw: bytes) -> str:
    """The message that plays G.711 mu-law."""
    return _encoder.encode(PlaySound(stream_sid, _Payload(ulaw))).decode()


def mark(stream_sid: str, name: str) -> str:
    """The message that asks to be told when everything before it has been played."""
    return _encoder.encode(PlaceMark(stream_sid, MarkName(name))).decode()


def clear(stream_sid: str) -> str:
    """The message that empties the provider's buffer."""
    return _encoder.encode(Clear(stream_sid)).decode()
