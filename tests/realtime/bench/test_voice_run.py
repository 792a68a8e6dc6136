"""``duologue bench voice`` whole: real WebSocket, real pacing, real packaged voice; the server is the loopback."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner
from websockets.asyncio.server import serve

from duologue.codecs.resample import resample
from duologue.engine import metrics
from duologue.engine.models import ModelUnavailable, pull
from duologue.engine.words import word_errors
from duologue.realtime.bench import voice_run
from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.cli import app
from duologue.realtime.bench.intelligibility import RecognisedReply, packaged_recogniser, recognise_replies
from duologue.realtime.bench.loopback import Answer, LoopbackServer, tone
from duologue.realtime.bench.measures import LIMITED, PARTS
from duologue.realtime.bench.utterances import SENTENCES, Library, plan
from duologue.realtime.bench.voice_report import REPLIES, REPORT, compute, write_lines
from duologue.realtime.bench.voice_run import VoiceOptions, plan_calls, run_voice
from duologue.realtime.bench.voice_series import plan_series, run_series
from duologue.realtime.bench.voice_table import print_report, print_series

SETTINGS = CallerSettings(silence_ms=200, reply_ms=100)


def hears_everything(turn: int) -> Answer:
    return Answer(SENTENCES[turn], "A tone.", tone(3.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: two utterances and one barge-in, by one caller."""
    out = tmp_path_factory.mktemp("run") / "out"

    async def record() -> None:
        async with LoopbackServer(hears_everything) as server:
            options = VoiceOptions(out=out, url=server.url, utterances=2, barge_ins=1, recognise=0, settings=SETTINGS)
            options = replace(options, goodput={"audio_ttfp": 500.0, "v2v": 5000.0})
            await run_voice(options)

    asyncio.run(record())
    return out


def test_every_utterance_is_answered_and_timed(run: Path):
    report, (score,) = compute(run)
    assert (report.answers.attempted, report.answers.answered) == (2, 2)
    assert report.recognition["all"].wer == 0.0
    v2v = report.metrics["v2v"]
    assert v2v.n == 2
    # The loopback answers when its 200 ms of silence are over; frames, chunks and this machine add some.
    assert 150 <= v2v.min <= v2v.max <= 600
    for result in score.results[:2]:
        parts = [getattr(result.split, f"{name}_ms") for name in PARTS]
        assert sum(parts) == pytest.approx(result.split.v2v_ms, abs=0.01)


def test_fc_173_the_answers_within_their_limits_are_counted(run: Path):
    report, (score,) = compute(run)
    assert report.metrics["audio_ttfp"].n == len(score.deliveries) >= 3
    assert 0 <= report.metrics["audio_ttfp"].max < 500
    assert (report.goodput.good, report.goodput.attempted, report.goodput.share) == (2, 2, 1.0)
    assert report.goodput.per_s == pytest.approx(2 / score.duration_s, rel=0.01)
    console = Console(file=io.StringIO(), width=160)
    print_report(report, console)
    assert "goodput (audio_ttfp <= 500 ms, v2v <= 5000 ms)" in console.file.getvalue()
    assert "2 of 2 (100.0 %)" in console.file.getvalue()


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("audio_ttft:500", "there is no measure 'audio_ttft'; there are v2v, silence_window,"),
        ("v2v", "'v2v' must be v2v:LIMIT with a limit in ms"),
        ("audio_ttfp:soon", "'audio_ttfp:soon' must be"),
        ("audio_underrun:-1", "a limit in s, at least 0"),
        ("v2v:nan", "must be"),
    ],
)
def test_fc_173_a_misspelt_measure_is_refused_with_the_valid_ones(tmp_path: Path, limit: str, words: str):
    refused = CliRunner().invoke(app, ["voice", "--goodput", limit, "--out", str(tmp_path / "out")])
    assert refused.exit_code == 1
    assert words in refused.output
    assert not (tmp_path / "out").exists()


def test_fc_173_a_measure_has_one_name_everywhere():
    page = (Path(__file__).parents[3] / "docs/benchmarks.md").read_text()
    metrics_page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    for name in LIMITED:
        assert f"`{name}`" in page
    for name in ("audio_ttfp", "audio_underrun", "audio_duration"):
        assert f"duologue_{name}_s" in metrics_page
        assert hasattr(metrics, f"{name}_s")


def test_the_interrupted_answer_stops(run: Path):
    report, _ = compute(run)
    assert (report.barge_in.attempted, report.barge_in.measured, report.barge_in.not_stopped_in_2_s) == (1, 1, 0)
    assert 0 < report.barge_in.stop_latency.p50 <= 500
    assert report.underrun.total_s == 0.0


def test_what_was_not_measured_is_null(run: Path):
    report = json.loads((run / REPORT).read_bytes())
    assert report["server"] == {
        "ready_s": None,
        "idle_cpu_share": None,
        "cpu_s_per_session_s": None,
        "rss_max_bytes": None,
        "stolen_share": None,
    }
    assert report["intelligibility"]["words_kept"] is None
    assert report["recognition"]["recordings"]["wer"] is None


def test_recompute_gives_the_same_numbers_from_the_files(run: Path):
    written = (run / REPORT).read_bytes()
    results = (run / "results.jsonl").read_bytes()
    outcome = CliRunner().invoke(app, ["recompute", str(run), "--json"])
    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout) == json.loads(written)
    assert (run / REPORT).read_bytes() == written
    assert (run / "results.jsonl").read_bytes() == results


def test_recompute_follows_the_raw_log_and_not_the_report(run: Path, tmp_path: Path):
    events = next((run / "calls").iterdir()) / "events.jsonl"
    original = events.read_bytes()
    lines = [line for line in original.splitlines() if b"response.output_audio.delta" not in line]
    events.write_bytes(b"\n".join(lines))
    try:
        report, _ = compute(run)
    finally:
        events.write_bytes(original)
    assert (report.answers.answered, report.answers.unanswered) == (0, 2)


def test_the_log_holds_no_media(run: Path):
    lines = (next((run / "calls").iterdir()) / "events.jsonl").read_bytes().splitlines()
    assert max(len(line) for line in lines) < 2000
    appends = [json.loads(line) for line in lines if b"input_audio_buffer.append" in line]
    assert all(entry["event"] == {"type": "input_audio_buffer.append", "bytes": 960} for entry in appends)
    first = appends[0]
    assert 0.0 < first["t_s"] < 0.5
    assert first["due_s"] == 0.02


async def test_a_series_that_was_broken_off_makes_no_run_twice(run: Path, tmp_path: Path):
    runs = list(plan_series(VoiceOptions(out=tmp_path), [1], [500, 200], baseline=False))
    for _, options in runs:
        shutil.copytree(run, options.out)
    series = await run_series(runs)
    assert [made.name for made in series.runs] == ["1-callers-500-ms", "1-callers-200-ms"]
    assert series.runs[1].report.answers.within["2"] == 1.0
    console = Console(file=io.StringIO(), width=160)
    print_series([(made.name, made.report) for made in series.runs], console)
    assert "of all, answered rightly in 2 s" in console.file.getvalue()


def test_replies_are_recognised_from_the_files(run: Path):
    heard: list[int] = []

    def transcribe(audio: np.ndarray) -> str:
        heard.append(len(audio))
        return "a tone"

    calls = list((run / "calls").iterdir())
    replies = recognise_replies(calls, 2, transcribe)
    assert heard == [48_000, 48_000]
    write_lines(run / REPLIES, replies)
    try:
        report, _ = compute(run)
    finally:
        (run / REPLIES).unlink()
    assert (report.intelligibility.replies, report.intelligibility.words_kept) == (2, 1.0)
    assert isinstance(replies[0], RecognisedReply)


def test_intelligibility_counts_word_errors(run: Path):
    write_lines(run / REPLIES, [RecognisedReply("c", "r", "one two three four", "one two tree four")])
    try:
        report, _ = compute(run)
    finally:
        (run / REPLIES).unlink()
    assert report.intelligibility.words_kept == 0.75


async def test_a_recogniser_that_cannot_be_had_costs_only_its_own_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unavailable(name: str) -> Path:
        raise ModelUnavailable(f"{name} is nowhere")

    monkeypatch.setattr(voice_run, "pull", unavailable)
    async with LoopbackServer(hears_everything) as server:
        options = VoiceOptions(out=tmp_path / "run", url=server.url, utterances=1, barge_ins=0, settings=SETTINGS)
        report = await run_voice(options)
    assert report.answers.answered == 1
    assert report.intelligibility.words_kept is None
    assert report.run.not_measured == {"intelligibility": "whisper-base is nowhere"}


@pytest.mark.models
def test_the_packaged_recogniser_understands_the_packaged_voice():
    pull("whisper-tiny.en")
    transcribe = packaged_recogniser("whisper-tiny.en")
    audio, _ = Library(None).sound("synthesised", SENTENCES[0])
    assert word_errors(SENTENCES[0], transcribe(resample(audio, 24_000, 16_000))).errors == 0


def test_utterances_are_dealt_to_callers_and_calls():
    utterances = plan(7, 0, Library(None), seed=0, longest_pause_s=0.3)
    calls = plan_calls(utterances, 2, 3)
    assert [(c.name, c.utterance_ids) for c in calls] == [
        ("s00-c000", ["u0000", "u0002", "u0004"]),
        ("s00-c001", ["u0006"]),
        ("s01-c000", ["u0001", "u0003", "u0005"]),
    ]


async def test_a_server_that_hangs_up_costs_its_utterances_and_nothing_else(tmp_path: Path):
    async def hang_up(connection) -> None:
        await connection.close(1011, "out of order")

    async with serve(hang_up, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        options = VoiceOptions(
            out=tmp_path / "run",
            url=f"ws://127.0.0.1:{port}/v1/realtime",
            utterances=3,
            barge_ins=1,
            recognise=0,
            settings=SETTINGS,
        )
        report = await run_voice(options)
    assert (report.answers.attempted, report.answers.failed, report.barge_in.failed) == (3, 3, 1)
    assert list(report.answers.reasons.values()) == [3]
    assert "out of order" in next(iter(report.answers.reasons))
    assert report.metrics["v2v"].n == 0
    assert report.metrics["v2v"].p50 is None


def test_a_folder_with_files_in_it_is_refused(run: Path):
    outcome = CliRunner().invoke(app, ["voice", "--url", "ws://127.0.0.1:9/v1/realtime", "--out", str(run)])
    assert outcome.exit_code == 1
    assert "not empty" in outcome.stderr


def test_recompute_of_something_else_says_so(tmp_path: Path):
    outcome = CliRunner().invoke(app, ["recompute", str(tmp_path)])
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("duologue bench: ")


async def test_json_output_is_one_object(tmp_path: Path):
    async with LoopbackServer(hears_everything) as server:
        arguments = ["voice", "--url", server.url, "--utterances", "1", "--barge-ins", "0", "--recognise", "0"]
        arguments += ["--silence-ms", "200", "--reply-ms", "100", "--out", str(tmp_path / "run"), "--json"]
        outcome = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert outcome.exit_code == 0, outcome.stderr
    report = msgspec.json.decode(outcome.stdout)
    assert report["schema"] == "duologue.bench.voice/1"
    assert report["answers"]["answered"] == 1
