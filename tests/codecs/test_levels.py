from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.codecs.levels import dbfs, first_audible_sample, last_audible_sample


def frames(*levels: float, rate: int = 24000) -> NDArray[np.float32]:
    """Frames of 10 ms at these RMS levels in dBFS."""
    signs = np.where(np.arange(rate // 100) % 2, 1.0, -1.0)
    return np.concatenate([signs * 10 ** (level / 20) for level in levels]).astype(np.float32)


def test_levels_are_those_of_full_scale() -> None:
    assert dbfs(frames(-20.0)) == pytest.approx(-20.0, abs=1e-4)
    assert dbfs(np.sin(np.arange(24000) * 2 * np.pi / 240).astype(np.float32)) == pytest.approx(-3.0103, abs=1e-3)
    assert dbfs(np.zeros(10, np.float32)) == -math.inf
    assert dbfs(np.empty(0, np.float32)) == -math.inf


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
def test_sound_runs_from_the_first_of_three_frames_to_the_end_of_the_last_run(rate: int) -> None:
    quiet, loud = -50.1, -49.9
    sound = frames(quiet, loud, loud, quiet, loud, loud, loud, loud, quiet, loud, loud, quiet, rate=rate)
    frame = rate // 100
    assert first_audible_sample(sound, rate) == 4 * frame
    assert last_audible_sample(sound, rate) == 8 * frame


def test_a_hair_above_minus_50_is_audible() -> None:
    sound = np.full(720, 10 ** (-50 / 20) * (1 + 1e-6), np.float32)
    assert first_audible_sample(sound, 24000) == 0


@pytest.mark.parametrize("levels", [(), (-90.0,) * 9, (-10.0, -10.0), (-10.0, -10.0, -90.0, -10.0, -10.0)])
def test_two_frames_are_no_sound(levels: tuple[float, ...]) -> None:
    sound = frames(*levels) if levels else np.empty(0, np.float32)
    assert first_audible_sample(sound, 24000) is None
    assert last_audible_sample(sound, 24000) is None


def test_an_incomplete_frame_does_not_count() -> None:
    assert first_audible_sample(frames(-10.0, -10.0, -10.0)[:-1], 24000) is None
    assert last_audible_sample(np.concatenate([frames(-10.0, -10.0, -10.0), np.ones(5, np.float32)]), 24000) == 720
