"""Fades: silence at the end, nothing else touched, and no click."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.codecs.fade import fade_samples, faded_in, faded_out
from duologue.codecs.pcm import PCM16

RATE = 24_000


def voiced(samples: int, hertz: float = 120.0) -> bytes:
    t = np.arange(samples) / RATE
    return (12_000 * np.cos(2 * np.pi * hertz * t)).astype(PCM16).tobytes()


@given(st.integers(0, 600), st.integers(0, 300))
def test_only_the_faded_end_changes(length: int, samples: int) -> None:
    pcm = voiced(length)
    out, into = (np.frombuffer(fade(pcm, samples), PCM16) for fade in (faded_out, faded_in))
    sound = np.frombuffer(pcm, PCM16)
    count = min(samples, length)
    assert len(out) == len(into) == length
    assert np.array_equal(out[: length - count], sound[: length - count])
    assert np.array_equal(into[count:], sound[count:])
    if count:
        assert out[-1] == into[0] == 0
    assert np.all(np.abs(out.astype(int)) <= np.abs(sound.astype(int)))


@pytest.mark.parametrize("fade_ms", [5, 8, 10])
def test_fc_012_a_voiced_segment_broken_off_does_not_click(fade_ms: int) -> None:
    """What a click is: energy above the voice's band where the sound ends. A bare cut has 100 times as much."""
    samples = fade_samples(RATE, fade_ms)
    played, rest, silence = voiced(4_800), voiced(9_600)[9_600:], bytes(4_800)
    bare = played + rest[: samples * 2] + silence
    faded = played + faded_out(rest[: samples * 2], samples) + silence
    assert len(bare) == len(faded)
    assert _above(faded, 2_000.0) * 100 < _above(bare, 2_000.0)


def _above(pcm: bytes, hertz: float) -> float:
    sound = np.frombuffer(pcm, PCM16).astype(float)
    window = np.hanning(len(sound))
    power = np.abs(np.fft.rfft(sound * window)) ** 2
    return float(power[np.fft.rfftfreq(len(sound), 1 / RATE) > hertz].sum())
