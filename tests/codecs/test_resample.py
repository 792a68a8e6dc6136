from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, FrameResampler, Quality, StreamResampler, resample

RATES = (8000, 16000, 24000, 48000)
QUALITIES: tuple[Quality, ...] = ("QQ", "LQ", "HQ", "LOW_DELAY")


def tone(rate: int, seconds: float, hertz: float = 1000.0) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def level_db(samples: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-20))


@settings(deadline=None)
@given(
    rate_in=st.sampled_from(RATES),
    rate_out=st.sampled_from(RATES),
    quality=st.sampled_from(QUALITIES),
    length=st.integers(0, 9000),
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=8).filter(any),
)
def test_chunked_equals_one_shot(rate_in, rate_out, quality, length, sizes, cut) -> None:
    samples = np.random.default_rng(length).uniform(-1, 1, length).astype(np.float32)
    stream = StreamResampler(rate_in, rate_out, quality)
    pieces = [stream.process(piece) for piece in cut(samples, sizes)]
    chunked = np.concatenate([*pieces, stream.process(samples[:0], last=True)])
    assert chunked.dtype == np.float32
    assert len(chunked) == int(length * rate_out / rate_in + 0.5)
    assert np.array_equal(chunked, resample(samples, rate_in, rate_out, quality))


@pytest.mark.parametrize("quality", ["HQ", "LOW_DELAY"])
def test_fc_102_ten_ms_chunks_leave_no_trace(quality: Quality, cut) -> None:
    samples = tone(48000, 2.0)
    stream = StreamResampler(48000, 16000, quality)
    pieces = [stream.process(piece) for piece in cut(samples, [480])]
    chunked = np.concatenate([*pieces, stream.process(samples[:0], last=True)])
    error = chunked - tone(16000, 2.0)
    assert level_db(error[800:-800]) < -90  # a buzz at the chunk rate would be part of this


@pytest.mark.parametrize("quality", ["HQ", "LOW_DELAY"])
def test_fc_103_there_and_back_in_20_ms_frames_for_a_minute(quality: Quality, cut) -> None:
    samples = tone(8000, 60.0)
    up, down = StreamResampler(8000, 16000, quality), StreamResampler(16000, 8000, quality)
    back: list[NDArray[np.float32]] = []
    count = 0
    for frame in cut(samples, [160]):
        wide = up.process(frame)
        count += len(wide)
        back.append(down.process(wide))
    rest = up.process(samples[:0], last=True)
    assert count + len(rest) == 16000 * 60
    back.append(down.process(rest, last=True))
    returned = np.concatenate(back)
    assert len(returned) == 8000 * 60
    assert level_db((returned - samples)[800:-800]) < -85


def test_fc_103_another_rate_pair_starts_afresh() -> None:
    first = StreamResampler(8000, 16000)
    count = len(first.process(tone(8000, 0.5))) + len(first.process(np.empty(0, np.float32), last=True))
    second = StreamResampler(24000, 16000)
    assert count == 8000
    assert np.array_equal(second.process(tone(24000, 0.5), last=True), resample(tone(24000, 0.5), 24000, 16000))


@pytest.mark.parametrize("quality", QUALITIES)
def test_after_the_last_piece_a_new_stream_begins(quality: Quality) -> None:
    samples = tone(24000, 0.2)
    stream = StreamResampler(24000, 16000, quality)
    first = stream.process(samples, last=True)
    assert np.array_equal(first, stream.process(samples, last=True))


@pytest.mark.parametrize(("rate_in", "rate_out", "most_ms"), [(24000, 16000, 2), (8000, 16000, 4), (24000, 8000, 4)])
def test_voice_activity_hears_within_milliseconds(rate_in: int, rate_out: int, most_ms: float) -> None:
    """Longest wait for an output sample: input pushed before it came, beyond the sample's own time. Chunks of 1 ms."""
    stream = StreamResampler(rate_in, rate_out, VOICE_ACTIVITY_QUALITY)
    chunk = np.zeros(rate_in // 1000, np.float32)
    returned, worst_ms = 0, 0.0
    for millisecond in range(1, 500):
        worst_ms = max(worst_ms, millisecond - 1000 * returned / rate_out)
        returned += len(stream.process(chunk))
    assert worst_ms <= most_ms + 1  # the chunk's own millisecond


@pytest.mark.parametrize(("rate_in", "rate_out"), [(24000, 16000), (48000, 16000), (24000, 8000)])
def test_low_delay_keeps_speech_and_folds_nothing_down(rate_in: int, rate_out: int) -> None:
    passband = resample(tone(rate_in, 1.0, 0.42 * rate_out), rate_in, rate_out, "LOW_DELAY")
    assert level_db((passband - tone(rate_out, 1.0, 0.42 * rate_out))[800:-800]) < -60
    stopband = resample(tone(rate_in, 1.0, 0.51 * rate_out), rate_in, rate_out, "LOW_DELAY")
    assert level_db(stopband[800:-800]) < -70


@pytest.mark.parametrize("rate_in", [8000, 24000, 48000])
def test_frames_of_many_streams_in_one_pass_are_what_each_stream_gives_alone(rate_in: int) -> None:
    frames = FrameResampler(rate_in, 16000, 512)
    random = np.random.default_rng(0)
    windows, expected = [], []
    for _ in range(3):
        pcm = float_to_pcm16(random.uniform(-1, 1, rate_in // 4).astype(np.float32))
        padded = bytes(2 * frames.lead) + pcm
        starts = range(0, len(padded) - 2 * frames.window + 1, 2 * frames.step)
        windows += [padded[start : start + 2 * frames.window] for start in starts]
        whole = resample(pcm16_to_float(pcm), rate_in, 16000, "LOW_DELAY")
        expected += [whole[n * 512 : (n + 1) * 512] for n in range(len(starts))]
    together = frames.convert(windows)
    assert together.shape == (len(windows), 512)
    np.testing.assert_allclose(together, np.array(expected), atol=2e-6)
    alone = np.concatenate([frames.convert([window]) for window in windows])
    assert np.array_equal(together, alone), "what else is in the pass makes no difference"


def test_a_frame_that_is_no_whole_number_of_input_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="511 samples at 16000 Hz"):
        FrameResampler(24000, 16000, 511)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="must be positive, not 0 and 16000"):
        StreamResampler(0, 16000)
    with pytest.raises(ValueError, match=r"one dimension expected, shape is \(2, 5\)"):
        StreamResampler(8000, 16000).process(np.zeros((2, 5), np.float32))
