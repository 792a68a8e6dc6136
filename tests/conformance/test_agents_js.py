"""@openai/agents, the JavaScript agents client, on Node: a RealtimeSession over WebSocket, only the URL changed.

Each test runs one scenario of ``agents_js/driver.mjs``. What went over the wire is checked for shape and order; an
event that the client did not understand, or a word of warning on its console, is a failure.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_server import mcp_server
from npm_packages import node_modules
from scripted_server import KEY, ScriptedServer, scripted_server
from served import Served
from tape import Tape

from duologue.sessions.mcp.policy import McpRules

HERE = Path(__file__).resolve().parent / "agents_js"
PATIENCE_S = 120.0

Drive = Callable[..., Awaitable[tuple[Tape, dict[str, Any]]]]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, beside the packages of its lock file."""
    packages = node_modules(HERE)
    folder = tmp_path_factory.mktemp("driver")
    (folder / "node_modules").symlink_to(packages)
    return Path(shutil.copy(HERE / "driver.mjs", folder))


@pytest.fixture
def drive(driver: Path, tmp_path: Path) -> Drive:
    """Run a scenario; returns the tape of its connection, already checked, and its result."""

    async def driving(
        scenario: str, url: str, key: str = "none", audio: bytes = b"", **more: str
    ) -> tuple[Tape, dict[str, Any]]:
        (tmp_path / "speech.pcm").write_bytes(audio)
        wanted = {"scenario": scenario, "url": url, "key": key, "audio": str(tmp_path / "speech.pcm"), **more}
        process = await asyncio.create_subprocess_exec(
            "node", str(driver), json.dumps(wanted), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
        report = json.loads(out)
        tape = Tape()
        for from_client, event in report["trace"]:
            (tape.sent if from_client else tape.received)(event)
        assert "failure" not in report, f"{report['failure']} after {tape.summary()}"
        assert report["ignored"] == []
        if scenario != "errors":
            assert (report["said"], report["errors"]) == ([], [])
        tape.check()
        return tape, report["result"]

    return driving


@pytest.mark.models
async def test_agents_js_connects_without_the_warning_after_5_s(served: Served, drive: Drive) -> None:
    tape, result = await drive("connect", served.ws)
    assert result["connected_ms"] < 5000
    session = tape.all("session.updated")[-1]["session"]
    assert session["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
    assert session["tracing"] == "auto"


@pytest.mark.models
async def test_agents_js_spoken_turn(served: Served, drive: Drive, recording: Callable[[str], bytes]) -> None:
    _, result = await drive("spoken", served.ws, audio=recording("librivox-austen-0880"))
    assert result["transcript"].lower().split()[:4] == ["he", "was", "not", "an"]
    assert result["response"]["status"] in ("completed", "incomplete")
    assert result["audio_bytes"] > 0.3 * 48_000
    assert [item["role"] for item in result["history"]] == ["user", "assistant"]
    assert result["history"][0]["content"][0]["transcript"] == result["transcript"]


@pytest.mark.models
async def test_agents_js_barge_in(served: Served, drive: Drive, recording: Callable[[str], bytes]) -> None:
    _, result = await drive("bargeIn", served.ws, audio=recording("librivox-austen-0880"))
    cut = result["cut"]
    assert (cut["id"], cut["status"]) == (result["response_id"], "cancelled")
    assert cut["status_details"]["reason"] == "turn_detected"
    (part,) = result["retrieved"]["content"]
    assert not part.get("transcript")
    assert len(part.get("audio", "")) * 3 / 4 <= result["truncated"]["audio_end_ms"] * 48 + 4


async def test_agents_js_interrupts(scripted: ScriptedServer, drive: Drive) -> None:
    _, result = await drive("interrupt", scripted.ws, KEY)
    assert result["cut"]["status_details"]["reason"] == "client_cancelled"
    assert result["response"]["output"][0]["content"][0]["transcript"] == "You said: And now?"


async def test_agents_js_function_tool(scripted: ScriptedServer, drive: Drive) -> None:
    _, result = await drive("functionTool", scripted.ws, KEY)
    assert result["asked"] == ["Paris"]
    assert result["said"] == "It is sunny."


async def test_agents_js_edits_its_history(scripted: ScriptedServer, drive: Drive) -> None:
    tape, result = await drive("history", scripted.ws, KEY)
    assert result["history"] == result["expected"]
    assert tape.conversation()[:4] == result["expected"]
    assert scripted.asked()[1:] == [
        ("user", "zero"),
        ("assistant", "You said: one"),
        ("user", "TWO"),
        ("assistant", "You said: two"),
        ("user", "three"),
    ]


async def test_agents_js_errors_keep_the_session_open(scripted: ScriptedServer, drive: Drive) -> None:
    tape, result = await drive("errors", scripted.ws, KEY)
    assert (result["wrong"]["code"], result["wrong"]["event_id"]) == ("invalid_event", "wrong_1")
    assert tape.errors() == ["invalid_event", "unknown_parameter", "item_retrieve_invalid_item_id"]
    assert result["response"]["output"][0]["content"][0]["transcript"] == "You said: And now?"


async def test_agents_js_mcp_tool_with_approval(drive: Drive) -> None:
    async with mcp_server() as library, scripted_server(mcp=McpRules(allowed_urls=(library.url,))) as scripted:
        tape, result = await drive("mcp", scripted.ws, key=KEY, mcp=library.url)
    assert library.asked == ["Paris"]
    assert (result["call"]["name"], result["call"]["output"]) == ("weather", "Rain in Paris")
    assert result["said"] == "It is Rain in Paris."
    assert result["tools"] == ["weather"]
    assert len(tape.all("response.mcp_call.completed")) == 1
