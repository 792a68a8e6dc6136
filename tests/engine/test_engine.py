"""The engine as a whole: start, health, names, generate, metrics, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_calls import Quiet
from prometheus_client import REGISTRY, generate_latest

from duologue.engine import pipeline as pipelines
from duologue.engine.deploy import DeployError, load_deploy
from duologue.engine.engine import Engine, RequestRefused, ServedNames, StageProgress
from duologue.engine.models import ModelUnavailable
from duologue.engine.pipeline import (
    Capabilities,
    PipelineConfig,
    StageConfig,
    get_pipeline,
    register_pipeline,
    register_stage,
)
from duologue.engine.requests import (
    AudioDelta,
    ChatMessage,
    Converse,
    EngineRequest,
    Finished,
    Speak,
    TextDelta,
    Transcribe,
)
from duologue.engine.voice_activity import VoiceActivityError


@pytest.fixture
def module(kit: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline ``tested`` whose stage classes live in this namespace, for a test to change before the start."""
    log: list[str] = []

    class Model(kit.Scripted):  # type: ignore[misc]
        def __init__(self, model: str = "unset", max_num_seqs: int = 0, temperature: float = 0.0, sampling: Any = None):
            super().__init__()
            self.settings = (model, max_num_seqs, temperature, sampling)
            module.made = self

        def load(self) -> None:
            log.append(f"load {os.environ.get('DUOLOGUE_TEST_STAGE_ENV')}")

        def warm_up(self) -> None:
            log.append("warm")

        def process(self, state: Any, piece: Any, context: Any) -> None:
            context.emit(TextDelta(text=f"{self.settings}"))

    class Voice(kit.Scripted):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def process(self, state: Any, piece: Any, context: Any) -> None:
            context.emit(AudioDelta(pcm=b"\0\0"))

    module = types.ModuleType("tested_stages")
    module.Model, module.Voice, module.log, module.made = Model, Voice, log, None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tested_stages", module)
    get_pipeline("assistant")  # registers itself at its one import, so before the registry is copied
    monkeypatch.setattr(pipelines, "_pipelines", dict(pipelines._pipelines))
    monkeypatch.setattr(pipelines, "_stage_classes", dict(pipelines._stage_classes))
    register_stage("tested_model", "tested_stages:Model")
    register_stage("tested_voice", "tested_stages:Voice")
    register_pipeline(
        PipelineConfig(
            "tested",
            (
                StageConfig(
                    0,
                    "thinker",
                    "tested_model",
                    accepts=(Converse, Transcribe),
                    final_output=True,
                    final_output_type="text",
                    model="little-model",
                    max_num_seqs=3,
                ),
                StageConfig(
                    1,
                    "speaker",
                    "tested_voice",
                    input_sources=(0,),
                    accepts=(Speak,),
                    final_output=True,
                    final_output_type="audio",
                    voices=("heart", "bella"),
                ),
            ),
        )
    )
    return module


@pytest.fixture
def engine_of(tmp_path: Path, module: Any) -> Callable[..., Engine]:
    def make(text: str = "", voice_activity: Callable[[], Any] = Quiet) -> Engine:
        (tmp_path / "tested.yaml").write_text("pipeline: tested\n" + text)
        return Engine(load_deploy(tmp_path / "tested.yaml"), voice_activity)

    return make


def ask(name: str = "r", payload: Any = None) -> EngineRequest:
    payload = payload or Converse(messages=(ChatMessage(role="user", text="hi"),))
    return EngineRequest(request_id=name, session_id="s", payload=payload)


async def test_start_loads_then_warms_up_every_stage_and_reports_it(engine_of: Any, module: Any) -> None:
    engine = engine_of()
    assert engine.health().ready is False
    with pytest.raises(RequestRefused, match="not running"):
        engine.open(ask())
    seen: list[StageProgress] = []
    ready_during_start: list[bool] = []

    def progress(step: StageProgress) -> None:
        seen.append(step)
        ready_during_start.append(engine.health().ready)

    await engine.start(progress)
    for stage, states in {
        "thinker": ["loading", "warming_up", "ready"],
        "speaker": ["loading", "warming_up", "ready"],
        "voice_activity": ["loading", "ready"],
    }.items():
        assert [s.state for s in seen if s.stage == stage] == states
    assert ready_during_start == [False] * 8
    assert module.log == ["load None", "warm"]
    health = engine.health()
    assert health.ready
    assert set(health.stages.values()) == {"ready"}
    deltas = await engine.collect(ask())
    assert deltas[0] == TextDelta(text="('little-model', 3, 0.0, None)")
    assert deltas[-1] == Finished(reason="completed")
    await engine.close()
    await engine.close()
    assert engine.health().ready is False
    assert module.made.closed == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_deploy_values_reach_the_stage(engine_of: Any, module: Any) -> None:
    engine = engine_of(
        "stages: [{stage_id: 0, max_num_seqs: 7, engine_args: {model: big-model, temperature: 0.5}, "
        "sampling: {top_p: 0.9}, env: {DUOLOGUE_TEST_STAGE_ENV: 1}}]"
    )
    assert engine.served_names() == ServedNames(("big-model",), ("heart", "bella"), ("big-model",))
    await engine.start()
    assert module.made.settings == ("big-model", 7, 0.5, {"top_p": 0.9})
    assert module.log[0] == "load 1"
    assert "DUOLOGUE_TEST_STAGE_ENV" not in os.environ
    await engine.close()


async def test_an_unknown_engine_argument_stops_the_start_by_name(engine_of: Any) -> None:
    engine = engine_of("stages: [{stage_id: 0, engine_args: {temprature: 1}}]")
    with pytest.raises(
        DeployError, match=r"tested\.yaml: stage 'thinker' \(0\): engine_args: .*'temprature'"
    ) as caught:
        await engine.start()
    assert "Known: model, max_num_seqs, temperature, sampling" in str(caught.value)


@pytest.mark.parametrize("step", ["load", "warm_up"])
async def test_a_stage_that_cannot_come_up_fails_the_start_and_leaves_nothing(
    engine_of: Any, module: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(self: Any) -> None:
        raise FileNotFoundError("weights.bin is missing")

    monkeypatch.setattr(module.Voice, step, broken)
    engine = engine_of()
    states: list[tuple[str, str]] = []
    with pytest.raises(FileNotFoundError, match=r"weights\.bin is missing"):
        await engine.start(lambda p: states.append((p.stage, p.state)))
    assert ("speaker", "failed") in states
    assert engine.health().ready is False
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stages_load_side_by_side(engine_of: Any, module: Any, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    monkeypatch.setattr(module.Model, "load", lambda self: both.wait(kit.timeout_s))
    monkeypatch.setattr(module.Voice, "load", lambda self: both.wait(kit.timeout_s))
    engine = engine_of()
    await engine.start()
    await engine.close()


async def test_a_cancelled_start_leaves_nothing(engine_of: Any, module: Any, kit: Any, monkeypatch: Any) -> None:
    gate, inside = kit.Gate(), kit.Signal()

    def slow(self: Any) -> None:
        inside.set()
        gate.wait()

    monkeypatch.setattr(module.Model, "load", slow)
    engine = engine_of()
    starting = asyncio.create_task(engine.start())
    await inside.wait()
    starting.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_stage_without_limit_of_replicas_shares_the_requests(engine_of: Any, kit: Any, module: Any) -> None:
    met = threading.Barrier(4)
    names: set[str] = set()

    def process(self: Any, state: Any, piece: Any, context: Any) -> None:
        met.wait(kit.timeout_s)  # passes only if two replicas with two workers each have one request
        names.add(context.request.request_id)

    module.Model.process = process
    engine = engine_of("stages: [{stage_id: 0, replicas: 2, max_num_seqs: 2}]")
    await engine.start()
    text = Converse(messages=(ChatMessage(role="user", text="hi"),), modalities=("text",))
    await asyncio.gather(*(engine.collect(ask(str(n), text)) for n in range(4)))
    assert names == set("0123")
    await engine.close()


async def test_health_is_not_ready_when_voice_activity_has_failed(engine_of: Any) -> None:
    class Broken(Quiet):
        def step(self, frames: Any, state: Any) -> tuple[Any, Any]:
            if frames.any():
                raise RuntimeError("gone")
            return super().step(frames, state)

    engine = engine_of(voice_activity=Broken)
    await engine.start()
    stream = engine.voice_activity.open(lambda p: None)
    stream.feed(np.ones(512, np.float32))
    with pytest.raises(VoiceActivityError, match="gone"):
        await asyncio.wait_for(stream.wait_below(1), 5)
    assert not engine.health().ready
    assert engine.health().stages["voice_activity"] == "failed"
    await engine.close()


class Sure:
    def finished(self, samples: Any) -> float:
        return 0.9


def hearing(engine: Engine, turn_model: Callable[[], Any]) -> Engine:
    """``engine`` as one whose pipeline takes sound, with this turn model."""
    engine = Engine(engine.deploy, Quiet, turn_model)
    engine.pipeline = replace(engine.pipeline, capabilities=Capabilities(audio_in=True))
    return engine


async def test_the_turn_model_answers_and_is_one_of_the_capabilities(engine_of: Any) -> None:
    engine = hearing(engine_of(), Sure)
    assert not engine.pipeline.capabilities.turn_model
    await engine.start()
    assert engine.pipeline.capabilities.turn_model
    answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
    engine.turn_model.ask(b"\0\0" * 1600, 16_000, answer.set_result)
    assert await asyncio.wait_for(answer, 10) == 0.9
    await engine.close()
    assert not engine.turn_model.running


async def test_an_engine_without_its_turn_model_starts_and_says_so(
    engine_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Any:
        raise ModelUnavailable("Model 'x' is not in the cache: run 'duologue models pull x'.")

    engine = hearing(engine_of(), missing)
    await engine.start()
    assert engine.health().ready
    assert not engine.pipeline.capabilities.turn_model
    assert "models pull x" in caplog.text
    await engine.close()


@pytest.mark.parametrize("hears", [True, False])
async def test_no_turn_model_is_loaded_where_none_is_wanted(engine_of: Any, hears: bool) -> None:
    loaded: list[str] = []
    engine = hearing(engine_of("duplex_session: {turn_model: null}" if hears else ""), lambda: loaded.append("x"))
    if not hears:
        engine.pipeline = replace(engine.pipeline, capabilities=Capabilities())
    await engine.start()
    await engine.close()
    assert loaded == []


def test_generate_is_one_blocking_call(engine_of: Any) -> None:
    deltas = engine_of().generate(ask(payload=Speak(text="x")))
    assert deltas == [AudioDelta(pcm=b"\0\0"), Finished(reason="completed")]


def test_alias_tables_resolve_and_a_wrong_target_is_refused(engine_of: Any) -> None:
    names = engine_of().served_names()
    assert names.table("voices", {"alloy": "default", "b": "bella"}) == {
        "heart": "heart",
        "bella": "bella",
        "default": "heart",
        "alloy": "heart",
        "b": "bella",
    }
    with pytest.raises(DeployError, match=r"tested\.yaml: aliases\.voices: 'siri' stands for 'samantha', which is not"):
        engine_of("aliases: {voices: {siri: samantha}}")


async def test_metrics_count_each_outcome_once_and_depth_vanishes_with_the_engine(
    engine_of: Any, module: Any, kit: Any
) -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    def process(self: Any, state: Any, piece: Any, context: Any) -> None:
        if context.request.request_id == "stopped":
            gate.wait()
        if context.request.request_id == "bad":
            raise RuntimeError("broken")

    gate = kit.Gate()
    module.Model.process = process
    reasons = ("completed", "failed", "aborted")
    before = {r: value("duologue_requests_total", finished_reason=r) for r in reasons}
    failed = value("duologue_requests_failed_total", reason="stage_error")
    engine = engine_of()
    await engine.start()
    stopped = engine.open(ask("stopped"))
    assert value("duologue_stage_in_flight", stage="thinker", replica="0") == 1
    stopped.abort()
    stopped.abort()
    gate.open()
    await engine.collect(ask("good"))
    await engine.collect(ask("bad"))
    await engine._orchestrator.idle()  # type: ignore[union-attr]
    assert {r: value("duologue_requests_total", finished_reason=r) - before[r] for r in reasons} == dict.fromkeys(
        reasons, 1
    )
    assert value("duologue_requests_failed_total", reason="stage_error") - failed == 1
    assert value("duologue_stage_gen_time_s_count", stage="thinker", replica="0") == 3
    await engine.close()
    assert not [line for line in generate_latest().splitlines() if b"in_flight{" in line and b"thinker" in line]
