"""How many bytes a piece carries, whatever its type: every text, sound and array in it, and nothing else."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from duologue.engine.connectors.pieces import Sealed
from duologue.engine.requests import AudioDelta, TextDelta, ToolCallDelta, TranscriptDelta

logger = logging.getLogger(__name__)


def piece_bytes(piece: Any) -> int | None:
    """Bytes of payload; None for a piece in which there is nothing to count, or that cannot be counted. Never raises: a
    statistic is no reason to lose a piece."""
    kind = type(piece)
    measure = _MEASURES.get(kind)
    if measure is None:
        measure = _MEASURES[kind] = _by_fields(kind)
    try:
        return measure(piece) or None
    except Exception:
        logger.exception("Pieces of type %s cannot be measured", kind.__name__)
        _MEASURES[kind] = _nothing
        return None


def _nothing(piece: Any) -> int:
    return 0


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _sum(values: Any) -> int:
    return sum(piece_bytes(value) or 0 for value in values)


def _by_fields(kind: type) -> Callable[[Any], int]:
    """How pieces of a type are measured; found once for each type."""
    if issubclass(kind, Sealed):
        return lambda parcel: int(parcel.size)
    if hasattr(kind, "nbytes"):  # arrays and tensors
        return lambda array: int(array.nbytes)
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    elif issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif issubclass(kind, list | tuple):
        return _sum
    elif issubclass(kind, dict):
        return lambda table: _sum(table.values())
    else:
        return _nothing
    return lambda piece: _sum(getattr(piece, name) for name in names)


_MEASURES: dict[type, Callable[[Any], int]] = {
    bytes: len,
    bytearray: len,
    str: _text_bytes,
    TextDelta: lambda delta: _text_bytes(delta.text),
    TranscriptDelta: lambda delta: _text_bytes(delta.text),
    ToolCallDelta: lambda delta: _text_bytes(delta.arguments),
    AudioDelta: lambda delta: len(delta.pcm),
}
