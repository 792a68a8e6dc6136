"""What a stock client sent and received, taken down in order while the client does as it likes."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

from ordering import Event, Line, received, sent, violations
from shapes import check_shapes
from waiting import Log
from websockets.asyncio.client import ClientConnection

_REFUSED = {
    "response_cancel_not_active": "response.cancel",
    "input_audio_buffer_commit_empty": "input_audio_buffer.commit",
}


class Tape:
    """A trace of one connection after the other, and a way to wait for what comes next in it."""

    def __init__(self) -> None:
        self._log: Log[Line] = Log()
        self._numbers = itertools.count(1)
        self._stopped = False

    def stop(self) -> None:
        """Note nothing more: the client is about to leave."""
        self._stopped = True

    @property
    def trace(self) -> list[Line]:
        return self._log.items

    def sent(self, event: Event) -> None:
        """Note an event of the client. One without an ``event_id`` gets one here: the rules tell events by it."""
        self._add(True, {"event_id": f"tape_{next(self._numbers)}", **event})

    def received(self, event: Event) -> None:
        """Note an event of the server. A refusal of an event without an id is put down to the last one it can mean."""
        if event["type"] == "error" and event["error"].get("event_id") is None:
            refused = _REFUSED.get(event["error"]["code"])
            answered = {error["error"].get("event_id") for error in self.all("error")}
            for cause in reversed(self.all_sent(refused) if refused else []):
                if cause["event_id"] not in answered and cause["event_id"].startswith("tape_"):
                    event = {**event, "error": {**event["error"], "event_id": cause["event_id"]}}
                    break
        self._add(False, event)

    def wire(self, from_client: bool, text: str | bytes) -> None:
        """Note a frame as it is on the wire."""
        (self.sent if from_client else self.received)(json.loads(text))

    def _add(self, from_client: bool, event: Event) -> None:
        if not self._stopped:
            self._log.add(Line(from_client, copy.deepcopy(event)))

    async def until(self, kind: str, accept: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next server event of that type after the one found last, as soon as it is there."""
        return await self._next(False, kind, accept)

    async def until_sent(self, kind: str, accept: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next event of that type that the client sends."""
        return await self._next(True, kind, accept)

    async def _next(self, from_client: bool, kind: str, accept: Callable[[Event], bool]) -> Event:
        def fits(line: Line) -> bool:
            return line.from_client is from_client and line.event["type"] == kind and accept(line.event)

        try:
            return (await self._log.next(fits)).event
        except TimeoutError:
            raise AssertionError(f"no {kind} after {self.summary()}") from None

    def rewind(self) -> None:
        """Let the next wait begin at the start of the trace."""
        self._log.rewind()

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
        broken = [problem for connection in self.connections() for problem in violations(connection)]
        assert not broken, broken

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


def taped_connection(tape: Tape, base: type[ClientConnection] = ClientConnection) -> type[ClientConnection]:
    """For ``websockets.connect(..., create_connection=...)``: a connection that tapes every frame."""

    class TapedConnection(base):  # type: ignore[misc, valid-type]
        async def send(self, message: Any, text: bool | None = None) -> None:
            tape.wire(True, message)
            await super().send(message, text)

        async def recv(self, decode: bool | None = None) -> Any:
            message = await super().recv(decode)
            tape.wire(False, message)
            return message

    return TapedConnection
