"""The clips of the turn benchmark: recordings with where their turns and pauses are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.levels import frame_levels, speech_bounds
from duologue.realtime.bench.room_sounds import RoomSound, room_sound
from duologue.realtime.bench.turns_score import PAUSE_S, WINDOW_S, Truth, Turn

LEAD_S: Final = 0.6
TAIL_S: Final = WINDOW_S + 0.5
ANNOTATION: Final = ".turns.json"


@dataclass(frozen=True)
class Clip:
    """Mono float32 ``samples [n]`` at 24 kHz, and the truth about them."""

    name: str
    samples: NDArray[np.float32]
    truth: Truth

    @cached_property
    def pcm(self) -> bytes:
        """The same as PCM16."""
        return float_to_pcm16(self.samples)


def read_clips(folder: Path, limit: int | None = None) -> list[Clip]:
    """The WAV files of a folder in the order of their names.

    ``NAME.turns.json`` beside a file says where its turns are. Without it a recording is one turn, from its first to
    its last sound; the silences of 0.2 s and more in it are the speaker's own pauses, untouched. Room tone at the
    recording's own floor goes before and after it. Raises ``ValueError`` for a folder without a usable recording.
    """
    paths = sorted(folder.glob("*.wav"))[:limit]
    clips = [clip for path in paths if (clip := _read(path)) is not None]
    if not clips:
        raise ValueError(f"{folder}: no WAV file with sound in it")
    return clips


def _read(path: Path) -> Clip | None:
    audio, rate = read_wav(path)
    samples = resample(audio, rate, SAMPLE_RATE)
    annotation = path.with_name(path.stem + ANNOTATION)
    if annotation.exists():
        return Clip(path.stem, samples, msgspec.json.decode(annotation.read_bytes(), type=Truth))
    bounds = speech_bounds(samples, SAMPLE_RATE)
    if bounds is None:
        return None
    floor = 10 ** (float(np.percentile(frame_levels(samples, SAMPLE_RATE), 5)) / 20)
    tone = np.random.default_rng(len(samples)).standard_normal(round((LEAD_S + TAIL_S) * SAMPLE_RATE)) * floor
    lead = round(LEAD_S * SAMPLE_RATE)
    whole = np.concatenate([tone[:lead], samples, tone[lead:]]).astype(np.float32)
    seconds = [((start + lead) / SAMPLE_RATE, (end + lead) / SAMPLE_RATE) for start, end in bounds.runs]
    pauses = tuple((a[1], b[0]) for a, b in pairwise(seconds) if b[0] - a[1] >= PAUSE_S[0])
    turn = Turn(seconds[0][0], seconds[-1][1], pauses)
    return Clip(path.stem, whole, Truth((turn,), len(whole) / SAMPLE_RATE))


def noise_clip(kind: RoomSound, minutes: float, dbfs: float, seed: int = 0) -> Clip:
    """A room in which nobody speaks."""
    samples = room_sound(kind, minutes * 60, SAMPLE_RATE, dbfs, seed)
    return Clip(f"{kind} at {dbfs:.0f} dBFS", samples, Truth((), len(samples) / SAMPLE_RATE))
