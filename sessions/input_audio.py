"""The input timeline: what the client has said so far and has not committed, addressed by position."""

from __future__ import annotations

from typing import Literal

from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.codecs.wire_audio import WireDecoder
from duologue.sessions.timebase import ticks_per_sample

Encoding = Literal["pcm", "pcmu", "pcma"]


class InputTimeline:
    """Decoded input audio between two positions in ticks; appending and letting go of the oldest are O(1) amortised.

    Holds PCM16 at the wire's rate, so that what is kept is what was sent.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._decoder = WireDecoder(encoding)
        self._encoding = encoding
        self._ticks = ticks_per_sample(self._decoder.sample_rate)
        self._pcm = bytearray()
        self.end = 0
        """First tick not yet received."""

    @property
    def sample_rate(self) -> int:
        return self._decoder.sample_rate

    @property
    def start(self) -> int:
        """First tick still held."""
        return self.end - len(self._pcm) // 2 * self._ticks

    def append(self, data: bytes) -> bytes:
        """Take bytes as they came from the wire; an odd one waits for its other half. Returns the new PCM16."""
        pcm = self._decoder.decode(data)
        self._pcm += pcm
        self.end += len(pcm) // 2 * self._ticks
        return pcm

    def cut(self, start: int, end: int) -> bytes:
        """PCM16 between two positions, clamped to what is held. The audio stays."""
        first, last = (self._offset(position) for position in (start, end))
        return bytes(self._pcm[first : max(first, last)])

    def drop_before(self, position: int) -> None:
        """Let go of everything before a position."""
        del self._pcm[: self._offset(position)]

    def clear(self) -> None:
        """Let go of everything received, half a sample included."""
        self._pcm.clear()
        self._decoder.reset()

    def change_encoding(self, encoding: Encoding) -> bool:
        """Expect another format from now on; what is held is converted. True if the rate changed."""
        if encoding == self._encoding:
            return False
        before = self.sample_rate
        self._encoding, self._decoder = encoding, WireDecoder(encoding)
        self._ticks = ticks_per_sample(self._decoder.sample_rate)
        if self.sample_rate == before:
            return False
        converted = resample(pcm16_to_float(bytes(self._pcm)), before, self.sample_rate)
        self._pcm = bytearray(float_to_pcm16(converted))
        return True

    def _offset(self, position: int) -> int:
        samples = (position - self.start) // self._ticks
        return min(max(samples * 2, 0), len(self._pcm))
