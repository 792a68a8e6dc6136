"""Ramps: the edges are where they should be, and the rest is untouched."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.codecs.pcm import PCM16
from duologue.codecs.ramps import cross_fade, fade_in, fade_out, first_level, last_level, start_from

LOUD = np.full(480, 10_000, PCM16).tobytes()


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, PCM16).astype(int)


def test_a_fade_touches_its_own_samples_only() -> None:
    out, into = samples(fade_out(LOUD, 120)), samples(fade_in(LOUD, 120))
    assert (out[:360] == 10_000).all()
    assert (into[120:] == 10_000).all()
    assert out[-1] == into[0] == 0
    assert np.abs(np.diff(out)).max() < 300
    assert (out == into[::-1]).all()


def test_silence_after_a_sound_that_broke_off_starts_where_it_was() -> None:
    moved = samples(start_from(bytes(960), 12_000, 120))
    assert moved[0] == 12_000
    assert (moved[120:] == 0).all()
    assert np.abs(np.diff(moved)).max() < 300


def test_one_sound_passes_over_into_another() -> None:
    up, down = np.full(480, 9_000, PCM16).tobytes(), np.full(480, -9_000, PCM16).tobytes()
    passed = samples(cross_fade(up, down, 120))
    assert passed[0] == 9_000
    assert (passed[120:] == -9_000).all()
    assert np.abs(np.diff(passed)).max() < 300
    assert cross_fade(down, down, 120) == down
    assert cross_fade(b"", down, 120) == down
    assert len(cross_fade(up, down[:20], 120)) == 20


@given(st.binary(max_size=80).map(lambda raw: raw[: len(raw) // 2 * 2]), st.integers(-32768, 32767))
def test_any_sound_keeps_its_length_and_its_range(pcm: bytes, level: int) -> None:
    for result in (fade_in(pcm, 10), fade_out(pcm, 10), start_from(pcm, level, 10)):
        assert len(result) == len(pcm)
    if pcm:
        assert first_level(start_from(pcm, level, 10)) == level
        assert len(pcm) == 2 or last_level(fade_out(pcm, 10)) == 0
    assert first_level(b"") == last_level(b"") == 0
