"""Short ramps on PCM16, so that sound that stops or starts in the middle of a wave does not click."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES


@lru_cache(maxsize=8)
def _falling(samples: int) -> NDArray[np.float32]:
    """Half a period of a cosine from 1 to 0."""
    ramp: NDArray[np.float32] = (0.5 + 0.5 * np.cos(np.linspace(0, np.pi, samples))).astype(np.float32)
    return ramp


def fade_out(pcm: bytes, samples: int) -> bytes:
    """PCM16 ``pcm`` whose last ``samples`` samples sink to silence (all of it if it is shorter)."""
    faded = np.frombuffer(pcm, PCM16).astype(np.float32)
    samples = min(samples, len(faded))
    if samples:
        faded[-samples:] *= _falling(samples)
    return faded.astype(PCM16).tobytes()


def fade_in(pcm: bytes, samples: int) -> bytes:
    """PCM16 ``pcm`` whose first ``samples`` samples rise from silence (all of it if it is shorter)."""
    faded = np.frombuffer(pcm, PCM16).astype(np.float32)
    samples = min(samples, len(faded))
    if samples:
        faded[:samples] *= _falling(samples)[::-1]
    return faded.astype(PCM16).tobytes()


def start_from(pcm: bytes, level: int, samples: int) -> bytes:
    """PCM16 ``pcm`` moved so that it starts at ``level``; over ``samples`` samples the shift sinks to nothing.

    For what follows a sound that ended at ``level`` without warning: ``pcm`` may be silence.
    """
    moved = np.frombuffer(pcm, PCM16).astype(np.float32)
    samples = min(samples, len(moved))
    if samples:
        moved[:samples] += (level - moved[0]) * _falling(samples)
    return np.clip(moved, -32768, 32767).astype(PCM16).tobytes()


def cross_fade(old: bytes, new: bytes, samples: int) -> bytes:
    """PCM16 ``new`` whose first ``samples`` samples (fewer if ``old`` or it is shorter) pass over from ``old``."""
    mixed = np.frombuffer(new, PCM16).astype(np.float32)
    samples = min(samples, len(mixed), len(old) // SAMPLE_BYTES)
    if samples:
        mixed[:samples] += (np.frombuffer(old, PCM16, samples) - mixed[:samples]) * _falling(samples)
    return mixed.astype(PCM16).tobytes()


def last_level(pcm: bytes) -> int:
    """The last sample of PCM16 ``pcm``; 0 of none."""
    return int.from_bytes(pcm[-SAMPLE_BYTES:], "little", signed=True) if pcm else 0


def first_level(pcm: bytes) -> int:
    """The first sample of PCM16 ``pcm``; 0 of none."""
    return int.from_bytes(pcm[:SAMPLE_BYTES], "little", signed=True) if pcm else 0
