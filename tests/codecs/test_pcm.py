from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.codecs.pcm import PCM16, SampleAligner, float_to_pcm16, pcm16_to_float


def test_fc_100_pcm16_is_little_endian_on_any_host() -> None:
    samples = pcm16_to_float(bytes([1, 2, 3, 4]))
    assert (samples * 32768).tolist() == [513, 1027]
    assert PCM16.str == "<i2"
    # What a big-endian host holds in memory: the bytes of the floats are the other way round, those of PCM are not.
    for byte_order in "<>":
        native = np.array([513, 1027], f"{byte_order}f4") / np.array(32767, f"{byte_order}f4")
        assert float_to_pcm16(native.astype(f"{byte_order}f4")) == bytes([1, 2, 3, 4])


def test_floats_are_clipped_not_wrapped() -> None:
    pcm = float_to_pcm16(np.array([-2.0, -1.0, 0.0, 1.0, 1.00001, 7.0], np.float32))
    assert np.frombuffer(pcm, "<i2").tolist() == [-32767, -32767, 0, 32767, 32767, 32767]


def test_floats_are_rounded_to_the_nearest_sample() -> None:
    samples = np.array([0.6, -0.6, 1.4, -1.4], np.float32) / 32767
    assert np.frombuffer(float_to_pcm16(samples), "<i2").tolist() == [1, -1, 1, -1]


def test_full_scale_stays_within_one() -> None:
    samples = pcm16_to_float(np.array([-32768, 32767], "<i2").tobytes())
    assert samples.dtype == np.float32
    assert samples.tolist() == [-1.0, 32767 / 32768]


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes are not a whole number of 16-bit samples"):
        pcm16_to_float(b"abc")


@given(pieces=st.lists(st.binary(max_size=9), max_size=20), sample_bytes=st.integers(1, 6))
def test_aligner_keeps_every_byte_in_order(pieces: list[bytes], sample_bytes: int) -> None:
    aligner = SampleAligner(sample_bytes)
    stream = b"".join(pieces)
    returned = b""
    for piece in pieces:
        whole = aligner.push(piece)
        assert len(whole) % sample_bytes == 0
        returned += whole
    assert aligner.pending == len(stream) % sample_bytes
    assert returned == stream[: len(stream) - aligner.pending]
