"""What a bad network does to sound that comes in: our media beside plain aiortc, on links with the same fate.

Two callers send the same packets at the same time over two links of the same seed; one is answered by our media, the
other by aiortc as it is. The hold of a packet is the time from its leaving the link to its sound being handed over by
the receiving end: buffering, decoding and all hops between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from duologue.codecs.opus import OpusDecoder
from duologue.codecs.pcm import PCM16
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.webrtc_link import LossyLink
from duologue.realtime.bench.webrtc_peer import LeanPeer, hum_packets
from duologue.realtime.webrtc.jitter import FRAME_TICKS, Piece, Received
from duologue.realtime.webrtc.media import IncomingAudio
from duologue.realtime.webrtc.stream_decoder import StreamDecoder

WARM_S: Final = 1.0
"""Before the network turns bad."""
AFTER_LOSS: Final = 5
"""Packets after a lost one that count as "after a loss"."""
LOSSES: Final = (0.0, 0.01, 0.05)
JITTERS_MS: Final = (0, 20, 60)
_CLICK: Final = 1.5


class Side(msgspec.Struct, frozen=True):
    """How one receiver did."""

    hold: Metric
    after_loss: Metric
    """Hold of the packets right behind a lost one."""
    last_second_ms: float | None
    """Mean hold of the last second: what a call is left with."""
    unheard: int
    """Packets that came and were not heard."""
    clicks: int
    """Steps between two samples that are half as steep again as any in the undisturbed sound."""


class LossyRow(msgspec.Struct, frozen=True):
    """One network."""

    loss: float
    jitter_ms: int
    packets: int
    lost: int
    duologue: Side
    aiortc: Side


@dataclass
class _Record:
    """What a receiver gave out: by packet number its time, and the sound."""

    given: dict[int, float] = field(default_factory=dict)
    pcm: list[bytes] = field(default_factory=list)


class _Watched(StreamDecoder):
    """Notes when each packet is decoded."""

    def __init__(self, record: _Record) -> None:
        super().__init__()
        self._record = record
        self._packets = {packet: number for number, packet in enumerate(hum_packets())}
        self._last = 0

    def decode(self, pieces: Iterable[Piece]) -> bytes:
        pieces = list(pieces)
        pcm = super().decode(pieces)
        now = time.monotonic()
        for piece in pieces:
            if isinstance(piece, Received):
                # The packets go round and round: the number nearest to that of the packet before.
                round_trip = len(self._packets)
                ahead = (self._packets[piece.payload] - self._last + round_trip // 2) % round_trip - round_trip // 2
                self._last += ahead
                self._record.given[self._last] = now
        self._record.pcm.append(pcm)
        return pcm


class _Receiver:
    """One of the two calls: caller, link, answerer."""

    def __init__(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        self.record = _Record()
        self.caller = LeanPeer(hum_packets())
        self._stack = stack
        self._tasks = tasks
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    async def connect(self, seed: int, ours: bool) -> LossyLink:
        link = await self._stack.enter_async_context(LossyLink(seed))
        link.record = True
        self._stack.push_async_callback(self._peer.close)

        async def exchange(offer: str) -> str:
            await self._peer.setRemoteDescription(RTCSessionDescription(link.offer(offer), "offer"))
            (transceiver,) = self._peer.getTransceivers()
            if ours:
                incoming = IncomingAudio(transceiver, lambda pcm, rate: None, decoder=_Watched(self.record))
                hearing = self._tasks.create_task(incoming.run())
            else:
                hearing = self._tasks.create_task(self._hear(transceiver.receiver.track))
            self._stack.callback(hearing.cancel)
            await self._peer.setLocalDescription(await self._peer.createAnswer())
            return link.answer(self._peer.localDescription.sdp)

        self._stack.push_async_callback(self.caller.hang_up)
        await self.caller.call(exchange)
        return link

    async def _hear(self, track: Any) -> None:
        with suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                self.record.given[frame.pts // FRAME_TICKS] = time.monotonic()
                self.record.pcm.append(frame.to_ndarray().reshape(-1)[::2].tobytes())


async def run_lossy(seconds: float, seed: int, on_row: Callable[[LossyRow], None] = lambda row: None) -> list[LossyRow]:
    """Every loss with every jitter, ``seconds`` each."""
    rows = []
    for loss in LOSSES:
        for jitter_ms in JITTERS_MS:
            rows.append(await _row(loss, jitter_ms, seconds, seed))
            on_row(rows[-1])
    return rows


async def _row(loss: float, jitter_ms: int, seconds: float, seed: int) -> LossyRow:
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        receivers = [_Receiver(stack, tasks), _Receiver(stack, tasks)]
        links = [await receiver.connect(seed, ours) for receiver, ours in zip(receivers, (True, False), strict=True)]
        await asyncio.sleep(WARM_S)
        began = time.monotonic()
        for link in links:
            link.to_answerer.loss, link.to_answerer.jitter_s = loss, jitter_ms / 1000
        await asyncio.sleep(seconds)
        ended = time.monotonic()
        await asyncio.sleep(0.5)
        sides = [
            _side(receiver, link, began, ended, 24_000 if ours else 48_000, ours)
            for receiver, link, ours in zip(receivers, links, (True, False), strict=True)
        ]
        counts = links[0].counts_to_answerer
        total = sum(1 for at, _ in counts.arrivals if began <= at < ended)
        return LossyRow(loss, jitter_ms, total + counts.lost, counts.lost, *sides)


def _side(receiver: _Receiver, link: LossyLink, began: float, ended: float, rate: int, ours: bool) -> Side:
    arrived: dict[int, float] = {}
    for at, head in link.counts_to_answerer.arrivals:
        if not 192 <= head[1] <= 223:
            arrived.setdefault(receiver.caller.number_of(int.from_bytes(head[4:8], "big")), at)
    first = min(arrived)
    given = receiver.record.given
    if not ours:
        # aiortc's timestamps begin with the first frame.
        given = {number + first - min(given, default=0): at for number, at in given.items()}
    counted = [number for number, at in sorted(arrived.items()) if began <= at < ended]
    holds = {number: 1000 * (given[number] - arrived[number]) for number in counted if number in given}
    lost = [number for number in range(counted[0], counted[-1]) if number not in arrived]
    behind = {number + n for number in lost for n in range(1, AFTER_LOSS + 1)}
    last = [hold for number, hold in holds.items() if arrived[number] > ended - 1]
    return Side(
        hold=metric(holds.values(), "ms", "sound handed over - left the link"),
        after_loss=metric((hold for number, hold in holds.items() if number in behind), "ms", "the same, after a loss"),
        last_second_ms=round(float(np.mean(last)), 1) if last else None,
        unheard=len(counted) - len(holds),
        clicks=clicks(b"".join(receiver.record.pcm), rate),
    )


def clicks(pcm: bytes, rate: int) -> int:
    """Steps in PCM16 that are half as steep again as any in the sound of :func:`hum_packets` without a loss."""
    decoder = OpusDecoder(rate)  # type: ignore[arg-type]
    clean = np.frombuffer(b"".join(map(decoder.decode, hum_packets() * 2)), PCM16).astype(np.float64)
    steps = np.abs(np.diff(np.frombuffer(pcm, PCM16).astype(np.float64))) > _CLICK * np.abs(np.diff(clean)).max()
    # A click is a moment, however many of its samples are steep.
    return int(np.count_nonzero(np.diff(np.flatnonzero(steps), prepend=-rate) > rate // 200))
