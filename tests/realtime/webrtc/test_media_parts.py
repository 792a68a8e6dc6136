"""The parts of a call's media that need no peer: clock, decoder of pieces, report counts, RTP headers."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from missing import need_libopus

from duologue.codecs.opus import OpusDecoder, OpusEncoder
from duologue.codecs.pcm import PCM16
from duologue.realtime.bench.webrtc_peer import voice_pcm
from duologue.realtime.webrtc.aiortc_wire import parse
from duologue.realtime.webrtc.jitter import FRAME_TICKS, Lost, Received, Silence
from duologue.realtime.webrtc.media_clock import FRAME_S, PHASES, MediaClock
from duologue.realtime.webrtc.reception import Reception
from duologue.realtime.webrtc.stream_decoder import StreamDecoder, packet_ticks

need_libopus()

FRAME = 480


def packets(seconds: float = 1.0, **settings: Any) -> list[bytes]:
    encoder = OpusEncoder(24_000, **settings)
    frames = round(seconds * 50)
    return [encoder.encode(voice_pcm()[2 * FRAME * n : 2 * FRAME * (n + 1)]) for n in range(frames)]


def steepest(samples: np.ndarray) -> float:
    return float(np.abs(np.diff(samples.astype(float))).max())


class TestStreamDecoder:
    def test_in_order_it_is_the_decoder(self) -> None:
        plain, stream = OpusDecoder(), StreamDecoder()
        pcm = [(plain.decode(packet), stream.decode([Received(packet)])) for packet in packets()]
        # But for the first 5 ms, which rise from silence.
        assert all(one == other for one, other in pcm[1:])

    @pytest.mark.parametrize("lost", [1, 2, 5, 20])
    def test_FC_156_a_hole_is_as_long_as_it_was_and_has_no_edge(self, lost: int) -> None:
        sent = packets(1.5, expected_loss=10)
        stream, clean = StreamDecoder(), StreamDecoder()
        pieces = [
            *map(Received, sent[:30]),
            Lost(lost * FRAME_TICKS, sent[30 + lost]),
            *map(Received, sent[30 + lost :]),
        ]
        heard = np.frombuffer(stream.decode(pieces), PCM16)
        whole = np.frombuffer(clean.decode(map(Received, sent)), PCM16)
        assert len(heard) == len(whole) == len(sent) * FRAME
        assert steepest(heard) <= 1.5 * steepest(whole)
        assert stream.recovered == 1
        if lost == 20:
            assert not heard[37 * FRAME : (30 + lost - 2) * FRAME].any()

    def test_silence_is_silent_after_a_moment_and_sound_rises_from_it(self) -> None:
        sent = packets()
        stream = StreamDecoder()
        heard = np.frombuffer(
            stream.decode([*map(Received, sent[:20]), Silence(30 * FRAME_TICKS), *map(Received, sent[20:])]), PCM16
        )
        assert len(heard) == (len(sent) + 30) * FRAME
        assert not heard[26 * FRAME : 50 * FRAME].any()
        assert steepest(heard) <= 1.5 * steepest(np.frombuffer(StreamDecoder().decode(map(Received, sent)), PCM16))

    def test_a_packet_that_libopus_refuses_is_a_hole(self) -> None:
        sent = packets()
        stream = StreamDecoder()
        stream.decode(map(Received, sent[:20]))
        broken = bytes([sent[20][0] & 0xFC | 3, 0x01]) + b"\xff" * 3
        try:
            ticks = packet_ticks(broken)
        except ValueError:
            return
        assert len(stream.decode([Received(broken)])) == ticks

    def test_the_length_of_any_packet_is_libopus_own(self) -> None:
        from duologue.codecs.opus import packet_samples

        for configuration in range(32):
            for code in range(3):
                packet = bytes([configuration << 3 | code, 0, 0, 0, 0])
                assert packet_ticks(packet) == packet_samples(packet, 48_000)


class TestReception:
    def test_counts_through_the_wrap_and_says_what_was_lost(self) -> None:
        reception = Reception()
        for n in range(200):
            if n % 10:
                reception.add((65_450 + n) & 0xFFFF, n * FRAME_TICKS, n * FRAME_S)
        assert reception.packets_expected == 199
        assert reception.packets_lost == 19
        assert reception.max_seq == 65_450 + 199
        assert reception.fraction_lost == (19 << 8) // 199
        assert reception.fraction_lost == 0
        assert reception.jitter == 0

    def test_jitter_is_what_arrivals_differ_by(self) -> None:
        reception = Reception()
        for n in range(2000):
            reception.add(n, n * FRAME_TICKS, n * FRAME_S + (n % 2) * 0.010)
        assert reception.jitter == pytest.approx(480, rel=0.05)

    @given(st.lists(st.integers(0, 65_535), min_size=1, max_size=50))
    def test_whatever_comes_the_report_fits_its_fields(self, numbers: list[int]) -> None:
        reception = Reception()
        for at, number in enumerate(numbers):
            reception.add(number, at, float(at))
        assert 0 <= reception.fraction_lost <= 255
        assert 0 <= reception.max_seq < 1 << 32
        assert -(1 << 23) <= reception.packets_lost < 1 << 23
        assert reception.jitter >= 0


class TestHeader:
    HEADER = bytes([0x80, 111]) + (7).to_bytes(2, "big") + (960).to_bytes(4, "big") + (42).to_bytes(4, "big")

    def test_contributors_extension_and_padding_are_not_payload(self) -> None:
        packet = bytearray(self.HEADER)
        packet[0] |= 0x30 | 2
        packet += bytes(8) + b"\xbe\xde\x00\x01" + b"\x10a\x00\x00" + b"opus" + b"\x00\x00\x03"
        assert parse(bytes(packet)) == (42, 7, 960, b"opus")
        assert parse(self.HEADER + b"opus") == (42, 7, 960, b"opus")

    @given(st.binary(max_size=40))
    def test_no_packet_of_a_stranger_raises(self, packet: bytes) -> None:
        parsed = parse(packet)
        assert parsed is None or len(parsed[3]) <= len(packet)


class TestMediaClock:
    async def test_everybody_is_called_every_frame_by_one_timer(self) -> None:
        clock = MediaClock.of_loop()
        assert MediaClock.of_loop() is clock
        calls: list[list[float]] = [[] for _ in range(8)]
        subscribers = [times.append for times in calls]
        for subscriber in subscribers:
            clock.join(subscriber)
            await asyncio.sleep(FRAME_S / PHASES)
        began = time.monotonic()
        while time.monotonic() - began < 1.0:  # noqa: ASYNC110 - time is what is measured
            await asyncio.sleep(0.05)
        for subscriber in subscribers:
            clock.leave(subscriber)
        assert clock._timer is None
        for times in calls:
            # Calls that a stalled machine left out are made up for by whoever is called.
            assert 0.5 / FRAME_S < len(times) <= 1.6 / FRAME_S
            assert times == sorted(times)

    async def test_one_that_raises_leaves_the_others_alone(self) -> None:
        clock = MediaClock.of_loop()
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        heard: list[float] = []

        def broken(now: float) -> None:
            raise RuntimeError("broken")

        clock.join(broken)
        clock.join(heard.append)
        async with asyncio.timeout(10):
            while len(heard) < 3 or not errors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        clock.leave(broken)
        clock.leave(heard.append)
        assert "broken" in str(errors[0]["exception"])
        for phase in clock._phases:
            phase.clear()
        assert clock._timer is None or not any(clock._phases)

    def test_a_loop_that_is_over_takes_its_clock_with_it(self) -> None:
        from duologue.realtime.webrtc import media_clock

        gc.collect()
        before = len(media_clock._clocks)

        async def use() -> None:
            MediaClock.of_loop()

        asyncio.run(use())
        gc.collect()
        assert len(media_clock._clocks) == before
