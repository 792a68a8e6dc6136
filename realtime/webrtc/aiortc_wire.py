"""Sound packets of a call, past aiortc's own sender and receiver: the one module that touches its private parts.

aiortc and aioice make the call (ICE, DTLS, SRTP keys, RTCP reports, data channel, video) and go on doing so. What they
do for each sound packet is left out: STUN is tried first and fails with an exception, a queue and a task wake up, a
thread decodes and posts the frame back, a second task takes it; and outwards a task per track, a hop to the executor, a
loop over all samples for their level. Here a packet goes from the socket's callback to its handler, and from the frame
clock to the socket.

What is used of them, and would have to be looked at again with another version: ``Connection._nominated``,
``_protocols``, ``StunProtocol.datagram_received``; ``RTCDtlsTransport._state``, ``_rx_srtp``, ``_tx_srtp``,
``_rtp_router``; ``RTCRtpReceiver.__remote_streams``, ``__jitter_buffer``; ``RTCRtpSender.__packet_count``,
``__octet_count``, ``__ntp_timestamp``, ``__rtp_timestamp``, ``__stats``; ``RTCRtpTransceiver._codecs``,
``_headerExtensions``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiortc import MediaStreamTrack, RTCRtpCodecParameters, RTCRtpReceiver, RTCRtpTransceiver
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcdtlstransport import State

from duologue.realtime.webrtc.reception import Reception
from duologue.realtime.webrtc.srtp import SRTP_ERRORS, Srtp, srtp_of

AIORTC_VERSION: Final = "1.16."
if not importlib.metadata.version("aiortc").startswith(AIORTC_VERSION):
    raise ImportError(f"calls need aiortc {AIORTC_VERSION}*: pip install 'duologue[webrtc]'")

OPUS_PARAMETERS: Final = {"minptime": 10, "useinbandfec": 1}
"""What the answer asks of the peer's encoder (RFC 7587, section 6.1): repeat each frame coarsely in the next one."""

_MID: Final = "urn:ietf:params:rtp-hdrext:sdes:mid"
_SEND_TIME: Final = "http://www.webrtc.org/experiments/rtp-hdrext/abs-send-time"
_NTP_EPOCH_S: Final = 2_208_988_800
_HEADER: Final = struct.Struct("!BBHLL")

OnPacket = Callable[[int, int, int, int, bytes], None]
"""``on_packet(payload_type, ssrc, number, timestamp, payload)``, on the event loop; a payload may be empty."""


def opus_payload_type(transceiver: RTCRtpTransceiver) -> int:
    """What Opus is called in this call. Raises ``ValueError`` if it was not agreed on."""
    for codec in transceiver._codecs:
        if codec.mimeType.lower() == "audio/opus":
            return int(codec.payloadType)
    raise ValueError("the offer's audio has no Opus (RFC 7587), which calls need")


def agree_on_opus(transceiver: RTCRtpTransceiver, telephone_events: Sequence[tuple[int, int]] = ()) -> int:
    """Have the answer, made later, take Opus alone and say :data:`OPUS_PARAMETERS`. Returns its payload type.

    ``telephone_events``: payload types and clock rates of the offer's keys (RFC 4733), which are taken as well. Raises
    ``ValueError`` if Opus was not offered.
    """
    payload_type = opus_payload_type(transceiver)
    opus = next(codec for codec in transceiver._codecs if codec.payloadType == payload_type)
    keys = [
        RTCRtpCodecParameters("audio/telephone-event", rate, 1, number, parameters={"0-15": None})
        for number, rate in telephone_events
    ]
    agreed = dataclasses.replace(opus, parameters={**opus.parameters, **OPUS_PARAMETERS})
    transceiver._codecs = [agreed, *keys]
    return payload_type


class IdleTrack(MediaStreamTrack):
    """Gives a sender's own loop something to wait for that never comes."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._over = asyncio.Event()

    async def recv(self) -> Any:
        await self._over.wait()
        raise MediaStreamError

    def stop(self) -> None:
        super().stop()
        self._over.set()


class PacketReceiver:
    """Takes the packets of some payload types out of what a transport receives."""

    def __init__(self, receiver: RTCRtpReceiver, payload_types: Iterable[int], on_packet: OnPacket) -> None:
        self._receiver = receiver
        self._payload_types = frozenset(payload_types)
        self._on_packet = on_packet
        self._receptions: dict[int, Reception] = {}
        self._hooked: list[Any] = []
        self._srtp: Srtp | None = None

    @property
    def connected(self) -> bool:
        """Whether there are keys to decrypt with."""
        transport = self._receiver.transport
        return transport is not None and transport._state is State.CONNECTED

    def start(self) -> None:
        """From now on. Once connected; a second call takes in network paths that have come since."""
        connection = self._receiver.transport.transport._connection
        for protocol in connection._protocols:
            if protocol not in self._hooked:
                protocol.datagram_received = self._hook(protocol)
                self._hooked.append(protocol)

    def stop(self) -> None:
        """Leave the packets to aiortc again."""
        for protocol in self._hooked:
            # The instance's attribute hid the method of its class.
            del protocol.datagram_received
        self._hooked.clear()

    def _hook(self, protocol: Any) -> Callable[[bytes, Any], None]:
        ours, stun, connection = self._payload_types, protocol.datagram_received, protocol.receiver

        def datagram_received(data: bytes, address: Any) -> None:
            # RFC 7983: the first byte tells STUN (0 to 3) from DTLS (20 to 63) and RTP (128 to 191).
            if len(data) < 12 or data[0] < 20:
                stun(data, address)
            elif data[0] >= 128 and data[1] & 0x7F in ours:
                self._take(data)
            else:
                connection.data_received(data, protocol.local_candidate.component)

        return datagram_received

    def _take(self, data: bytes) -> None:
        session = self._receiver.transport._rx_srtp
        if session is None or not self._receiver._enabled:
            return
        if self._srtp is None:
            self._srtp = srtp_of(session)
        try:
            packet = self._srtp.unprotect(data)
        except SRTP_ERRORS:
            return
        parsed = parse(packet)
        if parsed is None:
            return
        ssrc, number, timestamp, payload = parsed
        reception = self._receptions.get(ssrc)
        if reception is None:
            reception = self._known(ssrc)
        reception.add(number, timestamp, time.monotonic())
        self._on_packet(data[1] & 0x7F, ssrc, number, timestamp, payload)

    def _known(self, ssrc: int) -> Reception:
        """A source that has not been heard before: aiortc's receiver reports tell about it, and its reports find us."""
        reception = self._receptions[ssrc] = Reception()
        self._receiver._RTCRtpReceiver__remote_streams[ssrc] = reception
        self._receiver.transport._rtp_router.ssrc_table.setdefault(ssrc, self._receiver)
        return reception


def parse(packet: bytes) -> tuple[int, int, int, bytes] | None:
    """SSRC, sequence number, timestamp and payload of a decrypted RTP packet (RFC 3550, 5.1); None if broken."""
    if len(packet) < 12:
        return None
    flags, _, number, timestamp, ssrc = _HEADER.unpack_from(packet)
    start = 12 + 4 * (flags & 0x0F)
    if flags & 0x10:
        if len(packet) < start + 4:
            return None
        start += 4 + 4 * int.from_bytes(packet[start + 2 : start + 4], "big")
    end = len(packet) - (packet[-1] if flags & 0x20 else 0)
    if start > end:
        return None
    return ssrc, number, timestamp, packet[start:end]


class PacketSender:
    """Sends sound packets of one transceiver; its RTCP sender reports count them."""

    def __init__(self, transceiver: RTCRtpTransceiver, payload_type: int) -> None:
        """Once there is an answer."""
        self._sender = transceiver.sender
        self._payload_type = payload_type
        # In the lower half, so that SRTP's roll-over counter cannot be guessed wrong at the first wrap.
        self._number = random.randrange(1 << 15)
        self.origin: Final = random.getrandbits(32)
        """Timestamp of the stream's beginning."""
        self._extension, self._send_time_at = _extension(transceiver)
        self._srtp: Srtp | None = None
        self._packets = 0
        self._octets = 0

    @property
    def connected(self) -> bool:
        """Whether packets can leave."""
        transport = self._sender.transport
        return transport is not None and transport._state is State.CONNECTED

    def send(self, payload: bytes, ticks: int, marker: bool) -> bool:
        """Send one packet whose sound begins ``ticks`` (48 kHz) into the stream. False if it could not leave."""
        sender = self._sender
        transport = sender.transport
        connection = transport.transport._connection
        pair = connection._nominated.get(1)
        if pair is None or transport._state is not State.CONNECTED or not sender._enabled:
            return False
        now = time.time()
        timestamp = (self.origin + ticks) & 0xFFFFFFFF
        flags = 0x90 if self._extension else 0x80
        header = _HEADER.pack(flags, marker << 7 | self._payload_type, self._number, timestamp, sender._ssrc)
        if self._send_time_at:
            # Seconds in 6.18 fixed point, modulo 64 s.
            self._extension[self._send_time_at : self._send_time_at + 3] = int(now % 64 * (1 << 18)).to_bytes(3, "big")
        if self._srtp is None:
            self._srtp = srtp_of(transport._tx_srtp)
        protected = self._srtp.protect(header + self._extension + payload)
        pair.protocol.transport.sendto(protected, pair.remote_addr)
        self._number = (self._number + 1) & 0xFFFF
        self._packets += 1
        self._octets += len(payload)
        # The sender's own RTCP task reads these when it makes its next report.
        sender._RTCRtpSender__packet_count = self._packets
        sender._RTCRtpSender__octet_count = self._octets
        sender._RTCRtpSender__ntp_timestamp = int((now + _NTP_EPOCH_S) * (1 << 32))
        sender._RTCRtpSender__rtp_timestamp = timestamp
        return True

    def lost_by_peer(self) -> float | None:
        """Share of our packets that the peer's last report says it lost, 0 to 1; None before the first report."""
        stats = self._sender._RTCRtpSender__stats
        report = stats.get(f"remote-inbound-rtp_{id(self._sender)}")
        return None if report is None else float(report.fractionLost) / 256


class FrameDelays:
    """How long the pictures of a receiver wait in its jitter buffer: from a frame's first packet to its release."""

    MOST_FRAMES: Final = 64
    """Frames of which packets may wait at the same time; of more the oldest are not counted."""

    def __init__(self, receiver: RTCRtpReceiver) -> None:
        self.frames = 0
        self.delay_s = 0.0
        """Sum over ``frames``."""
        self._arrivals: dict[int, float] = {}
        buffer = receiver._RTCRtpReceiver__jitter_buffer
        self._add = buffer.add
        buffer.add = self._watched

    @property
    def mean_s(self) -> float | None:
        return self.delay_s / self.frames if self.frames else None

    def _watched(self, packet: Any) -> Any:
        now = time.monotonic()
        self._arrivals.setdefault(packet.timestamp, now)
        asked_again, frame = self._add(packet)
        if frame is not None and (arrived := self._arrivals.pop(frame.timestamp, None)) is not None:
            self.frames += 1
            self.delay_s += now - arrived
        if len(self._arrivals) > self.MOST_FRAMES:
            del self._arrivals[next(iter(self._arrivals))]
        return asked_again, frame


def _extension(transceiver: RTCRtpTransceiver) -> tuple[bytearray, int]:
    """RTP header extension (RFC 8285, one-byte form) with media id and send time, and where the time is; 0: nowhere."""
    elements = bytearray()
    send_time_at = 0
    for extension in transceiver._headerExtensions:
        if not 1 <= extension.id <= 14:
            continue
        if extension.uri == _MID:
            mid = transceiver.mid.encode()
            elements += bytes([extension.id << 4 | len(mid) - 1]) + mid
        elif extension.uri == _SEND_TIME:
            send_time_at = 4 + len(elements) + 1
            elements += bytes([extension.id << 4 | 2]) + bytes(3)
    if not elements:
        return bytearray(), 0
    elements += bytes(-len(elements) % 4)
    return bytearray(b"\xbe\xde") + struct.pack("!H", len(elements) // 4) + elements, send_time_at
