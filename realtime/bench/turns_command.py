"""``duologue bench turns``: how well the ends of turns are found, beside silence alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console


def turns(
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of WAV recordings, each a turn with its real pauses."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many recordings.")] = None,
    answer_ms: Annotated[float, typer.Option(min=0, help="Time that the turn model's answer is taken to need.")] = 70.0,
    words: Annotated[bool, typer.Option(help="Let words count, as where answers are prepared early.")] = True,
    words_ms: Annotated[float, typer.Option(min=0, help="Time that English words are taken to need.")] = 120.0,
    other_words_ms: Annotated[float, typer.Option(min=0, help="Time that other languages' words need.")] = 350.0,
    noise_minutes: Annotated[float, typer.Option(min=0, help="Minutes of each noise without speech; 0: none.")] = 10.0,
    curve: Annotated[bool, typer.Option(help="Go through windows and waits for the trade-off curves.")] = True,
    turn_model: Annotated[str, typer.Option(help="Turn model: logical name or path.")] = "smart-turn-v3.2",
    out: Annotated[Path | None, typer.Option(help="Folder for report.json and curve.png.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Replay recordings through the session core and the real detectors, faster than real time, without a server."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from duologue.engine.models import ModelUnavailable, require
    from duologue.engine.silero import SileroModel
    from duologue.engine.turn_model import SmartTurnModel
    from duologue.realtime.bench.turns_offline import Words
    from duologue.realtime.bench.turns_report import print_report
    from duologue.realtime.bench.turns_run import Detectors, TurnsOptions, load_recogniser, run_turns, steps

    options = TurnsOptions(data, limit, answer_ms, noise_minutes, curve=curve)
    reader = Words(load_recogniser, words_ms / 1000, other_words_ms / 1000) if words else None
    if data is None and not noise_minutes:
        raise _fail("nothing to do: give --data DIR or --noise-minutes.")
    clips = len(sorted(data.glob("*.wav"))[:limit]) if data is not None else 0
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    try:
        detectors = Detectors(SileroModel(require("silero-vad")), SmartTurnModel(require(turn_model)), reader)
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=steps(options, clips))
            report = run_turns(options, detectors, lambda text: progress.update(task, advance=1, description=text))
    except (ModelUnavailable, ValueError) as error:
        raise _fail(str(error)) from error
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        _draw(report, out)
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        console = Console()
        print_report(report, console)
        console.print(f"{time.monotonic() - started:.0f} s" + (f"; files: {out}" if out is not None else ""))


def synth_turns(
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of WAV recordings of real speech.")],
    out: Annotated[Path, typer.Option(help="Folder for the sentences; must be empty.")],
    language: Annotated[str, typer.Option(help="What is spoken: an ISO 639-1 code.")] = "en",
    model: Annotated[str, typer.Option(help="Recogniser that writes the punctuation.")] = "whisper-base",
) -> None:
    """Cut recordings into their sentences, each a turn with the speaker's own pauses, for 'bench turns'."""
    from duologue.engine.models import ModelUnavailable
    from duologue.realtime.bench.turns_sentences import cut_recording, recogniser

    if out.exists() and any(out.iterdir()):
        raise _fail(f"{out} is not empty; choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    try:
        recognise = recogniser(model, language)
        for path in sorted(data.glob("*.wav")):
            typer.echo(f"{path.name}: {cut_recording(path, recognise, out, language)} sentences")
    except (ModelUnavailable, ValueError) as error:
        raise _fail(str(error)) from error


def _draw(report: object, out: Path) -> None:
    from duologue.realtime.bench.turns_report import TurnsReport, draw

    assert isinstance(report, TurnsReport)
    if not report.semantic:
        return
    try:
        draw(report, out / "curve.png")
    except ImportError:
        typer.echo("duologue bench: no picture without matplotlib: pip install 'duologue[bench]'", err=True)


def _fail(text: str) -> typer.Exit:
    typer.echo(f"duologue bench: {text}", err=True)
    return typer.Exit(1)
