"""The frame clock of the server's voice on scripted time: what leaves, and at which place of the stream."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from missing import need_libopus, need_package
from webrtc_call import Listener

need_package("aiortc")
need_libopus()

from duologue.codecs.opus import DTX_BYTES, OpusDecoder, carries_correction  # noqa: E402
from duologue.codecs.pcm import PCM16  # noqa: E402
from duologue.realtime.webrtc import media  # noqa: E402
from duologue.realtime.webrtc.jitter import FRAME_TICKS, RTP_RATE  # noqa: E402
from duologue.realtime.webrtc.media import FRAME_S, MOST_OWED, OutgoingAudio  # noqa: E402
from duologue.realtime.webrtc.playout_queue import PlayoutQueue  # noqa: E402

RATE = 24_000


class Wire:
    """A sender that writes down what it is given."""

    connected = True

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, int, bytes, bool]] = []
        self.loss: float | None = None

    def send(self, payload: bytes, ticks: int, marker: bool) -> bool:
        self.sent.append((self.now, ticks, payload, marker))
        return True

    def lost_by_peer(self) -> float | None:
        return self.loss


class Voice:
    """A server's voice and the time that it believes in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most_bitrate: int | None = None) -> None:
        self.wire = Wire()
        self.listener = Listener()
        sender = SimpleNamespace(replaceTrack=lambda track: None)
        transceiver = SimpleNamespace(sender=sender, direction="", currentDirection="sendrecv")
        self.out = OutgoingAudio(transceiver, PlayoutQueue(self.listener), most_bitrate)  # type: ignore[arg-type]
        self.out._packets = self.wire  # type: ignore[assignment]
        self.out._clock.leave(self.out._tick)
        self.out._due = FRAME_S
        monkeypatch.setattr(media.time, "monotonic", lambda: self.wire.now)

    def at(self, now: float) -> None:
        self.wire.now = now
        self.out._tick(now)


@pytest.fixture
async def voice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Voice]:
    voice = Voice(monkeypatch)
    yield voice
    voice.out.stop()


def tone(seconds: float) -> bytes:
    at = np.arange(int(seconds * RATE))
    return (8000 * np.sin(2 * np.pi * 440 * at / RATE)).astype(PCM16).tobytes()


async def test_FC_149_half_an_hour_stays_on_the_clock(voice: Voice) -> None:
    rng = random.Random(4)
    now = FRAME_S
    for n in range(1, 90_000):
        # The timer is a little late now and then, and once a minute the loop stands still.
        now = n * FRAME_S + rng.uniform(0, 0.004) + (0.3 if n % 3000 == 0 else 0)
        if n % 1500 == 0:
            voice.out.push(f"r{n}", "i", tone(2.5))
            voice.out.finish(f"r{n}")
        voice.at(now)
    ticks = [ticks for _, ticks, _, _ in voice.wire.sent]
    assert all(later - earlier >= FRAME_TICKS for earlier, later in itertools.pairwise(ticks))
    began = voice.wire.sent[0][0] - ticks[0] / RTP_RATE
    offsets = [at - began - ticks / RTP_RATE for at, ticks, _, _ in voice.wire.sent]
    # A packet may be late after the loop stood still, by what is caught up; it is never early, and nothing adds up.
    assert min(offsets) > -0.015
    assert max(offsets) < MOST_OWED * FRAME_S + 0.02
    assert abs(np.median(offsets[-500:]) - np.median(offsets[:500])) < 0.005
    assert voice.listener.played["i"] == 59 * 5 * RATE // 2


async def test_a_push_after_silence_leaves_at_once_and_the_next_frames_follow_it(voice: Voice) -> None:
    for n in range(1, 101):
        voice.at(n * FRAME_S)
    assert voice.out._resting
    sent = len(voice.wire.sent)
    voice.wire.now = 100 * FRAME_S + 0.013
    voice.out.push("r", "i", tone(1.0))
    at, ticks, _, marker = voice.wire.sent[sent]
    assert (at, marker) == (voice.wire.now, True)
    for n in range(1, 10):
        voice.at(at + n * FRAME_S)
    following = voice.wire.sent[sent + 1 :]
    assert [entry[1] - ticks for entry in following] == [n * FRAME_TICKS for n in range(1, 10)]
    assert not any(entry[3] for entry in following)
    first = voice.wire.sent[0]
    assert (ticks - first[1]) / RTP_RATE == pytest.approx(at - first[0], abs=0.001)


async def test_silence_sends_one_packet_that_says_so_and_then_one_in_twenty(voice: Voice) -> None:
    for n in range(1, 201):
        voice.at(n * FRAME_S)
    short = [index for index, entry in enumerate(voice.wire.sent) if len(entry[2]) <= DTX_BYTES]
    assert short
    rest = voice.wire.sent[short[0] :]
    assert len(rest) <= 1 + 200 // media.KEEPALIVE_FRAMES


async def test_speech_that_comes_too_late_does_not_click(voice: Voice) -> None:
    decoder = OpusDecoder()
    pcm = tone(2.0)
    now = 0.0
    # 110 ms of speech, a hole of 60 ms, and so on: as a slow synthesis would give it.
    for n in range(1, 80):
        now = n * FRAME_S
        if n % 9 == 1:
            voice.out.push("r", "i", pcm[: 2 * 2640])
            pcm = pcm[2 * 2640 :]
        voice.at(now)
    heard = np.frombuffer(b"".join(decoder.decode(packet) for _, _, packet, _ in voice.wire.sent), PCM16)
    assert np.abs(heard.astype(int)).max() > 5000
    assert np.abs(np.diff(heard.astype(float))).max() < 2 * 2 * np.pi * 440 / RATE * 8000


async def test_losses_that_the_peer_reports_turn_correction_on_and_slowly_off(voice: Voice) -> None:
    voice.wire.loss = 0.1
    for n in range(1, 60):
        voice.at(n * FRAME_S)
    assert voice.out._expected_loss == 10
    voice.wire.loss = 0.0
    for n in range(60, 200):
        voice.at(n * FRAME_S)
    assert 0 < voice.out._expected_loss < 10


def vowel(seconds: float) -> np.ndarray:
    """150 Hz with overtones, slowly swelling: libopus takes it for speech, and its correction is for speech alone."""
    at = np.arange(int(seconds * RATE)) / RATE
    overtones = sum(np.sin(2 * np.pi * 150 * n * at) / n for n in range(1, 12))
    return (overtones * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * at)) * 6000).astype(PCM16)


async def test_a_steady_tone_is_heard_to_its_end_over_a_lossy_network(voice: Voice) -> None:
    """With DTX libopus takes it for noise."""
    voice.wire.loss = 0.1
    voice.out.push("r", "i", tone(4.0))
    for n in range(1, 200):
        voice.at(n * FRAME_S)
    assert min(len(packet) for _, _, packet, _ in voice.wire.sent[60:]) > DTX_BYTES


def coding(packet: bytes) -> str:
    """RFC 6716, table 2."""
    return "transform" if packet[0] >> 3 >= 16 else "prediction"


async def test_a_clear_network_gets_cheap_packets_and_a_lossy_one_few_bits_with_correction(voice: Voice) -> None:
    speech = vowel(8.0)
    voice.out.push("r", "i", speech.tobytes())

    def play(first: int, last: int) -> list[bytes]:
        sent = len(voice.wire.sent)
        for n in range(first, last):
            voice.at(n * FRAME_S)
        return [packet for _, _, packet, _ in voice.wire.sent[sent:]]

    clear = play(1, 100)
    voice.wire.loss = 0.05
    play(100, 160)
    lossy = play(160, 200)
    voice.wire.loss = 0.0
    after = play(200, 400)
    assert {coding(packet) for packet in clear} == {"transform"}
    assert {coding(packet) for packet in lossy} == {"prediction"}
    assert sum(map(carries_correction, lossy)) > len(lossy) // 2
    assert sum(map(len, lossy)) / len(lossy) < 0.7 * sum(map(len, clear)) / len(clear)
    assert coding(after[-1]) == "prediction", "one percent a second: the network has to stay clear for a while"
    decoder = OpusDecoder()
    packets = [packet for _, _, packet, _ in voice.wire.sent]
    heard = np.frombuffer(b"".join(map(decoder.decode, packets)), PCM16).astype(float)
    assert np.abs(np.diff(heard)).max() < 1.5 * np.abs(np.diff(speech.astype(float))).max(), "no click at the change"


async def test_a_peer_that_asks_for_few_bits_gets_few(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = Voice(monkeypatch, most_bitrate=20_000)
    voice.out.push("r", "i", tone(2.0))
    for n in range(1, 100):
        voice.at(n * FRAME_S)
    voice.out.stop()
    packets = [packet for _, _, packet, _ in voice.wire.sent]
    assert sum(map(len, packets)) * 8 / (len(packets) * FRAME_S) < 21_000
    assert {coding(packet) for packet in packets} == {"prediction"}
