"""Sound over a bad line, from packets to PCM on a scripted clock: what is missing is hidden, and nothing clicks."""

from __future__ import annotations

import numpy as np
import pytest
from missing import need_libopus, need_package
from rtp_line import Line, sent_over

need_package("aiortc")
need_libopus()

from duologue.codecs.opus import OpusDecoder, OpusEncoder, carries_correction  # noqa: E402
from duologue.codecs.pcm import PCM16  # noqa: E402
from duologue.realtime.bench.webrtc_peer import hum_packets, voice_pcm  # noqa: E402
from duologue.realtime.webrtc.jitter import FRAME_TICKS, Lost, Received, Silence  # noqa: E402
from duologue.realtime.webrtc.stream_decoder import StreamDecoder  # noqa: E402

FRAME = 480
SEEDS = range(12)


def heard(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, PCM16).astype(np.float64)


def steepest(samples: np.ndarray) -> float:
    return float(np.abs(np.diff(samples)).max())


def clean_hum() -> np.ndarray:
    decoder = OpusDecoder(24_000)
    return heard(b"".join(map(decoder.decode, hum_packets() * 2)))


@pytest.mark.parametrize("loss", [0.01, 0.05])
@pytest.mark.parametrize("jitter_ms", [0, 20, 60])
def test_FC_156_a_hum_has_no_click_whatever_is_lost(loss: float, jitter_ms: int) -> None:
    """What ``duologue bench webrtc`` counts: steps half as steep again as any of the clean sound."""
    most = 1.5 * steepest(clean_hum())
    lost = 0
    for seed in SEEDS:
        line = Line()
        sent_over(line, hum_packets(), seed=seed, loss=loss, jitter_s=jitter_ms / 1000, frames=350)
        steps = steepest(heard(StreamDecoder().decode(piece for _, piece in line.pieces)))
        assert steps < most, f"seed {seed}: a step of {steps / most * 1.5:.2f} times the steepest"
        lost += line.buffer.stats.lost
    assert lost > 20


@pytest.mark.parametrize("bitrate", [24_000, 48_000])
@pytest.mark.parametrize("frame_ms", [10, 20, 60])
def test_FC_156_guesses_of_every_length_join_on(bitrate: int, frame_ms: int) -> None:
    encoder = OpusEncoder(24_000, bitrate=bitrate, silence_gaps=False)
    time = np.arange(3 * 24_000) / 24_000
    # Its pitch rises all the time, so that a guess, which keeps the pitch, drifts off.
    tone = (9_000 * np.sin(2 * np.pi * (180 + 20 * time) * time)).astype(PCM16).tobytes()
    size = 48 * frame_ms
    packets = [encoder.encode(tone[at : at + size]) for at in range(0, len(tone), size) if at + size <= len(tone)]
    clean = heard(StreamDecoder().decode(map(Received, packets)))
    ticks = frame_ms * 48
    for hole in range(10, 30):
        for kind in (Lost(ticks, packets[hole + 1]), Lost(ticks), Silence(ticks)):
            pieces = [*map(Received, packets[:hole]), kind, *map(Received, packets[hole + 1 :])]
            joined = heard(StreamDecoder().decode(pieces))
            assert len(joined) == len(clean)
            assert steepest(joined) < 1.5 * steepest(clean)


def test_what_a_copy_brought_back_goes_on_as_it_was_sent() -> None:
    encoder = OpusEncoder(24_000, bitrate=32_000, expected_loss=20, silence_gaps=False)
    voice = voice_pcm()
    packets = [encoder.encode(voice[at : at + 2 * FRAME]) for at in range(0, len(voice), 2 * FRAME)]
    hole = next(n for n in range(50, len(packets)) if carries_correction(packets[n + 1]))
    stream, plain = StreamDecoder(), OpusDecoder(24_000)
    for packet in packets[:hole]:
        stream.decode([Received(packet)])
        plain.decode(packet)
    assert stream.decode([Lost(FRAME_TICKS, packets[hole + 1])]) == plain.recover(packets[hole + 1], FRAME)
    assert stream.decode([Received(packets[hole + 1])]) == plain.decode(packets[hole + 1])
