"""Noise suppression of one stream of speech, however it comes in pieces: WebRTC's audio processing, from ``livekit``.

The suppressor takes frames of 10 ms and gives them back some milliseconds late. :class:`NoiseSuppressor` hides both:
what it returns are the samples it took, in order, none missing and none twice, and it says which of them it still
holds. So positions in the stream stay exact, and the stream may be left at any sample.

WebRTC's suppressor follows the noise by quantiles of each band over the past seconds and lowers it by 12 dB (a Wiener
filter); hum below the voice goes to a high-pass filter in front of it. In a new stream it needs a second to learn the
noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from duologue.codecs.pcm import SAMPLE_BYTES

logger = logging.getLogger(__name__)

FRAMES_PER_SECOND: Final = 100

_DELAY: Final = {8_000: 72, 16_000: 96, 24_000: 176, 48_000: 336}
"""Samples by which WebRTC's output is late, by rate: its window's overlap of 6 ms and its own conversion of rates."""


class FrameProcessor(Protocol):
    """Something that works on frames of 10 ms."""

    @property
    def delay(self) -> int:
        """Samples by which the output is late: output sample ``n`` belongs to input sample ``n - delay``."""

    def process(self, frame: bytes) -> bytes:
        """The next frame of output for the next frame of input: mono PCM16, of the same length."""


class NoiseSuppressor:
    """One stream, mono PCM16 at ``sample_rate`` hertz. The output does not depend on how the input was cut."""

    def __init__(self, processor: FrameProcessor, sample_rate: int) -> None:
        self._processor = processor
        self._frame = sample_rate // FRAMES_PER_SECOND * SAMPLE_BYTES
        self._held = bytearray()
        self._fed = 0
        """Bytes of ``_held`` that the processor has had."""
        self._early = processor.delay * SAMPLE_BYTES
        """Bytes of output still to come that lie before the stream's first sample."""

    @property
    def held(self) -> bytes:
        """The samples taken whose clean form has not been returned, as they came: at most 10 ms and the delay."""
        return bytes(self._held)

    @property
    def lag(self) -> int:
        """How many samples that is."""
        return len(self._held) // SAMPLE_BYTES

    def process(self, pcm: bytes) -> bytes:
        """Take whole samples; returns those that are clean now, which begin where the last call's ended."""
        held, size, position = self._held, self._frame, self._fed
        held += pcm
        clean = bytearray()
        while len(held) - position >= size:
            clean += self._processor.process(bytes(held[position : position + size]))
            position += size
        if self._early:
            early = min(self._early, len(clean))
            del clean[:early]
            self._early -= early
        del held[: len(clean)]
        self._fed = position - len(clean)
        return bytes(clean)


MakeSuppressor = Callable[[int], NoiseSuppressor | None]
"""``make(sample_rate)`` gives a suppressor for a new stream, or None where there is none to be had."""


def no_suppressor(sample_rate: int) -> None:
    """A :data:`MakeSuppressor` for a server without noise suppression."""


def load_noise_suppression() -> MakeSuppressor:
    """What makes suppressors here. Loads the library, which takes a second: not for an event loop.

    Where it is not installed, or does not load, the one returned makes none and says so in the log when first asked.
    """
    try:
        from livekit.rtc import AudioFrame
        from livekit.rtc.apm import AudioProcessingModule

        _WebRtc(AudioProcessingModule, AudioFrame, 24_000)
    except (ImportError, OSError, RuntimeError) as error:
        return _Missing(str(error).splitlines()[0] if str(error) else type(error).__name__)

    def make(sample_rate: int) -> NoiseSuppressor:
        return NoiseSuppressor(_WebRtc(AudioProcessingModule, AudioFrame, sample_rate), sample_rate)

    return make


class _WebRtc:
    """WebRTC's audio processing on one stream."""

    def __init__(self, module: Any, frame: Any, sample_rate: int) -> None:
        self.delay = _DELAY[sample_rate]
        # No gain control: it lifts what lies between the words, and costs the recogniser some of them.
        self._module = module(noise_suppression=True, high_pass_filter=True)
        samples = sample_rate // FRAMES_PER_SECOND
        # One frame for all calls: it is changed in place.
        self._frame = frame(bytearray(samples * SAMPLE_BYTES), sample_rate, 1, samples)
        self._bytes: memoryview = self._frame.data.cast("B")

    def process(self, frame: bytes) -> bytes:
        self._bytes[:] = frame
        self._module.process_stream(self._frame)
        return bytes(self._bytes)


class _Missing:
    """Makes no suppressor, and says why once."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._said = False

    def __call__(self, sample_rate: int) -> None:
        if not self._said:
            self._said = True
            logger.warning("noise_reduction has no effect here: pip install 'duologue[audio]' (%s)", self._problem)
