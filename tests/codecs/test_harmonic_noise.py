from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hibari import Hibari, dsp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from duologue.codecs import harmonic_noise
from duologue.codecs.harmonic_noise import BINS, HOP, LOOK_AHEAD, AcousticFrames, HarmonicNoiseSynthesiser
from duologue.codecs.levels import first_audible_sample

SIZES = st.lists(st.integers(0, 70), min_size=1, max_size=8).filter(any)
EVERYTHING = 1 << 30


@pytest.fixture(scope="module")
def spoken() -> AcousticFrames:
    """The packaged acoustic model's own frames for a sentence (about 4 s)."""
    voice = Hibari()
    (phonemes,) = voice.phonemize("The quick brown fox jumps over the lazy dog, and then she sells sea shells.")
    inputs = {"ids": np.array([voice.ids(phonemes)], np.int64), "speed": np.ones(1, np.float32)}
    *spectra, f0 = (output[0] for output in voice.sess.run(None, inputs))
    return AcousticFrames(*(spectrum.T for spectrum in spectra), f0)


def random_frames(count: int) -> AcousticFrames:
    """Loud frames, a third of them unvoiced, with a pitch that jumps."""
    random = np.random.default_rng(count)
    log_harmonic, phase, log_noise, log_residual, residual_phase = (
        random.normal(mean, 2.0, (count, BINS)).astype(np.float32) for mean in (-1, 0, -4, -6, 0)
    )
    f0 = (random.uniform(60, 500, count) * (random.random(count) > 0.33)).astype(np.float32)
    return AcousticFrames(log_harmonic, phase, log_noise, log_residual, residual_phase, f0)


def without_noise(frames: AcousticFrames) -> AcousticFrames:
    return dataclasses.replace(frames, log_noise=np.full_like(frames.log_noise, -100.0))


def in_chunks(frames: AcousticFrames, sizes: list[int], seed: int = 3) -> NDArray[np.float32]:
    synthesiser = HarmonicNoiseSynthesiser(frames, seed)
    chunks, turn = [np.empty(0, np.float32)], 0
    while not synthesiser.finished:
        left, size = synthesiser.frames_left, sizes[turn % len(sizes)]
        chunks.append(synthesiser.synthesise(size))
        assert len(chunks[-1]) == HOP * min(size, left)
        turn += 1
    return np.concatenate(chunks)


def one_shot(frames: AcousticFrames, seed: int = 3) -> NDArray[np.float32]:
    return HarmonicNoiseSynthesiser(frames, seed).synthesise(EVERYTHING)


def reference(frames: AcousticFrames) -> NDArray[np.float32]:
    """The whole clause by the library that the formula comes from, which wants ``[601, frames]``."""
    arrays = [getattr(frames, field.name) for field in dataclasses.fields(frames)]
    bins_first = [np.ascontiguousarray(array.T) for array in arrays]
    return dsp.synth(*bins_first, np.random.default_rng(0))


@settings(deadline=None)
@given(count=st.integers(0, 90), sizes=SIZES)
def test_any_chunking_of_random_frames_gives_the_same_samples(count: int, sizes: list[int]) -> None:
    frames = random_frames(count)
    whole = one_shot(frames)
    assert whole.shape == (HOP * count,)
    assert whole.dtype == np.float32
    assert np.array_equal(in_chunks(frames, sizes), whole)


@settings(deadline=None, max_examples=40)
@given(sizes=SIZES)
def test_fc_106_any_chunking_of_speech_gives_the_same_samples(sizes: list[int], spoken: AcousticFrames) -> None:
    assert np.array_equal(in_chunks(spoken, sizes), one_shot(spoken))


def test_memory_layout_does_not_matter(spoken: AcousticFrames) -> None:
    arrays = [np.ascontiguousarray(getattr(spoken, field.name)) for field in dataclasses.fields(spoken)]
    assert not spoken.log_noise.flags.c_contiguous
    assert np.array_equal(one_shot(AcousticFrames(*arrays)), one_shot(spoken))


def test_speech_without_noise_agrees_with_the_library(spoken: AcousticFrames) -> None:
    frames = without_noise(spoken)
    expected = reference(frames)
    assert np.abs(expected).max() > 0.1
    assert np.abs(one_shot(frames) - expected).max() < 1e-6


@pytest.mark.parametrize("count", range(1, 9))
def test_short_clauses_agree_with_the_library(count: int) -> None:
    voiced = np.linspace(90, 200, count, dtype=np.float32)  # so that what is reflected at the ends counts
    frames = dataclasses.replace(without_noise(random_frames(count)), f0=voiced)
    expected = reference(frames)
    assert np.abs(one_shot(frames) - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_noise_has_the_level_that_the_frames_ask_for(spoken: AcousticFrames) -> None:
    """White noise at exp(-2) in every bin: enough of it for its level to be the same within a hundredth."""
    silence = np.full_like(spoken.log_noise, -100.0)
    noise = np.full_like(spoken.log_noise, -2.0)
    frames = dataclasses.replace(spoken, log_harmonic=silence, log_noise=noise, log_residual=silence)
    ours, theirs = one_shot(frames), reference(frames)
    assert np.sqrt(np.mean(ours**2)) == pytest.approx(np.sqrt(np.mean(theirs**2)), rel=0.01)


def test_the_seed_fixes_the_noise(spoken: AcousticFrames) -> None:
    assert np.array_equal(one_shot(spoken, seed=3), one_shot(spoken, seed=3))
    assert not np.array_equal(one_shot(spoken, seed=3), one_shot(spoken, seed=4))


def test_a_chunk_costs_its_own_frames(spoken: AcousticFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    transformed: list[int] = []
    rfft = np.fft.rfft

    def counting_rfft(wave, *args, **kwargs):
        transformed.append(len(wave))
        return rfft(wave, *args, **kwargs)

    monkeypatch.setattr(harmonic_noise.np.fft, "rfft", counting_rfft)
    synthesiser = HarmonicNoiseSynthesiser(spoken, 0)
    synthesiser.synthesise(4)
    assert transformed == [4 + LOOK_AHEAD]
    synthesiser.synthesise(4)
    assert transformed[1:] == [4]
    synthesiser.synthesise(EVERYTHING)
    assert sum(transformed) == len(spoken)


def test_frames_beyond_the_look_ahead_are_not_needed(spoken: AcousticFrames) -> None:
    cut = 4 + LOOK_AHEAD
    poisoned = {
        field.name: np.concatenate([array[:cut], np.full_like(array[cut:], np.nan)])
        for field in dataclasses.fields(spoken)
        if (array := getattr(spoken, field.name)).ndim == 2
    }
    frames = dataclasses.replace(spoken, **poisoned)
    assert np.array_equal(HarmonicNoiseSynthesiser(frames, 3).synthesise(4), one_shot(spoken)[: 4 * HOP])


def test_speech_is_audible_and_does_not_clip(spoken: AcousticFrames) -> None:
    sound = one_shot(spoken)
    start = first_audible_sample(sound, harmonic_noise.SAMPLE_RATE)
    assert start is not None
    assert start < harmonic_noise.SAMPLE_RATE
    assert 0.1 < np.abs(sound).max() <= 1.0


def test_wrong_input_is_named(spoken: AcousticFrames) -> None:
    with pytest.raises(ValueError, match=r"log_noise: float32 \(\d+, 601\) expected, not float32 \(\d+, 600\)"):
        dataclasses.replace(spoken, log_noise=spoken.log_noise[:, :-1])
    with pytest.raises(ValueError, match=r"f0: float32 .* expected, not float64"):
        dataclasses.replace(spoken, f0=spoken.f0.astype(np.float64))
    with pytest.raises(ValueError, match="n_frames: -1 is negative"):
        HarmonicNoiseSynthesiser(spoken, 0).synthesise(-1)
