"""The deploy file: overlays, and errors that name file, path and rule."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from duologue.engine import pipeline as pipelines
from duologue.engine.deploy import (
    DEFAULT_FILE,
    DeployConfig,
    DeployError,
    Overrides,
    StageDeploy,
    load_deploy,
    parse_stage_overrides,
)
from duologue.engine.deploy.devices import visible_devices
from duologue.engine.deploy.load import FOLDER
from duologue.engine.engine import Engine
from duologue.engine.pipeline import Capabilities, PipelineConfig, StageConfig, get_pipeline, register_pipeline
from duologue.engine.requests import Converse, Speak

STOCK = {
    "models": "gpt-realtime gpt-realtime-mini gpt-4o-realtime-preview gpt-4o-mini-realtime-preview "
    "gpt-4o-mini-tts tts-1 tts-1-hd",
    "transcription_models": "whisper-1 gpt-4o-transcribe gpt-4o-mini-transcribe gpt-realtime-whisper",
    "voices": "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse",
}


@pytest.fixture(autouse=True)
def small_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    get_pipeline("assistant")  # registers itself at its one import, so before the registry is copied
    monkeypatch.setattr(pipelines, "_pipelines", dict(pipelines._pipelines))
    register_pipeline(
        PipelineConfig(
            "small",
            (
                StageConfig(0, "thinker", "x", accepts=(Converse,), final_output=True, final_output_type="text"),
                StageConfig(1, "talker", "x", input_sources=(0,), accepts=(Speak,)),
            ),
            Capabilities(audio_out=True),
        )
    )
    register_pipeline(
        PipelineConfig(
            "duplex",
            (StageConfig(0, "model", "x", accepts=(Converse,), final_output=True, final_output_type="text"),),
            Capabilities(native_duplex=True),
        )
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(text: str, name: str = "my.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_every_packaged_file_loads() -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert DEFAULT_FILE in files
    for file in files:
        assert isinstance(load_deploy(file), DeployConfig)


def test_the_default_file_is_nearly_empty_and_knows_the_names_of_stock_clients() -> None:
    config = load_deploy()
    assert config.pipeline == "assistant"
    assert config.stages == []
    assert config.instructions
    assert config.duplex_session.max_sessions == 64
    for kind, names in STOCK.items():
        assert set(names.split()) <= set(getattr(config.aliases, kind))


def test_a_file_is_laid_over_the_packaged_one(write: Callable[..., Path]) -> None:
    path = write("instructions: Be brief.\nlimits: {max_turn_s: 30}\naliases: {voices: {siri: default}}\n")
    config = load_deploy(path)
    assert config.file == path
    assert config.instructions == "Be brief."
    assert config.limits == {"max_turn_s": 30}
    assert config.aliases.voices == {"siri": "default"}, "an alias table replaces the one below"
    assert "gpt-realtime" in config.aliases.models


def test_overlays_merge_stages_by_id_and_replace_the_rest(write: Callable[..., Path]) -> None:
    write(
        """
pipeline: small
session_mode: turn
duplex_session: {max_sessions: 8, resume_window_s: 5}
stages:
  - {stage_id: 0, max_num_seqs: 32, engine_args: {a: 1, deep: {x: 1, y: 2}}, executor: process, devices: [0]}
  - {stage_id: 1, max_num_seqs: 4}
""",
        "base.yaml",
    )
    config = load_deploy(
        write(
            """
base_config: base.yaml
duplex_session: {max_sessions: 2}
stages:
  - {stage_id: 0, max_num_seqs: 8, engine_args: {deep: {y: 3}}, devices: null}
"""
        )
    )
    assert config.stage(0) == StageDeploy(
        stage_id=0, max_num_seqs=8, engine_args={"a": 1, "deep": {"x": 1, "y": 3}}, devices=[0], executor="process"
    )
    assert config.stage(1).max_num_seqs == 4
    assert config.duplex_session.max_sessions == 2
    assert config.duplex_session.resume_window_s == 5
    assert config.stage(9) == StageDeploy(stage_id=9)


def test_the_platform_section_lies_between_base_and_overlay(write: Callable[..., Path]) -> None:
    write(
        """
pipeline: small
stages: [{stage_id: 0, max_num_seqs: 1, engine_args: {threads: 2}}]
platforms:
  cpu: {stages: [{stage_id: 0, max_num_seqs: 2}]}
  cuda: {stages: [{stage_id: 0, max_num_seqs: 64}]}
""",
        "base.yaml",
    )
    overlay = write("base_config: base.yaml\nstages: [{stage_id: 0, sampling: {top_p: 0.5}}]\n")
    assert load_deploy(overlay, platform="cuda").stage(0).max_num_seqs == 64
    on_cpu = load_deploy(overlay, platform="cpu").stage(0)
    assert (on_cpu.max_num_seqs, on_cpu.engine_args, on_cpu.sampling) == (2, {"threads": 2}, {"top_p": 0.5})


@pytest.mark.parametrize(
    ("text", "path", "rule"),
    [
        ("nonsense: 1", "", "unknown key 'nonsense'. Known: base_config, platforms, pipeline"),
        ("file: x", "", "unknown key 'file'"),
        ("- a", "", "expected a mapping at the top level, found a list"),
        ("pipeline: nope", "pipeline: ", "Unknown pipeline 'nope'. Known: "),
        ("base_config: 3", "base_config: ", "expected a file name"),
        ("base_config: my.yaml", "base_config: ", "the files lead in a circle"),
        ("pipeline: small\nstages: [{stage_id: 0, gpus: 1}]", "stages[0]: ", "unknown key 'gpus'"),
        ("pipeline: small\nstages: [{}]", "stages[0]: ", "Object missing required field `stage_id`"),
        ("pipeline: small\nstages: [{stage_id: 0, replicas: 0}]", "stages[0].replicas: ", "Expected `int` >= 1"),
        (
            "pipeline: small\nstages: [{stage_id: 0, replica_policy: random}]",
            "stages[0].replica_policy: ",
            "Invalid enum value 'random'",
        ),
        ("pipeline: small\nstages: [{stage_id: 5}]", "stages[0].stage_id: ", "has no stage 5; it has 0 (thinker)"),
        ("pipeline: small\nstages: [{stage_id: 0}, {stage_id: 0}]", "stages[1].stage_id: ", "stage 0 has two entries"),
        ("pipeline: small\nstages: {stage_id: 0}", "stages: ", "Expected `array`, got `object`"),
        (
            "pipeline: small\nstages: [{stage_id: 1, executor: slurm}]",
            "stages[0].executor: ",
            "stage 'talker' cannot run in executor 'slurm'. Available: inline, process, ray",
        ),
        (
            "pipeline: small\nstages: [{stage_id: 1, executor: process, resources: {num_cpus: 2}}]",
            "stages[0].resources: ",
            "stage 'talker' does not run in executor 'ray', which they are for",
        ),
        (
            "pipeline: small\nstages: [{stage_id: 1, replicas: 2, autoscale: {max_replicas: 2}}]",
            "stages[0].replicas: ",
            "stage 'talker' has 'autoscale', which sets their number",
        ),
        (
            "pipeline: small\nstages: [{stage_id: 1, autoscale: {min_replicas: 3, max_replicas: 2}}]",
            "stages[0].autoscale: ",
            "min_replicas is 3, max_replicas 2; the first is at most the second",
        ),
        ("pipeline: small\nray: {adress: auto}", "ray: ", "unknown key 'adress'"),
        ("pipeline: small\nray: {silent_after_s: 0}", "ray.silent_after_s: ", "Expected `float` >= 0.1"),
        (
            "pipeline: small\nstages: [{stage_id: 1, executor: ray, devices: [0], autoscale: {max_replicas: 2}}]",
            "stages[0].devices: ",
            "names 1 devices, but tensor x data x pipeline parallel size x replicas is 2",
        ),
        (
            "pipeline: small\nconnectors: {shm: {name: SharedMemoryConnector}}\n"
            "stages: [{stage_id: 0, output_connectors: {to_stage_1: shm}}, {stage_id: 1, executor: ray}]",
            "stages[0].output_connectors.to_stage_1: ",
            "SharedMemoryConnector between 'thinker' (executor inline) and 'talker' (executor ray)",
        ),
        (
            "pipeline: small\nconnectors: {r: {name: RayConnector}}\n"
            "stages: [{stage_id: 0, output_connectors: {to_stage_1: r}}, {stage_id: 1, executor: process}]",
            "stages[0].output_connectors.to_stage_1: ",
            "RayConnector between 'thinker' (executor inline) and 'talker' (executor process)",
        ),
        (
            "pipeline: small\nstages:\n"
            "- {stage_id: 1, executor: process, devices: [0, 1], tensor_parallel_size: 2, replicas: 2}",
            "stages[0].devices: ",
            "stage 'talker' names 2 devices, but tensor x data x pipeline parallel size x replicas is 4",
        ),
        (
            "pipeline: small\nstages: [{stage_id: 1, devices: [0]}]",
            "stages[0].devices: ",
            "stage 'talker' runs inline, where every stage sees all devices; use 'executor: process'",
        ),
        ("pipeline: small\nstages: [{stage_id: 0, num_replicas: 2}]", "stages[0]: ", "'num_replicas' (here: replicas)"),
        ("stage_args: []", "", "unknown key 'stage_args' (here: stages). Known: base_config"),
        (
            "pipeline: small\nstages: [{stage_id: 0, output_connectors: {to_stage_1: shm}}]",
            "stages[0].output_connectors.to_stage_1: ",
            "no connector 'shm'. Known: none",
        ),
        (
            "pipeline: small\nconnectors: {shm: {name: Carrier}}",
            "connectors.shm.name: ",
            "unknown connector 'Carrier'. Known: LocalConnector",
        ),
        (
            "pipeline: small\nconnectors: {shm: {name: SharedMemoryConnector, extra: {treshold: 1}}}",
            "connectors.shm.extra: ",
            "unknown key 'treshold'",
        ),
        (
            "pipeline: small\nconnectors: {l: {name: LocalConnector}}\n"
            "stages: [{stage_id: 0, output_connectors: {to_stage_7: l}}]",
            "stages[0].output_connectors.to_stage_7: ",
            "no such edge. Known: to_stage_1",
        ),
        (
            "pipeline: small\nconnectors: {l: {name: LocalConnector}}\n"
            "stages: [{stage_id: 0, output_connectors: {to_stage_1: l}}, {stage_id: 1, executor: process}]",
            "stages[0].output_connectors.to_stage_1: ",
            "a LocalConnector cannot leave a process",
        ),
        ("platforms: {amiga: {}}", "platforms: ", "keys among cpu, cuda, rocm, metal"),
        ("platforms: {cuda: {limits: {}}}", "platforms.cuda: ", "the only key is 'stages'"),
        ("platforms: {rocm: {stages: [{stage_id: a}]}}", "platforms.rocm.stages[0].stage_id: ", "Expected `int`"),
        ("session_mode: both", "session_mode: ", "Invalid enum value 'both'"),
        ("session_mode: duplex", "session_mode: ", "pipeline 'assistant' is not natively duplex"),
        (
            "pipeline: duplex\nsession_mode: duplex\nasync_chunk: false",
            "async_chunk: ",
            "session_mode 'duplex' answers while it listens; it needs true",
        ),
        ("duplex_session: {max_sessions: 0}", "duplex_session.max_sessions: ", "Expected `int` >= 1"),
        ("webrtc: {udp_ports: [9, 5]}", "webrtc: ", "the first UDP port (9) is above the last (5)"),
        ("webrtc: {udp_ports: [0, 5]}", "webrtc.udp_ports[0]: ", "Expected `int` >= 1"),
        ("webrtc: {advertise: here}", "webrtc: ", "'here' does not appear to be an IPv4 or IPv6 address"),
        (
            "webrtc: {ice_servers: [{urls: ['http://a']}]}",
            "webrtc.ice_servers[0].urls[0]: ",
            "Expected `str` matching",
        ),
        (
            "webrtc: {ice_servers: [{urls: ['turn:a'], secret: s, username: u}]}",
            "webrtc.ice_servers[0]: ",
            "'secret' takes the place of 'username' and 'credential'",
        ),
        ("webrtc: {relay_only: true}", "webrtc: ", "'relay_only' needs a TURN server"),
        ("limits: {max_turn_s: long}", "limits[...]: ", "Expected `float`, got `str`"),
        ("aliases: {robots: {}}", "aliases: ", "unknown key 'robots'"),
        ("instructions: [", "line 1, column 16: ", "not valid YAML"),
    ],
)
def test_a_broken_rule_names_file_path_and_rule(write: Callable[..., Path], text: str, path: str, rule: str) -> None:
    file = write(text)
    with pytest.raises(DeployError) as caught:
        load_deploy(file, platform="cuda")
    message = str(caught.value)
    assert message.startswith(f"{file}: {path}")
    assert rule in message
    assert "\n" not in message


def test_stages_on_ray_need_the_extra(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        "pipeline: small\nconnectors: {r: {name: RayConnector, extra: {threshold_bytes: 1}}}\n"
        "stages: [{stage_id: 0, executor: ray, output_connectors: {to_stage_1: r}}]"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert load_deploy(file).stage(0).executor == "ray"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match=r"my\.yaml: stages\[0\]\.executor: stage 'thinker' .*'duologue\[ray\]'"):
        load_deploy(file)


def test_an_error_in_the_base_names_the_base(write: Callable[..., Path]) -> None:
    base = write("pipeline: small\nstages: [{stage_id: 0, gpus: 1}]", "base.yaml")
    with pytest.raises(DeployError, match=r"base\.yaml: stages\[0\]: unknown key 'gpus'") as caught:
        load_deploy(write("base_config: base.yaml"))
    assert str(caught.value).startswith(str(base))


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"gone\.yaml: the file cannot be read \(No such file or directory\)"):
        load_deploy(tmp_path / "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"instructions: \xff\xfe\xfa")
    with pytest.raises(DeployError, match="it is not UTF-8 text"):
        load_deploy(tmp_path / "latin.yaml")


def test_values_of_env_appear_in_no_message_and_no_repr(write: Callable[..., Path]) -> None:
    good = load_deploy(write("pipeline: small\nstages: [{stage_id: 0, env: {API_TOKEN: s3cr3t}}]"))
    assert good.stage(0).env == {"API_TOKEN": "s3cr3t"}
    assert "API_TOKEN" in repr(good)
    assert "s3cr3t" not in repr(good) + str(good) + repr(good.stage(0))
    for bad in (
        "pipeline: small\nstages: [{stage_id: 0, env: {API_TOKEN: s3cr3t}, gpus: 1}]",
        "pipeline: small\nstages: [{stage_id: 0, env: {API_TOKEN: [s3cr3t]}}]",
        "pipeline: small\nstages: [{stage_id: 0, env: {API_TOKEN: 's3cr3t}}]",
        "pipeline: small\nstages: [{stage_id: 0, env: {API_TOKEN: s3cr3t]}]",
        "pipeline: small\nstages:\n  - stage_id: 0\n    env: {API_TOKEN: !!s3cr3t x}\n",
    ):
        with pytest.raises(DeployError) as caught:
            load_deploy(write(bad))
        assert "s3cr3t" not in str(caught.value)
        assert caught.value.__cause__ is None


def engine_of(write: Callable[..., Path], engine_args: str) -> Engine:
    return Engine(load_deploy(write(f"stages: [{{stage_id: 1, engine_args: {engine_args}}}]")))


def test_an_unknown_backend_is_refused_with_those_that_there_are(write: Callable[..., Path]) -> None:
    with pytest.raises(DeployError, match=r"engine_args\.backend: unknown backend 'gpt'\. Known: llamacpp, openai"):
        engine_of(write, "{backend: gpt}").check_arguments()


@pytest.mark.parametrize("backend", ["openai", "transformers", "vllm"])
def test_another_backend_needs_a_model_of_its_own(write: Callable[..., Path], backend: str) -> None:
    with pytest.raises(DeployError, match="missing a required argument: 'model'"):
        engine_of(write, f"{{backend: {backend}}}").check_arguments()


@pytest.mark.parametrize(
    ("engine_args", "tools", "image_in"),
    [
        ("{}", False, False),
        ("{tools: true}", True, False),
        ("{mmproj: projector.gguf}", False, True),
        ("{backend: openai, model: m}", True, False),
        ("{backend: openai, model: m, tools: false, images: true}", False, True),
        ("{backend: transformers, model: m, tools: true}", True, False),
        ("{backend: vllm, model: m, images: true}", False, True),
    ],
)
def test_what_a_session_may_ask_for_follows_the_backend(
    write: Callable[..., Path], engine_args: str, tools: bool, image_in: bool
) -> None:
    engine = engine_of(write, engine_args)
    engine.check_arguments()
    able = engine.pipeline.capabilities
    assert (able.tools, able.image_in, able.audio_out) == (tools, image_in, True)


# -- the command line over the file ------------------------------------------------------------------------------------


def test_overrides_lie_over_file_base_and_platform(write: Callable[..., Path]) -> None:
    file = write(
        "pipeline: small\nasync_chunk: false\n"
        "stages: [{stage_id: 0, max_num_seqs: 32, engine_args: {a: 1, deep: {x: 1}}, env: {K: v}}]\n"
        "platforms: {cpu: {stages: [{stage_id: 0, max_num_seqs: 16}, {stage_id: 1, replicas: 2}]}}\n"
    )
    text = '{"thinker": {"max_num_seqs": 8, "engine_args": {"deep": {"y": 2}}}, "1": {"executor": "process"}}'
    config = load_deploy(file, "cpu", Overrides(stages=parse_stage_overrides(text)))
    assert config.stage(0) == StageDeploy(
        stage_id=0, max_num_seqs=8, engine_args={"a": 1, "deep": {"x": 1, "y": 2}}, env={"K": "v"}
    )
    assert (config.stage(1).executor, config.stage(1).replicas) == ("process", 2)


def test_async_chunk_is_the_file_s_unless_set(write: Callable[..., Path]) -> None:
    for given in (True, False):
        file = write(f"pipeline: small\nasync_chunk: {str(given).lower()}\n")
        assert load_deploy(file).async_chunk is given
        assert load_deploy(file, overrides=Overrides(async_chunk=not given)).async_chunk is not given
    assert load_deploy().async_chunk


def test_stage_overrides_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "over.json").write_text('{"talker": {"replicas": 2}}')
    assert parse_stage_overrides(str(tmp_path / "over.json")) == {"talker": {"replicas": 2}}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", ": not valid JSON (Expecting property name enclosed in double quotes at line 1, column 2)"),
        ("[1]", ": expected an object of stages by id or name"),
        (
            "nowhere.json",
            " nowhere.json: neither a JSON object nor a file that can be read (No such file or directory)",
        ),
        ('{"0": 3}', ": 0: expected an object of keys"),
        ('{"0": {"stage_id": 1}}', ": 0.stage_id: the stage is named by its key"),
        ('{"0": {}, "0": {}}', ": key '0' is given twice"),
        ('{"9": {}}', ": 9: pipeline 'small' has no such stage; it has 0 (thinker), 1 (talker)"),
        ('{"0": {}, "thinker": {}}', ": thinker: stage 0 is given by id and by name"),
        ('{"talker": {"gpus": 1}}', ": talker: unknown key 'gpus'"),
        ('{"talker": {"replicas": 0}}', ": talker.replicas: Expected `int` >= 1"),
    ],
)
def test_a_wrong_override_names_the_option_and_its_path(write: Callable[..., Path], text: str, rule: str) -> None:
    with pytest.raises(DeployError) as caught:
        load_deploy(write("pipeline: small"), overrides=Overrides(stages=parse_stage_overrides(text)))
    assert str(caught.value).startswith(f"--stage-overrides{rule}")
    assert "\n" not in str(caught.value)


def test_a_rule_that_an_override_breaks_with_the_file_names_both(write: Callable[..., Path]) -> None:
    file = write("pipeline: small\nstages: [{stage_id: 1, executor: process, devices: [0]}]")
    with pytest.raises(DeployError) as caught:
        load_deploy(file, overrides=Overrides(stages={"talker": {"tensor_parallel_size": 2}}))
    assert str(caught.value).startswith(f"{file} with --stage-overrides: stages[0].devices: stage 'talker' names 1")


def test_a_secret_in_an_override_appears_in_no_message(write: Callable[..., Path]) -> None:
    for text in ('{"0": {"env": {"TOKEN": "s3cr3t"}, "gpus": 1}}', '{"0": {"env": {"TOKEN": ["s3cr3t"]}}}', '{"s3cr3t'):
        with pytest.raises(DeployError) as caught:
            load_deploy(write("pipeline: small"), overrides=Overrides(stages=parse_stage_overrides(text)))
        assert "s3cr3t" not in str(caught.value)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_each_replica_sees_its_share_of_the_devices() -> None:
    placed = StageDeploy(stage_id=0, devices=[0, 1, 3, 2], replicas=2, tensor_parallel_size=2)
    assert [visible_devices(placed, i, "cuda", "f", {}) for i in (0, 1)] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "3,2"},
    ]
    assert visible_devices(placed, 0, "rocm", "f", {}) == {"HIP_VISIBLE_DEVICES": "0,1"}


def test_devices_count_within_what_is_visible() -> None:
    placed = StageDeploy(stage_id=0, devices=[1])
    assert visible_devices(placed, 0, "cuda", "f", {"CUDA_VISIBLE_DEVICES": "0, 2,4"}) == {"CUDA_VISIBLE_DEVICES": "2"}
    with pytest.raises(DeployError, match=r"f: devices: there is no device 1; CUDA_VISIBLE_DEVICES=7 makes 1 visible"):
        visible_devices(placed, 0, "cuda", "f", {"CUDA_VISIBLE_DEVICES": "7"})


def test_no_devices_or_a_variable_of_the_stage_s_own_changes_nothing() -> None:
    assert visible_devices(StageDeploy(stage_id=0), 0, "cuda", "f", {}) == {}
    own = StageDeploy(stage_id=0, devices=[1], env={"CUDA_VISIBLE_DEVICES": "5"})
    assert visible_devices(own, 0, "cuda", "f", {}) == {}


def test_it_is_known_which_layer_set_a_value(write: Callable[..., Path]) -> None:
    base = write(
        "pipeline: small\nasync_chunk: true\naliases: {voices: {a: default, b: default}}\n"
        "stages: [{stage_id: 0, max_num_seqs: 2, engine_args: {x: 1, y: 1}, replicas: null}]\n"
        "platforms:\n"
        "  cpu: {stages: [{stage_id: 0, engine_args: {y: 2}}]}\n"
        "  cuda: {stages: [{stage_id: 1, replicas: 9}]}\n",
        "base.yaml",
    )
    file = write("base_config: base.yaml\naliases: {voices: {c: default}}\nstages: [{stage_id: 0, max_num_seqs: 3}]")
    config = load_deploy(file, "cpu", Overrides(async_chunk=False, stages={"talker": {"engine_args": {"z": 1}}}))
    assert config.set_by == {
        "pipeline": str(base),
        "async_chunk": "--no-async-chunk",
        "aliases.voices": str(file),
        "stages.0.max_num_seqs": str(file),
        "stages.0.engine_args.x": str(base),
        "stages.0.engine_args.y": f"{base}: platforms.cpu",
        "stages.1.engine_args.z": "--stage-overrides",
    }
