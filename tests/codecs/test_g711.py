from __future__ import annotations

from collections.abc import Callable

import av
import numpy as np
import pytest

from duologue.codecs import g711

ALL_CODES = bytes(range(256))
ALL_SAMPLES = np.arange(-32768, 32768).astype("<i2")
LAWS = {
    "ulaw": (g711.decode_ulaw, g711.encode_ulaw, "pcm_mulaw"),
    "alaw": (g711.decode_alaw, g711.encode_alaw, "pcm_alaw"),
}


@pytest.fixture(params=LAWS)
def law(request: pytest.FixtureRequest) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes], str]:
    return LAWS[request.param]


def test_fc_097_levels_are_those_of_the_recommendation() -> None:
    ulaw = np.frombuffer(g711.decode_ulaw(ALL_CODES), "<i2")
    assert ulaw[[0x00, 0x7E, 0x7F, 0x80, 0xFE, 0xFF]].tolist() == [-32124, -8, 0, 32124, 8, 0]
    alaw = np.frombuffer(g711.decode_alaw(ALL_CODES), "<i2")
    assert alaw[[0x2A, 0x55, 0xD5, 0xAA]].tolist() == [-32256, -8, 8, 32256]


def test_fc_097_levels_agree_with_ffmpeg(law) -> None:
    decode, _, name = law
    decoder = av.CodecContext.create(name, "r")
    decoder.sample_rate, decoder.layout = 8000, "mono"
    (frame,) = decoder.decode(av.Packet(ALL_CODES))
    assert decode(ALL_CODES) == frame.to_ndarray().astype("<i2").tobytes()


def test_fc_097_round_trip_of_all_codes_is_exact(law) -> None:
    decode, encode, name = law
    levels = decode(ALL_CODES)
    codes = encode(levels)
    assert decode(codes) == levels
    # PCM has one zero, u-law two: the negative one comes back as the other.
    assert [code for code in range(256) if codes[code] != code] == ([0x7F] if name == "pcm_mulaw" else [])


def test_fc_097_the_laws_are_never_exchanged() -> None:
    ulaw, alaw = g711.decode_ulaw(ALL_CODES), g711.decode_alaw(ALL_CODES)
    same = np.frombuffer(ulaw, "<i2") == np.frombuffer(alaw, "<i2")
    assert not same.any()
    assert (np.frombuffer(g711.decode_alaw(g711.encode_ulaw(alaw)), "<i2") != np.frombuffer(alaw, "<i2")).mean() > 0.99


def test_every_sample_is_coded_within_half_a_step_of_its_segment(law) -> None:
    decode, encode, name = law
    codes = np.frombuffer(encode(ALL_SAMPLES.tobytes()), np.uint8).astype(np.int32)
    levels = np.frombuffer(decode(codes.astype(np.uint8).tobytes()), "<i2").astype(np.int32)
    exponent = (~codes if name == "pcm_mulaw" else codes ^ 0x55) >> 4 & 7
    half_step = 4 << exponent if name == "pcm_mulaw" else 8 << np.maximum(exponent - 1, 0)
    error = np.abs(levels - ALL_SAMPLES.astype(np.int32))
    clipped = np.abs(ALL_SAMPLES.astype(np.int32)) > levels.max()
    assert (error <= half_step)[~clipped].all()
    assert set(levels[clipped]) == {levels.min(), levels.max()}


def test_compression_is_odd_symmetric(law) -> None:
    _, encode, _ = law
    positive = encode(ALL_SAMPLES[32768:].tobytes())
    negative = encode((~ALL_SAMPLES[32768:]).astype("<i2").tobytes())
    assert np.array_equal(np.frombuffer(positive, np.uint8), np.frombuffer(negative, np.uint8) ^ 0x80)


def test_any_bytes_decode(law) -> None:
    """Linear PCM under the wrong label is loud noise, not a crash."""
    decode, _, _ = law
    assert len(decode(ALL_SAMPLES.tobytes())) == 4 * len(ALL_SAMPLES)
    assert decode(b"") == b""


def test_half_a_sample_is_refused(law) -> None:
    _, encode, _ = law
    with pytest.raises(ValueError, match="whole number of 16-bit samples"):
        encode(b"abc")
