"""A conversation over the official ``openai`` client, with everything sent and received kept as a trace."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

from openai.resources.realtime.realtime import AsyncRealtimeConnection
from ordering import Event, Line, received

PATIENCE_S = 60.0
"""Longest wait for an event. Only a broken server comes near it."""


class Recorder:
    """Sends client events with ids of their own and receives the server's, both recorded in order."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.trace: list[Line] = []
        self._numbers = itertools.count(1)
        self._read = 0

    async def send(self, kind: str, **fields: Any) -> str:
        """Send an event; returns its ``event_id``."""
        event_id = f"client_{next(self._numbers)}"
        event = {"type": kind, "event_id": event_id, **fields}
        self.trace.append(Line(True, event))
        await self.connection.send(event)  # type: ignore[arg-type]
        return event_id

    async def next(self) -> Event:
        """The next event, which the client must be able to parse."""
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.connection.recv_bytes()
        event: Event = json.loads(raw)
        assert self.connection.parse_event(raw).type == event["type"]
        self.trace.append(Line(False, event))
        return event

    async def until(self, kind: str, accept: Callable[[Event], bool] = lambda event: True) -> Event:
        """Receive up to and including the next event of that type."""
        while True:
            event = await self.next()
            if event["type"] == kind and accept(event):
                return event

    async def settle(self) -> None:
        """Receive what the server still has to say: everything up to the answer to a harmless question."""
        event_id = await self.send("conversation.item.retrieve", item_id="item_that_is_not_there")
        await self.until("error", lambda event: event["error"]["event_id"] == event_id)

    # -- things that are done often --------------------------------------------------------------------------------

    async def update(self, **session: Any) -> Event:
        """Update the session and return the answer: ``session.updated`` or ``error``."""
        event_id = await self.send("session.update", session={"type": "realtime", **session})
        while True:
            event = await self.next()
            if event["type"] == "session.updated" or event.get("error", {}).get("event_id") == event_id:
                return event

    async def refused(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send an event that must fail and return the body of its error."""
        event_id = await self.send(kind, **fields)
        event = await self.until("error")
        assert event["error"]["event_id"] == event_id
        error: dict[str, Any] = event["error"]
        return error

    async def write(self, text: str, **item: Any) -> Event:
        """Add a user message; returns it as the server added it."""
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content, **item}
        )
        return await self.until("conversation.item.done")

    async def append(self, audio: bytes, chunk: int = 4800) -> None:
        """Send audio as fast as the connection takes it, in chunks of so many bytes."""
        for first in range(0, len(audio), chunk):
            piece = base64.b64encode(audio[first : first + chunk]).decode()
            await self.send("input_audio_buffer.append", audio=piece)

    async def respond(self, **response: Any) -> Event:
        """Ask for a response and return the final one."""
        await self.send("response.create", **({"response": response} if response else {}))
        return (await self.until("response.done"))["response"]

    # -- looking back ----------------------------------------------------------------------------------------------

    def received(self, *types: str) -> list[Event]:
        return received(self.trace, *types)

    def audio_of(self, response_id: str) -> bytes:
        """The sound of a response as the client got it."""
        deltas = self.received("response.output_audio.delta")
        return b"".join(base64.b64decode(event["delta"]) for event in deltas if event["response_id"] == response_id)
