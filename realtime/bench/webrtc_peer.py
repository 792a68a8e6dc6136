"""A caller that costs next to nothing: packets made beforehand go out by the clock, and what comes back is counted."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpTransceiver, RTCSessionDescription

from duologue.codecs.opus import OpusEncoder
from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.deploy.config import WebRtcDeploy
from duologue.realtime.bench.gateway_signal import CHUNK_BYTES, SAMPLE_RATE, loop, voice
from duologue.realtime.webrtc.aiortc_wire import IdleTrack, PacketReceiver, PacketSender
from duologue.realtime.webrtc.ice import gather_by
from duologue.realtime.webrtc.jitter import FRAME_TICKS
from duologue.realtime.webrtc.media_clock import FRAME_S, MediaClock

OPUS_PAYLOAD_TYPE: Final = 96
"""aiortc's own number for Opus in offers."""
VOICE_S: Final = 4.0
LOOPBACK: Final = WebRtcDeploy(addresses=["127.0.0.1"])


@lru_cache(maxsize=2)
def voice_packets(expected_loss: int = 5) -> list[bytes]:
    """Opus packets of 20 ms of a voice without words, no two alike, with correction; to be sent round and round."""
    return _packets(
        [voice_pcm()[at : at + CHUNK_BYTES] for at in range(0, len(voice_pcm()), CHUNK_BYTES)], expected_loss
    )


@lru_cache(maxsize=1)
def voice_pcm() -> bytes:
    """PCM16 at 24 kHz of :data:`VOICE_S` of that voice."""
    return float_to_pcm16(voice(VOICE_S))


@lru_cache(maxsize=1)
def hum_packets() -> list[bytes]:
    """A tone that wanders about 220 Hz and comes back in :data:`VOICE_S`: any piece left out of it is a step."""
    at = np.arange(int(VOICE_S * SAMPLE_RATE)) / SAMPLE_RATE
    cycles = 220 * at + 40 * VOICE_S / (2 * np.pi) * (1 - np.cos(2 * np.pi * at / VOICE_S))
    pcm = float_to_pcm16((0.3 * np.sin(2 * np.pi * cycles)).astype(np.float32))
    return _packets([pcm[at : at + CHUNK_BYTES] for at in range(0, len(pcm), CHUNK_BYTES)], 10)


@lru_cache(maxsize=1)
def turn_packets() -> list[bytes]:
    """The loop of ``duologue bench gateway``: a voice, then silence."""
    return _packets(loop(), 0)


def _packets(chunks: list[bytes], expected_loss: int) -> list[bytes]:
    encoder = OpusEncoder(SAMPLE_RATE, bitrate=32_000, expected_loss=expected_loss, silence_gaps=False)
    packets = [encoder.encode(chunk) for chunk in chunks]
    return list(dict.fromkeys(packets)) if expected_loss else packets


async def post_offer(url: str, sdp: str) -> str:
    """The answer to an offer."""
    request = urllib.request.Request(url, sdp.encode(), {"Content-Type": "application/sdp"})

    def ask() -> str:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read().decode())

    return await asyncio.to_thread(ask)


Exchange = Callable[[str], Awaitable[str]]
"""From an offer to its answer, both SDP."""


class LeanPeer:
    """One call to an echo server."""

    def __init__(self, packets: list[bytes] | None = None, events: Sequence[dict[str, Any]] = ()) -> None:
        """``packets`` are sent round and round (None: a voice without end). With ``events`` there is a data channel,
        on which they are sent once it is open."""
        self.sent = 0
        self.received = 0
        self.gaps: list[float] = []
        """Seconds between packets that came back, since the last :meth:`mark`."""
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._track = IdleTrack()
        self._peer.addTrack(self._track)
        self._packets = packets or voice_packets()
        if events:
            channel = self._peer.createDataChannel("oai-events")
            channel.on("open", lambda: [channel.send(msgspec.json.encode(event).decode()) for event in events])
        self._sender: PacketSender | None = None
        self._receiver: PacketReceiver | None = None
        self._last = 0.0
        self._began = 0.0
        self._number = 0
        self._clock = MediaClock.of_loop()

    async def call(self, exchange: Exchange) -> None:
        """Connect by an offer and the answer that ``exchange`` gives for it, and begin to send."""
        peer = self._peer
        for transceiver in peer.getTransceivers():
            gather_by(LOOPBACK, transceiver.receiver.transport.transport)
        if peer.sctp is not None:
            gather_by(LOOPBACK, peer.sctp.transport.transport)
        await peer.setLocalDescription(await peer.createOffer())
        answer = await exchange(peer.localDescription.sdp)
        await peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        (transceiver,) = peer.getTransceivers()
        self._sender = PacketSender(transceiver, OPUS_PAYLOAD_TYPE)
        async with asyncio.timeout(30):
            while not self._sender.connected:  # noqa: ASYNC110 - the transport that will be used tells nobody
                await asyncio.sleep(FRAME_S)
        self._listen(transceiver)
        self._began = time.monotonic()
        self._clock.join(self._tick)

    async def hang_up(self) -> None:
        """End the call."""
        self._clock.leave(self._tick)
        if self._receiver is not None:
            self._receiver.stop()
        await self._peer.close()

    def number_of(self, timestamp: int) -> int:
        """Which packet a timestamp of its header belongs to: 0 for the first."""
        assert self._sender is not None
        return ((timestamp - self._sender.origin) & 0xFFFFFFFF) // FRAME_TICKS

    def mark(self) -> None:
        """Count from here."""
        self.sent = self.received = 0
        self.gaps = []

    def _listen(self, transceiver: RTCRtpTransceiver) -> None:
        self._receiver = PacketReceiver(transceiver.receiver, (OPUS_PAYLOAD_TYPE,), self._hear)
        self._receiver.start()

    def _tick(self, now: float) -> None:
        assert self._sender is not None
        while self._number * FRAME_S <= now - self._began + FRAME_S / 2:
            self._sender.send(self._packet(self._number), self._number * FRAME_TICKS, False)
            self._number += 1
            self.sent += 1

    def _packet(self, number: int) -> bytes:
        return self._packets[number % len(self._packets)]

    def _hear(self, payload_type: int, source: int, number: int, timestamp: int, payload: bytes) -> None:
        now = time.monotonic()
        if self.received:
            self.gaps.append(now - self._last)
        self._last = now
        self.received += 1
