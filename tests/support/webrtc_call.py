"""Calls between a stock aiortc peer (the offerer) and our media, over a link that can be made bad."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from missing import need_libopus, need_package

need_package("aiortc")
need_libopus()

from aiortc import (  # noqa: E402
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError  # noqa: E402
from av import AudioFrame, AudioResampler  # noqa: E402

from duologue.codecs.pcm import PCM16  # noqa: E402
from duologue.realtime.bench.webrtc_link import LossyLink  # noqa: E402
from duologue.realtime.webrtc.media import IncomingAudio, OutgoingAudio  # noqa: E402
from duologue.realtime.webrtc.playout_queue import PlayoutQueue  # noqa: E402

PEER_RATE = 48_000


class ToneTrack(MediaStreamTrack):
    """A microphone into which somebody hums: 20 ms frames of a tone, ``ppm`` faster than the clock says."""

    kind = "audio"

    def __init__(self, hertz: float = 220.0, level: float = 8000.0, ppm: float = 0.0) -> None:
        super().__init__()
        self._hertz, self.level, self._interval = hertz, level, 0.020 / (1 + ppm * 1e-6)
        self._frames = 0
        self._began = 0.0

    async def recv(self) -> AudioFrame:
        if self.readyState != "live":
            raise MediaStreamError
        if not self._frames:
            self._began = time.monotonic()
        await asyncio.sleep(max(0.0, self._began + self._frames * self._interval - time.monotonic()))
        at = np.arange(960) + self._frames * 960
        samples = (self.level * np.sin(2 * np.pi * self._hertz * at / PEER_RATE)).astype(PCM16)
        frame = AudioFrame(format="s16", layout="mono", samples=960)
        frame.planes[0].update(samples.tobytes())
        frame.sample_rate, frame.time_base, frame.pts = PEER_RATE, Fraction(1, PEER_RATE), self._frames * 960
        self._frames += 1
        return frame


@dataclass
class Listener:
    """Writes down what the playout queue reports."""

    events: list[tuple[str, str, int]] = field(default_factory=list)
    played: dict[str, int] = field(default_factory=dict)

    def on_started(self, response_id: str) -> None:
        self.events.append(("started", response_id, 0))

    def on_played(self, item_id: str, samples: int) -> None:
        self.played[item_id] = self.played.get(item_id, 0) + samples

    def on_stopped(self, response_id: str) -> None:
        self.events.append(("stopped", response_id, 0))

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        self.events.append(("cleared", response_id, samples_played))


@dataclass
class Call:
    """Both ends of a call."""

    link: LossyLink
    peer: RTCPeerConnection
    server: RTCPeerConnection
    incoming: IncomingAudio
    outgoing: OutgoingAudio
    listener: Listener
    heard: list[tuple[float, bytes]] = field(default_factory=list)
    """At the server: time and PCM16 at 24 kHz."""
    peer_heard: list[tuple[float, AudioFrame]] = field(default_factory=list)
    """At the peer: time and frame, as its receiving track gave it."""

    def server_pcm(self) -> np.ndarray:
        return np.frombuffer(b"".join(pcm for _, pcm in self.heard), PCM16).astype(np.float64)

    def peer_pcm(self) -> np.ndarray:
        """Mono samples at 48 kHz of what the peer heard."""
        resampler = AudioResampler(format="s16", layout="mono", rate=PEER_RATE)
        frames = [out for _, frame in self.peer_heard for out in resampler.resample(frame)]
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.float64)


@contextlib.asynccontextmanager
async def calling(track: MediaStreamTrack | None = None, *, seed: int = 0) -> AsyncIterator[Call]:
    """A connected call; the peer sends ``track``."""
    local = RTCConfiguration(iceServers=[])
    peer, server = RTCPeerConnection(local), RTCPeerConnection(local)
    async with LossyLink(seed) as link, asyncio.TaskGroup() as tasks:
        peer.addTrack(track or ToneTrack())
        await peer.setLocalDescription(await peer.createOffer())
        await server.setRemoteDescription(RTCSessionDescription(link.offer(peer.localDescription.sdp), "offer"))
        (transceiver,) = server.getTransceivers()
        listener = Listener()
        heard: list[tuple[float, bytes]] = []
        incoming = IncomingAudio(transceiver, lambda pcm, rate: heard.append((time.monotonic(), pcm)))
        outgoing = OutgoingAudio(transceiver, PlayoutQueue(listener))
        call = Call(link, peer, server, incoming, outgoing, listener, heard)
        await server.setLocalDescription(await server.createAnswer())
        running = [tasks.create_task(incoming.run())]
        await peer.setRemoteDescription(RTCSessionDescription(link.answer(server.localDescription.sdp), "answer"))
        running.append(tasks.create_task(_listen(peer.getTransceivers()[0].receiver.track, call.peer_heard)))
        try:
            await until(lambda: len(heard) > 5)
            yield call
        finally:
            outgoing.stop()
            await peer.close()
            await server.close()
            for task in running:
                task.cancel()


async def _listen(track: MediaStreamTrack, heard: list[tuple[float, AudioFrame]]) -> None:
    with contextlib.suppress(MediaStreamError):
        while True:
            frame = await track.recv()
            heard.append((time.monotonic(), frame))


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until something is true that nothing tells about."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
