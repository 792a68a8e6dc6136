"""What the gateway and a media worker say to each other: typed MessagePack in frames, both ways.

The framing is that of the engine's workers (:mod:`duologue.engine.executors.wire`). Everything that is said in one turn
of the event loop goes in one frame: the frames of sound of all calls whose turn it is.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.executors.wire import Channel, Close, Log, NotReady, Ping, Pong, Ready, Wire
from duologue.engine.requests import ImagePart
from duologue.realtime.webrtc.call_media import End, Video
from duologue.realtime.webrtc.offer import Offer


class OfCall(Wire):
    """Base of what is about one call."""

    call: int
    """Its number with this worker, never used twice."""


# -- to the worker -----------------------------------------------------------------------------------------------------


class Launch(Wire):
    """The first message."""

    settings: WebRtcDeploy
    log_level: int


class Place(OfCall):
    """A call begins."""

    video: Video


class Join(OfCall):
    """To be answered with :class:`Answered` or :class:`Refused`."""

    number: int
    offer: Offer


class Play(OfCall):
    response_id: str
    item_id: str
    pcm: bytes


class Finish(OfCall):
    response_id: str


class Clear(OfCall):
    """To be answered with :class:`Silent`."""


class Say(OfCall):
    """A message for the peer."""

    channel: int
    """Number of the channel as :class:`Opened` has it; dropped if another one has taken its place."""
    message: bytes
    """UTF-8."""


class CloseChannel(OfCall):
    channel: int


class EndCall(OfCall):
    """To be answered with :class:`Ended`."""


Down = Launch | Place | Join | Play | Finish | Clear | Say | CloseChannel | EndCall | Ping | Close

# -- to the gateway ----------------------------------------------------------------------------------------------------


class Answered(OfCall):
    number: int
    sdp: str


class Refused(OfCall):
    """The fields of a ``ProtocolError``."""

    number: int
    code: str
    message: str
    param: str | None


class Heard(OfCall):
    pcm: bytes


class Unheard(OfCall):
    """So much of the microphone's sound was left out since the last report: the gateway did not keep up."""

    pcm_bytes: int


class Dialled(OfCall):
    key: str


class Showed(OfCall):
    picture: ImagePart | None
    """None: nothing any more."""


class Opened(OfCall):
    channel: int
    max_message_bytes: int


class Read(OfCall):
    """The channel has taken so many bytes of what it was given, and few of them wait in it."""

    channel: int
    total: int


class Said(OfCall):
    """A message of the peer."""

    message: bytes
    is_text: bool
    """Whether it came as text, which is UTF-8 here."""


class ChannelClosed(OfCall):
    channel: int


class Started(OfCall):
    response_id: str


class Played(OfCall):
    item_id: str
    samples: int


class Stopped(OfCall):
    response_id: str


class Cleared(OfCall):
    response_id: str
    item_id: str
    samples_played: int


class Silent(OfCall):
    """Nothing from before a :class:`Clear` is reported any more."""


class Delay(OfCall):
    """How much longer pictures wait than sound, from time to time."""

    difference_s: float


class PeerOver(OfCall):
    end: End
    last: bool


class Ended(OfCall):
    """Nothing more comes of this call."""


CallReport = (
    Answered
    | Refused
    | Heard
    | Unheard
    | Dialled
    | Showed
    | Opened
    | Read
    | Said
    | ChannelClosed
    | Started
    | Played
    | Stopped
    | Cleared
    | Silent
    | Delay
    | PeerOver
    | Ended
)
Up = CallReport | Ready | NotReady | Pong | Log

M = TypeVar("M")

down_decoder: msgspec.msgpack.Decoder[list[Down]] = msgspec.msgpack.Decoder(list[Down])
up_decoder: msgspec.msgpack.Decoder[list[Up]] = msgspec.msgpack.Decoder(list[Up])


class Link(Channel[M]):
    """One end of the connection."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._posted: list[Wire] = []

    def post(self, message: Wire) -> None:
        """Send a message with the others of this turn of the event loop. Dropped once the connection is lost."""
        self._posted.append(message)
        if len(self._posted) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        posted, self._posted = self._posted, []
        self.send(posted)
