"""Sound of a call: what comes from the peer as PCM, and what goes to it by a 20 ms clock.

The only module of the call that knows how sound is coded, buffered and sent; the rest sees PCM16 at 24 kHz.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import floor
from typing import Final

from aiortc import RTCRtpTransceiver
from aiortc.mediastreams import MediaStreamError

from duologue.codecs.opus import DTX_BYTES, OpusEncoder, OpusError
from duologue.codecs.ramps import first_level, last_level, start_from
from duologue.realtime.webrtc.aiortc_wire import (
    IdleTrack,
    PacketReceiver,
    PacketSender,
    agree_on_opus,
    opus_payload_type,
)
from duologue.realtime.webrtc.jitter import FRAME_TICKS, RTP_RATE, JitterBuffer, JitterStats, Piece
from duologue.realtime.webrtc.media_clock import FRAME_S, MediaClock
from duologue.realtime.webrtc.playout_queue import FRAME_BYTES, SAMPLE_RATE, PlayoutQueue
from duologue.realtime.webrtc.stream_decoder import StreamDecoder, packet_ticks
from duologue.realtime.webrtc.telephone_events import TelephoneEvents

LEAN_BITRATE: Final = 32_000
CLEAR_BITRATE: Final = 64_000
"""While the peer loses nothing. Transform coding takes a third of the processor time of linear prediction, and sounds
better than that does at half the bits (PESQ 4.4 against 4.0 over ten voices; at 32 kbit/s it would be 3.2 of some)."""
COMPLEXITY: Final = 3
"""Two thirds of the processor time of libopus's middle setting; speech sounds the same."""
MOST_OWED: Final = 5
"""Frames that are sent at once after the event loop has stood still; what is owed beyond them is skipped as silence."""
KEEPALIVE_FRAMES: Final = 20
"""While nothing is heard one packet in so many frames is sent (400 ms: what libopus itself does)."""
LOSS_EVERY_FRAMES: Final = 50

_LEAST_BITRATE: Final = 6_000
_SILENCE: Final = bytes(FRAME_BYTES)
_EDGE_SAMPLES: Final = SAMPLE_RATE // 200
_AUDIBLE_STEP: Final = 200
_SOURCE_GONE_S: Final = 0.2

OnPcm = Callable[[bytes, int], None]
"""``on_pcm(pcm16, sample_rate)``: mono PCM16 in playing order, on the event loop."""

OnKey = Callable[[str], None]
"""``on_key(key)``: one of ``0-9 * # A-D``, pressed now."""


class IncomingAudio:
    """The peer's microphone."""

    def __init__(
        self,
        transceiver: RTCRtpTransceiver,
        on_pcm: OnPcm,
        on_key: OnKey | None = None,
        telephone_events: Sequence[tuple[int, int]] = (),
        *,
        decoder: StreamDecoder | None = None,
    ) -> None:
        """Once the remote description is set and before the answer is made.

        ``telephone_events``: payload types and clock rates under which the offer has keys (RFC 4733). ``decoder``: one
        that is watched. Raises ``ValueError`` if Opus was not offered, ``OpusMissingError`` without libopus.
        """
        self._track = transceiver.receiver.track
        self._on_pcm = on_pcm
        self._on_key = on_key
        self._keys = TelephoneEvents()
        self._opus = agree_on_opus(transceiver, telephone_events)
        payload_types = (self._opus, *(number for number, _ in telephone_events))
        self._packets = PacketReceiver(transceiver.receiver, payload_types, self._take)
        self._decoder = decoder or StreamDecoder(SAMPLE_RATE)
        self._buffer = JitterBuffer()
        self._source: int | None = None
        self._last_arrival = 0.0
        self._last_tick = 0.0
        self._give_up: asyncio.TimerHandle | None = None
        self._started = False

    @property
    def stats(self) -> JitterStats:
        """What has come, was lost and had to wait, since the peer's last change of source."""
        return self._buffer.stats

    async def run(self) -> None:
        """Give what is heard to ``on_pcm``; returns when the track ends. To be cancelled by its owner."""
        clock = MediaClock.of_loop()
        clock.join(self._tick)
        try:
            while True:
                # Frames come this way only until the packets are ours; afterwards this waits for the end.
                await self._track.recv()
        except MediaStreamError:
            return
        finally:
            clock.leave(self._tick)
            self._packets.stop()
            if self._give_up is not None:
                self._give_up.cancel()

    def _take(self, payload_type: int, source: int, number: int, timestamp: int, payload: bytes) -> None:
        """A packet from the socket."""
        now = time.monotonic()
        if source != self._source:
            if self._source is not None and now - self._last_arrival < _SOURCE_GONE_S:
                return
            self._source, self._buffer = source, JitterBuffer()
        ticks = 0
        if payload_type != self._opus:
            self._press(timestamp, payload)
        elif payload:
            try:
                ticks = packet_ticks(payload)
            except OpusError:
                self._decoder.corrupted += 1
                return
        self._last_arrival = now
        self._give(self._buffer.add(number, timestamp, ticks, payload, now))

    def _press(self, timestamp: int, payload: bytes) -> None:
        key = self._keys.add(timestamp, payload)
        if key is not None and self._on_key is not None:
            self._on_key(key)

    def _tick(self, now: float) -> None:
        stood_still = now - self._last_tick > 2 * FRAME_S
        self._last_tick = now
        if not self._started:
            self._packets.start()
            self._started = self._packets.connected
        elif now - self._last_arrival > FRAME_S and not stood_still:
            self._give(self._buffer.poll(now))

    def _deadline_passed(self, deadline: float) -> None:
        now = time.monotonic()
        if now - deadline > FRAME_S / 2:
            # The event loop stood still: what is missing may lie in the socket. It is read first.
            loop = asyncio.get_running_loop()
            self._give_up = loop.call_later(FRAME_S / 4, self._deadline_passed, now + FRAME_S / 4)
        else:
            self._give(self._buffer.poll(now))

    def _give(self, pieces: list[Piece]) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        deadline = self._buffer.deadline
        if deadline is not None:
            loop = asyncio.get_running_loop()
            delay = max(0.0, deadline - time.monotonic())
            self._give_up = loop.call_later(delay, self._deadline_passed, deadline)
        if pieces:
            pcm = self._decoder.decode(pieces)
            if pcm:
                self._on_pcm(pcm, SAMPLE_RATE)


class OutgoingAudio:
    """The server's voice: takes a frame from the queue every 20 ms; where there is none it keeps time in silence."""

    def __init__(self, transceiver: RTCRtpTransceiver, queue: PlayoutQueue, most_bitrate: int | None = None) -> None:
        """Before the answer is made; on the event loop.

        ``queue`` outlives this: the next peer connection of the call takes it over. ``most_bitrate``: bits a second
        that the peer takes, if it says so. Raises ``OpusMissingError`` without libopus.
        """
        self.queue = queue
        self._transceiver = transceiver
        self._track = IdleTrack()
        transceiver.sender.replaceTrack(self._track)
        transceiver.direction = "sendrecv"
        self._packets: PacketSender | None = None
        self._most_bitrate = max(_LEAST_BITRATE, most_bitrate or CLEAR_BITRATE)
        self._encoder = OpusEncoder(SAMPLE_RATE, complexity=COMPLEXITY)
        self._mode: tuple[bool, bool] | None = None
        self._due = 0.0
        self._position = 0
        self._free_from = 0
        self._resting = False
        self._rested = 0
        self._level = 0
        self._silent_before = True
        self._frames = 0
        self._expected_loss = 0
        self._stopped = False
        self._clock = MediaClock.of_loop()
        self._clock.join(self._tick)

    @property
    def position(self) -> int:
        """Ticks (48 kHz) into the stream at which the next frame begins."""
        return self._position

    def push(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue PCM16 at 24 kHz of an item. After a silence its first frame leaves at once."""
        self.queue.push(response_id, item_id, pcm)
        if self._resting and not self._stopped and self.queue.queued_bytes >= FRAME_BYTES and self._can_send():
            now = time.monotonic()
            early = round((self._due - now) * RTP_RATE)
            self._position = max(self._position - early, self._free_from)
            self._due = now
            self._clock.join(self._tick)
            self._frame()

    def finish(self, response_id: str) -> None:
        """Nothing more of a response follows."""
        self.queue.finish(response_id)

    def clear(self) -> None:
        """Be silent at once: drop what is queued."""
        self.queue.clear()

    def stop(self) -> None:
        """Take nothing more from the queue."""
        self._stopped = True
        self._clock.leave(self._tick)
        self._track.stop()

    def _can_send(self) -> bool:
        return self._packets is not None and self._packets.connected

    def _tick(self, now: float) -> None:
        if self._stopped:
            return
        if not self._can_send():
            if self._packets is None and self._transceiver.currentDirection is not None:
                self._packets = PacketSender(self._transceiver, opus_payload_type(self._transceiver))
            self._due = now + FRAME_S
            return
        # To the nearest frame: the clock is a little early or late by turns, and must not run ahead of itself by that.
        owed = floor((now - self._due) / FRAME_S + 0.5) + 1
        if owed > MOST_OWED:
            skipped = owed - MOST_OWED
            self._position += skipped * FRAME_TICKS
            self._due += skipped * FRAME_S
        for _ in range(min(owed, MOST_OWED)):
            self._frame()

    def _frame(self) -> None:
        """Send the next frame, or let its time pass in silence."""
        pcm = self._smoothed(self.queue.take())
        self._tune(silent=pcm is None)
        if pcm is not None:
            self._send(self._encoder.encode(pcm), marker=self._resting)
            self._resting = False
        elif not self._resting:
            packet = self._encoder.encode(_SILENCE)
            # The first of the packets that say "silence goes on" is sent, then nothing.
            self._resting, self._rested = len(packet) <= DTX_BYTES, 0
            self._send(packet, marker=False)
        else:
            self._rested += 1
            if self._rested % KEEPALIVE_FRAMES == 0:
                self._send(self._encoder.encode(_SILENCE), marker=False)
        self._position += FRAME_TICKS
        self._due += FRAME_S
        self._frames += 1
        if self._frames % LOSS_EVERY_FRAMES == 0:
            self._learn_loss()

    def _send(self, packet: bytes, *, marker: bool) -> None:
        assert self._packets is not None
        self._packets.send(packet, self._position, marker)
        self._free_from = self._position + FRAME_TICKS

    def _smoothed(self, pcm: bytes | None) -> bytes | None:
        """Sound that breaks off, because more of it was not there in time, or goes on, without a step in it."""
        before, after = self._level, 0 if pcm is None else first_level(pcm)
        breaks = pcm is None or self._silent_before
        self._silent_before = pcm is None
        self._level = 0 if pcm is None else last_level(pcm)
        if breaks and abs(after - before) > _AUDIBLE_STEP:
            return start_from(pcm or _SILENCE, before, _EDGE_SAMPLES)
        return pcm

    def _learn_loss(self) -> None:
        """Tell the encoder what the peer says it loses, in steps, slower down than up."""
        assert self._packets is not None
        lost = self._packets.lost_by_peer()
        if lost is None:
            return
        percent = min(round(lost * 100), 30)
        expected = max(percent, self._expected_loss - 1)
        if expected != self._expected_loss:
            self._expected_loss = expected
            self._encoder.set_expected_loss(expected)

    def _tune(self, *, silent: bool) -> None:
        """Bits are spared where the network loses packets and where the peer wants few, processor time elsewhere.

        In silence too: only linear prediction says that silence goes on (libopus 1.3, at this complexity).
        """
        lean = silent or self._expected_loss > 0 or self._most_bitrate < CLEAR_BITRATE
        if (lean, silent) != self._mode:
            self._mode = lean, silent
            self._encoder.set_signal("voice" if lean else "music")
            # Only our own silence: linear prediction takes a steady tone for noise, and would leave it out.
            self._encoder.set_silence_gaps(silent)
            self._encoder.set_bitrate(min(LEAN_BITRATE, self._most_bitrate) if lean else CLEAR_BITRATE)
