"""Silero VAD for many streams at once: its weights, in a graph in which the batch is the long side of every product.

The packaged graph was exported for one stream. Run with a batch it makes each row's convolutions by themselves, on
four columns each, and takes two to three times as long as the multiplications need. A frame is always 576 samples, so
that here every convolution is a product over the positions that exist, with a row for each stream.

The model (v6, 16 kHz): reflect padding by 64; four magnitude spectra (Hann, 256 samples, hop 128) of 129 bins; four
convolutions over time (3 taps, zero padding 1, strides 1, 2, 2, 1; ReLU) of 128, 64, 64, 128 channels, of which one
position is left; an LSTM cell of 128; ReLU and one linear unit; sigmoid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.engine.onnx_file import GraphWriter, OnnxFileError, read_weights

FRAME: Final = 512
CONTEXT: Final = 64
STATE: Final = 128

Weights = Mapping[str, NDArray[np.float32]]

_PAD: Final = 64
_WINDOW, _HOP = 256, 128
_WINDOWS: Final = (CONTEXT + FRAME + _PAD - _WINDOW) // _HOP + 1
_STRIDES: Final = (1, 2, 2, 1)
_SHAPES: Final = {
    "stft.forward_basis_buffer": (_WINDOW + 2, 1, _WINDOW),
    "encoder.0.reparam_conv.weight": (128, _WINDOW // 2 + 1, 3),
    "encoder.0.reparam_conv.bias": (128,),
    "encoder.1.reparam_conv.weight": (64, 128, 3),
    "encoder.1.reparam_conv.bias": (64,),
    "encoder.2.reparam_conv.weight": (64, 64, 3),
    "encoder.2.reparam_conv.bias": (64,),
    "encoder.3.reparam_conv.weight": (128, 64, 3),
    "encoder.3.reparam_conv.bias": (128,),
    "decoder.rnn.weight_ih": (4 * STATE, 128),
    "decoder.rnn.weight_hh": (4 * STATE, STATE),
    "decoder.rnn.bias_ih": (4 * STATE,),
    "decoder.rnn.bias_hh": (4 * STATE,),
    "decoder.decoder.2.weight": (1, STATE, 1),
    "decoder.decoder.2.bias": (1,),
}


class SileroModel:
    """The packaged model's weights (``silero_vad_16k_op15.onnx``) on one CPU thread.

    Raises :class:`~duologue.engine.onnx_file.OnnxFileError` for a file that holds another model, and ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime  # an inference library: only when a model is loaded

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        graph = batched_graph(_checked(path))
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def step(
        self, frames: NDArray[np.float32], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``frames [batch, 576]``, ``state [2, batch, 128]`` -> speech probabilities ``[batch]``, next state."""
        sums, differences = _folded(frames)
        output, next_state = self._session.run(None, {"sums": sums, "differences": differences, "state": state})
        return output[:, 0], next_state


def _checked(path: Path) -> Weights:
    weights = {name.removeprefix("model."): value for name, value in read_weights(path).items()}
    for name, shape in _SHAPES.items():
        found = weights[name].shape if name in weights else None
        if found != shape:
            raise OnnxFileError(f"{path.name} is not Silero VAD for 16 kHz: {name} is {found}, not {shape}.")
    return weights


def batched_graph(weights: Weights) -> bytes:
    """The model as an ONNX file: what :func:`_folded` makes of the frames, each ``[batch * windows, 128]``, and
    ``state [2, batch, 128]`` -> ``output [batch, 1]``, ``stateN [2, batch, 128]``."""
    graph = GraphWriter()
    graph.constant("columns", _ints(1))
    sound = _spectra(graph, weights)
    positions = _WINDOWS
    for layer, stride in enumerate(_STRIDES):
        sound, positions = _convolution(graph, weights, layer, sound, positions, stride)
    assert positions == 1
    _decoder(graph, weights, sound)
    return graph.model(
        {"sums": ("windows", _HOP), "differences": ("windows", _HOP), "state": (2, "batch", STATE)},
        {"output": ("batch", 1), "stateN": (2, "batch", STATE)},
    )


def _folded(frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Sums and differences, ``[batch * windows, 128]`` each, of the samples 1 to 128 of every window, and of those that
    lie as far behind its middle (255 back to 128).

    Not part of the graph: onnxruntime takes several times as long to turn samples round.
    """
    if frames.shape[1] != CONTEXT + FRAME:
        raise ValueError(f"frames of {frames.shape[1]} samples. Expected: {CONTEXT + FRAME}, the context among them")
    by_window = (len(frames), _WINDOWS, _HOP)
    before = frames[:, 1 : 1 + _WINDOWS * _HOP].reshape(by_window)
    behind = np.empty(by_window, np.float32)
    behind[:, :-1] = frames[:, _HOP : _WINDOWS * _HOP].reshape(len(frames), _WINDOWS - 1, _HOP)[:, :, ::-1]
    # The last window ends in the padding, which is the sound before it backwards: backwards once more it is the sound.
    behind[:, -1, :_PAD] = frames[:, -1 - _PAD : -1]
    behind[:, -1, _PAD:] = frames[:, : _PAD - _HOP - 1 : -1]
    sums, differences = before + behind, before - behind
    return sums.reshape(-1, _HOP), differences.reshape(-1, _HOP)


def _spectra(graph: GraphWriter, weights: Weights) -> str:
    """Magnitudes ``[batch, windows * bins]``.

    A window is even or odd about its middle as its cosines and sines are: what lies as far before the middle as behind
    it is added for the real parts and subtracted for the imaginary ones, which halves the products.
    """
    cosines, sines = _folded_basis(weights["stft.forward_basis_buffer"][:, 0])
    graph.node("MatMul", ("sums", graph.constant("cosines", cosines)), "real")
    graph.node("MatMul", ("differences", graph.constant("sines", sines)), "imaginary")
    graph.node("Mul", ("real", "real"), "real_square")
    graph.node("Mul", ("imaginary", "imaginary"), "imaginary_square")
    graph.node("Add", ("real_square", "imaginary_square"), "power")
    graph.node("Sqrt", ("power",), "magnitude")
    by_stream = graph.constant("by_stream", _ints(-1, _WINDOWS * (_WINDOW // 2 + 1)))
    return graph.node("Reshape", ("magnitude", by_stream), "magnitudes")


def _folded_basis(basis: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines ``[128, 129]`` for the samples 1 to 128 of a window; ``basis [258, 256]``, cosines first.

    The window begins with 0, so that its first sample counts for nothing; its middle, sample 128, is added to itself.
    Raises :class:`~duologue.engine.onnx_file.OnnxFileError` for a basis that is not even and odd.
    """
    cosines, sines = np.split(basis, 2)
    behind = [*range(_WINDOW - 1, _HOP - 1, -1)]
    if not (
        np.allclose(cosines[:, 1 : _HOP + 1], cosines[:, behind], atol=1e-5)
        and np.allclose(sines[:, 1 : _HOP + 1], -sines[:, behind], atol=1e-5)
        and np.allclose(basis[:, 0], 0, atol=1e-5)
    ):
        raise OnnxFileError("The spectra of the model are not those of a symmetrical window.")
    folded = basis[:, 1 : _HOP + 1].copy()
    folded[:, -1] /= 2
    cosines, sines = np.split(folded, 2)
    return cosines.T, sines.T


def _convolution(
    graph: GraphWriter, weights: Weights, layer: int, source: str, positions: int, stride: int
) -> tuple[str, int]:
    """Three taps over ``source [batch, positions * channels]``; returns ``[batch, next positions * filters]``.

    At the ends, where a tap would lie on the padding, it is left out: one matrix for each set of taps that remain.
    """
    weight = weights[f"encoder.{layer}.reparam_conv.weight"]
    bias = graph.constant(f"bias{layer}", weights[f"encoder.{layer}.reparam_conv.bias"])
    channels = weight.shape[1]
    made = []
    for position in range(0, positions, stride):
        first, last = max(position - 1, 0), min(position + 1, positions - 1)
        taps = range(first - position + 1, last - position + 2)
        matrix = np.concatenate([weight[:, :, tap].T for tap in taps])
        name = f"{layer}.{position}"
        part = source
        if last + 1 - first < positions:
            part = _columns(graph, source, first * channels, (last + 1) * channels, f"part{name}")
        constant = graph.constant(f"taps{layer}.{taps.start}-{taps.stop}", matrix)
        graph.node("Gemm", (part, constant, bias), f"sum{name}")
        made.append(graph.node("Relu", (f"sum{name}",), f"layer{name}"))
    return made[0] if len(made) == 1 else graph.node("Concat", made, f"layer{layer}", axis=1), len(made)


def _decoder(graph: GraphWriter, weights: Weights, source: str) -> None:
    rnn = {name: weights[f"decoder.rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    graph.node("Split", ("state",), "hidden_row", "cell_row", axis=0)
    flat = graph.constant("flat", _ints(-1, STATE))
    graph.node("Reshape", ("hidden_row", flat), "hidden")
    graph.node("Reshape", ("cell_row", flat), "cell")
    graph.node("Concat", (source, "hidden"), "seen", axis=1)
    matrix = np.ascontiguousarray(np.concatenate((rnn["weight_ih"], rnn["weight_hh"]), axis=1).T)
    constants = (graph.constant("lstm", matrix), graph.constant("lstm_bias", rnn["bias_ih"] + rnn["bias_hh"]))
    graph.node("Gemm", ("seen", *constants), "gates")
    graph.node("Split", ("gates",), "in_sum", "forget_sum", "new_sum", "out_sum", axis=1)
    for gate, function in {"in": "Sigmoid", "forget": "Sigmoid", "new": "Tanh", "out": "Sigmoid"}.items():
        graph.node(function, (f"{gate}_sum",), gate)
    graph.node("Mul", ("forget", "cell"), "kept")
    graph.node("Mul", ("in", "new"), "added")
    graph.node("Add", ("kept", "added"), "next_cell")
    graph.node("Tanh", ("next_cell",), "level")
    graph.node("Mul", ("out", "level"), "next_hidden")
    row = graph.constant("row", _ints(1, -1, STATE))
    graph.node("Reshape", ("next_hidden", row), "next_hidden_row")
    graph.node("Reshape", ("next_cell", row), "next_cell_row")
    graph.node("Concat", ("next_hidden_row", "next_cell_row"), "stateN", axis=0)
    graph.node("Relu", ("next_hidden",), "heard")
    unit = np.ascontiguousarray(weights["decoder.decoder.2.weight"][0])
    constants = (graph.constant("unit", unit), graph.constant("unit_bias", weights["decoder.decoder.2.bias"]))
    graph.node("Gemm", ("heard", *constants), "logit")
    graph.node("Sigmoid", ("logit",), "output")


def _columns(graph: GraphWriter, source: str, start: int, stop: int, name: str) -> str:
    bounds = [graph.constant(f"column{at}", _ints(at)) for at in (start, stop)]
    return graph.node("Slice", (source, *bounds, "columns"), name)


def _ints(*values: Sequence[int] | int) -> NDArray[np.int64]:
    return np.array(values, np.int64)
