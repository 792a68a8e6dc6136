"""Stereo from a peer, as browsers may send it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from missing import need_libopus, need_package

need_package("aiortc")
need_libopus()

from aiortc.codecs.opus import OpusEncoder  # noqa: E402
from av import AudioFrame  # noqa: E402

from duologue.codecs.opus import OpusDecoder  # noqa: E402
from duologue.codecs.pcm import PCM16  # noqa: E402

FRAMES, SECONDS = 50, 1.0


def stereo_packets(left: float, right: float) -> list[bytes]:
    """A second of a tone of 440 Hz at 48 kHz, so loud on either side, by the encoder of another library."""
    encoder, packets = OpusEncoder(), []
    for number in range(FRAMES):
        at = (np.arange(960) + number * 960) / 48_000
        tone = np.sin(2 * np.pi * 440 * at)
        frame = AudioFrame(format="s16", layout="stereo", samples=960)
        frame.planes[0].update(np.stack([left * tone, right * tone], axis=1).astype(PCM16).tobytes())
        frame.sample_rate, frame.time_base, frame.pts = 48_000, Fraction(1, 48_000), number * 960
        packets += encoder.encode(frame)[0]
    return packets


@pytest.mark.parametrize("rate", [48_000, 24_000, 16_000])
@pytest.mark.parametrize(("left", "right", "level"), [(8000, 8000, 8000), (8000, 0, 4000)])
def test_fc_095_the_downmix_depends_on_the_channels_and_not_on_the_rate(
    rate: int, left: float, right: float, level: float
) -> None:
    decoder = OpusDecoder(rate)
    pcm = np.frombuffer(b"".join(map(decoder.decode, stereo_packets(left, right))), PCM16).astype(np.float64)
    assert len(pcm) == rate * SECONDS
    middle = pcm[len(pcm) // 4 : len(pcm) * 3 // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * rate / len(middle) == pytest.approx(440, abs=3)
    assert np.sqrt(2 * np.mean(middle**2)) == pytest.approx(level, rel=0.15)
