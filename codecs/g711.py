"""G.711 companding: u-law and A-law bytes to and from PCM16 little-endian, by table.

Source: ITU-T Recommendation G.711 (11/1988), tables 1a to 2b, with the rounding of the reference software of G.191
(``ulaw_compress``, ``alaw_compress``): a negative sample is compressed by its one's complement. Levels are those of
the Recommendation scaled to 16 bits (u-law, 14 bits: times 4; A-law, 13 bits: times 8).

Decoding and encoding again gives the same level for all 256 codes of either law, and the same code for all but one:
u-law has two zeros, 0xFF and 0x7F (negative), which PCM cannot tell apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES

_ULAW_BIAS: Final = 33
_ULAW_CEILING: Final = 0x1FFF
_ALAW_EVEN_BITS: Final = 0x55


def _ulaw_levels() -> NDArray[np.int16]:
    """Level of each u-law code: ``[256]`` in little-endian PCM16."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = (((mantissa << 1) + _ULAW_BIAS) << exponent) - _ULAW_BIAS
    return (4 * np.where(code & 0x80, -magnitude, magnitude)).astype(PCM16)


def _alaw_levels() -> NDArray[np.int16]:
    """Level of each A-law code: ``[256]`` in little-endian PCM16."""
    code = np.arange(256, dtype=np.int32) ^ _ALAW_EVEN_BITS
    exponent, mantissa = code >> 4 & 7, code & 15
    linear = (mantissa << 1) + 1
    magnitude = np.where(exponent == 0, linear, (linear + 32) << np.maximum(exponent - 1, 0))
    return (8 * np.where(code & 0x80, magnitude, -magnitude)).astype(PCM16)


def _samples_by_bits() -> NDArray[np.int32]:
    """All 16-bit samples in the order of their bits read as an unsigned number: ``[65536]``."""
    bits = np.arange(1 << 16, dtype=np.int32)
    return np.where(bits < 1 << 15, bits, bits - (1 << 16))


def _ulaw_codes() -> NDArray[np.uint8]:
    """u-law code of each 16-bit sample, indexed by the sample's bits: ``[65536]``."""
    sample = _samples_by_bits()
    magnitude = np.minimum((np.where(sample < 0, ~sample, sample) >> 2) + _ULAW_BIAS, _ULAW_CEILING)
    exponent = _bit_length(magnitude) - 6
    code: NDArray[np.int32] = exponent << 4 | (magnitude >> (exponent + 1) & 15) | np.where(sample < 0, 0x80, 0)
    return (~code & 0xFF).astype(np.uint8)


def _alaw_codes() -> NDArray[np.uint8]:
    """A-law code of each 16-bit sample, indexed by the sample's bits: ``[65536]``."""
    sample = _samples_by_bits()
    magnitude = np.where(sample < 0, ~sample, sample) >> 4
    exponent = np.maximum(_bit_length(magnitude) - 4, 0)
    mantissa = magnitude >> np.maximum(exponent - 1, 0) & 15
    code: NDArray[np.int32] = exponent << 4 | mantissa | np.where(sample < 0, 0, 0x80)
    return (code ^ _ALAW_EVEN_BITS).astype(np.uint8)


def _bit_length(values: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.frexp(values.astype(np.float64))[1]


_ULAW_LEVELS: Final = _ulaw_levels()
_ALAW_LEVELS: Final = _alaw_levels()
_ULAW_CODES: Final = _ulaw_codes()
_ALAW_CODES: Final = _alaw_codes()


def decode_ulaw(data: bytes) -> bytes:
    """PCM16 little-endian of u-law ``data``, two bytes for each one."""
    return _ULAW_LEVELS[np.frombuffer(data, np.uint8)].tobytes()


def decode_alaw(data: bytes) -> bytes:
    """PCM16 little-endian of A-law ``data``, two bytes for each one."""
    return _ALAW_LEVELS[np.frombuffer(data, np.uint8)].tobytes()


def encode_ulaw(pcm: bytes) -> bytes:
    """u-law of PCM16 little-endian ``pcm``, one byte a sample. Raises ``ValueError`` for half a sample."""
    return _ULAW_CODES[_sample_bits(pcm)].tobytes()


def encode_alaw(pcm: bytes) -> bytes:
    """A-law of PCM16 little-endian ``pcm``, one byte a sample. Raises ``ValueError`` for half a sample."""
    return _ALAW_CODES[_sample_bits(pcm)].tobytes()


def _sample_bits(pcm: bytes) -> NDArray[np.uint16]:
    if len(pcm) % SAMPLE_BYTES:
        raise ValueError(f"pcm: {len(pcm)} bytes are not a whole number of 16-bit samples")
    return np.frombuffer(pcm, np.dtype("<u2"))
