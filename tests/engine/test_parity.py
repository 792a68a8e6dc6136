"""Every packaged pipeline says the same with async chunk on and off: real models, greedy sampling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duologue.codecs.wav import read_wav
from duologue.engine.deploy import Overrides, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.pipeline import PACKAGED_PIPELINES
from duologue.engine.requests import (
    AudioDelta,
    ChatMessage,
    Converse,
    EngineRequest,
    Finished,
    Payload,
    Speak,
    TextDelta,
    Transcribe,
    TranscriptDelta,
)


def _assistant(speech_dir: Path) -> list[Payload]:
    from duologue.codecs.pcm import float_to_pcm16

    recording = sorted(speech_dir.glob("*.wav"))[0]
    samples, rate = read_wav(recording)
    question = ChatMessage(role="user", text="Name three animals that live in the sea, and say where each one sleeps.")
    return [
        Transcribe(audio=float_to_pcm16(samples), sample_rate=rate),
        Converse(messages=(question,), temperature=0.0, seed=7),
        Converse(messages=(question,), temperature=0.0, seed=7, max_output_tokens=9),
        Converse(messages=(question,), temperature=0.0, seed=7, modalities=("text",)),
        Speak(text="One clause, and then another one. A second sentence, with $9.99 in it!", seed=7),
    ]


REQUESTS: dict[str, Callable[[Path], list[Payload]]] = {"assistant": _assistant}
"""Requests of every kind that a pipeline takes."""


def test_every_packaged_pipeline_is_compared() -> None:
    assert set(REQUESTS) == set(PACKAGED_PIPELINES)


def _answer(deltas: list[Any]) -> dict[str, Any]:
    finished = deltas[-1]
    assert isinstance(finished, Finished)
    sound = [d for d in deltas if isinstance(d, AudioDelta)]
    return {
        "transcript": "".join(d.text for d in deltas if isinstance(d, TranscriptDelta)),
        "text": "".join(d.text for d in deltas if isinstance(d, TextDelta)),
        "audio": b"".join(d.pcm for d in sound),
        "words": [word for d in sound for word in d.words],
        "end": (finished.reason, finished.usage.output_tokens),
    }


async def _answers(pipeline: str, payloads: list[Payload], overrides: Overrides, folder: Path) -> list[dict[str, Any]]:
    (folder / "deploy.yaml").write_text(f"pipeline: {pipeline}\n")
    engine = Engine(load_deploy(folder / "deploy.yaml", overrides=overrides))
    await engine.start()
    try:
        return [
            _answer(await engine.collect(EngineRequest(request_id=f"r{n}", session_id=f"s{n}", payload=payload)))
            for n, payload in enumerate(payloads)
        ]
    finally:
        await engine.close()


@pytest.mark.models
@pytest.mark.parametrize("pipeline", sorted(REQUESTS))
async def test_async_chunk_on_and_off_give_the_same_final_output(
    pipeline: str, speech_dir: Path, tmp_path: Path
) -> None:
    payloads = REQUESTS[pipeline](speech_dir)
    on = await _answers(pipeline, payloads, Overrides(async_chunk=True), tmp_path)
    off = await _answers(pipeline, payloads, Overrides(async_chunk=False), tmp_path)
    assert on == off
    assert [bool(a["transcript"] or a["text"] or a["audio"]) for a in on] == [True] * len(payloads)
    assert {a["end"][0] for a in on} == {"completed", "length"}
