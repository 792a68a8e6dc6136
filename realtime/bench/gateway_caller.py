"""The clients of ``duologue bench gateway``: many sessions in a process of their own, as cheap as they can be.

``python -m duologue.realtime.bench.gateway_caller URL [N OF]`` takes one command a line on standard input and answers
each with a line; ``N OF``: it is the N-th, from 0, of so many such processes. Frames are encoded once for all sessions,
and of what comes back only the stamps are read. Of an unfinished frame the client keeps the bytes; there is no queue,
task or timer per session.

The masking key of every frame is zero, so that one encoding serves all; the server unmasks all the same.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import sys
import time
from array import array
from binascii import a2b_base64
from collections import deque
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from duologue.realtime.bench.gateway_signal import CHUNK_S, Decision, loop
from duologue.realtime.bench.gateway_stages import STAMP_BYTES

AUDIO: Final = b'{"type":"response.output_audio.delta"'
CHUNK_CHARACTERS: Final = 1280
"""Base64 of 20 ms of sound."""
TIMEOUT_S: Final = 30.0
GOLDEN: Final = 0.618034
"""Multiples of it spread evenly between whole numbers, however many there are."""

TURN_DETECTION: Final = {"type": "server_vad", "create_response": False, "interrupt_response": False}
"""Turns are found and become items, but leave the answer alone, which goes on for as long as the measurement."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the benchmark asks for. ``connect``, ``hang_up``: so many sessions; ``send``: sessions that do not send yet
    begin within so many seconds; ``answer``: so many seconds of sound."""

    do: str
    count: int = 0
    seconds: float = 0.0
    decisions: list[Decision] = []


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts since the last ``mark``, and latencies in microseconds."""

    sessions: int = 0
    sent: int = 0
    received: int = 0
    sound_us: list[int] = []
    decision_us: list[int] = []
    pacing_lag_us: list[int] = []
    unexpected: int = 0
    lost: int = 0
    errors: list[str] = []


def text_frame(payload: bytes) -> bytes:
    """A client's text frame."""
    size = len(payload)
    if size < 126:
        head = bytes([0x81, 0x80 | size])
    elif size < 65536:
        head = bytes([0x81, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x81, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


def append_frame(pcm: bytes) -> bytes:
    """The frame of one ``input_audio_buffer.append``."""
    return text_frame(b'{"type":"input_audio_buffer.append","audio":"' + base64.b64encode(pcm) + b'"}')


def event_frame(event: dict[str, Any]) -> bytes:
    """The frame of any event."""
    return text_frame(msgspec.json.encode(event))


SET_UP: Final = event_frame(
    {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": TURN_DETECTION}}}}
)


class Session(asyncio.Protocol):
    """One WebSocket. ``ready`` resolves when the session is set up; the echo server is ready at once."""

    def __init__(self, callers: Callers, url: str, echo: bool) -> None:
        self.callers = callers
        self.transport: asyncio.Transport
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.next_chunk = 0
        self.next_decision = 0
        self.due: dict[tuple[str, int], float] = {}
        self.sent_at: deque[float] = deque()
        self._url = urlsplit(url)
        self._echo = echo
        self._open = False
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """Ask for the upgrade."""
        self.transport = transport
        target = self._url.path + (f"?{self._url.query}" if self._url.query else "")
        transport.write(
            f"GET {target} HTTP/1.1\r\nHost: {self._url.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it, unless we hung up."""
        self.callers.gone(self)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames."""
        now = time.monotonic()
        data = self._rest + data if self._rest else data
        start, size = 0, len(data)
        if not self._open:
            start = data.find(b"\r\n\r\n") + 4
            if start < 4:
                self._rest = data
                return
            if b" 101 " not in data[:16]:
                self.ready.set_exception(ConnectionError(data[:200].decode(errors="replace")))
                return
            self._open = True
            if self._echo:
                self.ready.set_result(None)
        while size - start >= 2:
            length, body = data[start + 1], start + 2
            if length == 126:
                body = start + 4
                length = int.from_bytes(data[start + 2 : body], "big")
            elif length == 127:
                body = start + 10
                length = int.from_bytes(data[start + 2 : body], "big")
            end = body + length
            if end > size or body > size:
                break
            self._frame(data[start] & 0x0F, data, body, end, now)
            start = end
        self._rest = data[start:]

    def _frame(self, opcode: int, data: bytes, start: int, end: int, now: float) -> None:
        if opcode == 9:
            self.transport.write(bytes([0x8A, 0x80 | (end - start)]) + bytes(4) + data[start:end])
        elif opcode == 1 and data.startswith(AUDIO, start):
            self._sound(data, data.find(b'"delta":"', start, end) + 9, end, now)
        elif opcode == 1:
            self._event(msgspec.json.decode(data[start:end]), now)

    def _sound(self, data: bytes, start: int, end: int, now: float) -> None:
        callers = self.callers
        if self._echo:
            callers.received += 1
            callers.sound_us.append(int((now - self.sent_at.popleft()) * 1e6))
            return
        for at in range(start, data.find(b'"', start, end), CHUNK_CHARACTERS):
            stamp = int.from_bytes(a2b_base64(data[at : at + 12])[:STAMP_BYTES], "little")
            callers.received += 1
            callers.sound_us.append(int(now * 1e6) - stamp)

    def _event(self, event: dict[str, Any], now: float) -> None:
        kind = event["type"]
        if kind == "session.created":
            self.transport.write(SET_UP)
        elif kind == "session.updated":
            self.ready.set_result(None)
        elif kind == "error":
            self.callers.errors.append(str(event["error"]["message"]))
        elif kind.startswith("input_audio_buffer.speech_"):
            at = event["audio_start_ms" if kind.endswith("started") else "audio_end_ms"]
            sent = self.due.pop((kind, at), None)
            if sent is None:
                self.callers.unexpected += 1
            else:
                self.callers.decision_us.append(int((now - sent) * 1e6))


class Callers:
    """All sessions of this process, and the clock that sends for them."""

    def __init__(self, url: str, process: int, processes: int) -> None:
        self._url = url
        self._echo = url.endswith("/echo")
        self._frames = [append_frame(chunk) for chunk in loop()]
        self._decisions: list[Decision] = []
        self._sessions: list[Session] = []
        self._leaving: set[Session] = set()
        self._queue: list[tuple[float, int, Session]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = count(process + 1, processes)
        """Of the sessions that begin to send; each has its own, whichever process it is in."""
        self.mark()

    def mark(self) -> None:
        """Begin to count anew."""
        self.sent = self.received = self.unexpected = self.lost = 0
        self.sound_us, self.decision_us, self.pacing_lag_us = array("q"), array("q"), array("q")
        self.errors: list[str] = []

    def gone(self, session: Session) -> None:
        """A connection is over."""
        if session in self._leaving:
            self._leaving.discard(session)
        elif session in self._sessions:
            self._sessions.remove(session)
            self.lost += 1

    async def take(self, command: Command) -> Reply:
        """Carry out a command."""
        match command.do:
            case "connect":
                self._decisions = command.decisions or self._decisions
                await self._connect(command.count)
            case "hang_up":
                for _ in range(min(command.count, len(self._sessions))):
                    session = self._sessions.pop()
                    self._leaving.add(session)
                    session.transport.close()
            case "send":
                self._send_all(command.seconds)
            case "rest":
                self._queue.clear()
            case "answer":
                words = [{"type": "input_text", "text": f"{command.seconds:g}"}]
                item = {"type": "message", "role": "user", "content": words}
                for session in self._sessions[-(command.count or len(self._sessions)) :]:
                    session.transport.write(event_frame({"type": "conversation.item.create", "item": item}))
                    session.transport.write(event_frame({"type": "response.create"}))
            case "cancel":
                for session in self._sessions:
                    session.transport.write(event_frame({"type": "response.cancel"}))
            case "mark":
                self.mark()
            case "report":
                return self._report()
        return Reply(sessions=len(self._sessions))

    async def _connect(self, count: int) -> None:
        url = urlsplit(self._url)
        for _ in range(count):
            _, session = await asyncio.get_running_loop().create_connection(
                lambda: Session(self, self._url, self._echo), url.hostname or "127.0.0.1", url.port or 0
            )
            self._sessions.append(session)
            async with asyncio.timeout(TIMEOUT_S):
                await session.ready

    def _send_all(self, within_s: float) -> None:
        """Every session that does not send yet begins to, each at its own point of that time and of the 20 ms."""
        sending = {session for _, _, session in self._queue}
        now = time.monotonic()
        for session in self._sessions:
            if session not in sending:
                number = next(self._numbers)
                begin = now + CHUNK_S + within_s * (number * GOLDEN % 1)
                heapq.heappush(self._queue, (begin, number, session))
        self._wind()

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._queue:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._queue[0][0] - time.monotonic()), self._tick)

    def _tick(self) -> None:
        queue, frames = self._queue, self._frames
        now = time.monotonic()
        while queue and queue[0][0] <= now:
            due, number, session = queue[0]
            if session not in self._leaving and not session.transport.is_closing():
                heapq.heapreplace(queue, (due + CHUNK_S, number, session))
                self._send_chunk(session, frames[session.next_chunk % len(frames)], now)
                self.pacing_lag_us.append(int((now - due) * 1e6))
            else:
                heapq.heappop(queue)
            now = time.monotonic()
        self._wind()

    def _send_chunk(self, session: Session, frame: bytes, now: float) -> None:
        if self._echo:
            session.sent_at.append(now)
        else:
            decisions = self._decisions
            while (
                session.next_decision < len(decisions) and decisions[session.next_decision].chunk == session.next_chunk
            ):
                decision = decisions[session.next_decision]
                session.due[decision.kind, decision.at_ms] = now
                session.next_decision += 1
        session.next_chunk += 1
        self.sent += 1
        session.transport.write(frame)

    def _report(self) -> Reply:
        return Reply(
            sessions=len(self._sessions),
            sent=self.sent,
            received=self.received,
            sound_us=self.sound_us.tolist(),
            decision_us=self.decision_us.tolist(),
            pacing_lag_us=self.pacing_lag_us.tolist(),
            unexpected=self.unexpected,
            lost=self.lost,
            errors=self.errors[:5],
        )


async def serve(url: str, process: int = 0, processes: int = 1) -> None:
    """Take commands from standard input until it ends."""
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    callers = Callers(url, process, processes)
    async for line in reader:
        reply = await callers.take(msgspec.json.decode(line, type=Command))
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Run on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], *map(int, sys.argv[2:])))


if __name__ == "__main__":
    main()
