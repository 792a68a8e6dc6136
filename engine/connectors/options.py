"""The connectors of a deploy file, and what their ``extra`` may hold."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

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
    """The four of the codec are offered to the stage behind the edge; the connector itself has no use for them."""


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``extra`` of a ``LocalConnector``."""

    codec_streaming: bool | None = None
    codec_chunk_frames: int | None = None
    codec_left_context_frames: int | None = None
    initial_codec_chunk_frames: int | None = None


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``extra`` of a ``RayConnector``."""

    threshold_bytes: Annotated[int, msgspec.Meta(ge=0)] = THRESHOLD_BYTES
    """A larger piece goes through Ray's object store, a smaller one inside the message."""
    codec_streaming: bool | None = None
    codec_chunk_frames: int | None = None
    codec_left_context_frames: int | None = None
    initial_codec_chunk_frames: int | None = None


OPTIONS: Final[dict[str, type[Any]]] = {
    "LocalConnector": LocalOptions,
    "SharedMemoryConnector": SharedMemoryOptions,
    "RayConnector": RayOptions,
}
"""The connectors of a deploy file, and what their ``extra`` may hold."""
