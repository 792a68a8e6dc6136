"""A telephony provider's end of a media stream: it buffers what it is sent, plays it by the clock and returns marks."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import websockets

ULAW_SILENCE = b"\xff"
FRAME_BYTES = 160


@dataclass
class Provider:
    """One call. ``heard`` is the G.711 that the caller has had in the ear."""

    socket: websockets.ClientConnection
    heard: bytearray = field(default_factory=bytearray)
    cleared: int = 0
    sound_came: asyncio.Event = field(default_factory=asyncio.Event)
    _buffer: deque[bytes | str] = field(default_factory=deque)
    _sent_ms: int = 0
    _wanted: tuple[int, asyncio.Event] | None = None

    def skip(self, ms: int) -> None:
        """Leave so much of the caller's silence out, as providers may."""
        self._sent_ms += ms

    async def start(self, **parameters: str) -> None:
        """The first two messages, in the shape that was recorded from Twilio."""
        await self.say({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        await self.say(
            {
                "event": "start",
                "sequenceNumber": "1",
                "start": {
                    "accountSid": "AC1",
                    "streamSid": "MZ1",
                    "callSid": "CA1",
                    "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                    "customParameters": parameters,
                },
                "streamSid": "MZ1",
            }
        )

    async def say(self, message: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    async def speak(self, ulaw: bytes) -> None:
        """20 ms a message, as fast as the socket takes them."""
        for first in range(0, len(ulaw), FRAME_BYTES):
            frame = ulaw[first : first + FRAME_BYTES]
            media = {
                "track": "inbound",
                "chunk": str(self._sent_ms // 20 + 1),
                "timestamp": str(self._sent_ms),
                "payload": base64.b64encode(frame).decode(),
            }
            await self.say({"event": "media", "sequenceNumber": "2", "media": media, "streamSid": "MZ1"})
            self._sent_ms += 20

    async def press(self, digit: str) -> None:
        await self.say(
            {
                "event": "dtmf",
                "streamSid": "MZ1",
                "sequenceNumber": "5",
                "dtmf": {"track": "inbound_track", "digit": digit},
            }
        )

    async def stop(self) -> None:
        ids = {"accountSid": "AC1", "callSid": "CA1"}
        await self.say({"event": "stop", "sequenceNumber": "9", "streamSid": "MZ1", "stop": ids})

    async def until_heard(self, ms: int) -> None:
        """Wait until the caller has had so much in the ear."""
        self._wanted = (ms * 8, asyncio.Event())
        await asyncio.wait_for(self._wanted[1].wait(), 60)

    async def read(self) -> None:
        async for text in self.socket:
            message = json.loads(text)
            assert message["streamSid"] == "MZ1"
            match message["event"]:
                case "media":
                    self._buffer.append(base64.b64decode(message["media"]["payload"]))
                    self.sound_came.set()
                case "mark":
                    self._buffer.append(message["mark"]["name"])
                case "clear":
                    self.cleared += 1
                    dropped, self._buffer = self._buffer, deque()
                    for name in (piece for piece in dropped if isinstance(piece, str)):
                        await self._mark(name)

    async def play(self) -> None:
        """The loudspeaker: 20 ms every 20 ms."""
        due, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
        while True:
            due += 0.02
            room = FRAME_BYTES
            while self._buffer and room:
                piece = self._buffer.popleft()
                if isinstance(piece, str):
                    await self._mark(piece)
                    continue
                self.heard += piece[:room]
                if len(piece) > room:
                    self._buffer.appendleft(piece[room:])
                room -= min(room, len(piece))
            while self._buffer and isinstance(self._buffer[0], str):
                await self._mark(str(self._buffer.popleft()))
            if self._wanted is not None and len(self.heard) >= self._wanted[0]:
                self._wanted[1].set()
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _mark(self, name: str) -> None:
        await self.say({"event": "mark", "sequenceNumber": "4", "streamSid": "MZ1", "mark": {"name": name}})


@asynccontextmanager
async def dialled(address: str) -> AsyncIterator[Provider]:
    """A stream to the server at ``address`` (host and port), whose caller listens."""
    async with websockets.connect(f"ws://{address}/v1/telephony/media-stream") as socket:
        provider = Provider(socket)
        tasks = [asyncio.create_task(provider.read()), asyncio.create_task(provider.play())]
        try:
            yield provider
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
