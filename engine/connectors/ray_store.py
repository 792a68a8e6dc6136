"""Pieces on their way between hosts: encoded, and in Ray's object store if they are large.

A large piece is put into the store of the node where it is made; only its reference travels through the gateway, and
the node of the stage that takes it fetches the bytes. Ray frees them once the last reference is dropped, so nobody
unlinks anything. A piece whose producer has died before it was taken cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import TimeoutError as FetchTimeout
from typing import Any, Final

import numpy as np
import ray
from numpy.typing import NDArray

from duologue.engine.connectors.options import THRESHOLD_BYTES
from duologue.engine.connectors.pieces import Buffer, PieceTypes, Sealed
from duologue.engine.connectors.shared_memory import Packed, Parcel

FETCH_TIMEOUT_S: Final = 5.0
"""Longest wait for the bytes of a piece that another node has."""


class ObjectLost(RuntimeError):
    """The bytes of a piece cannot be had: the node or the process that made it is gone."""


class RayParcel(Sealed):
    """An encoded piece: its bytes, or a reference to them. May be read and sent any number of times."""

    __slots__ = ("_size", "_types", "data", "ref")

    def __init__(self, types: PieceTypes, size: int, data: Buffer | None, ref: Any = None) -> None:
        self._types = types
        self._size = size
        self.data = data
        self.ref = ref

    @property
    def size(self) -> int:
        """See :class:`~duologue.engine.connectors.pieces.Sealed`."""
        return self._size

    def open(self) -> Any:
        """The piece; its arrays are read-only views of the store. Blocks. Raises ``PieceError``, ``ObjectLost``."""
        if self.data is not None:
            return self._types.decode(self.data)
        try:
            array: NDArray[np.uint8] = self.ref.future().result(FETCH_TIMEOUT_S)
        except FetchTimeout as error:
            raise ObjectLost(f"a piece did not arrive from Ray's object store in {FETCH_TIMEOUT_S:g} s") from error
        except ray.exceptions.RayError as error:
            raise ObjectLost("a piece is lost: the worker that made it, or its node, is gone") from error
        return self._types.decode(array.data)


class RayConnector:
    """Between hosts. One at each end, over the same table of types."""

    def __init__(
        self, types: PieceTypes, threshold_bytes: int = THRESHOLD_BYTES, in_message: tuple[type, ...] = ()
    ) -> None:
        """Pieces of the types ``in_message`` are sent inside the message whatever their size."""
        self.types = types
        self.threshold_bytes = threshold_bytes
        self._in_message = in_message

    def pack(self, piece: Any) -> RayParcel:
        """Encode a piece, or take over what another connector has brought. Copies; not for the event loop.

        Raises ``PieceError``, and ``ray.exceptions.ObjectStoreFullError`` when there is no room for a large one.
        """
        if type(piece) is RayParcel:
            return piece
        buffers, size = _encoded(piece) if type(piece) is Parcel else self.types.encode(piece)
        if size <= self.threshold_bytes or isinstance(piece, self._in_message):
            return RayParcel(self.types, size, b"".join(buffers))
        joined = np.empty(size, np.uint8)
        start = 0
        for buffer in filter(len, buffers):
            end = start + len(buffer)
            joined[start:end] = np.frombuffer(buffer, np.uint8)
            start = end
        return RayParcel(self.types, size, None, ray.put(joined))

    def send(self, parcel: RayParcel, refs: list[Any]) -> Packed:
        """What the message says of it; a reference is added to those beside the message."""
        if parcel.data is not None:
            return Packed(bytes(parcel.data), size=parcel.size)
        refs.append(parcel.ref)
        return Packed(None, size=parcel.size, place=len(refs) - 1)

    def receive(self, packed: Packed, refs: Sequence[Any]) -> RayParcel:
        """Take what was sent."""
        ref = None if packed.place is None else refs[packed.place]
        return RayParcel(self.types, packed.size, packed.data, ref)


def _encoded(parcel: Parcel) -> tuple[list[Buffer], int]:
    data = parcel.read()
    return [data], len(data)
