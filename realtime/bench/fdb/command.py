"""``duologue bench full-duplex``, ``bench synth full-duplex`` and ``bench score full-duplex``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from duologue.realtime.bench.clock import Pacing
from duologue.realtime.bench.fdb.artifacts import WordSource
from duologue.realtime.bench.fdb.dataset import TASKS, AnnotationError, Task
from duologue.realtime.bench.fdb.runner import ReplaySettings, TurnMode
from duologue.realtime.bench.playback import Policy

if TYPE_CHECKING:
    from duologue.realtime.bench.fdb.judge import Judge
    from duologue.realtime.bench.fdb.recognised import RecogniseWords
    from duologue.realtime.bench.fdb.report import FdbReport
    from duologue.realtime.bench.fdb.score import Sounds

T = TypeVar("T", bound=str)
JudgeKind = Literal["none", "local", "http"]

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
_Words = Annotated[WordSource, typer.Option(help="Words of the answers: the server's own, or recognised again.")]
_Recogniser = Annotated[str, typer.Option(help="Model that recognises them (--words asr); pulled if missing.")]
_Quirks = Annotated[bool, typer.Option("--official-quirks", help="Score as the published scripts do, faults included.")]
_JudgeKind = Annotated[JudgeKind, typer.Option("--judge", help="Who rates answers and labels behaviour.")]
_JudgeUrl = Annotated[str | None, typer.Option(help="Its endpoint (.../v1); the key comes from JUDGE_API_KEY.")]
_JudgeModel = Annotated[str | None, typer.Option(help="Its model.")]
_Timelines = Annotated[bool, typer.Option(help="Draw one PNG per sample (needs the extra 'bench').")]


def full_duplex(
    root: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="A set of one task, or a folder from 'bench synth'.")
    ],
    task: Annotated[
        list[str] | None, typer.Option(help=f"Its task ({', '.join(TASKS)}); of a collection: only the sets of it.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Server to measure, ws://HOST/v1/realtime; without it one is started for the run."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name to ask for; default: the server's own.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DUOLOGUE_API_KEY", help="Bearer key.")] = None,
    num: Annotated[int | None, typer.Option(min=1, help="So many samples of each set; default: all.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples at the same time.")] = 1,
    turn_mode: Annotated[TurnMode, typer.Option(help="Turn detection of the session.")] = "server_vad",
    silence_ms: Annotated[int | None, typer.Option(min=0, help="server_vad: silence that ends a turn.")] = None,
    eagerness: Annotated[str | None, typer.Option(help="semantic_vad: low, medium, high or auto.")] = None,
    session: Annotated[str | None, typer.Option(help="JSON that is laid over session.update.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Instructions; default: the server's own.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    transcription_model: Annotated[str, typer.Option(help="Transcribes the input; empty: none.")] = "default",
    client_policy: Annotated[Policy, typer.Option(help="What the client does when it is told of speech.")] = "obey",
    player_buffer_ms: Annotated[int, typer.Option(min=0, help="Buffer of the client's loudspeaker.")] = 0,
    pacing: Annotated[Pacing, typer.Option(help="Chunks at their end (mic) or at their start (ahead).")] = "mic",
    chunk_ms: Annotated[int, typer.Option(min=1, help="Length of the chunks that are sent.")] = 20,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for rest after a recording.")] = 60.0,
    words: _Words = "server",
    recogniser: _Recogniser = "whisper-base",
    reference: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Backchannels: distribution by sample id; default: the set's."),
    ] = None,
    judge: _JudgeKind = "none",
    judge_url: _JudgeUrl = None,
    judge_model: _JudgeModel = None,
    official_quirks: _Quirks = False,
    timelines: _Timelines = True,
    deploy_config: Annotated[Path | None, typer.Option(help="Deploy file of the server that is started.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's files; default: results/fdb-<time>.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; failed replays are repeated.")
    ] = False,
    json: _Json = False,
) -> None:
    """Replay recorded conversations in real time and score how well the server shares the floor."""
    from duologue.realtime.bench.fdb.report import load_sounds, score_run
    from duologue.realtime.bench.fdb.run import FdbOptions, Job, run_fdb

    options = FdbOptions(
        root=root,
        out=out or Path("results") / time.strftime("fdb-%Y%m%d-%H%M%S"),
        tasks=_known(task, TASKS, "task"),
        url=url,
        model=model,
        api_key=api_key,
        num=num,
        concurrency=concurrency,
        deploy_config=deploy_config,
        reference=reference,
        words=words,
        resume=resume,
        settings=ReplaySettings(
            turn_mode=turn_mode,
            silence_ms=silence_ms,
            eagerness=eagerness,
            instructions=instructions,
            max_output_tokens=max_output_tokens,
            transcription_model=transcription_model or None,
            session=_object(session),
            client_policy=client_policy,
            player_buffer_ms=player_buffer_ms,
            pacing=pacing,
            chunk_ms=chunk_ms,
            timeout_s=timeout_s,
        ),
    )
    if not resume and options.out.exists() and any(options.out.iterdir()):
        raise fail(f"{options.out} is not empty; choose another folder with --out, or go on with --resume")
    draws = timelines and _can_draw()
    with _failures(), _progress() as progress:
        sounds, asked = load_sounds(), _judge(judge, judge_url, judge_model)
        recognise = _recogniser(recogniser) if words == "asr" else None
        bar = progress.add_task("preparing", total=None)

        def replayed(job: Job) -> None:
            progress.advance(bar)

        asyncio.run(
            run_fdb(
                options,
                on_total=lambda count: progress.update(bar, total=count),
                on_done=replayed,
                on_phase=lambda text: progress.update(bar, description=text),
            )
        )
        progress.update(bar, description="scoring")
        report = score_run(options.out, sounds, judge=asked, quirks=official_quirks, recognise=recognise)
        if draws:
            _draw(options.out, sounds, progress)
    show(report, options.out, json)


def synth_full_duplex(
    out: Annotated[Path, typer.Option(help="Folder for the sets; must be empty.")],
    task: Annotated[list[str] | None, typer.Option(help="Only these sets; default: all.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Samples in each set.")] = 8,
    speech: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of recordings with known words (transcripts.tsv: file<TAB>words); half of the speech.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses words, times and levels.")] = 0,
    monologue_s: Annotated[float, typer.Option(min=3, help="Length of the backchannel set's monologues.")] = 30.0,
    noise_s: Annotated[float, typer.Option(min=1, help="Length of the recordings without speech.")] = 30.0,
    json: _Json = False,
) -> None:
    """Make sets of recordings with exact annotations from the packaged voice and from recordings."""
    from duologue.realtime.bench.fdb.synth import SETS, SynthOptions, synthesise

    names = _known(task, SETS, "set")
    if out.exists() and any(out.iterdir()):
        raise fail(f"{out} is not empty; choose another folder with --out")
    options = SynthOptions(out, names or tuple(SETS), count, speech, seed, monologue_s, noise_s=noise_s)
    with _failures(), _progress() as progress:
        bar = progress.add_task("making sets", total=len(options.sets) * count)
        named = synthesise(options, lambda name: progress.advance(bar))
    if json:
        typer.echo(msgspec.json.encode({"out": str(out), "sets": named}).decode())
    else:
        typer.echo(f"{len(named)} sets of {count}: {out}")


def score_full_duplex(
    root: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="A run, or a folder of one set with outputs in it.")
    ],
    task: Annotated[Task | None, typer.Option(help="Task of a folder that is no run.")] = None,
    words: Annotated[
        WordSource | None, typer.Option(help="Where words come from; default: as they are in the files.")
    ] = None,
    recogniser: _Recogniser = "whisper-base",
    reference: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Backchannels: reference distribution by sample id."),
    ] = None,
    judge: _JudgeKind = "none",
    judge_url: _JudgeUrl = None,
    judge_model: _JudgeModel = None,
    official_quirks: _Quirks = False,
    timelines: _Timelines = False,
    json: _Json = False,
) -> None:
    """Score outputs again: with other words, another judge, or as the published scripts do."""
    from duologue.realtime.bench.fdb import report as reports
    from duologue.realtime.bench.fdb.run import RUN_FILE

    with _failures(), _progress() as progress:
        sounds, asked = reports.load_sounds(), _judge(judge, judge_url, judge_model)
        recognise = _recogniser(recogniser) if words == "asr" else None
        if (root / RUN_FILE).is_file():
            bar = progress.add_task("scoring", total=None)
            reports.prepare(root, words, reference)
            report = reports.score_run(
                root,
                sounds,
                judge=asked,
                quirks=official_quirks,
                recognise=recognise,
                on_set=lambda name: progress.update(bar, description=f"scoring {name}"),
            )
            if timelines and _can_draw():
                _draw(root, sounds, progress)
            scores = None
        elif task is None:
            raise fail(f"{root} is no run, so name its task (--task: {', '.join(TASKS)})")
        else:
            scores = reports.score_folder(
                root, task, sounds, judge=asked, quirks=official_quirks, recognise=recognise, reference=reference
            )
    if scores is None:
        show(report, root, json)
    elif json:
        typer.echo(msgspec.json.encode(scores).decode())
    else:
        reports.print_scores([scores], Console())


def show(report: FdbReport, run: Path, as_json: bool) -> None:
    """Print a report."""
    from duologue.realtime.bench.fdb.report import print_report

    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
        return
    console = Console()
    print_report(report, console)
    console.print(f"files: {run}")


def recompute_run(run: Path, *, as_json: bool) -> None:
    """Everything again from the raw files of a run, printed."""
    from duologue.realtime.bench.fdb.report import load_sounds, recompute

    with _failures():
        report = recompute(run, load_sounds())
    show(report, run, as_json)


def fail(text: str) -> typer.Exit:
    """Print one line to standard error; to be raised."""
    typer.echo(f"duologue bench: {text}", err=True)
    return typer.Exit(1)


@contextmanager
def _failures() -> Any:
    """What can go wrong outside our hands ends the command with one line."""
    from duologue.engine.models import ModelUnavailable
    from duologue.realtime.client import ClientError

    try:
        yield
    except (ClientError, AnnotationError, ModelUnavailable, ValueError, OSError) as error:
        raise fail(str(error)) from error


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _known(names: list[str] | None, known: Iterable[T], kind: str) -> tuple[T, ...]:
    """The names as what they are names of, in the order given; one that is not known ends the command."""
    by_name = {str(name): name for name in known}
    for name in names or ():
        if name not in by_name:
            raise fail(f"no {kind} is called {name!r}; there are {', '.join(by_name)}")
    return tuple(by_name[name] for name in names or ())


def _object(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError as error:
        raise fail(f"--session: a JSON object expected ({error})") from error


def _judge(kind: JudgeKind, url: str | None, model: str | None) -> Judge | None:
    from duologue.realtime.bench.fdb.judge import HttpJudge, LocalJudge

    if kind == "http":
        if not url or not model:
            raise ValueError("--judge http needs --judge-url and --judge-model")
        return HttpJudge(url, model)
    return LocalJudge() if kind == "local" else None


def _recogniser(name: str) -> RecogniseWords:
    from duologue.engine.models import pull
    from duologue.realtime.bench.fdb.recognised import word_recogniser

    pull(name)
    return word_recogniser(name)


def _can_draw() -> bool:
    from duologue.realtime.bench.fdb.timeline import MISSING, can_draw

    if not can_draw():
        typer.echo(f"duologue bench: {MISSING}", err=True)
        return False
    return True


def _draw(run: Path, sounds: Sounds, progress: Progress) -> None:
    from duologue.realtime.bench.fdb.run import read_run
    from duologue.realtime.bench.fdb.timeline import draw_run

    info = read_run(run)
    bar = progress.add_task("drawing", total=sum(len(item.samples) for item in info.sets))
    advance: Callable[[], None] = lambda: progress.advance(bar)  # noqa: E731
    draw_run(run, info, sounds, advance)
