"""``duologue deploy show`` and ``check``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from duologue.realtime.cli import app
from duologue.realtime.deploy_commands import _without_secrets


def duologue(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["deploy", *map(str, arguments)])


def test_show_prints_the_packaged_default_with_every_stage_filled_in() -> None:
    result = duologue("show")
    assert result.exit_code == 0
    shown = yaml.safe_load(result.stdout)
    assert shown["pipeline"] == "assistant"
    assert [stage["name"] for stage in shown["stages"]] == ["recogniser", "language_model", "talker", "codec"]
    assert shown["stages"][1] == {
        "stage_id": 1,
        "name": "language_model",
        "executor": "inline",
        "replicas": 1,
        "max_num_seqs": 8,
        "engine_args": {"model": "smollm2-135m-instruct"},
    }


def test_show_has_the_file_s_values_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "stages:\n- {stage_id: 0, executor: process, env: {API: s3cr3t}, max_num_seqs: 3, "
        "engine_args: {model: /models/w}}\n"
    )
    result = duologue("show", file)
    assert result.exit_code == 0, result.stderr
    assert "s3cr3t" not in result.output
    stage = yaml.safe_load(result.stdout)["stages"][0]
    assert (stage["executor"], stage["max_num_seqs"], stage["env"]) == ("process", 3, {"API": "..."})
    assert stage["engine_args"] == {"model": "/models/w"}


def test_show_has_what_the_command_line_lays_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("async_chunk: false\nstages: [{stage_id: 2, max_num_seqs: 3}]\n")
    gguf = tmp_path / "my.gguf"
    gguf.write_bytes(b"GGUF")
    overrides = '{"talker": {"executor": "process", "replicas": 2}}'
    shown = yaml.safe_load(
        duologue("show", file, "--stage-overrides", overrides, "--async-chunk", "--model", gguf).stdout
    )
    assert shown["async_chunk"] is True
    talker = shown["stages"][2]
    assert (talker["executor"], talker["replicas"], talker["max_num_seqs"]) == ("process", 2, 3)
    assert talker["replica_policy"] == "least_in_flight"
    assert shown["stages"][1]["engine_args"]["model"] == str(gguf)
    set_by = shown["set_by"]
    assert set_by[str(file)] == ["stages.2.max_num_seqs"]
    assert set_by["--stage-overrides"] == ["stages.2.executor", "stages.2.replicas"]
    assert set_by["--async-chunk"] == ["async_chunk"]
    assert set_by[f"model '{gguf}'"] == ["stages.1.engine_args.model"]
    assert yaml.safe_load(duologue("show", file).stdout)["async_chunk"] is False
    assert yaml.safe_load(duologue("show", "--no-async-chunk").stdout)["async_chunk"] is False


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--stage-overrides", '{"speaker": {}}'], "duologue: --stage-overrides: speaker: pipeline 'assistant' has no"),
        (["--model", "./nowhere"], "duologue: Model path './nowhere' does not exist."),
        (["--stage-overrides", '{"codec": {"engine_args": {"x": 1}}}'], "with --stage-overrides: stage 'codec' (3): "),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], line: str) -> None:
    result = duologue("show", *arguments)
    assert result.exit_code == 1
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_check_says_that_a_file_is_right(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("stages: [{stage_id: 3, executor: process, replicas: 2}]\n")
    result = duologue("check", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: pipeline 'assistant', 4 stages: all right\n")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("stages: [{stage_id: 9}]", "stages[0].stage_id: pipeline 'assistant' has no stage 9"),
        ("stages: [{stage_id: 1, engine_args: {temprature: 1}}]", "stage 'language_model' (1): engine_args: "),
        ("aliases: {voices: {siri: samantha}}", "aliases.voices: 'siri' stands for 'samantha'"),
        ("limits: {nonsense: 1}", "nonsense"),
    ],
)
def test_check_names_file_path_and_rule(tmp_path: Path, text: str, rule: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    result = duologue("check", file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"duologue: {file}: ")
    assert rule in result.stderr
    assert result.stderr.count("\n") == 1


def test_arguments_that_look_secret_are_hidden_at_any_depth() -> None:
    shown = _without_secrets({"api_key": "s", "base_url": "u", "headers": [{"X-Token": "t", "accept": "a"}]})
    assert shown == {"api_key": "...", "base_url": "u", "headers": [{"X-Token": "...", "accept": "a"}]}
