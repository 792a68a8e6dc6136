"""What a stock client sent and received, taken down in order while the client does as it likes."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

from ordering import Event, Line, received, sent, violations
from shapes import check_shapes

PATIENCE_S = 60.0
"""Longest wait for an event. Only a broken server comes near it."""


class Tape:
    """A trace of one connection after the other, and a way to wait for what comes next in it."""

    def __init__(self) -> None:
        self.trace: list[Line] = []
        self._read = 0
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)

    def sent(self, event: Event) -> None:
        """Note an event of the client. One without an ``event_id`` gets one here: the rules tell events by it."""
        self._add(True, {"event_id": f"tape_{next(self._numbers)}", **event})

    def received(self, event: Event) -> None:
        self._add(False, event)

    def wire(self, from_client: bool, text: str | bytes) -> None:
        """Note a frame as it is on the wire."""
        (self.sent if from_client else self.received)(json.loads(text))

    def _add(self, from_client: bool, event: Event) -> None:
        self.trace.append(Line(from_client, copy.deepcopy(event)))
        self._changed.set()

    async def until(self, kind: str, accept: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next server event of that type after the one found last, as soon as it is there."""
        return await self._next(False, kind, accept)

    async def until_sent(self, kind: str, accept: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next event of that type that the client sends."""
        return await self._next(True, kind, accept)

    async def _next(self, from_client: bool, kind: str, accept: Callable[[Event], bool]) -> Event:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    for index in range(self._read, len(self.trace)):
                        line = self.trace[index]
                        if line.from_client is from_client and line.event["type"] == kind and accept(line.event):
                            self._read = index + 1
                            return line.event
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {kind} within {PATIENCE_S:.0f} s after {self.summary()}") from None

    def rewind(self) -> None:
        """Let the next wait begin at the start of the trace."""
        self._read = 0

    def all(self, *types: str) -> list[Event]:
        """The server's events so far."""
        return received(self.trace, *types)

    def all_sent(self, *types: str) -> list[Event]:
        return sent(self.trace, *types)

    def errors(self) -> list[str]:
        """Codes of the ``error`` events so far."""
        return [event["error"]["code"] for event in self.all("error")]

    def summary(self) -> str:
        """The last few events, for a message."""
        names = [("> " if line.from_client else "< ") + line.event["type"] for line in self.trace]
        few = [name for name, _ in itertools.groupby(names)]
        return ", ".join(few[-30:])

    def conversation(self) -> list[str]:
        """Ids of the items as a client that follows ``previous_item_id`` has them."""
        items: list[str] = []
        for event in self.all("session.created", "conversation.item.added", "conversation.item.deleted"):
            match event["type"]:
                case "session.created":
                    items = []
                case "conversation.item.added":
                    previous = event["previous_item_id"]
                    items.insert(0 if previous is None else items.index(previous) + 1, event["item"]["id"])
                case _:
                    items.remove(event["item_id"])
        return items

    def check(self) -> None:
        """Shapes and ordering rules of each connection on the tape. Everything begun must have ended."""
        check_shapes(self.trace)
        assert [violations(connection) for connection in self.connections()] == [[] for _ in self.connections()]

    def connections(self) -> list[list[Line]]:
        """The trace cut where a connection begins: at ``session.created``, or at the update that was sent before it."""
        starts = []
        for created in [i for i, line in enumerate(self.trace) if line.event["type"] == "session.created"]:
            first = created
            while first > 0 and self.trace[first - 1].from_client:
                first -= 1
            block = [line.event["type"] for line in self.trace[first:created]]
            starts.append(first + block.index("session.update") if "session.update" in block else created)
        return [self.trace[start:end] for start, end in itertools.pairwise([*starts, len(self.trace)])]


SETTLE: dict[str, Any] = {
    "type": "conversation.item.retrieve",
    "event_id": "settle_1",
    "item_id": "item_that_is_not_there",
}
"""A harmless question: once it is answered, the server has answered everything before it."""


def settles(event: Event) -> bool:
    """Whether this ``error`` answers ``SETTLE``."""
    return bool(event["error"]["event_id"] == SETTLE["event_id"])
