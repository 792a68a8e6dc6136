"""An engine with the scripted stages, wherever they run: set up, asked, listened to."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from scripted_stages import PIPELINE, TARGETS, ask

from duologue.engine import pipeline as pipelines
from duologue.engine.engine import Engine
from duologue.engine.executors.remote import RemoteReplica
from duologue.engine.pipeline import get_pipeline, register_pipeline, register_stage
from duologue.engine.requests import EngineRequest, TextDelta
from duologue.engine.stream import Stream

TIMEOUT_S = 60.0


class Quiet:
    """Voice activity that hears nothing."""

    def step(self, frames: Any, state: Any) -> tuple[Any, Any]:
        return np.zeros(len(frames), np.float32), state


def know_scripted_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scripted pipeline known until the test ends."""
    get_pipeline("assistant")  # registers itself at its one import, so before the registry is copied
    monkeypatch.setattr(pipelines, "_pipelines", dict(pipelines._pipelines))
    monkeypatch.setattr(pipelines, "_stage_classes", dict(pipelines._stage_classes))
    for stage in PIPELINE.stages:
        register_stage(stage.model_arch, TARGETS[stage.stage_id])
    register_pipeline(PIPELINE)


def open_(engine: Engine, script: str, name: str = "r") -> Stream:
    return engine.open(EngineRequest(request_id=name, session_id="s", payload=ask(script)))


async def read(stream: Stream) -> list[Any]:
    async with asyncio.timeout(TIMEOUT_S):
        return [delta async for delta in stream]


async def say(engine: Engine, script: str, name: str = "r") -> str:
    """The text of an answer, once no stage is at work any more."""
    deltas = await read(open_(engine, script, name))
    assert deltas[-1].reason == "completed", deltas[-1]
    await until_idle(engine)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


async def until_idle(engine: Engine) -> None:
    assert engine._orchestrator is not None
    await asyncio.wait_for(engine._orchestrator.idle(), TIMEOUT_S)


async def restarted(worker: RemoteReplica) -> None:
    """Wait until a replica that died is back or given up."""
    assert worker._supervisor is not None
    await asyncio.wait_for(asyncio.shield(worker._supervisor), TIMEOUT_S)
