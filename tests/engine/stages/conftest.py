"""Loaded stages, a context that records, the real recordings with their words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import read_wav
from duologue.engine.models import pull
from duologue.engine.requests import EngineRequest, Payload, Speak, Transcribe
from duologue.engine.stage import Stage
from duologue.engine.stages.codec import HarmonicNoiseCodec
from duologue.engine.stages.recogniser import WhisperRecogniser
from duologue.engine.stages.talker import HibariTalker


class Recorder:
    """A stage context that keeps what is emitted, and may hand it on to another stage."""

    def __init__(self, request: EngineRequest, then: Callable[[Any], None] | None = None) -> None:
        self.request = request
        self.pieces: list[Any] = []
        self.aborted = self.outranked = False
        self.made_s = 0.0
        self.left_s = math.inf
        self._then = then

    def emit(self, piece: Any) -> bool:
        self.pieces.append(piece)
        if self._then is not None:
            self._then(piece)
        return not self.aborted

    def made(self, seconds: float) -> None:
        self.made_s += seconds

    def give_way(self) -> bool:
        return not self.aborted


def request(payload: Payload, session_id: str = "s", request_id: str = "r") -> EngineRequest:
    return EngineRequest(request_id=request_id, session_id=session_id, payload=payload)


def run(stage: Stage, payload: Payload, pieces: list[Any] | None = None, **ids: str) -> list[Any]:
    """Everything that ``stage`` emits for one request."""
    context = Recorder(request(payload, **ids))
    state = stage.start(context.request)
    for piece in pieces if pieces is not None else [payload]:
        stage.process(state, piece, context)
    stage.finish(state, context)
    stage.release(state)
    return context.pieces


@pytest.fixture(scope="session")
def run_stage() -> Callable[..., list[Any]]:
    return run


@pytest.fixture(scope="session")
def recorder() -> Callable[..., Recorder]:
    return lambda payload, then=None: Recorder(request(payload), then)


@pytest.fixture(scope="session")
def recordings(speech_dir: Path) -> dict[str, tuple[NDArray[np.float32], str]]:
    """Samples at 16 kHz and the words spoken, by file name."""
    found = {}
    for line in (speech_dir / "README.md").read_text(encoding="utf-8").splitlines():
        names, _, rest = line.strip("| ").partition("|")
        words = [part.strip() for part in rest.partition("|")[0].split(";")]
        for name, spoken in zip(re.findall(r"[\w-]+\.wav", names), words, strict=False):
            samples, rate = read_wav(speech_dir / name)
            assert rate == 16_000
            found[name] = (samples, spoken)
    assert len(found) == 12
    return found


@pytest.fixture(scope="session")
def recogniser() -> Iterator[WhisperRecogniser]:
    pull("whisper-tiny.en")
    stage = WhisperRecogniser()
    stage.load()
    stage.warm_up()
    yield stage
    stage.close()


@pytest.fixture(scope="session")
def transcribe(recogniser: WhisperRecogniser) -> Callable[..., str]:
    """Words in float samples at a rate."""

    def words_in(samples: NDArray[np.float32], rate: int = 16_000, **fields: Any) -> str:
        payload = Transcribe(audio=float_to_pcm16(samples), sample_rate=rate, **fields)
        return "".join(delta.text for delta in run(recogniser, payload))

    return words_in


@pytest.fixture(scope="session")
def talker() -> Iterator[HibariTalker]:
    stage = HibariTalker()
    stage.load()
    stage.warm_up()
    yield stage
    stage.close()


@pytest.fixture(scope="session")
def speak(talker: HibariTalker) -> Callable[..., list[Any]]:
    """Audio deltas of a text through talker and codec, as ``Speak`` or as pieces of text."""

    def speak(text: str, pieces: list[Any] | None = None, **fields: Any) -> list[Any]:
        payload = Speak(text=text, **fields)
        codec = HarmonicNoiseCodec()
        sound = Recorder(request(payload))
        reply = codec.start(sound.request)
        clauses = Recorder(sound.request, lambda piece: codec.process(reply, piece, sound))
        talk = talker.start(clauses.request)
        for piece in pieces or [payload]:
            talker.process(talk, piece, clauses)
        talker.finish(talk, clauses)
        codec.finish(reply, sound)
        return sound.pieces

    return speak
