"""The input timeline: what the client has said so far and has not committed, addressed by position."""

from __future__ import annotations

from typing import Literal

from duologue.codecs.noise_suppression import NoiseSuppressor
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.codecs.wire_audio import WireDecoder
from duologue.sessions.config import NoiseReduction
from duologue.sessions.held_sound import HeldSound
from duologue.sessions.timebase import ticks_per_sample, to_ms

Encoding = Literal["pcm", "pcmu", "pcma"]

PIECE_BYTES = 16_000
"""How much of an append is cleaned of noise in one go: a third of a second of PCM16, two of G.711; 15 ms at most."""


KEPT_AS_IT_CAME_S = 1


def reduces_noise(setting: NoiseReduction | None) -> bool:
    """Whether the input is to be cleaned. There is one strength: anything above 0 is all of it."""
    return setting is not None and setting.strength > 0


class InputTimeline:
    """Decoded input audio between two positions in ticks; appending and letting go of the oldest are O(1) amortised.

    Holds PCM16 at the wire's rate, so that what is kept is what was sent. With a suppressor of noise, what lies before
    ``clean_end`` is clean; the few samples beyond stand as they came, and are written over as they get clean.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._decoder = WireDecoder(encoding)
        self._encoding = encoding
        self.sample_rate = self._decoder.sample_rate
        """In hertz: that of the wire."""
        self._ticks = ticks_per_sample(self.sample_rate)
        self._pcm = HeldSound()
        self._suppressor: NoiseSuppressor | None = None
        self._came = bytearray()
        """The newest input before it was cleaned."""
        self.end = 0
        """First tick not yet received."""
        self._gaps: list[tuple[int, int]] = []
        """First tick and length of the silence put in for gaps, while it is held."""
        self._gap_ticks = 0
        """Of such silence that is not held any more."""

    @property
    def start(self) -> int:
        """First tick still held."""
        return self.end - self._pcm.size // 2 * self._ticks

    @property
    def clean_end(self) -> int:
        """First tick that :meth:`append` has not returned yet."""
        return self.end if self._suppressor is None else self.end - self._suppressor.lag * self._ticks

    @property
    def suppresses_noise(self) -> bool:
        return self._suppressor is not None

    def ticks_of(self, data: bytes) -> int:
        """How long bytes of the wire last, give or take a sample."""
        return len(data) // (2 if self._encoding == "pcm" else 1) * self._ticks

    def suppress_noise(self, suppressor: NoiseSuppressor | None) -> bytes:
        """Clean what comes from now on, or no longer.

        Returns what the suppressor until now still held, as it came: the samples between ``clean_end`` and ``end``.
        """
        held = b"" if self._suppressor is None else self._suppressor.held
        self._suppressor = suppressor
        self._came.clear()
        return held

    def append(self, data: bytes) -> bytes:
        """Take bytes as they came from the wire; an odd one waits for its other half.

        Returns the PCM16 that is new, or newly clean: it begins where that of the last call ended.
        """
        return self._extend(self._decoder.decode(data))

    def append_silence(self, seconds: float) -> bytes:
        """Put silence where the client has sent nothing for so long; it does not count in :meth:`wire_ms`.

        Returns as :meth:`append` does.
        """
        samples = round(seconds * self.sample_rate)
        if samples:
            self._gaps.append((self.end, samples * self._ticks))
        return self._extend(bytes(2 * samples))

    def wire_ms(self, position: int) -> int:
        """A position in milliseconds of what the client has sent."""
        put_in = self._gap_ticks + sum(min(max(position - start, 0), length) for start, length in self._gaps)
        return to_ms(position - put_in)

    def _extend(self, pcm: bytes) -> bytes:
        self._pcm.add(pcm)
        self.end += len(pcm) // 2 * self._ticks
        return pcm if self._suppressor is None else self._clean(self._suppressor, pcm)

    def _clean(self, suppressor: NoiseSuppressor, pcm: bytes) -> bytes:
        self._came += pcm
        del self._came[: -KEPT_AS_IT_CAME_S * self.sample_rate * 2]
        clean = suppressor.process(pcm)
        stop = self._pcm.size - suppressor.lag * 2
        if stop > 0:  # else what is clean now has been let go of already
            start = max(0, stop - len(clean))
            self._pcm.write(start, clean[len(clean) - (stop - start) :])
        return clean

    def cut(self, start: int, end: int) -> bytes:
        """PCM16 between two positions, clamped to what is held. The audio stays."""
        first, last = (self._offset(position) for position in (start, end))
        return self._pcm.cut(first, last)

    def as_it_came(self, start: int, end: int) -> bytes:
        """Input between two positions of the last second as it was before it was cleaned, as far as it is known."""
        newest = len(self._came) // 2
        first, last = (newest - (self.end - position) // self._ticks for position in (start, end))
        return bytes(self._came[max(0, first) * 2 : max(0, last) * 2])

    def drop_before(self, position: int) -> None:
        """Let go of everything before a position."""
        self._pcm.drop(self._offset(position))
        while self._gaps and sum(self._gaps[0]) <= self.start:
            self._gap_ticks += self._gaps.pop(0)[1]

    def clear(self) -> None:
        """Let go of everything received, half a sample included."""
        self._pcm.clear()
        self._decoder.reset()

    def change_encoding(self, encoding: Encoding) -> bool:
        """Expect another format from now on; what is held is converted. True if the rate changed.

        A suppressor is for one rate: after a change there is none.
        """
        if encoding == self._encoding:
            return False
        before = self.sample_rate
        self._encoding, self._decoder = encoding, WireDecoder(encoding)
        self.sample_rate = self._decoder.sample_rate
        self._ticks = ticks_per_sample(self.sample_rate)
        if self.sample_rate == before:
            return False
        self._suppressor = None
        held = self._pcm.cut(0, self._pcm.size)
        self._pcm = HeldSound(float_to_pcm16(resample(pcm16_to_float(held), before, self.sample_rate)))
        return True

    def _offset(self, position: int) -> int:
        held = self._pcm.size
        offset = held + (position - self.end) // self._ticks * 2
        return 0 if offset < 0 else offset if offset < held else held
