"""Whether sound and picture of a call stay together: their offset at every burst of sound, and how it drifts.

The server is that of ``duologue bench gateway``, whose answers here are short tones; the picture is the level meter,
which rises with the sound. The caller is aiortc as it comes. When a sound or a picture is meant to be heard or seen is
what its RTP time stamp says by the stream's sender reports (RFC 3550, section 6.4.1), as a browser reckons it: by a
row of them, since each tells when its packet left, which a busy encoder may have held up.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtcpSrPacket

from duologue.realtime.bench.gateway_run import SERVER as GATEWAY
from duologue.realtime.bench.server_process import own_server
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.webrtc_peer import LOOPBACK, post_offer
from duologue.realtime.client import ServerUnreachable
from duologue.realtime.webrtc.aiortc_wire import IdleTrack
from duologue.realtime.webrtc.ice import gather_by

REPORTS: Final = 20
"""Sender reports that a stream's clock is told by; libwebrtc keeps as many."""
EVERY_S: Final = 2.0
BURST_S: Final = 0.4
FIRST_S: Final = 3.0
"""Before that neither stream has a sender report."""
EARLIEST_S: Final = -0.045
LATEST_S: Final = 0.100
"""The picture may be so much ahead of the sound, or behind it (ITU-R BT.1359: where it is noticed)."""
MOST_DRIFT_MS: Final = 5.0
ENOUGH: Final = 80
"""Bursts from which on a drift can be told from the 40 ms between two pictures."""
_RATES: Final = {"audio": 48_000, "video": 90_000}
_LOUD: Final = 1000
_BRIGHT: Final = 40
_START_S: Final = 30.0


class AvReport(msgspec.Struct, frozen=True):
    """Offsets are picture less sound."""

    minutes: float
    offset: Metric
    outside: int
    """Bursts whose offset is not within -45 to +100 ms."""
    unpaired: int
    """Bursts that were heard and not seen, or seen and not heard."""
    drift_ms: float | None
    """How much the straight line through the offsets (least squares) rises from the first burst to the last; None where
    they are too few."""

    @property
    def held(self) -> bool:
        """Whether that is what is promised."""
        return abs(self.drift_ms or 0.0) <= MOST_DRIFT_MS and self.offset.n > 0 and not (self.outside or self.unpaired)


class _Stream:
    """The onsets of one track, in the sender's wall-clock time."""

    def __init__(self, receiver: Any) -> None:
        self.kind: str = receiver.track.kind
        self.onsets: list[float] = []
        self._receiver = receiver
        self._first: int | None = None
        self._zeros: deque[float] = deque(maxlen=REPORTS)
        """The sender's time at which the stream began, by each of the last reports."""
        self._quiet = True
        self._watch()

    def _watch(self) -> None:
        rtp, rtcp = self._receiver._handle_rtp_packet, self._receiver._handle_rtcp_packet

        async def on_rtp(packet: Any, arrival_time_ms: int) -> None:
            self._first = packet.timestamp if self._first is None else self._first
            await rtp(packet, arrival_time_ms)

        async def on_rtcp(packet: Any) -> None:
            if isinstance(packet, RtcpSrPacket) and packet.sender_info.packet_count and self._first is not None:
                info = packet.sender_info
                self._zeros.append(info.ntp_timestamp / 2**32 - self._since(info.rtp_timestamp))
            await rtcp(packet)

        self._receiver._handle_rtp_packet, self._receiver._handle_rtcp_packet = on_rtp, on_rtcp

    def _since(self, timestamp: int) -> float:
        """Seconds since the stream's first packet; good for six hours either way."""
        assert self._first is not None
        return ((timestamp - self._first + 2**31) % 2**32 - 2**31) / _RATES[self.kind]

    async def follow(self) -> None:
        """Until the track ends."""
        with suppress(MediaStreamError):
            while True:
                frame = await self._receiver.track.recv()
                there = _is_bright(frame) if self.kind == "video" else np.abs(frame.to_ndarray()).max() > _LOUD
                if there and self._quiet and self._zeros:
                    self._note(statistics.median(self._zeros) + frame.pts / _RATES[self.kind])
                self._quiet = not there

    def _note(self, at: float) -> None:
        # A burst that is broken off for a moment, on a busy machine, is one.
        if not self.onsets or at - self.onsets[-1] > EVERY_S / 2:
            self.onsets.append(at)


def _is_bright(frame: Any) -> bool:
    """Whether the bar of the level meter is up: its foot, in the middle of the lowest tenth of the picture."""
    picture = frame.to_ndarray(format="gray")
    height, width = picture.shape
    return bool(picture[height * 19 // 20, width // 2] > 24 + _BRIGHT)


async def run_av(minutes: float) -> AvReport:
    """One call of so many minutes. Raises ``ServerUnreachable``."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        async with own_server(None, Path(folder) / "server.log", program=GATEWAY.format(8)) as server:
            url = server.url.replace("ws://", "http://") + "/calls?extensions=level_meter"
            audio, video = await _call(url, minutes * 60)
    return reckoned(minutes, audio, video)


async def _call(url: str, seconds: float) -> tuple[list[float], list[float]]:
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    peer.addTrack(IdleTrack())
    peer.addTransceiver("video", direction="recvonly")
    channel = peer.createDataChannel("oai-events")
    opened = asyncio.Event()
    channel.on("open", opened.set)
    channel.on("message", lambda message: _forget(channel, message))
    try:
        for transceiver in peer.getTransceivers():
            gather_by(LOOPBACK, transceiver.receiver.transport.transport)
        gather_by(LOOPBACK, peer.sctp.transport.transport)
        await peer.setLocalDescription(await peer.createOffer())
        await peer.setRemoteDescription(
            RTCSessionDescription(await post_offer(url, peer.localDescription.sdp), "answer")
        )
        streams = [_Stream(transceiver.receiver) for transceiver in peer.getTransceivers()]
        try:
            async with asyncio.timeout(_START_S):
                await opened.wait()
        except TimeoutError as error:
            raise ServerUnreachable(f"no call came about within {_START_S:.0f} s") from error
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(stream.follow()) for stream in streams]
            await asyncio.sleep(FIRST_S)
            began = time.monotonic()
            for number in itertools.count(1):
                _ask(channel)
                # Pictures come every 40 ms: bursts fall evenly between them, so that a line through the offsets tells
                # a drift.
                spread = 0.04 * (number * 0.618 % 1)
                await asyncio.sleep(max(0.0, began + number * EVERY_S + spread - time.monotonic()))
                if number * EVERY_S >= seconds:
                    break
            for task in following:
                task.cancel()
    finally:
        await peer.close()
    audio, video = ([stream.onsets for stream in streams if stream.kind == kind] for kind in ("audio", "video"))
    return audio[0], video[0]


def _ask(channel: Any) -> None:
    """One tone, please."""
    content = [{"type": "input_text", "text": str(BURST_S)}]
    item = {"type": "message", "role": "user", "content": content}
    for event in ({"type": "conversation.item.create", "item": item}, {"type": "response.create"}):
        channel.send(msgspec.json.encode(event).decode())


def _forget(channel: Any, message: str) -> None:
    """A conversation has room for so many items only."""
    event = msgspec.json.decode(message)
    items = event["response"]["output"] if event["type"] == "response.done" else []
    if event["type"] == "conversation.item.added" and event["item"]["role"] == "assistant":
        items = [{"id": event["previous_item_id"]}]
    for item in items:
        channel.send(msgspec.json.encode({"type": "conversation.item.delete", "item_id": item["id"]}).decode())


def reckoned(minutes: float, audio: list[float], video: list[float]) -> AvReport:
    """The report of two lists of onsets in seconds of one clock."""
    seen = np.array(sorted(video))
    pairs: list[tuple[float, float]] = []
    """When a burst was heard, and how much later it was seen."""
    for heard in audio:
        near = seen[np.abs(seen - heard) < EVERY_S / 4]
        if len(near):
            pairs.append((heard, float(near[np.argmin(np.abs(near - heard))]) - heard))
    offsets = [offset for _, offset in pairs]
    return AvReport(
        minutes=minutes,
        offset=metric([1000 * offset for offset in offsets], "ms", "picture - sound, by sender reports"),
        outside=sum(not EARLIEST_S <= offset <= LATEST_S for offset in offsets),
        unpaired=len(audio) + len(video) - 2 * len(pairs),
        drift_ms=_rise_ms(pairs) if len(pairs) >= ENOUGH else None,
    )


def _rise_ms(pairs: list[tuple[float, float]]) -> float:
    """Of the least-squares line from the first point to the last, both in seconds."""
    at, offset = np.array(pairs).T
    slope = np.polyfit(at - at[0], offset, 1)[0]
    return round(1000 * float(slope * (at[-1] - at[0])), 2)
