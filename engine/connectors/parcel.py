"""A piece on its way between processes: encoded, and in a segment if it is large."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import GATEWAY, Segment, Segments

THRESHOLD_BYTES: Final = 65_536
MIN_FREE_BYTES: Final = 33_554_432


class SharedMemoryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``extra`` of a ``SharedMemoryConnector`` in the deploy file."""

    threshold_bytes: Annotated[int, msgspec.Meta(ge=0)] = THRESHOLD_BYTES
    """A larger piece goes through shared memory, a smaller one inside the message."""
    min_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = MIN_FREE_BYTES
    """Room that must be there at the start."""
    codec_streaming: bool | None = None
    codec_chunk_frames: int | None = None
    codec_left_context_frames: int | None = None
    initial_codec_chunk_frames: int | None = None
    """The four of the codec are for the stage behind the edge; the connector itself has no use for them."""


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``extra`` of a ``LocalConnector``."""

    codec_streaming: bool | None = None
    codec_chunk_frames: int | None = None
    codec_left_context_frames: int | None = None
    initial_codec_chunk_frames: int | None = None


OPTIONS: Final[dict[str, type[Any]]] = {"LocalConnector": LocalOptions, "SharedMemoryConnector": SharedMemoryOptions}
"""The connectors of a deploy file, and what their ``extra`` may hold."""


class Packed(msgspec.Struct, array_like=True, gc=False):
    """What the control message says of a piece."""

    data: bytes | None
    segment: str | None = None
    size: int = 0


class Parcel:
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

    def open(self) -> Any:
        """The piece; its arrays keep the memory alive. Once only. Raises ``PieceError`` or ``OSError``."""
        data = self._data if self._segment is None else self._segment.read()
        assert data is not None
        return self._connector.types.decode(data)

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
        buffers, size = self.types.encode(piece)
        if size > self.threshold_bytes:
            return Parcel(self, None, self.segments.write(buffers))
        return Parcel(self, b"".join(buffers), None)

    def receive(self, packed: Packed) -> Parcel:
        """Own what another process has sent."""
        segment = self.segments.hold(packed.segment, packed.size) if packed.segment else None
        return Parcel(self, packed.data, segment)


class LocalConnector:
    """Within one process: a piece is handed over by reference. The contract of the above, without bytes."""

    def pack(self, piece: Any) -> Any:
        """The piece itself."""
        return piece


def opened(piece: Any) -> Any:
    """What a stage is given: the piece, read from its parcel if it came in one."""
    return piece.open() if type(piece) is Parcel else piece


__all__ = ["GATEWAY", "LocalConnector", "Packed", "Parcel", "SharedMemoryConnector", "SharedMemoryOptions", "opened"]
