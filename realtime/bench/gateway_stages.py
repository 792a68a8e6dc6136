"""The scripted pipeline of ``duologue bench gateway --minutes``: stages without a model that answer at a set pace."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.pipeline import Capabilities, PipelineConfig, StageConfig, register_stage
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    Converse,
    EngineRequest,
    Speak,
    TextDelta,
    Transcribe,
    TranscriptDelta,
    Usage,
)
from duologue.engine.stage import Stage, StageContext

CHUNK_S: Final = 0.02
CHUNK_BYTES: Final = round(CHUNK_S * OUTPUT_SAMPLE_RATE) * 2
STAMP_BYTES: Final = 8
"""The first bytes of every 20 ms of sound: when it left the stage, in microseconds of ``time.monotonic``."""

_HERE: Final = "duologue.realtime.bench.gateway_stages"


@dataclass(frozen=True)
class Tone:
    """What the writer asks of the speaker."""

    seconds: float


class ScriptedRecogniser(Stage):
    """Takes ``Transcribe``, emits the same words for any sound."""

    def process(self, state: Any, piece: Transcribe, context: StageContext) -> None:
        """One utterance."""
        context.emit(TranscriptDelta(text="and so on"))


class ScriptedWriter(Stage):
    """Takes ``Converse``, emits a sentence and a :class:`Tone`: as long as the last message says, if it is a number."""

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds

    def process(self, state: Any, piece: Converse, context: StageContext) -> None:
        """One request."""
        try:
            seconds = float(piece.messages[-1].text)
        except (IndexError, ValueError):
            seconds = self._seconds
        context.emit(Usage(input_tokens=len(piece.messages), output_tokens=4))
        context.emit(TextDelta(text=f"A tone of {seconds:g} seconds."))
        context.emit(Tone(seconds))


class PacedSpeaker(Stage):
    """Takes :class:`Tone` or ``Speak``, emits 20 ms of sound every 20 ms, each with its stamp.

    ``cores``: where its threads run; the speaker stands for models that run elsewhere, off the gateway's core.
    """

    def __init__(self, cores: list[int] | None = None) -> None:
        self._cores = cores
        position = np.arange(CHUNK_BYTES // 2) / OUTPUT_SAMPLE_RATE
        self._sound = float_to_pcm16((0.1 * np.sin(2 * np.pi * 200 * position)).astype(np.float32))[STAMP_BYTES:]

    def load(self) -> None:
        """Move the process to its cores."""
        if self._cores and hasattr(os, "sched_setaffinity"):
            for thread in Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(thread.name), self._cores)

    def process(self, state: Any, piece: Tone | Speak | TextDelta, context: StageContext) -> None:
        """One answer; text is somebody else's."""
        if isinstance(piece, TextDelta):
            return
        seconds = piece.seconds if isinstance(piece, Tone) else 1.0
        began = time.monotonic()
        for number in range(round(seconds / CHUNK_S)):
            time.sleep(max(0.0, began + number * CHUNK_S - time.monotonic()))  # the pace is what is asked for
            stamp = int(time.monotonic() * 1e6).to_bytes(STAMP_BYTES, "little")
            if not context.emit(AudioDelta(pcm=stamp + self._sound)):
                return

    def start(self, request: EngineRequest) -> None:
        """Nothing is kept."""


register_stage("ScriptedRecogniser", f"{_HERE}:ScriptedRecogniser")
register_stage("ScriptedWriter", f"{_HERE}:ScriptedWriter")
register_stage("PacedSpeaker", f"{_HERE}:PacedSpeaker")

PIPELINE: Final = PipelineConfig(
    name="scripted",
    capabilities=Capabilities(audio_in=True, audio_out=True),
    stages=(
        StageConfig(
            0,
            "recogniser",
            "ScriptedRecogniser",
            model="scripted-recogniser",
            accepts=(Transcribe,),
            final_output=True,
            final_output_type="text",
        ),
        StageConfig(
            1,
            "writer",
            "ScriptedWriter",
            model="scripted",
            accepts=(Converse,),
            emits=(f"{_HERE}:Tone",),
            final_output=True,
            final_output_type="text",
        ),
        StageConfig(
            2,
            "speaker",
            "PacedSpeaker",
            input_sources=(1,),
            accepts=(Speak,),
            voices=("scripted",),
            final_output=True,
            final_output_type="audio",
        ),
    ),
)
