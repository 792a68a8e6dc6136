"""The suppressor gives back what it took, sample for sample, however the stream was cut, and WebRTC's moves nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from missing import need_package

from duologue.codecs import noise_suppression
from duologue.codecs.noise_suppression import MakeSuppressor, NoiseSuppressor, load_noise_suppression
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float

RATES = (8_000, 16_000, 24_000, 48_000)


class Late:
    """Gives its input back ``delay`` samples late."""

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self._kept = bytes(delay * 2)

    def process(self, frame: bytes) -> bytes:
        assert len(frame) == 160
        both = self._kept + frame
        self._kept = both[len(frame) :]
        return both[: len(frame)]


@pytest.fixture(scope="module")
def make() -> MakeSuppressor:
    need_package("livekit")
    return load_noise_suppression()


def pieces_of(pcm: bytes, sizes: list[int]) -> list[bytes]:
    """``pcm`` cut into pieces of ``sizes`` samples, over and over."""
    pieces, first, index = [], 0, 0
    while first < len(pcm):
        end = first + 2 * sizes[index % len(sizes)]
        pieces.append(pcm[first:end])
        first, index = end, index + 1
    return pieces


@given(delay=st.integers(0, 300), sizes=st.lists(st.integers(1, 500), min_size=1, max_size=6))
def test_no_sample_is_missing_or_moved(delay: int, sizes: list[int]):
    pcm = np.arange(3_000, dtype="<i2").tobytes()
    suppressor = NoiseSuppressor(Late(delay), 8_000)
    given_back = b""
    for piece in pieces_of(pcm, sizes):
        given_back += suppressor.process(piece)
        taken = len(given_back) // 2 + suppressor.lag
        assert given_back + suppressor.held == pcm[: taken * 2]
        assert suppressor.lag < delay + 80
    assert taken == 3_000


@pytest.mark.parametrize("sizes", [[1], [10], [20, 7, 480], [333], [24_000]])
def test_the_output_does_not_depend_on_how_the_input_was_cut(make: MakeSuppressor, sizes: list[int]):
    noise = np.random.default_rng(0).standard_normal(12_000).astype(np.float32) * np.float32(0.05)
    pcm = float_to_pcm16(noise)
    whole, cut = make(24_000), make(24_000)
    assert whole is not None
    assert cut is not None
    expected = whole.process(pcm)
    assert b"".join(map(cut.process, pieces_of(pcm, sizes))) == expected
    assert cut.held == whole.held
    assert expected != pcm[: len(expected)]


@pytest.mark.parametrize("rate", RATES)
def test_what_comes_out_lies_where_it_came_in(make: MakeSuppressor, rate: int):
    """Bursts of noise, from which no suppressor takes much at their onset: the best match is within 0.1 ms."""
    time = np.arange(3 * rate) / rate
    rng = np.random.default_rng(1)
    shape = np.sin(2 * np.pi * 3.1 * time) > 0
    spectrum = np.fft.rfft(rng.standard_normal(len(time)) * shape)
    frequency = np.fft.rfftfreq(len(time), 1 / rate)
    spectrum[(frequency < 1_000) | (frequency > 3_500)] = 0  # below, the high-pass filter turns the phase
    signal = np.fft.irfft(spectrum, len(time))
    pcm = float_to_pcm16((signal * 0.2 / np.abs(signal).max()).astype(np.float32))
    suppressor = make(rate)
    assert suppressor is not None
    cleaned = pcm16_to_float(suppressor.process(pcm))
    original = pcm16_to_float(pcm)[: len(cleaned)]
    reach, middle = rate // 100, slice(rate, 2 * rate)
    match = [float(np.dot(original[middle], cleaned[rate + lag : 2 * rate + lag])) for lag in range(-reach, reach)]
    assert abs(int(np.argmax(match)) - reach) <= rate / 10_000


def test_without_the_package_it_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    import sys

    monkeypatch.setitem(sys.modules, "livekit.rtc", None)
    make = load_noise_suppression()
    with caplog.at_level(logging.WARNING, noise_suppression.__name__):
        assert make(24_000) is None
        assert make(8_000) is None
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "pip install 'duologue[audio]'" in caplog.records[0].message
