"""``duologue bench full-duplex`` whole: real WebSocket, real pacing, the packaged voice; the server is the loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from missing import need_package
from typer.testing import CliRunner
from websockets.asyncio.server import serve

from duologue.codecs.pcm import PCM16, float_to_pcm16
from duologue.codecs.wav import read_wav
from duologue.realtime.bench.cli import app
from duologue.realtime.bench.fdb import run as runs
from duologue.realtime.bench.fdb import timeline
from duologue.realtime.bench.fdb.artifacts import WordsFile, write_json
from duologue.realtime.bench.fdb.dataset import read_json
from duologue.realtime.bench.fdb.report import load_sounds, score_run
from duologue.realtime.bench.fdb.run import FdbOptions, read_run, run_fdb
from duologue.realtime.bench.fdb.runner import Recording, ReplaySettings, overlaid
from duologue.realtime.bench.fdb.synth import SynthOptions, synthesise
from duologue.realtime.bench.loopback import Answer, LoopbackServer
from duologue.realtime.bench.utterances import Library
from duologue.realtime.client import RealtimeClient

TEXT = "This is a rather long answer, and it goes on and on, so that it can be interrupted in the middle of it."
SETTINGS = ReplaySettings(settle_s=0.2, silence_ms=200, chunk_ms=100, session={"instructions": "Be brief."})


@pytest.fixture(scope="module")
def answer() -> Answer:
    audio, _ = Library(None).sound("synthesised", TEXT)
    return Answer("hello there", TEXT, float_to_pcm16(audio))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sets")
    chosen = ("turn_taking", "interruption", "user_backchannel", "echo")
    # Patience after what is said: a busy machine is no error.
    synthesise(SynthOptions(out, chosen, count=2, gap_s=2.0, tail_s=5.0))
    (out / "turn_taking" / "2" / "turn_taking.json").unlink()
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, sets: Path, answer: Answer) -> Path:
    """A finished run of nine replays, all at once."""
    out = tmp_path_factory.mktemp("run") / "out"

    async def record() -> None:
        async with LoopbackServer(lambda turn: answer) as server:
            await run_fdb(FdbOptions(sets, out, url=server.url, concurrency=9, settings=SETTINGS))

    asyncio.run(record())
    score_run(out, load_sounds())
    return out


def scores(run: Path, name: str) -> dict:
    return json.loads((run / name / "fdb_scores.json").read_bytes())


def test_outputs_have_exactly_the_length_of_their_inputs_and_say_what_was_heard(run: Path):
    outputs = sorted(run.rglob("*output.wav"))
    outputs = [path for path in outputs if not path.parent.name.endswith("log")]
    assert len(outputs) == 9
    for path in outputs:
        audio, rate = read_wav(path)
        assert rate == 24_000
        assert len(audio) == len(read_wav(path.with_name(path.name.replace("output", "input")))[0])
        words = read_json(path.with_suffix(".json"), WordsFile)
        assert words.source == "server"
        # An echo may cut an answer off before its first word has ended.
        assert words.chunks or path.parent.parent.name == "echo", path
        for chunk in words.chunks:
            start, end = (round(time * rate) for time in chunk.timestamp)
            assert np.abs(audio[start:end]).max() > 0.01
            assert end <= len(audio)


def test_the_output_sounds_when_the_events_arrived(run: Path):
    folder = run / "turn_taking" / "1"
    lines = (folder / "log" / "events.jsonl").read_bytes().splitlines()
    entries = [json.loads(line) for line in lines]
    first = next(e["t_s"] for e in entries if e["event"]["type"] == "response.output_audio.delta")
    received, _ = read_wav(folder / "log" / "output.wav")
    heard, rate = read_wav(folder / "output.wav")
    start = round(first * rate)
    assert np.array_equal(heard[start:], received[: len(heard) - start])
    assert not heard[:start].any()


def test_a_turn_is_taken_and_timed(run: Path):
    taken = scores(run, "turn_taking")
    assert (taken["attempted"], taken["n"], taken["failed"], taken["excluded"]) == (2, 1, 0, 1)
    assert taken["tor"] == 1.0
    assert taken["latency_s"]["mean"] >= 0.2  # the silence window
    assert taken["reasons"] == {"2": "turn_taking.json is missing"}
    assert taken["schema"] == "duologue.fdb/1"


def test_an_interrupted_answer_stops_and_is_truncated(run: Path):
    result = json.loads((run / "interruption" / "1" / "result.json").read_bytes())
    assert result["ok"]
    assert result["responses"] >= 2
    events = (run / "interruption" / "1" / "log" / "events.jsonl").read_text()
    assert '"type":"conversation.item.truncate"' in events
    assert scores(run, "interruption")["stop_latency_s"]["event"]["n"] <= 2


def test_the_session_was_set_up_as_asked(run: Path):
    first = (run / "echo" / "1" / "log" / "events.jsonl").read_text().splitlines()[1]
    session = json.loads(first)["event"]["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"] == {"type": "server_vad", "silence_duration_ms": 200}


def test_the_answers_own_sound_comes_back_quieter_and_later(run: Path):
    folder = run / "echo" / "1"
    echo = json.loads((folder / "echo.json").read_bytes())
    heard, spoken, sent = (read_wav(folder / f"{name}.wav")[0] for name in ("output", "input", "sent"))
    delay = echo["delay_ms"] * 24
    returned = (sent - spoken)[delay:]
    expected = heard[: len(returned)] * 10 ** (echo["gain_db"] / 20)
    assert np.abs(expected).max() > 0.01
    # All of it, whatever the machine did meanwhile, to the last bit but two: a room sends back what has been played,
    # and that is flushed no more.
    assert np.abs(returned - expected).max() < 3 / 32768


def test_recompute_gives_the_same_numbers_from_the_raw_files(run: Path):
    names = ("bench.json", "fdb_scores.json", "output.wav", "output.json", "result.json", "latency_intervals.json")
    written = {
        path: path.read_bytes() for name in names for path in run.rglob(name) if not path.parent.name.endswith("log")
    }
    for path in written:
        if path.name != "bench.json":
            path.unlink()
    outcome = CliRunner().invoke(app, ["recompute", str(run), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout) == json.loads(written[run / "bench.json"])
    assert {path: path.read_bytes() for path in written} == written


def test_scores_follow_the_raw_log(run: Path, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    log = copy / "turn_taking" / "1" / "log" / "events.jsonl"
    kept = [line for line in log.read_bytes().splitlines() if b"response." not in line]
    log.write_bytes(b"\n".join(kept))
    assert CliRunner().invoke(app, ["recompute", str(copy)]).exit_code == 0
    assert scores(copy, "turn_taking")["tor"] == 0.0


def test_score_with_another_judge_and_with_quirks(run: Path, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    arguments = ["score", "full-duplex", "--root", str(copy), "--judge", "local", "--official-quirks", "--json"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.stderr
    by_name = {item["name"]: item for item in json.loads(outcome.stdout)["sets"]}
    assert by_name["interruption"]["judge"] == "local/1"
    assert by_name["interruption"]["quirks"] is True
    assert by_name["interruption"]["rating"]["n"] == 2 * sum(s["tor"] for s in by_name["interruption"]["samples"])
    assert sum(by_name["user_backchannel"]["behaviour"].values()) == pytest.approx(1.0, abs=0.02)
    recomputed = CliRunner().invoke(app, ["recompute", str(copy), "--json"])
    assert json.loads(recomputed.stdout) == json.loads(outcome.stdout)


def test_a_folder_of_foreign_outputs_can_be_scored(run: Path):
    arguments = ["score", "full-duplex", "--root", str(run / "interruption")]
    assert "name its task" in CliRunner().invoke(app, arguments).stderr
    outcome = CliRunner().invoke(app, [*arguments, "--task", "interruption", "--json"])
    assert json.loads(outcome.stdout)["n"] == 2


def test_pictures_are_drawn(run: Path):
    need_package("matplotlib")
    timeline.draw_run(run, read_run(run), load_sounds())
    pictures = sorted(run.rglob("timeline.png"))
    assert len(pictures) == 7
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


async def test_without_matplotlib_the_run_goes_on_and_says_what_is_missing(
    sets: Path, tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeline, "can_draw", lambda: False)
    async with LoopbackServer(lambda turn: answer) as server:
        arguments = ["full-duplex", "--root", str(sets / "turn_taking"), "--task", "turn_taking", "--num", "1"]
        arguments += ["--url", server.url, "--out", str(tmp_path / "run"), "--json", "--pacing", "ahead"]
        outcome = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert outcome.exit_code == 0, outcome.stderr
    assert "pip install 'duologue[bench]'" in outcome.stderr
    assert json.loads(outcome.stdout)["sets"][0]["tor"] == 1.0
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("*.png")))


async def test_a_server_that_hangs_up_fails_its_sample_and_stops_nothing(sets: Path, tmp_path: Path):
    async def hang_up(connection) -> None:
        await connection.close(1011, "out of order")

    async with serve(hang_up, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1/realtime"
        await run_fdb(FdbOptions(sets, tmp_path / "run", tasks=("interruption",), url=url, settings=SETTINGS))
    report = score_run(tmp_path / "run", load_sounds())
    (interruption,) = report.sets
    assert (interruption.attempted, interruption.n, interruption.failed) == (2, 0, 2)
    assert all("out of order" in reason for reason in interruption.reasons.values())
    assert interruption.tor is None


def test_a_sample_that_was_not_replayed_has_failed(run: Path, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "turn_taking" / "1" / "log")
    assert CliRunner().invoke(app, ["recompute", str(copy)]).exit_code == 0
    assert scores(copy, "turn_taking")["reasons"]["1"] == "it was not replayed"
    assert scores(copy, "turn_taking")["failed"] == 1


async def test_a_run_is_resumed_with_what_is_missing_or_failed(
    sets: Path, run: Path, tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
):
    copy = tmp_path / "run"
    await asyncio.to_thread(shutil.copytree, run, copy)
    logs = {name: copy / name / "1" / "log" / "events.jsonl" for name in ("echo", "turn_taking", "interruption")}
    await asyncio.to_thread(shutil.rmtree, logs["echo"].parent)
    lost = b'{"dir":"note","t_s":3.0,"event":{"type":"connection.lost","message":"the run was ended"}}\n'
    logs["turn_taking"].write_bytes(logs["turn_taking"].read_bytes() + lost)
    kept = logs["interruption"].read_bytes()
    connected: list[str] = []

    class Counted(RealtimeClient):
        @classmethod
        async def connect(cls, url: str, **options: object) -> RealtimeClient:
            connected.append(url)
            return await super().connect(url, **options)

    monkeypatch.setattr(runs, "RealtimeClient", Counted)
    before = read_run(copy)
    async with LoopbackServer(lambda turn: answer) as server:
        # A run against a server of the user's own must find it where it was.
        write_json(copy / "run.json", msgspec.structs.replace(before, url=server.url))
        options = FdbOptions(sets, copy, url=server.url, concurrency=2, resume=True, settings=SETTINGS)
        await run_fdb(options)
        assert len(connected) == 2
        assert logs["interruption"].read_bytes() == kept
        assert (await asyncio.to_thread(score_run, copy, load_sounds())).sets[0].tor == 1.0
        with pytest.raises(ValueError, match="settings is not what it was"):
            await run_fdb(msgspec.structs.replace(options, settings=ReplaySettings()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "singing"], "no task is called 'singing'"),
        (["--session", "[1]"], "--session: a JSON object expected"),
        (["--judge", "http"], "--judge http needs --judge-url"),
        ([], "name its one task"),
    ],
)
def test_impossible_wishes_are_refused(tmp_path: Path, arguments: list[str], message: str):
    base = [
        "full-duplex",
        "--root",
        str(tmp_path),
        "--url",
        "ws://127.0.0.1:9/v1/realtime",
        "--out",
        str(tmp_path / "x"),
    ]
    outcome = CliRunner().invoke(app, [*base, *arguments])
    assert outcome.exit_code == 1
    assert message in outcome.stderr


def test_recordings_go_on_as_silence():
    recording = Recording(np.full(30, 0.5, np.float32), tail=20)
    assert np.frombuffer(recording.take(20), PCM16).tolist() == [16384] * 20
    assert np.frombuffer(recording.take(20), PCM16).tolist() == [16384] * 10 + [0] * 10
    assert not recording.over.is_set()
    assert recording.take(20) == bytes(40)
    assert recording.over.is_set()
    recording.close()
    assert recording.take(20) is None


def test_settings_are_laid_over_the_session():
    body = ReplaySettings(turn_mode="none", session={"audio": {"output": {"voice": "x"}}}).body()
    assert body["audio"]["input"]["turn_detection"] is None
    assert body["audio"]["output"] == {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "x"}
    semantic = ReplaySettings(turn_mode="semantic_vad", eagerness="high", silence_ms=3).body()
    assert semantic["audio"]["input"]["turn_detection"] == {"type": "semantic_vad", "eagerness": "high"}
    assert overlaid({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": None}) == {"a": {"b": 3, "c": 2}, "d": None}
