"""WAV files: any common sample format in, PCM16 mono out.

Source: Multimedia Programming Interface and Data Specifications 1.0 (IBM, Microsoft, 1991), chapter 3, and the
``WAVE_FORMAT_EXTENSIBLE`` page of Microsoft's documentation.
"""

from __future__ import annotations

import struct
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duologue.codecs import g711
from duologue.codecs.pcm import PCM16, SAMPLE_BYTES, pcm16_to_float

_PCM: Final = 1
_EXTENSIBLE: Final = 0xFFFE
_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
_FORMAT: Final = struct.Struct("<HHIIHH")


class WavError(ValueError):
    """A file that is not a WAV file this module can read; says which file and why."""


class _Format(NamedTuple):
    tag: int
    channels: int
    rate: int
    bits: int


def read_wav(path: str | PathLike[str]) -> tuple[NDArray[np.float32], int]:
    """Samples of a WAV file as mono float32 ``[n]`` in [-1, 1], and its rate in hertz.

    Reads PCM of 8, 16, 24 and 32 bits, float of 32 and 64 bits, u-law and A-law. Several channels are averaged. A file
    cut short, or written to a pipe without its length, is read as far as it goes. Raises
    :class:`WavError`, ``OSError``.
    """
    data = Path(path).read_bytes()
    try:
        format_, payload = _chunks(data)
        samples = _samples(format_, payload)
    except WavError as error:
        raise WavError(f"{path}: {error}") from None
    whole = len(samples) - len(samples) % format_.channels
    mono = samples[:whole].reshape(-1, format_.channels).mean(axis=1, dtype=np.float32)
    return mono, format_.rate


def _chunks(data: bytes) -> tuple[_Format, bytes]:
    """The format and the samples' bytes among the chunks of a RIFF file."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise WavError("not a RIFF WAVE file")
    format_: _Format | None = None
    position = 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + size]
        if name == b"fmt ":
            format_ = _read_format(body)
        elif name == b"data":
            if format_ is None:
                raise WavError("the data chunk comes before the format chunk")
            return format_, body
        position += 8 + size + size % 2
    raise WavError("no data chunk")


def _read_format(body: bytes) -> _Format:
    if len(body) < _FORMAT.size:
        raise WavError("the format chunk is too short")
    tag, channels, rate, _, _, bits = _FORMAT.unpack_from(body)
    if tag == _EXTENSIBLE and len(body) >= 26:
        tag = int.from_bytes(body[24:26], "little")  # the sub-format's GUID begins with the plain tag
    if not channels or not rate:
        raise WavError(f"{channels} channels at {rate} Hz")
    return _Format(tag, channels, rate, bits)


def _samples(format_: _Format, payload: bytes) -> NDArray[np.float32]:
    """All channels' samples, interleaved, as float32 in [-1, 1]."""
    width = max(1, format_.bits // 8)
    payload = payload[: len(payload) - len(payload) % width]
    match format_.tag, format_.bits:
        case (1, 8):
            return (np.frombuffer(payload, np.uint8).astype(np.float32) - 128) / np.float32(128)
        case (1, 16):
            return pcm16_to_float(payload)
        case (1, 24):
            padded = np.zeros((len(payload) // 3, 4), np.uint8)
            padded[:, 1:] = np.frombuffer(payload, np.uint8).reshape(-1, 3)
            return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)
        case (1, 32):
            return np.frombuffer(payload, "<i4").astype(np.float32) / np.float32(1 << 31)
        case (3, 32 | 64):
            return np.frombuffer(payload, f"<f{width}").astype(np.float32)
        case (6, 8):
            return pcm16_to_float(g711.decode_alaw(payload))
        case (7, 8):
            return pcm16_to_float(g711.decode_ulaw(payload))
    raise WavError(f"sample format {format_.tag} of {format_.bits} bits is not supported")


class WavWriter:
    """Writes PCM16 mono to a WAV file piece by piece; a context manager, the header is completed on leaving it.

    Until then the header gives the greatest length there is, so that what is on the disk can be read meanwhile.
    """

    def __init__(self, path: str | PathLike[str], rate: int) -> None:
        self.rate: Final = rate
        self._file: Final[BinaryIO] = Path(path).open("wb")  # noqa: SIM115 (closed by close)
        self._bytes = 0
        self._file.write(_header(rate, 0xFFFF_FFFE - _HEADER.size))

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, pcm: bytes) -> None:
        """Append whole PCM16 little-endian samples. Raises ``ValueError`` for half a sample, ``OSError``."""
        if len(pcm) % SAMPLE_BYTES:
            raise ValueError(f"pcm: {len(pcm)} bytes are not a whole number of 16-bit samples")
        self._file.write(pcm)
        self._bytes += len(pcm)

    def close(self) -> None:
        """Complete the header. May be called again."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.write(_header(self.rate, self._bytes))
        self._file.close()


def write_wav(path: str | PathLike[str], pcm: bytes, rate: int) -> None:
    """Write mono PCM16 little-endian ``pcm`` at ``rate`` hertz as a WAV file."""
    with WavWriter(path, rate) as writer:
        writer.write(pcm)


def _header(rate: int, data_bytes: int) -> bytes:
    riff_bytes = _HEADER.size - 8 + data_bytes
    bits = PCM16.itemsize * 8
    return _HEADER.pack(
        b"RIFF", riff_bytes, b"WAVE",
        b"fmt ", _FORMAT.size, _PCM, 1, rate, rate * SAMPLE_BYTES, SAMPLE_BYTES, bits,
        b"data", data_bytes,
    )  # fmt: skip
