"""Declaring a pipeline: every broken rule is refused with pipeline, stage and rule."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from duologue.engine import pipeline as module
from duologue.engine.pipeline import (
    PipelineConfig,
    PipelineError,
    StageConfig,
    get_pipeline,
    pipeline_for_checkpoint,
    register_pipeline,
    register_stage,
    stage_class,
)
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, Speak, Transcribe


def stage(stage_id: int, name: str, **fields: Any) -> StageConfig:
    if fields.pop("final", False):
        fields |= {"final_output": True, "final_output_type": fields.get("final_output_type", "text")}
    return StageConfig(stage_id, name, "arch", **fields)


ENTRY = stage(0, "first", accepts=(Converse,), final=True)


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ((), "Pipeline 'p' has no stages"),
        ((ENTRY, stage(0, "other", input_sources=(0,))), r"stage 'other' \(0\): another stage has the same id"),
        ((ENTRY, stage(1, "first", input_sources=(0,))), r"stage 'first' \(1\): another stage has the same name"),
        ((ENTRY, stage(1, "lost", input_sources=(7,))), r"stage 'lost' \(1\): input source 7 is no stage"),
        ((ENTRY, stage(1, "orphan")), r"stage 'orphan' \(1\): it has neither input_sources nor accepts"),
        (
            (ENTRY, stage(1, "a", input_sources=(0, 2)), stage(2, "b", input_sources=(1,))),
            "stages 'a', 'b' form a cycle",
        ),
        ((stage(0, "self", input_sources=(0,), accepts=(Speak,), final=True),), "'self' form a cycle"),
        (
            (stage(0, "a", input_sources=(1,), final=True), stage(1, "b", input_sources=(0,))),
            "form a cycle",
        ),
        ((stage(0, "a", accepts=(Speak,)),), "has no final stage"),
        (
            (ENTRY, stage(1, "b", accepts=(Speak, Converse))),
            r"stage 'b' \(1\): 'Converse' already enters at stage 'first'",
        ),
        ((stage(0, "a", accepts=(Speak,), final_output=True),), "final_output and final_output_type go together"),
        ((stage(0, "a", accepts=(Speak,), final=True, max_num_seqs=0),), "max_num_seqs is 0"),
    ],
)
def test_a_broken_rule_is_named(stages: tuple[StageConfig, ...], sentence: str) -> None:
    with pytest.raises(PipelineError, match=sentence):
        PipelineConfig("p", stages)


def test_a_pipeline_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        PipelineConfig("p", (ENTRY,)).name = "q"  # type: ignore[misc]


def request(payload: Any) -> EngineRequest:
    return EngineRequest(request_id="r", session_id="s", payload=payload)


MESSAGES = (ChatMessage(role="user", text="hi"),)


def chained() -> PipelineConfig:
    """A recogniser that feeds the language model, as in a pipeline that listens natively."""
    return PipelineConfig(
        "chained",
        (
            stage(3, "codec", input_sources=(2,), final=True, final_output_type="audio"),
            stage(1, "model", input_sources=(0,), accepts=(Converse,), final=True),
            stage(0, "recogniser", accepts=(Transcribe,), final=True),
            stage(2, "talker", input_sources=(1,), accepts=(Speak,)),
        ),
    )


@pytest.mark.parametrize(
    ("payload", "used"),
    [
        (Transcribe(audio=b"", sample_rate=16_000), (0,)),
        (Converse(messages=MESSAGES, modalities=("text",)), (1,)),
        (Converse(messages=MESSAGES), (1, 2, 3)),
        (Converse(messages=MESSAGES, modalities=("audio",)), (1, 2, 3)),
        (Speak(text="x"), (2, 3)),
    ],
)
def test_a_request_uses_the_stages_up_to_the_nearest_output_it_wants(payload: Any, used: tuple[int, ...]) -> None:
    route = chained().route(request(payload))
    assert route.entry == used[0]
    assert route.stages == used
    assert route.sources[used[0]] == ()
    assert route.targets[used[-1]] == ()


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    get_pipeline("assistant")  # registers itself at its one import, so before the registry is copied
    monkeypatch.setattr(module, "_pipelines", dict(module._pipelines))
    monkeypatch.setattr(module, "_stage_classes", dict(module._stage_classes))


@pytest.mark.usefixtures("clean_registry")
def test_registration_by_name_and_model_type() -> None:
    made = register_pipeline(PipelineConfig("mine", (ENTRY,), model_types=("my_model",)))
    assert get_pipeline("mine") is made
    assert pipeline_for_checkpoint("my_model") is made
    assert register_pipeline(made) is made
    with pytest.raises(PipelineError, match="'mine' is already registered"):
        register_pipeline(PipelineConfig("mine", (ENTRY,)))
    with pytest.raises(PipelineError, match="'my_model' already belongs to 'mine'"):
        register_pipeline(PipelineConfig("other", (ENTRY,), model_types=("my_model",)))
    with pytest.raises(PipelineError, match=r"Unknown pipeline 'nope'\. Known: .*mine"):
        get_pipeline("nope")
    with pytest.raises(PipelineError, match=r"no pipeline runs .* \('Nope', 'nope'\)\. Known: .*my_model"):
        pipeline_for_checkpoint("nope", ["Nope"])


def test_every_stage_states_what_it_still_computes_after_an_abort() -> None:
    for name in module.PACKAGED_PIPELINES:
        for stage in get_pipeline(name).stages:
            assert "abort" in (module.stage_class(stage.model_arch).__doc__ or ""), stage.model_arch


@pytest.mark.usefixtures("clean_registry")
def test_an_architecture_goes_before_a_model_type() -> None:
    whole = register_pipeline(PipelineConfig("whole", (ENTRY,), model_types=("omni",)))
    part = register_pipeline(PipelineConfig("part", (ENTRY,), architectures=("OmniThinker",)))
    assert pipeline_for_checkpoint("omni", ["OmniModel"]) is whole
    assert pipeline_for_checkpoint("omni", ["OmniThinker"]) is part
    with pytest.raises(PipelineError, match="architecture 'OmniThinker' already belongs to 'part'"):
        register_pipeline(PipelineConfig("other", (ENTRY,), architectures=("OmniThinker",)))


@pytest.mark.usefixtures("clean_registry")
def test_a_stage_class_is_imported_only_when_it_is_asked_for() -> None:
    register_stage("there", "duologue.engine.stage:Stage")
    register_stage("not-a-stage", "duologue.engine.stage:Any")
    register_stage("no-module", "duologue.engine.nowhere:Stage")
    assert stage_class("there").__name__ == "Stage"
    with pytest.raises(PipelineError, match="is not a Stage"):
        stage_class("not-a-stage")
    with pytest.raises(ModuleNotFoundError):
        stage_class("no-module")
    with pytest.raises(PipelineError, match=r"Unknown stage class 'nope'\. Known: .*there"):
        stage_class("nope")
    with pytest.raises(PipelineError, match="'there' is already registered"):
        register_stage("there", "elsewhere:Stage")


def test_the_packaged_pipeline_imports_no_inference_library_before_load() -> None:
    script = (
        "import sys; from duologue.engine.engine import Engine; from duologue.engine.deploy import load_deploy;"
        "Engine(load_deploy());"
        "heavy = {'onnxruntime', 'xllamacpp', 'ctranslate2', 'faster_whisper', 'hibari', 'torch'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pipeline_of_one_s_own_is_found_by_module_and_name() -> None:
    import scripted_stages

    assert get_pipeline("scripted_stages:PIPELINE") is scripted_stages.PIPELINE
    with pytest.raises(PipelineError, match="'TARGETS' of module 'scripted_stages' is no PipelineConfig"):
        get_pipeline("scripted_stages:TARGETS")
    with pytest.raises(PipelineError, match="cannot be imported: No module named 'nowhere'"):
        get_pipeline("nowhere:X")
