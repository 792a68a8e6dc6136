"""The models on this machine, as the commands see them: which are needed, fetching them, showing them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from duologue.engine.deploy import DeployConfig, load_deploy
from duologue.engine.models import MODELS, list_models, locate
from duologue.engine.pipeline import get_pipeline
from duologue.realtime.progress import StartProgress

VOICE_ACTIVITY_MODEL = "silero-vad"


def needed_models(deploy: DeployConfig) -> list[str]:
    """Logical names of the models that a deployment runs on; paths of one's own are left out."""
    pipeline = get_pipeline(deploy.pipeline)
    named = [deploy.stage(stage.stage_id).engine_args.get("model", stage.model) for stage in pipeline.stages]
    turn_model = optional_model(deploy) if pipeline.capabilities.audio_in else None
    return list(dict.fromkeys(name for name in (*named, VOICE_ACTIVITY_MODEL, turn_model) if name in MODELS))


def optional_model(deploy: DeployConfig) -> str | None:
    """The one model that a server can do without: that of ``semantic_vad``."""
    return deploy.duplex_session.turn_model


def missing_models(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that would have to be fetched."""
    return [name for name in names if locate(name) is None]


def pull_models(name: str | None) -> None:
    """``duologue models pull``. Raises ``ModelUnavailable``."""
    names = [name] if name is not None else needed_models(load_deploy())
    with StartProgress() as progress:
        paths = {wanted: progress.pull(wanted) for wanted in names}
    for wanted, path in paths.items():
        print(f"{wanted}: {path}")


def show_models() -> None:
    """``duologue models list``."""
    needed = set(needed_models(load_deploy()))
    table = Table(caption="* needed by the default pipeline", caption_justify="left")
    for heading in ("name", "licence", "size", "source", "state"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for model in list_models():
        name = f"{model.name} *" if model.name in needed else model.name
        table.add_row(name, model.licence, f"{model.size / 1e6:.0f} MB", model.source, model.state)
    Console().print(table)
