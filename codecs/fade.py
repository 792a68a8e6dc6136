"""Short fades: sound that is broken off, or begins in the middle, without a click.

The gain follows half a raised cosine (a Hann window's flank): it and its slope are continuous at both ends, so nothing
of the cut is left above the voice's own band.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import PCM16

FADE_MS: Final = 8
"""Shorter ones click on low voices, longer ones are heard as part of the next syllable."""


def fade_samples(sample_rate: int, fade_ms: int = FADE_MS) -> int:
    """Samples of a fade at ``sample_rate`` hertz."""
    return sample_rate * fade_ms // 1000


@lru_cache(maxsize=16)
def _falling(samples: int) -> NDArray[np.float32]:
    """Gains ``[samples]`` from just below 1 to 0."""
    phase = np.arange(1, samples + 1, dtype=np.float32) * np.float32(np.pi / samples)
    gains: NDArray[np.float32] = np.float32(0.5) * (1 + np.cos(phase))
    return gains


def faded_out(pcm: bytes, samples: int) -> bytes:
    """Mono PCM16 ``pcm`` that ends in silence: its last ``samples`` (all of it, if it is shorter) fall to zero.

    To break a stream off take what follows the last sample played, :func:`fade_samples` of it, and play that faded.
    """
    return _scaled_end(pcm, samples)


def faded_in(pcm: bytes, samples: int) -> bytes:
    """Mono PCM16 ``pcm`` that begins in silence: its first ``samples`` (all of it, if it is shorter) rise from zero."""
    sound = np.frombuffer(pcm, PCM16)[::-1]
    return np.frombuffer(_scaled_end(sound.tobytes(), samples), PCM16)[::-1].tobytes()


def _scaled_end(pcm: bytes, samples: int) -> bytes:
    sound = np.frombuffer(pcm, PCM16).copy()
    count = min(samples, len(sound))
    if count > 0:
        sound[-count:] = np.rint(sound[-count:] * _falling(count)).astype(PCM16)
    return sound.tobytes()
