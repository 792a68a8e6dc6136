"""A WebRTC client of a call: aiortc as it comes, with a microphone and an ear by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from fractions import Fraction
from typing import Any

import httpx2
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCIceServer, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler, VideoFrame
from msgspec.structs import replace

from duologue.engine.deploy.config import IceServer, WebRtcDeploy
from duologue.realtime.webrtc.ice import gather_by

RATE = 24_000
FRAME = RATE // 50
LOOPBACK = WebRtcDeploy(addresses=["127.0.0.1"], connect_timeout_s=10, media_workers=0)
"""Settings of servers and clients in tests: nothing leaves the machine."""

ANY_RELAY = IceServer(urls=["turn:relay"])

Event = dict[str, Any]


def tone(ms: int, hertz: float = 330.0) -> bytes:
    """PCM16 at 24 kHz that a voice codec carries: a constant would not get through."""
    time = np.arange(RATE * ms // 1000) / RATE
    return (8000 * np.sin(2 * np.pi * hertz * time)).astype("<i2").tobytes()


class Microphone(MediaStreamTrack):
    """Says what it is given, in real time; silence in between."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._sound = bytearray()
        self._frames = 0
        self._began = 0.0
        self.said_until = 0.0
        """Loop time at which the last sample of what was said left."""

    def say(self, pcm: bytes) -> None:
        self._sound += pcm

    async def recv(self) -> AudioFrame:
        loop = asyncio.get_running_loop()
        if not self._frames:
            self._began = loop.time()
        await asyncio.sleep(self._began + self._frames * 0.02 - loop.time())
        if self.readyState != "live":
            raise MediaStreamError
        piece = bytes(self._sound[: FRAME * 2])
        if piece:
            del self._sound[: FRAME * 2]
            self.said_until = loop.time()
        frame = AudioFrame(format="s16", layout="mono", samples=FRAME)
        frame.planes[0].update(piece.ljust(FRAME * 2, b"\0"))
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), self._frames * FRAME
        self._frames += 1
        return frame


class Camera(MediaStreamTrack):
    """Shows an even colour at 15 frames a second, until it is ``off``; ``grey`` and the size may change at any time."""

    kind = "video"

    def __init__(self, width: int = 320, height: int = 180) -> None:
        super().__init__()
        self.width, self.height, self.grey = width, height, 40
        self._frames = 0
        self._began = 0.0
        self.off = asyncio.Event()
        """Set: no more frames come, as of a track that a browser took out of its sender."""

    async def recv(self) -> VideoFrame:
        loop = asyncio.get_running_loop()
        if self.off.is_set():
            await asyncio.Future()
        if not self._frames:
            self._began = loop.time()
        await asyncio.sleep(self._began + self._frames / 15 - loop.time())
        if self.readyState != "live":
            raise MediaStreamError
        frame = grey_frame(self.width, self.height, self.grey)
        frame.pts, frame.time_base = self._frames * 6000, Fraction(1, 90_000)
        self._frames += 1
        return frame


def grey_frame(width: int, height: int, grey: int) -> VideoFrame:
    return VideoFrame.from_ndarray(np.full((height, width, 3), grey, np.uint8), format="rgb24").reformat(
        format="yuv420p"
    )


class RtcClient:
    """One peer connection to a server, with everything that was received over it."""

    def __init__(
        self,
        *,
        channel: bool = True,
        microphone: bool = True,
        camera: Camera | None = None,
        screen: bool = False,
        listen: bool = True,
        relays: Sequence[RTCIceServer] = (),
    ) -> None:
        """``relays``: servers through which everything goes; without any it goes over loopback."""
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=list(relays)))
        self._gathered_by = replace(LOOPBACK, relay_only=True, ice_servers=[ANY_RELAY]) if relays else LOOPBACK
        self.microphone = Microphone()
        self.events: list[Event] = []
        self.said: list[Event] = []
        self.heard = bytearray()
        """PCM16 at 24 kHz of the server's voice."""
        self.loud_at: list[float] = []
        """Loop times of the frames that were not silent."""
        self.location = ""
        self.rejoin_token = ""
        self._changed = asyncio.Event()
        self._next = 0
        self._hearing: asyncio.Task[None] | None = None
        self.channel = self.connection.createDataChannel("oai-events") if channel else None
        if self.channel is not None:
            self.channel.on("message", self._received)
            self.channel.on("open", self._changed.set)
            self.channel.on("close", self._changed.set)
        if microphone:
            self.connection.addTrack(self.microphone)
        else:
            self.connection.addTransceiver("audio", direction="recvonly")
        if camera is not None:
            self.connection.addTrack(camera)
        if screen:
            self.connection.addTransceiver("video", direction="recvonly")
        if listen:
            self.connection.on("track", self._listen)

    async def offer(self) -> str:
        """The SDP offer, with candidates on loopback only."""
        for transceiver in self.connection.getTransceivers():
            gather_by(self._gathered_by, transceiver.receiver.transport.transport)
        if self.connection.sctp is not None:
            gather_by(self._gathered_by, self.connection.sctp.transport.transport)
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def call(self, http: httpx2.AsyncClient, path: str = "/v1/realtime/calls", **headers: str) -> None:
        """Place the call."""
        answer = await http.post(
            path, content=await self.offer(), headers={"Content-Type": "application/sdp", **headers}
        )
        assert answer.status_code in (200, 201), answer.text
        self.location = answer.headers.get("location", "")
        self.rejoin_token = answer.headers.get("x-duologue-rejoin", "")
        await self.take(answer.text)

    async def take(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    @property
    def call_id(self) -> str:
        return self.location.rpartition("/")[2]

    def send(self, *events: Event) -> None:
        assert self.channel is not None
        for event in events:
            event = {"event_id": f"client_{len(self.said)}", **event}
            self.said.append(event)
            self.channel.send(json.dumps(event))

    def vanish(self) -> None:
        """Be gone without a word, as when the network is: nothing is sent, nothing that comes is seen."""
        for transceiver in self.connection.getTransceivers():
            for protocol in transceiver.receiver.transport.transport._connection._protocols:
                protocol.datagram_received = lambda data, address: None
                protocol.transport.sendto = lambda data, address: None

    async def until(self, kind: str, timeout_s: float = 30.0) -> Event:
        """The next event of a type that has not been asked for yet."""
        with self._told(kind):
            return await self._until(kind, timeout_s)

    @contextmanager
    def _told(self, kind: str) -> Iterator[None]:
        """A wait that was in vain says what came instead."""
        try:
            yield
        except TimeoutError as error:
            raise AssertionError(f"no '{kind}' after {self.kinds()}") from error

    async def _until(self, kind: str, timeout_s: float) -> Event:
        async with asyncio.timeout(timeout_s):
            while True:
                while self._next < len(self.events):
                    event = self.events[self._next]
                    self._next += 1
                    if event["type"] == kind:
                        return event
                self._changed.clear()
                await self._changed.wait()

    async def until_closed(self, timeout_s: float = 30.0) -> None:
        assert self.channel is not None
        async with asyncio.timeout(timeout_s):
            while self.channel.readyState != "closed":
                self._changed.clear()
                await self._changed.wait()

    def loop_time(self) -> float:
        """The clock of ``loud_at``."""
        return asyncio.get_running_loop().time()

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def close(self) -> None:
        await self.connection.close()
        if self._hearing is not None:
            self._hearing.cancel()
            with suppress(asyncio.CancelledError):
                await self._hearing

    def _received(self, message: str) -> None:
        self.events.append(json.loads(message))
        self._changed.set()

    def _listen(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio":
            self._hearing = asyncio.ensure_future(self._hear(track))

    async def _hear(self, track: MediaStreamTrack) -> None:
        resampler = AudioResampler(format="s16", layout="mono", rate=RATE)
        with suppress(MediaStreamError):
            while True:
                for frame in resampler.resample(await track.recv()):  # type: ignore[arg-type]
                    pcm = bytes(frame.planes[0])[: frame.samples * 2]
                    self.heard += pcm
                    if np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)).max() > 300:
                        self.loud_at.append(asyncio.get_running_loop().time())


@asynccontextmanager
async def calling(http: httpx2.AsyncClient, **options: Any) -> AsyncIterator[RtcClient]:
    """A client in a call whose session has begun."""
    headers = options.pop("headers", {})
    path = options.pop("path", "/v1/realtime/calls")
    client = RtcClient(**options)
    try:
        await client.call(http, path, **headers)
        if client.channel is not None:
            await client.until("session.created")
        yield client
    finally:
        await client.close()
