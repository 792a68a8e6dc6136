"""The audio encodings a realtime client may choose, to and from PCM16, however the bytes are split into events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

from duologue.codecs import g711
from duologue.codecs.pcm import SAMPLE_BYTES, SampleAligner, float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import StreamResampler

Encoding = Literal["pcm", "pcmu", "pcma"]

PCM_RATE: Final = 24_000
G711_RATE: Final = 8_000

_DECODERS: Final[dict[Encoding, Callable[[bytes], bytes]]] = {"pcmu": g711.decode_ulaw, "pcma": g711.decode_alaw}
_ENCODERS: Final[dict[Encoding, Callable[[bytes], bytes]]] = {"pcmu": g711.encode_ulaw, "pcma": g711.encode_alaw}


def sample_rate_of(encoding: Encoding) -> int:
    """Rate in hertz of ``encoding`` on the wire. Raises ``ValueError`` for a name that is none."""
    if encoding not in get_args(Encoding):
        raise ValueError(f"encoding: {encoding!r} is not one of {', '.join(get_args(Encoding))}")
    return PCM_RATE if encoding == "pcm" else G711_RATE


class WireDecoder:
    """Bytes as a client sends them to PCM16 little-endian mono at ``sample_rate`` hertz (nothing is resampled)."""

    def __init__(self, encoding: Encoding) -> None:
        self.sample_rate: Final = sample_rate_of(encoding)
        self._decode: Final = _DECODERS.get(encoding)
        self._aligner: Final = SampleAligner()

    @property
    def pending(self) -> int:
        """Bytes that wait for the rest of their sample: 0 or 1, always 0 for G.711."""
        return self._aligner.pending

    def decode(self, data: bytes) -> bytes:
        """The whole samples that ``data`` completes; an odd byte is carried to the next call."""
        return self._decode(data) if self._decode else self._aligner.push(data)

    def reset(self) -> None:
        """Start a new stream (the input buffer was cleared): forget the byte carried over."""
        self._aligner.reset()


class WireEncoder:
    """PCM16 little-endian mono at 24 kHz to the bytes a client asked for, one stream (one response) after another.

    G.711 goes through a 24 to 8 kHz filter that holds back 4 ms until ``flush``; ``n`` samples give
    ``round(n / 3)`` bytes by then.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.sample_rate: Final = sample_rate_of(encoding)
        self.bytes_per_second: Final = self.sample_rate * (SAMPLE_BYTES if encoding == "pcm" else 1)
        self._encode: Final = _ENCODERS.get(encoding)
        self._aligner: Final = SampleAligner()
        self._resampler: Final = StreamResampler(PCM_RATE, G711_RATE, "LOW_DELAY")

    def encode(self, pcm24k: bytes) -> bytes:
        """The bytes that are ready after ``pcm24k``: for ``pcm`` the same, for G.711 possibly none yet."""
        pcm = self._aligner.push(pcm24k)
        return pcm if self._encode is None else self._convert(pcm, last=False)

    def flush(self) -> bytes:
        """The last bytes of this stream; the next ``encode`` starts another. Half a sample is dropped."""
        self._aligner.reset()
        return self._convert(b"", last=True)

    def _convert(self, pcm: bytes, last: bool) -> bytes:
        if self._encode is None:
            return pcm
        return self._encode(float_to_pcm16(self._resampler.process(pcm16_to_float(pcm), last)))
