"""The little of the ONNX file format that it takes to put a model's weights into another graph.

A file is one protobuf message. Field numbers are those of ``onnx.proto3`` (IR version 8), the encoding that of
protobuf: a field is its number and wire type in a varint, then a varint (type 0), or a length and so many bytes (2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Weight = NDArray[np.float32] | NDArray[np.int64]

_IR_VERSION: Final = 8
_OPSET: Final = 15
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GRAPH: Final = 7
"""In a model."""
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
"""In a graph."""
_DIMS, _DATA_TYPE, _TENSOR_NAME, _RAW = 1, 2, 8, 9
"""In a tensor."""
_FLOAT, _INT64 = 1, 7
"""Types of elements."""
_INT_ATTRIBUTE: Final = 2


class OnnxFileError(ValueError):
    """The file is no ONNX model that can be read here."""


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The float32 initialisers of a model's graph by name. Raises :class:`OnnxFileError`, ``OSError``."""
    try:
        return dict(_weights(memoryview(path.read_bytes())))
    except (IndexError, ValueError, KeyError) as error:
        raise OnnxFileError(f"{path.name} cannot be read as an ONNX model: {error}") from error


def _weights(model: memoryview) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for number, graph in _fields(model):
        if number == _GRAPH and isinstance(graph, memoryview):
            for kind, tensor in _fields(graph):
                if kind == _INITIALIZER and isinstance(tensor, memoryview):
                    yield from _tensor(tensor)


def _tensor(message: memoryview) -> Iterator[tuple[str, NDArray[np.float32]]]:
    shape, element, name, raw = [], 0, "", b""
    for number, value in _fields(message):
        if number == _DIMS:
            shape += [value] if isinstance(value, int) else list(_packed(value))
        elif number == _DATA_TYPE and isinstance(value, int):
            element = value
        elif number == _TENSOR_NAME and isinstance(value, memoryview):
            name = str(value, "utf-8")
        elif number == _RAW and isinstance(value, memoryview):
            raw = bytes(value)
    if element == _FLOAT:
        yield name, np.frombuffer(raw, "<f4").reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        match key & 7:
            case 0:
                value, position = _varint(message, position)
                yield key >> 3, value
                continue
            case 2:
                size, position = _varint(message, position)
            case 1 | 5 as kind:
                size = 8 if kind == _FIXED64 else 4
            case kind:
                raise ValueError(f"wire type {kind}")
        if position + size > len(message):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, message[position : position + size]
        position += size


def _packed(values: memoryview) -> Iterator[int]:
    position = 0
    while position < len(values):
        value, position = _varint(values, position)
        yield value


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


class GraphWriter:
    """A graph in the making: constants and nodes; :meth:`model` gives the file."""

    def __init__(self) -> None:
        self._constants: dict[str, bytes] = {}
        self._nodes: list[bytes] = []

    def constant(self, name: str, value: Weight) -> str:
        """A tensor that the graph holds. Returns its name."""
        element = _FLOAT if value.dtype == np.float32 else _INT64
        fields = [_field(_DIMS, size) for size in value.shape]
        fields += [_field(_DATA_TYPE, element), _field(_TENSOR_NAME, name), _field(_RAW, value.tobytes())]
        self._constants[name] = b"".join(fields)
        return name

    def node(self, operator: str, inputs: Sequence[str], *outputs: str, **attributes: int) -> str:
        """An operator of opset 15 with integer attributes. Returns its first output's name."""
        fields = [_field(1, name) for name in inputs] + [_field(2, name) for name in outputs] + [_field(4, operator)]
        for name, value in attributes.items():
            fields.append(_field(5, _field(1, name) + _field(3, value) + _field(20, _INT_ATTRIBUTE)))
        self._nodes.append(b"".join(fields))
        return outputs[0]

    def model(self, inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, Sequence[int | str]]) -> bytes:
        """The file; ``inputs`` and ``outputs`` are float32 tensors of those sizes, a name where the size is open."""
        fields = [_field(_NODE, node) for node in self._nodes]
        fields += [_field(2, "graph")]
        fields += [_field(_INITIALIZER, tensor) for tensor in self._constants.values()]
        fields += [_field(_INPUT, _value(name, shape)) for name, shape in inputs.items()]
        fields += [_field(_OUTPUT, _value(name, shape)) for name, shape in outputs.items()]
        opset = _field(1, "") + _field(2, _OPSET)
        return _field(1, _IR_VERSION) + _field(8, opset) + _field(_GRAPH, b"".join(fields))


def _value(name: str, shape: Sequence[int | str]) -> bytes:
    sizes = (_field(1, size) if isinstance(size, int) else _field(2, size) for size in shape)
    tensor = _field(1, _FLOAT) + _field(2, b"".join(_field(1, size) for size in sizes))
    return _field(1, name) + _field(2, _field(1, tensor))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _written_varint(number << 3 | _VARINT) + _written_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _written_varint(number << 3 | _BYTES) + _written_varint(len(data)) + data


def _written_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
