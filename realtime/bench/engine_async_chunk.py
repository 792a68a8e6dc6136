"""Chunk by chunk against stage by stage: a long answer of the packaged pipeline, ``async_chunk`` on and off."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from duologue.engine.deploy import load_deploy
from duologue.engine.engine import Engine
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, AudioDelta, ChatMessage, Converse, EngineRequest
from duologue.realtime.bench.summary import Metric, metric

QUESTION: Final = "Tell me a long story about a lighthouse and the sea."
TOKENS: Final = 200


class AsyncChunk(msgspec.Struct, frozen=True):
    """Answers one after the other, the first left out."""

    async_chunk: bool
    first_audio: Metric
    end_to_end: Metric
    audio_s: float
    """Seconds of sound of an answer; the same with both, since the words are."""


async def measure_async_chunk(answers: int) -> list[AsyncChunk]:
    """The packaged pipeline in this process, once with each setting; each gives so many answers."""
    return [await _measure(wanted, answers) for wanted in (True, False)]


async def _measure(async_chunk: bool, answers: int) -> AsyncChunk:
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        deploy = Path(folder) / "deploy.yaml"
        deploy.write_text(f"async_chunk: {str(async_chunk).lower()}\n")
        engine = Engine(load_deploy(deploy))
    await engine.start()
    try:
        runs = [await _answer(engine, str(n)) for n in range(answers + 1)][1:]
    finally:
        await engine.close()
    firsts, ends, sound = zip(*runs, strict=True)
    return AsyncChunk(
        async_chunk,
        metric(firsts, "ms", "first audio read - request opened, time.monotonic"),
        metric(ends, "ms", "last delta read - request opened, time.monotonic"),
        round(sum(sound) / len(sound), 3),
    )


async def _answer(engine: Engine, name: str) -> tuple[float | None, float, float]:
    """Milliseconds to the first and to the last delta, and seconds of sound. Always the likeliest token."""
    messages = (ChatMessage(role="user", text=QUESTION),)
    payload = Converse(messages=messages, max_output_tokens=TOKENS, temperature=0.0, seed=1)
    began, first, samples = time.monotonic(), None, 0
    async for delta in engine.open(EngineRequest(request_id=name, session_id="bench", payload=payload)):
        if isinstance(delta, AudioDelta):
            samples += len(delta.pcm) // 2
            first = first or (time.monotonic() - began) * 1000
    return first, (time.monotonic() - began) * 1000, samples / OUTPUT_SAMPLE_RATE
