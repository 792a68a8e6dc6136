"""Which pipeline serves a checkpoint, found from the checkpoint's own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from missing import need_package

from duologue.engine import checkpoints
from duologue.engine import pipeline as pipelines
from duologue.engine.checkpoints import identify, served_name
from duologue.engine.deploy import DeployError, Overrides, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.models import ModelUnavailable, pull
from duologue.engine.models.sources import SourceError
from duologue.engine.pipeline import PipelineConfig, StageConfig, get_pipeline, register_pipeline
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, TextDelta

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
OMNI = {"model_type": "omni_test", "architectures": ["OmniForConditionalGeneration"]}
SEEING = {"model_type": "qwen2_vl", "architectures": ["QwenForConditionalGeneration"], "vision_config": {}}
WHISPER = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}


@pytest.fixture(autouse=True)
def omni_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    get_pipeline("assistant")
    monkeypatch.setattr(pipelines, "_pipelines", dict(pipelines._pipelines))
    stage = StageConfig(0, "omni", "x", accepts=(Converse,), final_output=True, final_output_type="text")
    register_pipeline(PipelineConfig("omni-test", (stage,), model_types=("omni_test",)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def write(config: Any) -> Path:
        folder = tmp_path / "my-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return folder

    return write


def deploy_of(model: object, file: Path | None = None, **stages: Any) -> Any:
    return load_deploy(file, overrides=Overrides(model=str(model), stages=stages))


def test_a_checkpoint_of_a_known_model_type_is_served_by_its_pipeline(checkpoint: Any) -> None:
    folder = checkpoint(OMNI)
    deploy = deploy_of(folder)
    assert (deploy.pipeline, deploy.checkpoint, deploy.file) == ("omni-test", str(folder), None)
    assert Engine(deploy).served_names().models == ("my-model",)


@pytest.mark.parametrize("config", [LLAMA, SEEING])
@pytest.mark.parametrize(("installed", "backend"), [(None, "transformers"), (object(), "vllm")])
def test_a_plain_language_model_becomes_that_of_the_assistant(
    checkpoint: Any, config: Any, installed: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: installed)
    folder = checkpoint(config)
    deploy = deploy_of(folder)
    assert (deploy.pipeline, deploy.checkpoint) == ("assistant", None)
    assert deploy.stage(1).engine_args == {"backend": backend, "model": str(folder)}
    assert deploy.aliases.models["gpt-realtime"] == "default", "over the packaged file"


def test_overrides_of_the_stage_lie_above_the_model(checkpoint: Any) -> None:
    deploy = deploy_of(checkpoint(LLAMA), language_model={"engine_args": {"backend": "own", "x": 1}})
    assert deploy.stage(1).engine_args == {"backend": "own", "model": str(checkpoint(LLAMA)), "x": 1}


def test_the_model_lies_above_the_file_and_the_file_s_pipeline_stands(checkpoint: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("stages: [{stage_id: 1, max_num_seqs: 3, engine_args: {model: other}}]")
    deploy = deploy_of(checkpoint(LLAMA), file)
    assert (deploy.stage(1).max_num_seqs, deploy.stage(1).engine_args["model"]) == (3, str(checkpoint(LLAMA)))
    file.write_text("pipeline: omni-test")
    assert deploy_of(checkpoint(LLAMA), file).pipeline == "omni-test"
    file.write_text("session_mode: turn")
    assert deploy_of(checkpoint(OMNI), file).pipeline == "omni-test", "not that of the packaged file"


def test_a_gguf_file_goes_to_llama_cpp(tmp_path: Path) -> None:
    file = tmp_path / "small.Q4.gguf"
    file.write_bytes(b"GGUF....")
    for model in (file, tmp_path):
        deploy = deploy_of(model)
        assert (deploy.pipeline, deploy.stage(1).engine_args["model"]) == ("assistant", str(file))
        assert Engine(deploy).served_names().models == ("small.Q4",)


@pytest.mark.models
async def test_a_real_gguf_file_is_served(tmp_path: Path) -> None:
    file = tmp_path / "SmolLM2-mine.gguf"
    file.symlink_to(pull("smollm2-135m-instruct"))
    engine = Engine(deploy_of(file))
    assert engine.served_names().models == ("SmolLM2-mine",)
    await engine.start()
    try:
        question = ChatMessage(role="user", text="What is the capital of France?")
        payload = Converse(messages=(question,), modalities=("text",), temperature=0.0, seed=1)
        deltas = await engine.collect(EngineRequest(request_id="r", session_id="s", payload=payload))
    finally:
        await engine.close()
    assert "Paris" in "".join(d.text for d in deltas if isinstance(d, TextDelta))


@pytest.fixture(scope="module", params=["text_model", "picture_model"])
def tiny(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as transformers saves it."""
    need_package("torch")
    import tiny_checkpoints

    folder: Path = getattr(tiny_checkpoints, request.param)(tmp_path_factory.mktemp("tiny") / request.param)
    return folder


@pytest.mark.models
async def test_a_real_checkpoint_of_transformers_is_served(tiny: Path) -> None:
    engine = Engine(deploy_of(tiny, language_model={"engine_args": {"backend": "transformers"}}))
    assert engine.served_names().models == (tiny.name,)
    await engine.start()
    try:
        question = ChatMessage(role="user", text="hello")
        payload = Converse(messages=(question,), modalities=("text",), max_output_tokens=5, temperature=0.0)
        deltas = await engine.collect(EngineRequest(request_id="r", session_id="s", payload=payload))
    finally:
        await engine.close()
    assert deltas[-1].reason in ("completed", "length")
    assert deltas[-1].usage.output_tokens > 0
    assert engine.pipeline.capabilities.image_in is (tiny.name == "picture_model")


def test_a_name_of_the_registry_is_a_model_too() -> None:
    assert deploy_of("smollm2-135m-instruct").stage(1).engine_args["model"] == "smollm2-135m-instruct"


def test_a_hub_id_is_looked_up_by_its_configuration(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(OMNI)
    asked = []

    def fetch(repository: str, name: str) -> Path:
        asked.append((repository, name))
        return folder / name

    monkeypatch.setattr(checkpoints, "fetch_hub_file", fetch)
    deploy = deploy_of("someone/Some-Omni.7B")
    assert (deploy.pipeline, deploy.checkpoint) == ("omni-test", "someone/Some-Omni.7B")
    assert asked == [("someone/Some-Omni.7B", "config.json")]


def test_the_hub_s_own_cache_is_read_before_the_network(
    checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "models--someone--cached" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (tmp_path / "models--someone--cached" / "refs").mkdir()
    (tmp_path / "models--someone--cached" / "refs" / "main").write_text("abc")
    (cached / "config.json").write_text(json.dumps(OMNI))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert identify("someone/cached").model_type == "omni_test"
    with pytest.raises(ModelUnavailable, match=r"the hub is switched off \(HF_HUB_OFFLINE\)\. Download"):
        identify("someone/absent")


def test_a_hub_that_cannot_be_reached_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(repository: str, name: str) -> Path:
        raise SourceError("the hub did not deliver its config.json (no route to host)")

    monkeypatch.setattr(checkpoints, "fetch_hub_file", fetch)
    with pytest.raises(ModelUnavailable) as caught:
        identify("someone/model")
    assert str(caught.value) == (
        "Model 'someone/model': the hub did not deliver its config.json (no route to host). "
        "Download the checkpoint and give the path of its folder or .gguf file."
    )


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ("./nowhere", "Model path './nowhere' does not exist"),
        ("small.gguf", "Model path 'small.gguf' does not exist"),
        ("a/b/c", "is neither a path that exists, nor one of 'duologue models list', nor a hub id"),
        ("llama", "is neither a path that exists"),
        ("whisper-base", "writes no text"),
    ],
)
def test_what_is_no_model_is_one_clear_line(model: str, rule: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        identify(model)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ("{", "its config.json cannot be read"),
        ("[]", "its config.json is not an object"),
        ({"model_type": 3}, "model_type in its config.json is not a string"),
        ({"architectures": "X"}, "architectures in its config.json is not a list of strings"),
    ],
)
def test_a_broken_configuration_is_one_clear_line(checkpoint: Any, config: Any, rule: str) -> None:
    with pytest.raises(ModelUnavailable, match=rule):
        identify(str(checkpoint(config)))


def test_files_that_are_no_checkpoint_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"has no config\.json and no \.gguf file"):
        identify(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"nonsense")
    with pytest.raises(ModelUnavailable, match="is no GGUF file"):
        identify(str(tmp_path / "a.gguf"))
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match=r"has no config\.json and 2 \.gguf files; name one"):
        identify(str(tmp_path))


def test_a_checkpoint_that_nothing_runs_lists_what_would(checkpoint: Any) -> None:
    with pytest.raises(DeployError, match=r"\('WhisperForConditionalGeneration', 'whisper'\)\. Known: .*omni_test"):
        deploy_of(checkpoint(WHISPER))


def test_clients_see_the_name_of_a_path_and_not_where_it_is(tmp_path: Path) -> None:
    assert served_name(str(tmp_path)) == tmp_path.name
    assert served_name("/models/x.gguf") == "x"
    assert served_name("owner/name") == "owner/name"
    assert served_name("smollm2-135m-instruct") == "smollm2-135m-instruct"
