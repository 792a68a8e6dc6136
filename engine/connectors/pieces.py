"""Pieces as bytes: MessagePack for structs and dataclasses, arrays raw behind it. No pickle.

A piece is written as ``kind`` (index of its type in the pipeline's table, 16 bit), length of the body (32 bit), the
body, and the arrays, each at a multiple of 64 bytes; in the body an array is ``[dtype, shape, offset]``. Only types
that the pipeline declares (``StageConfig.emits``), requests and deltas can be written or read.
"""

from __future__ import annotations

import importlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_origin

import msgspec
import numpy as np

Buffer = bytes | memoryview

_HEAD: Final = struct.Struct("<HI")
_ALIGNMENT: Final = 64
_REQUESTS: Final = "EngineRequest Transcribe Converse Speak Usage TranscriptDelta TextDelta ToolCallDelta AudioDelta"
ALWAYS: Final = (
    *("builtins:str", "builtins:bytes", "numpy:ndarray", "duologue.engine.stage:StageFinish"),
    *(f"duologue.engine.requests:{name}" for name in _REQUESTS.split()),
)
"""Types that every pipeline may hand on."""


class PieceError(ValueError):
    """A piece that cannot be written or read; the message names its type."""


class Sealed(ABC):
    """An encoded piece under way."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the encoded piece."""

    @abstractmethod
    def open(self) -> Any:
        """The piece. Raises :class:`PieceError`, or what the connector raises when the bytes are gone."""


def opened(piece: Any) -> Any:
    """What a stage is given: the piece itself, read if it came sealed."""
    return piece.open() if isinstance(piece, Sealed) else piece


class PieceTypes:
    """The table of a pipeline's piece types; the same ``names`` in the same order at both ends."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """``names`` are ``module:Class``, beside :data:`ALWAYS`. Raises :class:`PieceError`."""
        self.names = tuple(dict.fromkeys((*ALWAYS, *names)))
        self._types = [_imported(name) for name in self.names]
        self._index = {kind: index for index, kind in enumerate(self._types)}

    def encode(self, piece: Any) -> tuple[list[Buffer], int]:
        """Buffers to be written one after another, and their size in bytes. Raises :class:`PieceError`."""
        index = self._index.get(type(piece))
        if index is None:
            raise PieceError(f"a piece of type '{type(piece).__name__}' is not declared in the pipeline's 'emits'")
        arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
        end = 0

        def hook(value: Any) -> Any:
            nonlocal end
            if not isinstance(value, np.ndarray) or value.dtype.hasobject:
                raise PieceError(f"'{type(piece).__name__}' holds a '{type(value).__name__}', which cannot be sent")
            array = np.ascontiguousarray(value)
            offset = end
            arrays.append((offset, array))
            end = _aligned(offset + array.nbytes)
            return [array.dtype.str, array.shape, offset]

        body = msgspec.msgpack.encode(piece, enc_hook=hook)
        buffers: list[Buffer] = [_HEAD.pack(index, len(body)), body]
        size = _HEAD.size + len(body)
        base = _aligned(size)
        for offset, array in arrays:
            buffers += [bytes(base + offset - size), array.reshape(-1).view(np.uint8).data] if array.size else []
            size = base + offset + array.nbytes if array.size else size
        return buffers, size

    def decode(self, data: Buffer) -> Any:
        """The piece; its arrays are views of ``data``. Raises :class:`PieceError`."""
        view = memoryview(data)
        try:
            index, length = _HEAD.unpack_from(view)
            kind = self._types[index]
            body = view[_HEAD.size : _HEAD.size + length]
            base = _aligned(_HEAD.size + length)

            def hook(wanted: Any, value: Any) -> Any:
                if (get_origin(wanted) or wanted) is not np.ndarray:
                    raise PieceError(f"'{kind.__name__}' declares a '{wanted}', which cannot be received")
                dtype, shape, offset = value
                return _array(view, np.dtype(dtype), shape, base + offset)

            return msgspec.msgpack.decode(body, type=kind, dec_hook=hook)
        except (struct.error, IndexError, msgspec.DecodeError) as error:
            raise PieceError(f"a piece cannot be read: {error}") from error


def _array(view: memoryview, dtype: np.dtype[Any], shape: Sequence[int], start: int) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.zeros(shape, dtype)
    return np.frombuffer(view, dtype, count, start).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, type):
        raise PieceError(f"piece type '{name}' is not a class")
    return found
