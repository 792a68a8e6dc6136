"""``duologue deploy``: what a deploy file amounts to, and whether it is right, without loading a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from duologue.engine.deploy import DeployConfig, DeployError, load_deploy
from duologue.engine.deploy.config import NOT_IN_FILES
from duologue.engine.engine import Engine
from duologue.engine.models import ModelUnavailable
from duologue.engine.pipeline import PipelineError, StageConfig
from duologue.engine.replica_policy import DEFAULT
from duologue.realtime.deploy_options import MODEL_HELP, AsyncChunk, Speculation, StageOverrides, overrides_of
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import settings_from_deploy

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The deploy file: show what is in effect, check one."
)

HIDDEN = "..."
_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


Model = Annotated[str | None, typer.Option(help=MODEL_HELP)]


@app.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="Deploy file; without it, the packaged default.")] = None,
    model: Model = None,
    stage_overrides: StageOverrides = None,
    async_chunk: AsyncChunk = None,
    speculation: Speculation = None,
) -> None:
    """Print the effective configuration as YAML. Values of env and what looks secret are hidden."""
    engine = _checked(file, model, stage_overrides, async_chunk, speculation)
    typer.echo(yaml.safe_dump(effective(engine), sort_keys=False, allow_unicode=True, width=100), nl=False)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Deploy file.")],
    model: Model = None,
    stage_overrides: StageOverrides = None,
    async_chunk: AsyncChunk = None,
    speculation: Speculation = None,
) -> None:
    """Validate a file as `duologue serve` would, without loading anything. Exit code 1 names file, path and rule."""
    engine = _checked(file, model, stage_overrides, async_chunk, speculation)
    typer.echo(f"{file}: pipeline '{engine.pipeline.name}', {len(engine.pipeline.stages)} stages: all right")


def effective(engine: Engine) -> dict[str, Any]:
    """The file with everything that it leaves to the pipeline filled in, and at the end what was set where; plain
    values only."""
    deploy = engine.deploy
    shown = msgspec.to_builtins(msgspec.structs.replace(deploy, stages=[], file=None))
    for name in NOT_IN_FILES:
        del shown[name]
    shown["stages"] = [_stage(deploy, config) for config in engine.pipeline.stages]
    of_pipeline = {"model": deploy.checkpoint} if deploy.checkpoint else {}
    set_by: dict[str, list[str]] = {}
    for path, source in deploy.set_by.items():
        set_by.setdefault(source, []).append(path)
    return {"file": str(deploy.file or "none"), **of_pipeline, **shown, "set_by": set_by}


def _stage(deploy: DeployConfig, config: StageConfig) -> dict[str, Any]:
    placed = deploy.stage(config.stage_id)
    arguments = ({"model": config.model} if config.model else {}) | placed.engine_args
    stage = {
        "stage_id": config.stage_id,
        "name": config.name,
        "executor": placed.executor or "inline",
        "replicas": placed.replicas or 1,
        "replica_policy": placed.replica_policy or DEFAULT if (placed.replicas or 1) > 1 else None,
        "devices": placed.devices,
        "max_num_seqs": placed.max_num_seqs or config.max_num_seqs,
        "env": dict.fromkeys(placed.env, HIDDEN),
        "engine_args": _without_secrets(arguments),
        "sampling": placed.sampling | config.sampling_constraints,
        "output_connectors": placed.output_connectors,
    }
    return {name: value for name, value in stage.items() if value not in (None, {}, [])}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: HIDDEN if _SECRET.search(str(k)) else _without_secrets(v) for k, v in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value


def _checked(
    file: Path | None,
    model: str | None,
    stage_overrides: str | None,
    async_chunk: bool | None,
    speculation: str | None,
) -> Engine:
    """An engine that is not started. Exits with one line on standard error when a rule is broken."""
    try:
        engine = Engine(load_deploy(file, overrides=overrides_of(model, stage_overrides, async_chunk, speculation)))
        engine.check_arguments()
        settings_from_deploy(engine.deploy, engine.served_names(), engine.pipeline.capabilities)
    except ProtocolError as error:
        reason = f"{file or 'packaged default'}: {error.message}"
    except (DeployError, PipelineError, ModelUnavailable, ImportError) as error:
        reason = str(error)
    else:
        return engine
    typer.echo(f"duologue: {reason}", err=True)
    raise typer.Exit(1)
