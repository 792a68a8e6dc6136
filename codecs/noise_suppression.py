"""Noise suppression and echo cancellation of one stream of speech, however it comes in pieces: WebRTC's audio
processing, from ``livekit``.

The suppressor takes frames of 10 ms and gives them back some milliseconds late. :class:`NoiseSuppressor` hides both:
what it returns are the samples it took, in order, none missing and none twice, and it says which of them it still
holds. So positions in the stream stay exact, and the stream may be left at any sample.

WebRTC's suppressor follows the noise by quantiles of each band over the past seconds and lowers it by 12 dB (a Wiener
filter); hum below the voice goes to a high-pass filter in front of it. In a new stream it needs a second to learn the
noise. Its echo canceller (AEC3) is told what the other side played at the same time, and finds by itself how much later
that comes back and how the room changes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from duologue.codecs.pcm import SAMPLE_BYTES

logger = logging.getLogger(__name__)

FRAMES_PER_SECOND: Final = 100

FAR_END_RATE: Final = 24_000
"""Samples a second of what the other side plays."""
FarEnd = Callable[[int], bytes]
"""``far_end(n)`` is what sounded during the stream's n-th 10 ms: mono PCM16 at ``FAR_END_RATE``."""

_CONVERSION: Final = {8_000: 24, 16_000: 0, 24_000: 32, 48_000: 48}
"""Samples by which WebRTC's output is late for its own conversion of rates, by rate."""
_NOISE_DELAY_MS: Final = 6
"""Overlap of the noise suppressor's windows."""
_ECHO_DELAY_MS: Final = 8
"""What the echo canceller holds."""


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


class MakeSuppressor(Protocol):
    """Gives a suppressor for a new stream, or None where there is none to be had."""

    def __call__(
        self, sample_rate: int, far_end: FarEnd | None = None, *, noise: bool = True
    ) -> NoiseSuppressor | None:
        """``far_end``: take its echo out. ``noise``: lower the noise too."""


def no_suppressor(sample_rate: int, far_end: FarEnd | None = None, *, noise: bool = True) -> None:
    """A :class:`MakeSuppressor` for a server without noise suppression."""


def load_noise_suppression() -> MakeSuppressor:
    """What makes suppressors here. Loads the library, which takes a second: not for an event loop.

    Where it is not installed, or does not load, the one returned makes none and says so in the log when first asked.
    """
    try:
        from livekit.rtc import AudioFrame
        from livekit.rtc.apm import AudioProcessingModule

        _WebRtc(AudioProcessingModule, AudioFrame, 24_000, None, noise=True)
    except (ImportError, OSError, RuntimeError) as error:
        return _Missing(str(error).splitlines()[0] if str(error) else type(error).__name__)

    def make(sample_rate: int, far_end: FarEnd | None = None, *, noise: bool = True) -> NoiseSuppressor:
        processor = _WebRtc(AudioProcessingModule, AudioFrame, sample_rate, far_end, noise=noise)
        return NoiseSuppressor(processor, sample_rate)

    return make


class _WebRtc:
    """WebRTC's audio processing on one stream."""

    def __init__(self, module: Any, frame: Any, sample_rate: int, far_end: FarEnd | None, *, noise: bool) -> None:
        late_ms = (_NOISE_DELAY_MS if noise else 0) + (_ECHO_DELAY_MS if far_end is not None else 0)
        self.delay = _CONVERSION[sample_rate] + sample_rate * late_ms // 1000
        # No gain control: it lifts what lies between the words, and costs the recogniser some of them.
        self._module = module(echo_cancellation=far_end is not None, noise_suppression=noise, high_pass_filter=True)
        self._frame, self._bytes = self._frame_of(frame, sample_rate)
        self._far_end, self._frames = far_end, 0
        if far_end is not None:
            self._far_frame, self._far_bytes = self._frame_of(frame, FAR_END_RATE)

    @staticmethod
    def _frame_of(frame: Any, sample_rate: int) -> tuple[Any, memoryview]:
        """One frame for all calls, and its bytes: it is changed in place."""
        samples = sample_rate // FRAMES_PER_SECOND
        made = frame(bytearray(samples * SAMPLE_BYTES), sample_rate, 1, samples)
        return made, made.data.cast("B")

    def process(self, frame: bytes) -> bytes:
        if self._far_end is not None:
            self._far_bytes[:] = self._far_end(self._frames)
            self._module.process_reverse_stream(self._far_frame)
            self._frames += 1
        self._bytes[:] = frame
        self._module.process_stream(self._frame)
        return bytes(self._bytes)


class _Missing:
    """Makes no suppressor, and says why once."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._said = False

    def __call__(self, sample_rate: int, far_end: FarEnd | None = None, *, noise: bool = True) -> None:
        if not self._said:
            self._said = True
            logger.warning(
                "noise_reduction and echo_cancellation have no effect here: pip install 'duologue[audio]' (%s)",
                self._problem,
            )
