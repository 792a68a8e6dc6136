"""What needs the packaged models: async chunk on and off, and how soon each stage stops after an abort."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from duologue.engine.deploy import load_deploy
from duologue.engine.engine import Engine
from duologue.engine.metering import RequestTrace
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    ChatMessage,
    Converse,
    EngineRequest,
    Payload,
    Speak,
    Transcribe,
)
from duologue.engine.stream import Stream
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.trace import next_trace

QUESTION: Final = "Tell me a long story about a lighthouse and the sea."
SENTENCE: Final = "The lamp turned all night, and far out on the water somebody counted the flashes and went on rowing."
TOKENS: Final = 200


class AsyncChunk(msgspec.Struct, frozen=True):
    """Answers one after the other, the first left out."""

    async_chunk: bool
    first_audio: Metric
    end_to_end: Metric
    audio_s: float
    """Seconds of sound of an answer; the same with both, since the words are."""


class StageAborts(msgspec.Struct, frozen=True):
    """A stage's own bound: from an abort while it was at work to its release."""

    stage: str
    until_stopped: Metric


async def measure_async_chunk(answers: int) -> list[AsyncChunk]:
    """The packaged pipeline in this process, once with each setting; each gives so many answers."""
    found = []
    for async_chunk in (True, False):
        async with _engine(f"async_chunk: {str(async_chunk).lower()}\n") as engine:
            runs = [await _answer(engine, str(n)) for n in range(answers + 1)][1:]
        firsts, ends, sound = zip(*runs, strict=True)
        found.append(
            AsyncChunk(
                async_chunk,
                metric(firsts, "ms", "first audio read - request opened, time.monotonic"),
                metric(ends, "ms", "last delta read - request opened, time.monotonic"),
                round(sum(sound) / len(sound), 3),
            )
        )
    return found


async def measure_stage_aborts(count: int) -> list[StageAborts]:
    """So many long answers aborted at their first sound, and so many transcriptions aborted in the middle."""
    times: dict[str, list[float]] = {}

    def note(stopped: dict[str, float]) -> None:
        for stage, milliseconds in stopped.items():
            times.setdefault(stage, []).append(milliseconds)

    async with _engine("") as engine:
        request = _request("speech", Speak(text=SENTENCE, seed=1))
        speech = b"".join(d.pcm for d in await engine.collect(request) if isinstance(d, AudioDelta))
        heard = Transcribe(audio=speech, sample_rate=OUTPUT_SAMPLE_RATE)
        began = time.monotonic()
        await engine.collect(_request("whole", heard))
        half_s = (time.monotonic() - began) / 2
        for n in range(count):
            note(await _aborted_answer(engine, f"answer-{n}"))
            note(await _aborted_transcription(engine, f"heard-{n}", heard, half_s))
    formula = "release reported - abort called, time.monotonic"
    return [StageAborts(stage, metric(values, "ms", formula)) for stage, values in times.items()]


async def _answer(engine: Engine, name: str) -> tuple[float | None, float, float]:
    """Milliseconds to the first and to the last delta, and seconds of sound. Always the likeliest token."""
    began, first, samples = time.monotonic(), None, 0
    async for delta in engine.open(_request(name, _story())):
        if isinstance(delta, AudioDelta):
            samples += len(delta.pcm) // 2
            first = first or (time.monotonic() - began) * 1000
    return first, (time.monotonic() - began) * 1000, samples / OUTPUT_SAMPLE_RATE


async def _aborted_answer(engine: Engine, name: str) -> dict[str, float]:
    with next_trace(name) as trace:
        stream = engine.open(_request(name, _story()))
        async for delta in stream:
            if isinstance(delta, AudioDelta):
                break
        return await _stopped(stream, trace)


async def _aborted_transcription(engine: Engine, name: str, heard: Transcribe, after_s: float) -> dict[str, float]:
    with next_trace(name) as trace:
        stream = engine.open(_request(name, heard))
        await asyncio.sleep(after_s)  # half of what it takes
        return await _stopped(stream, trace)


async def _stopped(stream: Stream, trace: asyncio.Future[RequestTrace]) -> dict[str, float]:
    """Abort; milliseconds until the release of each stage that was still at work."""
    aborted = time.monotonic()
    stream.abort()
    released = (await trace).released
    return {label.split()[0]: (at - aborted) * 1000 for label, at in released.items() if at > aborted}


def _story() -> Converse:
    messages = (ChatMessage(role="user", text=QUESTION),)
    return Converse(messages=messages, max_output_tokens=TOKENS, temperature=0.0, seed=1)


def _request(name: str, payload: Payload) -> EngineRequest:
    return EngineRequest(request_id=name, session_id="bench", payload=payload)


@asynccontextmanager
async def _engine(deploy: str) -> AsyncIterator[Engine]:
    """The packaged pipeline with these lines over its deploy file, started, and closed again."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        file = Path(folder) / "deploy.yaml"
        file.write_text(deploy)
        engine = Engine(load_deploy(file))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
