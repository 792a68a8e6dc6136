"""Going on with a session after its connection broke: an extension that a client asks for with ``?extensions=resume``.

The session lives on for a while without a connection. Its frames are numbered from 1 as they are written, and the
newest are kept, since nobody knows how much a broken connection still delivered. The client comes back with its token
and the number of frames that it has (``?resume=TOKEN&after=N``), and gets those that follow: each once, in order. How
many of its own events have arrived it is told in turn, so that it can send the rest again. The events of this module
are not numbered.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import Sequence

from duologue.realtime.sideband import QueueBounds
from duologue.realtime.websocket import POLICY, WebSocketTransport, edge_event_id
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.errors import ProtocolError
from duologue.sessions.server_events import ServerEvent

EXTENSION = "resume"


class ResumeOffered(ServerEvent, frozen=True, tag="x.resume.offered"):
    """Follows ``session.created``."""

    token: str
    """A key to this session, and to nothing else."""
    window_s: float
    """How long the session waits for a new connection."""


class Resumed(ServerEvent, frozen=True, tag="x.resume.resumed"):
    """The first event of a new connection."""

    received_events: int
    """How many events of the client have arrived, over all connections."""


class Replay:
    """Written frames by number; the newest, within bounds, and every one that still has to be written."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self.first = 1
        """Number of the oldest frame that is kept, or of the next one."""

    @property
    def last(self) -> int:
        """Number of the newest frame."""
        return self.first + len(self._frames) - 1

    def add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)

    def __getitem__(self, number: int) -> bytes:
        return self._frames[number - self.first]

    def trim(self, unwritten: int) -> None:
        """Forget the oldest frames beyond the bounds, but none from number ``unwritten`` on."""
        while self.first < unwritten and (len(self._frames) > self._bounds.events or self._bytes > self._bounds.bytes):
            self._bytes -= len(self._frames.popleft())
            self.first += 1


class ResumableTransport:
    """A session's transport over one WebSocket after another."""

    def __init__(self, connection: WebSocketTransport, window_s: float, bounds: QueueBounds) -> None:
        self.token = secrets.token_urlsafe(24)
        self.dialect = connection.dialect
        self._window_s = window_s
        self._connection: WebSocketTransport | None = connection
        self._replay = Replay(bounds)
        self._next = 1
        self._received = 0
        self._offered = False
        self._over = False
        self._moved = asyncio.Event()
        self._writing = asyncio.Lock()
        self._resuming = asyncio.Lock()
        self._reading: asyncio.Task[ClientEvent | InvalidEvent | None] | None = None
        self._window: asyncio.TimerHandle | None = None

    # -- as the session sees it ----------------------------------------------------------------------------------------

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        while not self._over:
            connection = self._connection
            if connection is None:
                await self._moved.wait()
                continue
            event = await self._read(connection)
            if connection is not self._connection:
                continue  # another connection took over: what the client sent over this one it sends again
            if event is not None:
                self._received += 1
                return event
            if not connection.lost:
                return None
            self._leave()
        return None

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Write events, as soon as there is a connection. Raises ``ConnectionError`` once none came in time."""
        for event in events:
            connection = self._connection
            for frame in self.dialect.encode(event):
                self._replay.add(frame)
            await self._write_pending(wait=True)
            if not self._offered and connection is not None:
                self._offered = True
                offer = ResumeOffered(event_id=edge_event_id(), token=self.token, window_s=self._window_s)
                await connection.send([offer])

    async def close(self, code: int, reason: str) -> None:
        connection = self._connection
        self._end()
        if connection is not None:
            await connection.close(code, reason)

    # -- coming back ---------------------------------------------------------------------------------------------------

    async def resume(self, connection: WebSocketTransport, after: int) -> None:
        """Go on over ``connection``, whose client has ``after`` frames; returns when the session no longer uses it.

        Raises ``ProtocolError`` where that cannot be.
        """
        async with self._resuming:
            self._check(after)
            before, self._connection = self._connection, None
            self._leave()
            await connection.send([Resumed(event_id=edge_event_id(), received_events=self._received)])
            if not self._over:
                self._next, self._connection = after + 1, connection
                self._stop_window()
                self._move()
        await self._write_pending(wait=False)
        if before is not None:
            await before.close(POLICY, "The session goes on over another connection.")
        while self._connection is connection and not self._over:
            await self._moved.wait()

    def _check(self, after: int) -> None:
        first, last = self._replay.first, self._replay.last
        if self._over:
            raise unknown_token()
        if not first - 1 <= after <= last:
            message = f"The session cannot go on after event {after}: {first} to {last} are kept."
            raise ProtocolError("duologue.resume_gap", message, "after")

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _read(self, connection: WebSocketTransport) -> ClientEvent | InvalidEvent | None:
        """The connection's next event; None also once the session has turned away from it."""
        self._reading = asyncio.create_task(connection.receive(), name="resumable-read")
        try:
            await asyncio.wait({self._reading})
            return None if self._reading.cancelled() else self._reading.result()
        finally:
            self._reading.cancel()

    async def _write_pending(self, wait: bool) -> None:
        """Write what is unwritten, one frame after the other, whoever comes first; ``wait`` for a connection."""
        async with self._writing:
            while self._next <= self._replay.last:
                connection, number = self._connection, self._next
                if connection is None or connection.over:
                    if self._over:
                        raise ConnectionError("The client did not come back.")
                    if not wait:
                        return
                    await self._moved.wait()
                    continue
                await connection.send_frame(self._replay[number])
                if connection is self._connection and not connection.over:
                    self._next = number + 1
            self._replay.trim(self._next)

    def _leave(self) -> None:
        """There is no connection now; the window for another one opens."""
        self._connection = None
        if self._reading is not None:
            self._reading.cancel()
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(self._window_s, self._end)
        self._move()

    def _end(self) -> None:
        self._over = True
        self._connection = None
        self._stop_window()
        self._move()

    def _stop_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None

    def _move(self) -> None:
        """Wake whoever waits for another connection, or for none."""
        self._moved.set()
        self._moved = asyncio.Event()


class Resumables:
    """The sessions that can be resumed, by their tokens. Only digests are kept."""

    def __init__(self) -> None:
        self._transports: dict[bytes, ResumableTransport] = {}

    def __len__(self) -> int:
        return len(self._transports)

    def add(self, transport: ResumableTransport) -> None:
        self._transports[_digest(transport.token)] = transport

    def remove(self, transport: ResumableTransport) -> None:
        self._transports.pop(_digest(transport.token), None)

    def __contains__(self, token: str) -> bool:
        return _digest(token) in self._transports

    def find(self, token: str) -> ResumableTransport | None:
        return self._transports.get(_digest(token))


def unknown_token() -> ProtocolError:
    message = "There is no session to go on with: the token is wrong, or the session is over."
    return ProtocolError("duologue.resume_unknown", message, "resume")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
