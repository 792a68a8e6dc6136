"""Whether the answers can be understood: their audio is recognised again and compared with their transcripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.resample import resample
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.conversation import Conversation, received_events
from duologue.realtime.bench.voice_to_voice import response_audio
from duologue.realtime.event_log import load_audio, load_entries

RECOGNISER_RATE = 16_000


class RecognisedReply(msgspec.Struct, frozen=True):
    """What an answer said according to its transcript, and according to the recogniser."""

    call: str
    response_id: str
    transcript: str
    recognised: str


def recognise_replies(
    calls: Sequence[Path],
    limit: int,
    transcribe: Callable[[NDArray[np.float32]], str],
) -> list[RecognisedReply]:
    """Recognise up to ``limit`` answers that were delivered whole, spread evenly over the calls.

    ``transcribe`` takes float32 ``[samples]`` at 16 kHz.
    """
    whole = []
    for folder in calls:
        conversation = Conversation()
        for received in received_events(load_entries(folder)):
            conversation.handle(received)
        audio = load_audio(folder)
        whole += [
            (folder.name, response, response_audio(response, audio))
            for response in conversation.responses.values()
            if response.status in ("completed", "incomplete") and response.audio and response.text.strip()
        ]
    if not whole or limit < 1:
        return []
    step = max(1.0, len(whole) / limit)
    chosen = [whole[int(index * step)] for index in range(min(limit, len(whole)))]
    return [
        RecognisedReply(
            call, response.response_id, response.text, transcribe(resample(sound, SAMPLE_RATE, RECOGNISER_RATE))
        )
        for call, response, sound in chosen
    ]


def packaged_recogniser(name: str) -> Callable[[NDArray[np.float32]], str]:
    """A packaged Whisper model on the CPU. Raises ``ModelUnavailable`` if it was not pulled."""
    model = load_whisper(name)

    def transcribe(audio: NDArray[np.float32]) -> str:
        segments, _ = model.transcribe(audio, language="en", beam_size=1, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)

    return transcribe


def load_whisper(name: str) -> Any:
    """The recogniser itself, as its library gives it. Raises ``ModelUnavailable`` if it was not pulled."""
    from faster_whisper import WhisperModel

    from duologue.engine.models import require

    return WhisperModel(str(require(name)), device="cpu", compute_type="int8")
