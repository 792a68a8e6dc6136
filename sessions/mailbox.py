"""The mailbox of a session: events in order, handled at once by whoever puts them there, as far as they can be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from duologue.sessions.effects import Input

MAILBOX_EVENTS = 32


class Mailbox:
    """Events in order; ``on_event`` is called for each and takes what it can.

    There are three ways in. ``put`` waits while the box is full; ``take`` is for who has found it :meth:`ready`;
    ``post`` is for producers that are bounded by other means (voice-activity frames, reports of the writer, the timer).
    """

    def __init__(self, on_event: Callable[[], None], limit: int = MAILBOX_EVENTS) -> None:
        self._on_event = on_event
        self._limit = limit
        self.events: deque[Input] = deque()
        self._waiting = 0
        """How many wait to put something in."""
        self._room: asyncio.Event | None = None
        """Set once there is room again; there only while somebody waits for that."""

    def ready(self) -> bool:
        """Whether the next event can be taken now, and does not overtake one that waits."""
        return not self._waiting and len(self.events) < self._limit

    def post(self, event: Input) -> None:
        """Put an event in, whether there is room or not."""
        self.events.append(event)
        self._on_event()

    take = post

    async def put(self, event: Input) -> None:
        """Put an event in as soon as there is room."""
        if self.full():
            self._waiting += 1
            try:
                await self._wait_for_room()
            finally:
                self._waiting -= 1
        self.post(event)

    async def _wait_for_room(self) -> None:
        while self.full():
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def full(self) -> bool:
        return len(self.events) >= self._limit

    def pop(self) -> Input:
        """The next event. Raises ``IndexError`` if there is none."""
        event = self.events.popleft()
        if self._room is not None and len(self.events) < self._limit:
            self._room.set()
            self._room = None
        return event
