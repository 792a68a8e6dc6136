"""A caller that costs next to nothing: packets made beforehand go out by the clock, and what comes back is counted."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from functools import lru_cache
from typing import Final

import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from duologue.codecs.opus import OpusEncoder
from duologue.codecs.pcm import PCM16
from duologue.realtime.webrtc.aiortc_wire import IdleTrack, PacketReceiver, PacketSender
from duologue.realtime.webrtc.jitter import FRAME_TICKS
from duologue.realtime.webrtc.media_clock import FRAME_S, MediaClock

OPUS_PAYLOAD_TYPE: Final = 96
"""aiortc's own number for Opus in offers."""
VOICE_S: Final = 4.0
_RATE: Final = 48_000


def voice(seconds: float, rate: int = _RATE) -> np.ndarray:
    """PCM16 ``[samples]`` that a speech codec takes for speech: 140 Hz with overtones, four syllables a second."""
    at = np.arange(int(seconds * rate)) / rate
    pitch = 2 * np.pi * 140 * at + 3 * np.sin(2 * np.pi * 0.7 * at)
    tone = sum(np.sin(n * pitch) / n for n in range(1, 16))
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * at)
    return (5000 * tone * syllables).astype(PCM16)


@lru_cache(maxsize=2)
def voice_packets(expected_loss: int = 5) -> list[bytes]:
    """Opus packets of 20 ms of :func:`voice`, no two alike, with correction; to be sent round and round."""
    encoder = OpusEncoder(_RATE, bitrate=32_000, expected_loss=expected_loss)
    samples = voice(VOICE_S)
    frame = _RATE // 50
    packets = [encoder.encode(samples[at : at + frame].tobytes()) for at in range(0, len(samples), frame)]
    return list(dict.fromkeys(packets))


async def post_offer(url: str, sdp: str) -> str:
    """The answer to an offer."""
    request = urllib.request.Request(url, sdp.encode(), {"Content-Type": "application/sdp"})

    def ask() -> str:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read().decode())

    return await asyncio.to_thread(ask)


class LeanPeer:
    """One call to an echo server."""

    def __init__(self, *, talks: bool = True) -> None:
        """``talks`` false: nothing is sent."""
        self.sent = 0
        self.received = 0
        self.gaps: list[float] = []
        """Seconds between packets that came back, since the last :meth:`mark`."""
        self._talks = talks
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._track = IdleTrack()
        self._peer.addTrack(self._track)
        self._packets = voice_packets()
        self._sender: PacketSender | None = None
        self._receiver: PacketReceiver | None = None
        self._last = 0.0
        self._clock = MediaClock.of_loop()

    async def call(self, url: str) -> None:
        """Connect, and begin to send."""
        peer = self._peer
        await peer.setLocalDescription(await peer.createOffer())
        answer = await post_offer(url, peer.localDescription.sdp)
        await peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        (transceiver,) = peer.getTransceivers()
        self._sender = PacketSender(transceiver, OPUS_PAYLOAD_TYPE)
        self._receiver = PacketReceiver(transceiver.receiver, OPUS_PAYLOAD_TYPE, self._hear)
        async with asyncio.timeout(30):
            while not self._sender.connected:  # noqa: ASYNC110 - the transport that will be used tells nobody
                await asyncio.sleep(FRAME_S)
        self._receiver.start()
        self._began = time.monotonic()
        if self._talks:
            self._clock.join(self._tick)

    async def hang_up(self) -> None:
        """End the call."""
        self._clock.leave(self._tick)
        if self._receiver is not None:
            self._receiver.stop()
        await self._peer.close()

    def mark(self) -> None:
        """Count from here."""
        self.sent = self.received = 0
        self.gaps = []

    def _tick(self, now: float) -> None:
        assert self._sender is not None
        number = round((now - self._began) / FRAME_S)
        self._sender.send(self._packets[number % len(self._packets)], number * FRAME_TICKS, False)
        self.sent += 1

    def _hear(self, source: int, number: int, timestamp: int, payload: bytes) -> None:
        now = time.monotonic()
        if self.received:
            self.gaps.append(now - self._last)
        self._last = now
        self.received += 1
