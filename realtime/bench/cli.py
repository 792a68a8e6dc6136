"""``duologue bench``: measure a server from outside."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console

from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.engine_command import engine
from duologue.realtime.bench.fdb.command import full_duplex, recompute_run, score_full_duplex, synth_full_duplex
from duologue.realtime.bench.gateway_command import gateway
from duologue.realtime.bench.language_model_command import language_model
from duologue.realtime.bench.measures import LIMITED
from duologue.realtime.bench.recogniser_command import recogniser as recogniser_command
from duologue.realtime.bench.turns_command import synth_turns, turns
from duologue.realtime.bench.webrtc_command import webrtc
from duologue.realtime.client import ClientError

_LIMITED: Final = ", ".join(f"{name} ({unit})" for name, unit in LIMITED.items())

app = typer.Typer(no_args_is_help=True, help="Measure a server from outside; see docs/benchmarks.md.")

synth = typer.Typer(no_args_is_help=True, help="Make sets of recordings to replay.")
score = typer.Typer(no_args_is_help=True, help="Score the outputs of a replay again.")


@synth.callback()
@score.callback()
def _group() -> None:
    """Keep a group a group even with one command in it."""


@app.callback()
def bench() -> None:
    """Keep ``voice`` a sub-command even if it were the only one."""


@app.command()
def voice(
    url: Annotated[
        str | None,
        typer.Option(help="Server to measure, ws://HOST/v1/realtime; without it one is started for the run."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name to ask for; default: the server's own.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DUOLOGUE_API_KEY", help="Bearer key.")] = None,
    utterances: Annotated[int, typer.Option(min=0, help="Utterances in all, dealt to the callers in turn.")] = 200,
    barge_ins: Annotated[int, typer.Option(min=0, help="Answers to be interrupted, after the utterances.")] = 20,
    sessions: Annotated[
        list[int] | None, typer.Option(min=1, help="Callers at the same time; repeat for one run each. Default: 1.")
    ] = None,
    turns_per_call: Annotated[int, typer.Option(min=1, help="Utterances on one connection before redialling.")] = 10,
    window: Annotated[
        list[int] | None,
        typer.Option(
            "--window",
            "--silence-ms",
            min=0,
            help="Silence in ms that ends a turn (server_vad); repeat for one run each. Default: 500.",
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="After each run the same on a server without streaming and speculation."),
    ] = False,
    reply_ms: Annotated[
        int, typer.Option(min=0, help="Listen to so much of an answer before the next utterance; 0: all of it.")
    ] = 3000,
    max_output_tokens: Annotated[int, typer.Option(min=0, help="Longest answer; 0: the server's default.")] = 96,
    instructions: Annotated[str | None, typer.Option(help="Instructions; default: the server's own.")] = None,
    speech: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of recordings with known words (transcripts.tsv: file<TAB>words).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses conditions and order.")] = 0,
    recognise: Annotated[int, typer.Option(min=0, help="Answers to recognise again afterwards.")] = 50,
    recogniser: Annotated[str, typer.Option(help="Model that recognises them; pulled if missing.")] = "whisper-base",
    deploy_config: Annotated[Path | None, typer.Option(help="Deploy file of the server that is started.")] = None,
    server_pid: Annotated[int | None, typer.Option(help="With --url: process to watch for CPU and memory.")] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:LIMIT",
            help=f"Count the answers within this limit, audio_ttfp:500; repeat for several. Of {_LIMITED}.",
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for a complete answer.")] = 30.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's files; default: results/voice-<time>.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Speak to a server in real time and measure how long it takes to answer, and how well."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from duologue.realtime.bench.goodput import parse_limits
    from duologue.realtime.bench.utterances import Utterance
    from duologue.realtime.bench.voice_run import VoiceOptions
    from duologue.realtime.bench.voice_series import plan_series, run_series
    from duologue.realtime.bench.voice_table import print_series

    try:
        limits = parse_limits(goodput or ())
    except ValueError as error:
        raise _fail(f"--{error}") from error
    options = VoiceOptions(
        out=out or Path("results") / time.strftime("voice-%Y%m%d-%H%M%S"),
        url=url,
        model=model,
        api_key=api_key,
        utterances=utterances,
        barge_ins=barge_ins,
        turns_per_call=turns_per_call,
        speech=speech,
        seed=seed,
        recognise=recognise,
        recogniser=recogniser,
        deploy_config=deploy_config,
        server_pid=server_pid,
        goodput=limits,
        settings=CallerSettings(
            reply_ms=reply_ms or None,
            max_output_tokens=max_output_tokens or None,
            timeout_s=timeout_s,
            instructions=instructions,
        ),
    )
    try:
        runs = list(plan_series(options, sessions or [1], window or [500], baseline=baseline))
    except ValueError as error:
        raise _fail(str(error)) from error
    alone = len(runs) == 1
    if alone:
        runs = [("", replace(runs[0][1], out=options.out))]
        _refuse_existing(options.out)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("preparing", total=len(runs) * (utterances + barge_ins))

        def said(utterance: Utterance) -> None:
            progress.advance(task)

        def phase(text: str) -> None:
            progress.update(task, description=text)

        try:
            series = asyncio.run(run_series(runs, on_said=said, on_phase=phase))
        except (ClientError, ValueError) as error:
            raise _fail(str(error)) from error
    if alone:
        _show(series.runs[0].report, options.out, json)
    elif json:
        typer.echo(msgspec.json.encode(series).decode())
    else:
        print_series([(run.name, run.report) for run in series.runs], Console())


@app.command()
def recompute(
    run: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of a finished run.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Compute a run's figures again from its raw files."""
    from duologue.realtime.bench.fdb.run import RUN_SCHEMA
    from duologue.realtime.bench.voice_run import write_report

    if _schema(run) == RUN_SCHEMA:
        recompute_run(run, as_json=json)
        return
    try:
        report = write_report(run)
    except (OSError, msgspec.DecodeError) as error:
        raise _fail(f"{run} is not a complete run: {error}") from error
    _show(report, run, json)


class _Schema(msgspec.Struct, frozen=True):
    schema: str | None = None


def _schema(run: Path) -> str | None:
    """What kind of run a folder holds, as far as it says."""
    try:
        return msgspec.json.decode((run / "run.json").read_bytes(), type=_Schema).schema
    except (OSError, msgspec.DecodeError):
        return None


app.command()(engine)
app.command()(language_model)
app.command()(gateway)
app.command("recogniser")(recogniser_command)
app.command("full-duplex")(full_duplex)
app.add_typer(synth, name="synth")
app.add_typer(score, name="score")
synth.command("full-duplex")(synth_full_duplex)
synth.command("turns")(synth_turns)
score.command("full-duplex")(score_full_duplex)
app.command()(webrtc)
app.command()(turns)


def _refuse_existing(out: Path) -> None:
    """A run never mixes its files with those of another."""
    if out.exists() and any(out.iterdir()):
        raise _fail(f"{out} is not empty; choose another folder with --out")


def _show(report: object, run: Path, as_json: bool) -> None:
    from duologue.realtime.bench.voice_report import BenchReport
    from duologue.realtime.bench.voice_table import print_report

    assert isinstance(report, BenchReport)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
        return
    console = Console()
    print_report(report, console)
    console.print(f"files: {run}")


def _fail(text: str) -> typer.Exit:
    """Print one line to standard error; to be raised."""
    typer.echo(f"duologue bench: {text}", err=True)
    return typer.Exit(1)
