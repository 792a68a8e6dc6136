"""The rearranged voice-activity model against the packaged one, and the files it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from duologue.engine.onnx_file import GraphWriter, OnnxFileError, read_weights
from duologue.engine.silero import CONTEXT, FRAME, STATE, SileroModel, batched_graph

Array = NDArray[np.float32]


@pytest.mark.models
@pytest.mark.parametrize("batch", [1, 2, 7, 40])
def test_it_says_what_the_packaged_graph_says(silero_path: Path, batch: int) -> None:
    packaged = onnxruntime.InferenceSession(str(silero_path), providers=["CPUExecutionProvider"])
    model, numbers = SileroModel(silero_path), np.random.default_rng(batch)
    state: Array = np.zeros((2, batch, STATE), np.float32)
    wanted_state = state
    for _ in range(40):
        loudness = numbers.choice([0.0, 0.01, 0.3, 3.0], (batch, 1))
        frames = (loudness * numbers.standard_normal((batch, CONTEXT + FRAME))).astype(np.float32)
        wanted, wanted_state = packaged.run(
            None, {"input": frames, "state": wanted_state, "sr": np.array(16_000, np.int64)}
        )
        got, state = model.step(frames, state)
        np.testing.assert_allclose(got, wanted[:, 0], atol=1e-4)
        np.testing.assert_allclose(state, wanted_state, atol=1e-3)


@pytest.mark.models
def test_a_row_does_not_depend_on_the_others(silero_path: Path) -> None:
    model, numbers = SileroModel(silero_path), np.random.default_rng(0)
    frames = (0.2 * numbers.standard_normal((9, CONTEXT + FRAME))).astype(np.float32)
    state = numbers.standard_normal((2, 9, STATE)).astype(np.float32)
    together, next_state = model.step(frames, state)
    for row in range(9):
        alone, alone_state = model.step(frames[row : row + 1], state[:, row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)
        np.testing.assert_allclose(alone_state[:, 0], next_state[:, row], atol=1e-5)


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    other = GraphWriter()
    other.constant("model.decoder.rnn.bias_ih", np.zeros(7, np.float32))
    path = tmp_path / "other.onnx"
    path.write_bytes(other.model({"x": ("batch", 1)}, {"x": ("batch", 1)}))
    assert list(read_weights(path)) == ["model.decoder.rnn.bias_ih"]
    with pytest.raises(OnnxFileError, match=r"other\.onnx is not Silero VAD for 16 kHz: stft"):
        SileroModel(path)


@pytest.mark.models
@pytest.mark.parametrize("kept", [0.001, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(silero_path: Path, tmp_path: Path, kept: float) -> None:
    data, path = silero_path.read_bytes(), tmp_path / "cut.onnx"
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(OnnxFileError, match=r"cut\.onnx"):
        SileroModel(path)


@pytest.mark.models
@pytest.mark.parametrize(("part", "sample"), [(0, 3), (0, 0), (200, 140)], ids=["cosine", "first", "sine"])
def test_spectra_that_are_not_those_of_a_symmetrical_window_are_refused(
    silero_path: Path, part: int, sample: int
) -> None:
    weights = read_weights(silero_path)
    weights = {name.removeprefix("model."): value for name, value in weights.items()}
    basis = weights["stft.forward_basis_buffer"].copy()
    basis[part, 0, sample] += 0.1
    with pytest.raises(OnnxFileError, match="symmetrical"):
        batched_graph({**weights, "stft.forward_basis_buffer": basis})
