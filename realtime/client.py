"""A small asyncio client of ``/v1/realtime`` in the GA dialect, for ``talk`` and the benchmarks.

It reads leniently (unknown events and fields pass through, as with a foreign server) and logs everything. It keeps no
conversation state; :mod:`duologue.realtime.bench.conversation` derives that from the events.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import State

from duologue.realtime.event_log import EventLog, without_media
from duologue.sessions.client_events import ClientEvent, SessionUpdate

LARGEST_FRAME = 64 * 1024 * 1024
AUDIO_DELTA = "response.output_audio.delta"
HUNG_UP = "connection.hung_up"
"""The note in the log where the client itself ended the connection."""


class ClientError(Exception):
    """The conversation cannot go on; the text is one line for a person."""


class ServerUnreachable(ClientError):
    """No server answered the handshake."""


class ServerRefused(ClientError):
    """The server answered with an HTTP status instead of a WebSocket, or with an ``error`` to a needed request."""


class ConnectionLost(ClientError):
    """The connection broke without a proper close."""


class Lenient(msgspec.Struct, frozen=True):
    """Base of the received shapes: unknown fields are ignored."""


class ErrorView(Lenient):
    message: str = ""
    type: str | None = None
    code: str | None = None
    param: str | None = None
    event_id: str | None = None


class StatusDetailsView(Lenient):
    type: str | None = None
    reason: str | None = None
    error: ErrorView | None = None


class UsageView(Lenient):
    input_tokens: int | None = None
    output_tokens: int | None = None


class ResponseView(Lenient):
    id: str
    status: str | None = None
    status_details: StatusDetailsView | None = None
    usage: UsageView | None = None


class SessionView(Lenient):
    id: str | None = None
    model: str | None = None
    audio: dict[str, Any] = {}

    @property
    def interrupt_response(self) -> bool:
        """Whether speech cuts the answer off. Absent turn detection does not."""
        detection = self.audio.get("input", {}).get("turn_detection")
        return bool(detection and detection.get("interrupt_response", True))


class ServerMessage(Lenient):
    """The fields of all server events that a client here looks at, in one flat shape; see the protocol page."""

    type: str
    event_id: str | None = None
    item_id: str | None = None
    response_id: str | None = None
    previous_item_id: str | None = None
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None
    delta: str | None = None
    transcript: str | None = None
    text: str | None = None
    response: ResponseView | None = None
    session: SessionView | None = None
    error: ErrorView | None = None


@dataclass(frozen=True)
class Received:
    """One server event with its time of arrival, and the decoded audio if it carries any."""

    at: float
    message: ServerMessage
    audio_bytes: int = 0
    audio: bytes = b""


def encode_client_event(event: ClientEvent) -> str:
    """JSON of an event. Top-level nulls are left out: an absent field and ``null`` mean the same in client events."""
    fields = msgspec.to_builtins(event)
    return msgspec.json.encode({key: value for key, value in fields.items() if value is not None}).decode()


def with_model(url: str, model: str | None) -> str:
    """``url`` with ``model`` put into its query, unless there is none to put."""
    if model is None:
        return url
    parts = urlsplit(url)
    query = [(key, value) for key, value in parse_qsl(parts.query) if key != "model"]
    return urlunsplit(parts._replace(query=urlencode([*query, ("model", model)])))


class RealtimeClient:
    """One connection. Use as an async context manager; iterate it for the events.

    Iterating stamps each event as it is read, so the iterating task must do no slow work between events.
    """

    def __init__(self, connection: ClientConnection, log: EventLog, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._decoder = msgspec.json.Decoder(ServerMessage)
        self._hung_up = False
        self.log = log

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        log: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        open_timeout_s: float = 10.0,
    ) -> Self:
        """Open a connection. Raises :class:`ServerUnreachable` or :class:`ServerRefused`."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Audio is sent as it is spoken: compression would only add delay. A proxy is for other hosts than this one.
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        try:
            connection = await connect(
                with_model(url, model),
                additional_headers=headers,
                compression=None,
                max_size=LARGEST_FRAME,
                open_timeout=open_timeout_s,
                proxy=None if local else True,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            hint = " (is the API key right?)" if status in (401, 403) else ""
            raise ServerRefused(f"{url} refused the connection with HTTP {status}{hint}.") from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            raise ServerUnreachable(f"no server answers at {url} ({error or type(error).__name__}).") from error
        return cls(connection, log or EventLog(), clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection properly; whoever iterates the client gets to the end.

        Who hangs up has no more to say: what other tasks send from here on is dropped, without an error.
        """
        if self._connection.state is State.OPEN and not self._hung_up:
            self._hung_up = True
            self.log.note({"type": HUNG_UP}, self._clock())
        await self._connection.close()

    async def send(self, event: ClientEvent) -> None:
        """Send any event but audio. Raises :class:`ConnectionLost`."""
        if self._hung_up:
            return
        frame = encode_client_event(event)
        self.log.sent(without_media(msgspec.json.decode(frame)), self._clock())
        await self._send(frame)

    async def append(self, pcm: bytes, due: float | None = None) -> None:
        """Send input audio (PCM16, 24 kHz); ``due`` is when it ought to leave and is logged."""
        if self._hung_up:
            return
        now = self._clock()
        self.log.start_input_clock(now)
        self.log.sent({"type": "input_audio_buffer.append", "bytes": len(pcm)}, now, due)
        audio = base64.b64encode(pcm).decode("ascii")
        await self._send(f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}')

    async def _send(self, frame: str) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise _lost(error) from error

    def __aiter__(self) -> AsyncIterator[Received]:
        return self._events()

    async def _events(self) -> AsyncIterator[Received]:
        while True:
            try:
                frame = await self._connection.recv(decode=False)
            except ConnectionClosedOK:
                return
            except ConnectionClosed as error:
                raise _lost(error) from error
            yield self._read(frame, self._clock())

    def _read(self, frame: bytes, at: float) -> Received:
        try:
            message = self._decoder.decode(frame)
            event = msgspec.json.decode(frame)
            audio = b""
            if message.type == AUDIO_DELTA and message.delta is not None:
                audio = base64.b64decode(message.delta, validate=True)
                event = {**event, "bytes": len(audio)}
                del event["delta"]
        except (msgspec.DecodeError, binascii.Error) as error:
            raise ClientError(f"the server sent a malformed event: {error}") from error
        self.log.received(without_media(event), at, audio)
        return Received(at, message, len(audio), audio)

    async def configure(self, session: dict[str, Any], *, timeout_s: float = 10.0) -> SessionView:
        """Wait for ``session.created``, send one ``session.update``, wait for its answer.

        To be called before anything iterates the client. Raises :class:`ServerRefused` with the server's message.
        """

        async def answer(kind: str) -> ServerMessage:
            async for received in self:
                if received.message.type == kind:
                    return received.message
                if received.message.type == "error" and received.message.error:
                    raise ServerRefused(f"the server refused the session: {received.message.error.message}")
            raise ConnectionLost(f"the server closed the connection before {kind}.")

        try:
            async with asyncio.timeout(timeout_s):
                await answer("session.created")
                await self.send(SessionUpdate(session={"type": "realtime", **session}))
                updated = await answer("session.updated")
        except TimeoutError as error:
            raise ServerUnreachable(f"the server did not set up the session within {timeout_s:g} s.") from error
        return updated.session or SessionView()


def _lost(error: ConnectionClosed) -> ConnectionLost:
    close = error.rcvd
    told = f"code {close.code}{f', {close.reason}' if close.reason else ''}" if close else "no close frame"
    return ConnectionLost(f"the connection to the server was lost ({told}).")
