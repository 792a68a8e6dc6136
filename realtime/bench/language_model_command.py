"""``duologue bench language-model``: run, table, JSON."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from duologue.engine.deploy import DeployError, load_deploy
from duologue.engine.models import ModelUnavailable
from duologue.engine.pipeline import PipelineError
from duologue.realtime.bench.language_model import LanguageModelReport, deploy_for, run_language_models


def language_model(
    backend: Annotated[
        list[str] | None,
        typer.Option(help="llamacpp, transformers or vllm; may be repeated. Without: all there are."),
    ] = None,
    model: Annotated[str, typer.Option(help="Name, path or hub id of the model.")] = "smollm2-135m-instruct",
    deploy_config: Annotated[
        Path | None, typer.Option(help="Measure the language model of this deploy file instead (any endpoint, too).")
    ] = None,
    turns: Annotated[int, typer.Option(min=3, help="Turns of a conversation.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Conversations.")] = 3,
    callers: Annotated[
        list[int] | None, typer.Option(min=1, help="Then so many first turns at once; may be repeated.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Measure the time to the first token of a conversation's turns, with what was read before cached and without."""
    try:
        if deploy_config is not None:
            deploys = [load_deploy(deploy_config)]
        else:
            deploys = [deploy_for(name, model) for name in backend or installed_backends()]
        report = asyncio.run(run_language_models(deploys, turns, repeats, callers or ()))
    except (DeployError, ModelUnavailable, PipelineError, RuntimeError, ValueError) as error:
        typer.echo(f"duologue bench: {error}", err=True)
        raise typer.Exit(1) from error
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, Console())


def installed_backends() -> list[str]:
    """Those that run a model here and whose packages are installed."""
    extras = {"transformers": ("torch", "transformers"), "vllm": ("vllm",)}
    return ["llamacpp", *(name for name, needs in extras.items() if all(map(find_spec, needs)))]


def _print(report: LanguageModelReport, console: Console) -> None:
    for backend in report.backends:
        table = Table(title=f"{backend.backend}: {backend.model}", caption="time to the first token, medians")
        for heading in ("turn", "kind", "prompt tokens", "cached", "warm ms", "cold ms"):
            table.add_column(heading, justify="left" if heading == "kind" else "right")
        for turn in backend.turns:
            times = ("-" if m.p50 is None else f"{m.p50:,.1f}" for m in (turn.warm, turn.cold))
            table.add_row(str(turn.number), turn.kind, str(turn.prompt_tokens), str(turn.cached_tokens), *times)
        console.print(table)
        if backend.tokens_per_second.p50 is not None:
            console.print(f"{backend.tokens_per_second.p50:,.1f} tokens a second after the first")
        for round_of in backend.together:
            console.print(
                f"{round_of.callers} at once: {round_of.tokens_per_second.p50:,.1f} tokens a second in all, "
                f"first token after {round_of.first_token.p50 or 0:,.1f} ms"
            )
