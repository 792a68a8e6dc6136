from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.codecs import g711
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.codecs.wire_audio import Encoding, WireDecoder, WireEncoder

ENCODINGS: tuple[Encoding, ...] = ("pcm", "pcmu", "pcma")
SIZES = st.lists(st.integers(0, 700), min_size=1, max_size=8).filter(any)


def noise(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8).tobytes()


def test_fc_092_an_odd_byte_is_carried_to_the_next_append() -> None:
    stream = noise(9600)
    decoder = WireDecoder("pcm")
    first = decoder.decode(stream[:4801])
    assert (len(first), decoder.pending) == (4800, 1)
    second = decoder.decode(stream[4801:])
    assert (len(second), decoder.pending) == (4800, 0)
    assert first + second == stream


def test_fc_092_clearing_the_buffer_forgets_the_odd_byte() -> None:
    decoder = WireDecoder("pcm")
    decoder.decode(b"abc")
    decoder.reset()
    assert decoder.pending == 0
    assert decoder.decode(b"de") == b"de"


@given(encoding=st.sampled_from(ENCODINGS), length=st.integers(0, 3000), sizes=SIZES)
def test_any_split_decodes_to_the_same(encoding: Encoding, length: int, sizes: list[int], cut) -> None:
    stream = noise(length)
    decoder = WireDecoder(encoding)
    split = b"".join(decoder.decode(piece) for piece in cut(stream, sizes))
    assert split == WireDecoder(encoding).decode(stream)
    assert decoder.pending == (length % 2 if encoding == "pcm" else 0)


@settings(deadline=None)
@given(encoding=st.sampled_from(ENCODINGS), length=st.integers(0, 5000), sizes=SIZES)
def test_any_split_encodes_to_the_same(encoding: Encoding, length: int, sizes: list[int], cut) -> None:
    pcm = noise(length)
    encoder, whole = WireEncoder(encoding), WireEncoder(encoding)
    split = b"".join(encoder.encode(piece) for piece in cut(pcm, sizes)) + encoder.flush()
    assert split == whole.encode(pcm) + whole.flush()
    samples = length // 2
    assert len(split) == (2 * samples if encoding == "pcm" else int(samples / 3 + 0.5))
    assert encoder.encode(pcm) + encoder.flush() == split  # after a flush, a new stream


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_minute_keeps_its_length(encoding: Encoding) -> None:
    encoder = WireEncoder(encoding)
    chunk = noise(2 * 1777)
    count = sum(len(encoder.encode(chunk)) for _ in range(810)) + len(encoder.flush())
    seconds = 810 * 1777 / 24000
    assert abs(count / encoder.bytes_per_second - seconds) < 1 / encoder.sample_rate


def test_fc_097_the_declared_law_is_used_both_ways() -> None:
    speech = float_to_pcm16(0.3 * np.sin(2 * np.pi * 440 * np.arange(24000) / 24000))
    narrow = float_to_pcm16(resample(pcm16_to_float(speech), 24000, 8000, "LOW_DELAY"))
    laws = {"pcmu": (g711.encode_ulaw, g711.decode_ulaw), "pcma": (g711.encode_alaw, g711.decode_alaw)}
    for encoding, (encode, decode) in laws.items():
        encoder, decoder = WireEncoder(encoding), WireDecoder(encoding)
        wire = encoder.encode(speech) + encoder.flush()
        assert wire == encode(narrow)
        assert decoder.decode(wire) == decode(wire)


@pytest.mark.parametrize(("encoding", "rate", "bytes_per_second"), [("pcm", 24000, 48000), ("pcmu", 8000, 8000)])
def test_rates(encoding: Encoding, rate: int, bytes_per_second: int) -> None:
    assert WireDecoder(encoding).sample_rate == rate
    assert WireEncoder(encoding).sample_rate == rate
    assert WireEncoder(encoding).bytes_per_second == bytes_per_second


def test_an_unknown_encoding_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'opus' is not one of pcm, pcmu, pcma"):
        WireDecoder("opus")  # type: ignore[arg-type]
