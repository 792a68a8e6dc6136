"""Linear PCM: signed 16-bit little-endian bytes, whatever the host's own byte order, and float32 in [-1, 1]."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

PCM16: Final = np.dtype("<i2")
"""The one sample type of bytes inside the project. The byte order is spelt out: ``np.int16`` is the host's."""

SAMPLE_BYTES: Final = 2


def pcm16_to_float(pcm: bytes) -> NDArray[np.float32]:
    """Samples of PCM16 little-endian ``pcm`` as float32 ``[samples]``, divided by 32,768 (so in [-1, 1)).

    Raises ``ValueError`` for half a sample: a stream of bytes goes through :class:`SampleAligner` first.
    """
    if len(pcm) % SAMPLE_BYTES:
        raise ValueError(f"pcm: {len(pcm)} bytes are not a whole number of 16-bit samples")
    samples = np.frombuffer(pcm, PCM16).astype(np.float32)
    samples *= np.float32(1 / 32768)
    return samples


def float_to_pcm16(samples: NDArray[np.floating]) -> bytes:
    """PCM16 little-endian bytes of ``samples`` ``[samples]``: clipped to [-1, 1], times 32,767, rounded."""
    pcm: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype(PCM16).tobytes()
    return pcm


class SampleAligner:
    """Cuts a stream of bytes into whole samples, however it was split: what is left over waits for the next piece."""

    def __init__(self, sample_bytes: int = SAMPLE_BYTES) -> None:
        self._sample_bytes = sample_bytes
        self._rest = b""

    @property
    def pending(self) -> int:
        """Bytes that wait for the rest of their sample."""
        return len(self._rest)

    def push(self, data: bytes) -> bytes:
        """The whole samples of everything pushed so far that were not returned before."""
        if not self._rest and not len(data) % self._sample_bytes:
            return data
        joined = self._rest + data
        whole = len(joined) - len(joined) % self._sample_bytes
        self._rest = joined[whole:]
        return joined[:whole]

    def reset(self) -> None:
        """Forget the piece of a sample that waits."""
        self._rest = b""
