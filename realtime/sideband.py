"""More connections to a session than its own: sidebands, which hear what it says and may speak in it.

All of them write through the session's one mailbox. What the session says goes to everybody, except an ``error``: that
goes to whoever caused it. To tell by whom an event was sent, its ``event_id`` is marked on the way in and restored on
the way out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from duologue.realtime.websocket import (
    CLOSE_TIMEOUT_S,
    NORMAL,
    TRY_AGAIN_LATER,
    WebSocketTransport,
    edge_error,
    edge_event_id,
)
from duologue.sessions.client_events import AnyClientEvent, InvalidEvent
from duologue.sessions.config import shown
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import DirectTransport, Inlet, SessionHandle, Transport
from duologue.sessions.outbox import Outbox
from duologue.sessions.server_events import ErrorEvent, ServerEvent, SessionCreated

E = TypeVar("E", bound=AnyClientEvent | InvalidEvent)

MAX_SIDEBANDS = 8
"""Sidebands that one session may have at the same time."""


@dataclass(frozen=True)
class QueueBounds:
    """What may wait for a client that reads slowly."""

    events: int = 512
    bytes: int = 2 * 1024 * 1024


class Sideband:
    """One connection besides the session's own. What it has not read yet is merged, and bounded: beyond the bound it is
    cut off, since the session does not wait for it."""

    def __init__(self, transport: WebSocketTransport, bounds: QueueBounds) -> None:
        self._transport = transport
        self._bounds = bounds
        self._outbox = Outbox()
        self._filled = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = (NORMAL, "")

    def push(self, event: ServerEvent) -> None:
        """Queue an event."""
        if self._over.is_set():
            return
        self._outbox.push(event)
        self._filled.set()
        if len(self._outbox) > self._bounds.events or self._outbox.audio_bytes > self._bounds.bytes:
            self._outbox = Outbox()
            error = ProtocolError("duologue.too_slow", "This connection reads too slowly for what the session says.")
            self._outbox.push(edge_error(error, "server_error"))
            self.end(TRY_AGAIN_LATER, error.message)

    def end(self, code: int, reason: str) -> None:
        """Send what is queued, then close."""
        if not self._over.is_set():
            self._closing = (code, reason)
            self._over.set()
            self._filled.set()

    async def run(self, shared: SharedTransport, handle: SessionHandle) -> None:
        """Serve the connection until it or the session is over."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(shared, handle), name="sideband-read")
            writing = tasks.create_task(self._write(), name="sideband-write")
            await self._over.wait()
            reading.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.wait({writing})
            writing.cancel()
        await self._transport.close(*self._closing)

    async def _read(self, shared: SharedTransport, handle: SessionHandle) -> None:
        while (event := await self._transport.receive()) is not None:
            await handle.submit(shared.marked(event, self))
        self.end(NORMAL, "")

    async def _write(self) -> None:
        while self._outbox or not self._over.is_set():
            await self._filled.wait()
            batch = [outgoing.event for outgoing in self._outbox.take()]
            if not self._outbox and not self._over.is_set():
                self._filled.clear()
            await self._transport.send(batch)


def _not_now(events: Sequence[ServerEvent]) -> bool:
    return False


class SharedTransport:
    """A session's transport that sidebands can join. Until one does, what is sent at once goes past it."""

    def __init__(self, own: Transport, bounds: QueueBounds = QueueBounds()) -> None:
        self._own = own
        self._direct = own if isinstance(own, DirectTransport) else None
        self._bounds = bounds
        self._mark = secrets.token_hex(8)
        self._joined = 0
        self._sidebands: dict[int, Sideband] = {}
        self.send_now: Callable[[Sequence[ServerEvent]], bool] = (
            _not_now if self._direct is None else self._direct.send_now
        )
        """The short way out, as :class:`DirectTransport` has it."""

    # -- as the session sees it ----------------------------------------------------------------------------------------

    async def receive(self) -> AnyClientEvent | InvalidEvent | None:
        event = await self._own.receive()
        if self._joined and event is not None and event.event_id is None:
            return self.marked(event, None)
        return event

    async def send(self, events: Sequence[ServerEvent]) -> None:
        if self._joined:
            events = [event for sent in events if (event := self._route(sent)) is not None]
        await self._own.send(events)

    async def close(self, code: int, reason: str) -> None:
        self.end(code, reason)
        await self._own.close(code, reason)

    # -- the short way in, while nobody has joined ---------------------------------------------------------------------

    def deliver_to(self, inlet: Inlet | None) -> None:
        if self._direct is not None and not (self._joined and inlet is not None):
            self._direct.deliver_to(inlet)

    # -- sidebands -----------------------------------------------------------------------------------------------------

    def end(self, code: int = NORMAL, reason: str = "The session is over.") -> None:
        """Close the sidebands; harmless when they are closing."""
        for sideband in self._sidebands.values():
            sideband.end(code, reason)

    async def serve(self, transport: WebSocketTransport, handle: SessionHandle) -> None:
        """Let a connection take part until it or the session is over.

        Raises ``ProtocolError`` where there are too many already.
        """
        if len(self._sidebands) >= MAX_SIDEBANDS:
            raise ProtocolError("duologue.capacity", f"The session has {MAX_SIDEBANDS} sidebands already.", "call_id")
        self._joined += 1
        self.send_now = _not_now
        self.deliver_to(None)
        number, sideband = self._joined, Sideband(transport, self._bounds)
        self._sidebands[number] = sideband
        sideband.push(SessionCreated(event_id=edge_event_id(), session=shown(handle.session)))
        try:
            await sideband.run(self, handle)
        finally:
            del self._sidebands[number]

    def marked(self, event: E, sender: Sideband | None) -> E:
        """``event`` with an id that tells who sent it (None: the session's own client) and what its id was."""
        number = next((number for number, sideband in self._sidebands.items() if sideband is sender), 0)
        own_id = "" if event.event_id is None else f":{event.event_id}"
        return replace(event, event_id=f"{self._mark}-{number}{own_id}")

    def _route(self, event: ServerEvent) -> ServerEvent | None:
        """Give an event to the sidebands; returns it as the session's own client is to get it, None if not at all."""
        event_id = event.error.event_id if isinstance(event, ErrorEvent) else None
        if event_id is None:
            for sideband in self._sidebands.values():
                sideband.push(event)
            return event
        assert isinstance(event, ErrorEvent)
        mark, _, rest = event_id.partition("-")
        if mark != self._mark:
            return event
        sender, marked, own_id = rest.partition(":")
        restored = replace(event, error=replace(event.error, event_id=own_id if marked else None))
        if sender == "0":
            return restored
        if (culprit := self._sidebands.get(int(sender))) is not None:
            culprit.push(restored)
        return None
