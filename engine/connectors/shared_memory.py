"""Pieces on their way between processes of one host: encoded, and in a segment if they are large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duologue.engine.connectors.options import THRESHOLD_BYTES
from duologue.engine.connectors.pieces import Buffer, PieceTypes, Sealed
from duologue.engine.connectors.segments import Segment, Segments


class Packed(msgspec.Struct, array_like=True, gc=False):
    """What the control message says of a piece: its bytes, or where they are."""

    data: bytes | None
    segment: str | None = None
    size: int = 0
    place: int | None = None
    """With Ray: the place of its reference in the list beside the message."""


class Parcel(Sealed):
    """An encoded piece that this process owns. Dropping it frees its segment."""

    __slots__ = ("_connector", "_data", "_segment")

    def __init__(self, connector: SharedMemoryConnector, data: bytes | None, segment: Segment | None) -> None:
        self._connector = connector
        self._data = data
        self._segment = segment

    @property
    def in_memory(self) -> bool:
        """True when the bytes came inside the message."""
        return self._segment is None

    @property
    def size(self) -> int:
        """Encoded size in bytes."""
        return len(self._data or b"") if self._segment is None else self._segment.size

    def open(self) -> Any:
        """The piece; its arrays keep the memory alive. Once only. Raises ``PieceError`` or ``OSError``."""
        return self._connector.types.decode(self.read())

    def read(self) -> Buffer:
        """The encoded piece, for another connector. Once only."""
        data = self._data if self._segment is None else self._segment.read()
        assert data is not None
        return data

    def link(self) -> Parcel:
        """The same piece for a second taker."""
        return Parcel(self._connector, self._data, self._segment and self._segment.link())

    def give_to(self, worker: int) -> Packed:
        """Hand ownership to another process."""
        if self._segment is None:
            return Packed(self._data)
        size = self._segment.size
        return Packed(None, self._segment.give_to(worker), size)


class SharedMemoryConnector:
    """Between processes of one host. One at each end, over the same run and the same table of types."""

    def __init__(self, types: PieceTypes, segments: Segments, threshold_bytes: int = THRESHOLD_BYTES) -> None:
        self.types = types
        self.segments = segments
        self.threshold_bytes = threshold_bytes

    def pack(self, piece: Any) -> Parcel:
        """Encode a piece. Raises ``PieceError``, and ``SharedMemoryError`` when there is no room for a large one."""
        if type(piece) is Parcel:
            return piece
        return self.carry(*self.types.encode(piece))

    def carry(self, buffers: Sequence[Buffer], size: int) -> Parcel:
        """What is encoded already. Raises as :meth:`pack` does."""
        if size > self.threshold_bytes:
            return Parcel(self, None, self.segments.write(buffers))
        return Parcel(self, b"".join(buffers), None)

    def receive(self, packed: Packed) -> Parcel:
        """Own what another process has sent."""
        segment = self.segments.hold(packed.segment, packed.size) if packed.segment else None
        return Parcel(self, packed.data, segment)
