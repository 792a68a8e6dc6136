"""What a client may say, in the GA dialect's own terms: the session core's input vocabulary.

Other dialects are translated to and from these types at the edge. Audio is base64 on the wire and bytes here.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import Item, ItemId

EventId = Annotated[str, msgspec.Meta(max_length=512)]


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: EventId | None = None
    """Echoed only in the ``error`` that this event causes."""


class SessionUpdate(ClientEvent, frozen=True, tag="session.update"):
    session: dict[str, Any]
    """A partial configuration, validated when it is merged (:func:`duologue.sessions.config.merged`)."""


class InputAudioAppend(ClientEvent, frozen=True, tag="input_audio_buffer.append"):
    audio: bytes


class InputAudioCommit(ClientEvent, frozen=True, tag="input_audio_buffer.commit"):
    pass


class InputAudioClear(ClientEvent, frozen=True, tag="input_audio_buffer.clear"):
    pass


class ItemCreate(ClientEvent, frozen=True, tag="conversation.item.create"):
    item: Item
    previous_item_id: ItemId | None = None


class ItemRetrieve(ClientEvent, frozen=True, tag="conversation.item.retrieve"):
    item_id: ItemId


class ItemTruncate(ClientEvent, frozen=True, tag="conversation.item.truncate"):
    item_id: ItemId
    audio_end_ms: Annotated[int, msgspec.Meta(ge=0)]
    content_index: Annotated[int, msgspec.Meta(ge=0)] = 0


class ItemDelete(ClientEvent, frozen=True, tag="conversation.item.delete"):
    item_id: ItemId


class ResponseCreate(ClientEvent, frozen=True, tag="response.create"):
    response: dict[str, Any] | UnsetType = UNSET
    """Per-response overrides, validated against the session (:func:`duologue.sessions.config.response_settings`)."""


class ResponseCancel(ClientEvent, frozen=True, tag="response.cancel"):
    response_id: str | None = None


class OutputAudioClear(ClientEvent, frozen=True, tag="output_audio_buffer.clear"):
    pass


class PlaybackAck(ClientEvent, frozen=True, tag="playback.ack"):
    """Extension ``playback``: how much of an item the client has played."""

    response_id: str
    item_id: ItemId
    played_ms: Annotated[int, msgspec.Meta(ge=0)]
    committed_ms: Annotated[int, msgspec.Meta(ge=0)]
    """How much of that was certainly heard: what a model is shown if the answer is interrupted."""


class InvalidEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that could not be decoded; takes its place in the stream so that its ``error`` leaves in order."""

    error: ProtocolError
    event_id: str | None = None


AnyClientEvent = (
    SessionUpdate
    | InputAudioAppend
    | InputAudioCommit
    | InputAudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
    | OutputAudioClear
    | PlaybackAck
)
