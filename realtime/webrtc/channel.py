"""Events over a data channel: as messages within the size that the peer takes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from duologue.realtime import metrics
from duologue.realtime.dialects import Dialect
from duologue.realtime.webrtc.call_media import MediaChannel
from duologue.realtime.websocket import edge_error
from duologue.sessions import server_events as events
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputAudio, InputImage, Item, MessageItem, OutputAudio


def send_events(channel: MediaChannel, dialect: Dialect, batch: Sequence[events.ServerEvent]) -> None:
    """Queue events in order. One that is too large for the peer is shortened, or replaced by an error.

    Raises ``ConnectionError`` when the channel is not open.
    """
    for event in batch:
        for message in fitting(event, dialect, channel.max_message_bytes):
            channel.send(message.decode())


def fitting(event: events.ServerEvent, dialect: Dialect, limit: int) -> Sequence[bytes]:
    """The messages, in UTF-8, that say ``event``, none longer than ``limit`` bytes (0: no limit).

    Messages are not divided: no client would put them together again. Where an event is too long an item goes without
    its sound and pictures, and the end of a response without its output, which was said before: a client can tell by
    their absence.
    """
    messages = dialect.encode(event)
    if _fit(messages, limit):
        return messages
    metrics.oversize_events.labels(type=str(type(event).__struct_config__.tag)).inc()
    shorter = _shortened(event)
    if shorter is not None and _fit(shorter_messages := dialect.encode(shorter), limit):
        return shorter_messages
    longest = max(map(len, messages))
    tag = type(event).__struct_config__.tag
    error = ProtocolError(
        "duologue.event_too_large",
        f"An event '{tag}' of {longest} bytes was left out: this data channel takes messages of at most {limit} bytes.",
    )
    return dialect.encode(edge_error(error, "server_error"))


def _shortened(event: events.ServerEvent) -> events.ServerEvent | None:
    match event:
        case events.ItemRetrieved() | events.ItemAdded() | events.ItemDone():
            return replace(event, item=_without_media(event.item))
        case events.ResponseDone(response=response):  # a client waits for it, whatever is in it
            return replace(event, response=replace(response, output=()))
    return None


def _fit(messages: Sequence[bytes], limit: int) -> bool:
    return not limit or all(len(message) <= limit for message in messages)


def _without_media(item: Item) -> Item:
    if not isinstance(item, MessageItem):
        return item
    content = tuple(
        replace(part, audio=UNSET)
        if isinstance(part, InputAudio | OutputAudio)
        else replace(part, image_url=UNSET)
        if isinstance(part, InputImage)
        else part
        for part in item.content
    )
    return replace(item, content=content)
