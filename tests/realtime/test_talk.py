"""``duologue talk`` with a recording, against the loopback server over a real WebSocket."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result
from websockets.asyncio.server import ServerConnection, serve

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import read_wav, write_wav
from duologue.realtime.bench.loopback import Answer, LoopbackServer, tone
from duologue.realtime.bench.measures import PARTS
from duologue.realtime.event_log import load_entries
from duologue.realtime.talk import talk

app = typer.Typer()
app.command()(talk)


def two_bursts(path: Path) -> Path:
    """Two turns: sound at 0.1 to 0.4 s and at 0.8 to 1.1 s of 1.2 s."""
    time = np.arange(round(1.2 * 16_000)) / 16_000
    loud = ((time >= 0.1) & (time < 0.4)) | ((time >= 0.8) & (time < 1.1))
    write_wav(path, float_to_pcm16((0.3 * np.sin(2 * np.pi * 300 * time) * loud).astype(np.float32)), 16_000)
    return path


async def invoke(*arguments: str) -> Result:
    """Run the command on a thread, as it runs an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


def answers(turn: int) -> Answer:
    return [Answer("Hello there.", "Good day.", tone(0.3)), Answer("And you?", "Fine.", tone(0.2))][turn]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """One talk with everything asked for; the files lie in the folder."""
    folder = tmp_path_factory.mktemp("talk")

    async def run() -> Result:
        async with LoopbackServer(answers) as server:
            recording = str(two_bursts(folder / "in.wav"))
            options = ["--silence-ms", "200", "--out", str(folder / "reply.wav"), "--log", str(folder / "log")]
            return await invoke(recording, "--url", server.url, "--json", *options)

    return asyncio.run(run()), folder


def test_json_is_one_object_with_every_turn(told: tuple[Result, Path]):
    result, _ = told
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [(turn["heard"], turn["answered"]) for turn in report["turns"]] == [
        ("Hello there.", "Good day."),
        ("And you?", "Fine."),
    ]
    assert report["complete"] is True
    assert report["server_errors"] == []


def test_times_start_at_the_last_audible_sample_of_each_turn(told: tuple[Result, Path]):
    turns = json.loads(told[0].stdout)["turns"]
    assert [turn["user_stop_s"] for turn in turns] == [pytest.approx(0.4, abs=0.011), pytest.approx(1.1, abs=0.011)]
    for turn in turns:
        split = turn["split"]
        # 200 ms of silence, cut into frames and chunks of 10 and 20 ms; the rest is this machine's load.
        assert 190 <= split["silence_window_ms"] <= 500
        assert split["v2v_ms"] == pytest.approx(sum(split[f"{part}_ms"] for part in PARTS), abs=0.01)


def test_all_answers_are_saved(told: tuple[Result, Path]):
    audio, rate = read_wav(told[1] / "reply.wav")
    assert (len(audio) / rate, rate) == (pytest.approx(0.5), 24_000)
    assert np.abs(audio).max() > 0.3


def test_the_recording_is_sent_in_real_time_and_followed_by_silence(told: tuple[Result, Path]):
    appends = [e for e in load_entries(told[1] / "log") if e.event["type"] == "input_audio_buffer.append"]
    assert all(entry.t_s >= entry.due_s for entry in appends)
    assert appends[-1].due_s >= 1.2 + 1.5
    assert [round(entry.due_s, 3) for entry in appends[:3]] == [0.02, 0.04, 0.06]


async def test_people_see_words_and_times(tmp_path: Path):
    async with LoopbackServer(answers) as server:
        result = await invoke(str(two_bursts(tmp_path / "in.wav")), "--url", server.url, "--silence-ms", "200")
    assert result.exit_code == 0, result.stderr
    for text in ("turn 2", "Hello there.", "Fine.", "completed, 0.3 s"):
        assert text in result.stdout


async def test_silence_is_not_a_turn(tmp_path: Path):
    write_wav(tmp_path / "in.wav", bytes(4800), 24_000)
    async with LoopbackServer() as server:
        result = await invoke(str(tmp_path / "in.wav"), "--url", server.url, "--json")
    assert json.loads(result.stdout)["turns"] == []


def test_no_server_is_one_line_that_says_how_to_start_one(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    recording = str(two_bursts(tmp_path / "in.wav"))
    result = CliRunner().invoke(app, [recording, "--url", f"ws://127.0.0.1:{port}/v1/realtime", "--json"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert "duologue serve" in result.stderr


async def test_a_server_that_hangs_up_is_told(tmp_path: Path):
    async def hang_up(connection: ServerConnection) -> None:
        await connection.close(1013, "full")

    async with serve(hang_up, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        recording = str(two_bursts(tmp_path / "in.wav"))
        result = await invoke(recording, "--url", f"ws://127.0.0.1:{port}/v1/realtime", "--json")
    assert result.exit_code == 1
    assert "1013, full" in result.stderr


@pytest.mark.parametrize("content", [None, b"not a wav"])
async def test_an_unreadable_recording_is_one_line(tmp_path: Path, content: bytes | None):
    path = tmp_path / "in.wav"
    if content is not None:
        path.write_bytes(content)
    result = await invoke(str(path), "--json")
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "in.wav" in result.stderr


def test_neither_recording_nor_microphone():
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 1
    assert "--mic" in result.stderr


def test_help_defines_every_time():
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "400"}).stdout.split())
    for part, formula in PARTS.items():
        assert f"{part.replace('_', ' ')} ({formula})" in text
