"""Events over a data channel: within the size that the peer takes, and no faster than it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiortc import RTCDataChannel
from aiortc.exceptions import InvalidStateError
from msgspec import UNSET
from msgspec.structs import replace

from duologue.realtime import metrics
from duologue.realtime.dialects import Dialect
from duologue.realtime.websocket import edge_error
from duologue.sessions import server_events as events
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputAudio, InputImage, Item, MessageItem, OutputAudio

HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait in the channel; beyond, the session waits."""
LOW_WATER: Final = 256 * 1024


class EventChannel:
    """The peer's data channel, once it is open."""

    def __init__(self, channel: RTCDataChannel, dialect: Dialect) -> None:
        self._channel = channel
        self._dialect = dialect
        self._low = asyncio.Event()
        self._low.set()
        channel.bufferedAmountLowThreshold = LOW_WATER
        channel.on("bufferedamountlow", self._low.set)
        channel.on("close", self._low.set)

    @property
    def ready(self) -> bool:
        """Whether more can be sent without waiting."""
        return self._channel.readyState == "open" and self._channel.bufferedAmount < HIGH_WATER

    @property
    def open(self) -> bool:
        return self._channel.readyState == "open"

    @property
    def max_message_bytes(self) -> int:
        """Longest message that the peer takes; 0: any."""
        limit: int = self._channel.transport._remote_max_message_size
        return limit

    def send(self, batch: Sequence[events.ServerEvent]) -> None:
        """Queue events in order. One that is too large for the peer goes without its media, or is replaced by an error.

        Raises ``ConnectionError`` when the channel is not open.
        """
        try:
            for event in batch:
                for message in fitting(event, self._dialect, self.max_message_bytes):
                    self._channel.send(message)
        except InvalidStateError as error:
            raise ConnectionError("the data channel is closed") from error

    async def drained(self) -> None:
        """Wait until the peer has read enough, or the channel is closed."""
        while self.open and not self.ready:
            self._low.clear()
            await self._low.wait()

    async def close(self) -> None:
        """Close the channel once the peer has everything: a stream is reset behind what was sent on it."""
        if not self.open:
            return
        closed = asyncio.Event()
        self._channel.on("close", closed.set)
        self._channel.close()
        await closed.wait()


def fitting(event: events.ServerEvent, dialect: Dialect, limit: int) -> Sequence[str]:
    """The messages that say ``event``, none longer than ``limit`` bytes of UTF-8 (0: no limit).

    Messages are not divided: no client would put them together again. An item goes without its sound and pictures where
    it is too long with them, which a client can tell by their absence.
    """
    messages = dialect.encode(event)
    if _fit(messages, limit):
        return messages
    metrics.oversize_events.labels(type=str(type(event).__struct_config__.tag)).inc()
    if isinstance(event, events.ItemRetrieved | events.ItemAdded | events.ItemDone):
        messages = dialect.encode(replace(event, item=_without_media(event.item)))
        if _fit(messages, limit):
            return messages
    longest = max(len(message.encode()) for message in messages)
    tag = type(event).__struct_config__.tag
    error = ProtocolError(
        "duologue.event_too_large",
        f"An event '{tag}' of {longest} bytes was left out: this data channel takes messages of at most {limit} bytes.",
    )
    return dialect.encode(edge_error(error, "server_error"))


def _fit(messages: Sequence[str], limit: int) -> bool:
    # a character is at most four bytes: most messages are short enough to tell without encoding them
    return not limit or all(len(m) * 4 <= limit or len(m.encode()) <= limit for m in messages)


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
