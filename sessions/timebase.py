"""One unit for positions in the input: ticks of 1/48,000 s, in which a sample at 8, 16, 24 or 48 kHz is a whole number.

So the audio of a turn is cut exact to the sample whatever the wire's rate and the detector's, and a change of format in
mid-session moves nothing.
"""

from __future__ import annotations

TICKS_PER_SECOND = 48_000
TICKS_PER_MS = TICKS_PER_SECOND // 1000

VAD_SAMPLE_RATE = 16_000
VAD_FRAME_SAMPLES = 512
VAD_FRAME_TICKS = VAD_FRAME_SAMPLES * TICKS_PER_SECOND // VAD_SAMPLE_RATE
"""One frame of voice activity: 512 samples at 16 kHz, 32 ms."""


def ticks_per_sample(sample_rate: int) -> int:
    """Ticks of one sample. Raises ``ValueError`` for a rate that does not divide 48 kHz."""
    if sample_rate <= 0 or TICKS_PER_SECOND % sample_rate:
        raise ValueError(f"{sample_rate} Hz does not divide {TICKS_PER_SECOND} Hz")
    return TICKS_PER_SECOND // sample_rate


def to_ms(ticks: int) -> int:
    """Whole milliseconds, as the wire counts them, rounded down."""
    return ticks // TICKS_PER_MS
