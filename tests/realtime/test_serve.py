"""``duologue serve`` as a user meets it: a process that starts, says where it is, refuses clearly, and leaves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest
import websockets
from served import COMMAND, server

from duologue.engine.deploy import load_deploy
from duologue.engine.models import ModelUnavailable
from duologue.realtime import serve
from duologue.realtime.serve import StartError, listen


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def refused(*arguments: str, **environment: str) -> str:
    """Run ``duologue serve``, which must fail with one line on standard error; returns the line."""
    done = run("serve", *arguments, "--log-level", "error", **environment)
    assert done.returncode == 1
    assert "duologue ready" not in done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("duologue: ")
    return line


def test_blas_is_kept_to_one_thread_before_numpy_reads_how_many_it_may_have() -> None:
    program = """
import sys
from duologue.engine.stages import threads
threads.keep_blas_to_one_thread = lambda: print("numpy" in sys.modules)
from duologue.realtime.cli import main
sys.argv = ["duologue", "serve", "--api-key", ""]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_busy_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} on 127.0.0.1 is already in use" in refused("--port", str(port))


def test_an_address_that_is_not_ours_is_one_clear_line() -> None:
    assert "Cannot listen on 192.0.2.1" in refused("--host", "192.0.2.1", "--port", "0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("pipeline: [", "not valid YAML"),
        ("pipline: assistant", "unknown key 'pipline'"),
        ("pipeline: nonsense", "Unknown pipeline 'nonsense'"),
        ("limits: {max_turns: 1}", "max_turns"),
        ("aliases: {voices: {bob: alice}}", "'alice'"),
        ("stages: [{stage_id: 9}]", "has no stage 9"),
    ],
)
def test_a_bad_deploy_file_is_one_clear_line(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "deploy.yaml"
    if content is not None:
        file.write_text(content)
    line = refused("--port", "0", "--deploy-config", str(file))
    assert words in line
    assert str(file) in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["./nowhere"], "Model path './nowhere' does not exist."),
        (["someone/model"], "Model 'someone/model': the hub is switched off (HF_HUB_OFFLINE). Download the checkpoint"),
        (["--stage-overrides", "{"], "--stage-overrides: not valid JSON"),
        (["--stage-overrides", '{"talker": {"gpus": 1}}'], "--stage-overrides: talker: unknown key 'gpus'"),
    ],
)
def test_a_bad_model_or_override_is_one_clear_line(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments, "--port", "0", HF_HUB_OFFLINE="1")


def test_a_model_that_cannot_be_had_is_one_clear_line(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    line = refused("--port", "0", DUOLOGUE_CACHE=str(tmp_path), HF_HUB_OFFLINE="1", PIP_EXTRA_INDEX_URL="", **nowhere)
    assert "cannot be downloaded" in line


def test_a_free_port_is_taken_for_port_0_and_ipv6_works() -> None:
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", 0) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6
    with pytest.raises(StartError, match="Cannot listen on no"):
        listen("no.such.host.invalid", 0)


def test_the_version_is_printed() -> None:
    from importlib.metadata import version

    assert run("--version").stdout == f"duologue {version('duologue')}\n"


@pytest.mark.models
async def test_health_follows_loading_and_a_signal_drains(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--log-level", "debug", "--media-workers", "2")
    with server(tmp_path, *options, ready=False) as running:
        async with httpx2.AsyncClient(base_url=running.url, timeout=30) as http:
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
            assert set(answer.json()["stages"].values()) - {"ready"}
            with pytest.raises(websockets.InvalidStatus) as early:
                await websockets.connect(running.ws)
            assert early.value.response.status_code == 503
            line = running.wait_for("duologue ready ")
            assert running.ws in line
            answer = await http.get("/health")
            assert (answer.status_code, set(answer.json()["stages"].values())) == (200, {"ready"})
            assert answer.json()["media_workers"] == {"0": "ready", "1": "ready"}
        family = psutil.Process(running.process.pid).children(recursive=True)
        async with websockets.connect(running.ws) as connection:
            assert json.loads(await connection.recv())["type"] == "session.created"
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(websockets.ConnectionClosed):
                await connection.recv()
            assert connection.close_code == 1001
        code, seconds = running.stop(signal.SIGTERM)
        assert (code, seconds < 15) == (0, True)
        assert len(family) >= 2
        assert not [process for process in family if process.is_running()]
        assert running.process.stdout is not None
        assert "duologue ready" not in running.process.stdout.read()
        for entry in map(json.loads, running.errors.read_text().splitlines()):
            assert {"time", "level", "logger", "message"} <= set(entry)
            assert entry["level"] not in ("error", "critical"), entry


@pytest.mark.models
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_ends_the_start(tmp_path: Path, number: signal.Signals) -> None:
    with server(tmp_path, ready=False) as running:
        code, seconds = running.stop(number)
        assert code == 0
        assert seconds < 15
        assert "Traceback" not in running.errors.read_text()


@pytest.mark.models
@pytest.mark.parametrize("signals", [1, 2])
async def test_a_running_answer_is_finished_unless_a_second_signal_comes(tmp_path: Path, signals: int) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("stages: [{stage_id: 1, sampling: {temperature: 0.0}}]\n")  # answers whose length is known
    long = {"instructions": "You are a novelist. Write a long story of at least three hundred words."}
    with server(tmp_path, "--deploy-config", str(deploy)) as running:
        async with websockets.connect(running.ws, max_size=None) as connection:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
            await connection.send(json.dumps({"type": "conversation.item.create", "item": item}))
            response = long if signals > 1 else {"max_output_tokens": 16}
            await connection.send(json.dumps({"type": "response.create", "response": response}))
            events: list[str] = []
            sent = 0
            async for frame in connection:  # ends without an error at 1000 and 1001
                event = json.loads(frame)
                events.append(event["type"])
                begun = "response.content_part.added" in events
                # the second only once the first has been taken: two of a kind that are pending are one
                if begun and sent < signals and (not sent or "draining" in running.errors.read_text()):
                    running.process.send_signal(signal.SIGINT)
                    sent += 1
            assert sent == signals
            assert connection.close_code == 1001
            assert (events[-1] == "response.done") is (signals == 1)
            if signals == 1:
                assert event["response"]["status"] in ("completed", "incomplete")
        assert running.process.wait(timeout=5) == 0
        assert "Traceback" not in running.errors.read_text()


class Started:
    """An engine of which only the start is looked at."""

    def __init__(self) -> None:
        self.started = False

    async def start(self, on_progress: object) -> None:
        self.started = True


@pytest.mark.parametrize(("missing", "starts"), [("smart-turn-v3.2", True), ("silero-vad", False)])
async def test_only_the_turn_model_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str, starts: bool
) -> None:
    def refuse(progress: object, name: str) -> None:
        raise ModelUnavailable(f"Model '{name}' cannot be downloaded: no network.")

    monkeypatch.setattr(serve, "missing_models", lambda names: [name for name in names if name == missing])
    monkeypatch.setattr(serve.StartProgress, "pull", refuse)
    engine = Started()
    if starts:
        await serve._load(engine, load_deploy())  # type: ignore[arg-type]
        assert "cannot be downloaded" in caplog.text
    else:
        with pytest.raises(serve.StartError, match="silero-vad"):
            await serve._load(engine, load_deploy())  # type: ignore[arg-type]
    assert engine.started is starts
