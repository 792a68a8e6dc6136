"""Where speech is in a recording: Silero's frames made into segments, offline.

The rule is that of the model's own package (``get_speech_timestamps``), restated: speech begins with a frame at the
threshold and ends where the probability fell below threshold - 0.15 and stayed there for the shortest silence; short
segments are dropped, the others padded, at most to the middle of the silence between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.engine.silero import CONTEXT, FRAME, STATE, SileroModel
from duologue.engine.voice_activity import SAMPLE_RATE, FrameModel
from duologue.realtime.bench.fdb.formulas import Span

HYSTERESIS = 0.15
FRAME_S = FRAME / SAMPLE_RATE

Probabilities = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Mono float32 ``[n]`` at 16 kHz -> speech probability of each frame of 512 samples, the last one padded."""


class SpeechRule(msgspec.Struct, frozen=True):
    """What makes a segment; the defaults are those of Full-Duplex-Bench."""

    threshold: float = 0.5
    min_speech_ms: int = 250
    min_silence_ms: int = 100
    pad_ms: int = 30


def silero_probabilities(path: Path) -> Probabilities:
    """The packaged model, one recording at a time."""
    return probabilities_of(SileroModel(path))


def probabilities_of(model: FrameModel) -> Probabilities:
    def run(audio: NDArray[np.float32]) -> NDArray[np.float32]:
        count = -(-len(audio) // FRAME)
        padded = np.zeros(CONTEXT + count * FRAME, np.float32)
        padded[CONTEXT : CONTEXT + len(audio)] = audio
        state = np.zeros((2, 1, STATE), np.float32)
        out = np.empty(count, np.float32)
        for index in range(count):
            rows = padded[None, index * FRAME : index * FRAME + CONTEXT + FRAME]
            probability, state = model.step(rows, state)
            out[index] = probability[0]
        return out

    return run


def speech_segments(probabilities: Sequence[float], samples: int, rule: SpeechRule | None = None) -> list[Span]:
    """Speech of a recording of ``samples`` samples at 16 kHz, in seconds."""
    rule = rule or SpeechRule()
    ms = SAMPLE_RATE // 1000
    found = _unpadded(probabilities, samples, rule)
    pad = rule.pad_ms * ms
    padded = []
    for index, (start, end) in enumerate(found):
        before = found[index - 1][1] if index else None
        after = found[index + 1][0] if index + 1 < len(found) else None
        first = max(0, start - pad) if before is None else start - min(pad, (start - before) // 2)
        last = min(samples, end + pad) if after is None else end + min(pad, (after - end) // 2)
        padded.append((first / SAMPLE_RATE, last / SAMPLE_RATE))
    return padded


def _unpadded(probabilities: Sequence[float], samples: int, rule: SpeechRule) -> list[tuple[int, int]]:
    ms = SAMPLE_RATE // 1000
    found: list[tuple[int, int]] = []
    start: int | None = None
    fell: int | None = None
    for index, probability in enumerate(probabilities):
        at = index * FRAME
        if probability >= rule.threshold:
            fell = None
            if start is None:
                start = at
        elif start is not None and probability < rule.threshold - HYSTERESIS:
            fell = at if fell is None else fell
            if at - fell >= rule.min_silence_ms * ms:
                if fell - start > rule.min_speech_ms * ms:
                    found.append((start, fell))
                start = fell = None
    if start is not None and samples - start > rule.min_speech_ms * ms:
        found.append((start, samples))
    return found
