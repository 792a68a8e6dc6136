"""Options that several commands lay over the deploy file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from duologue.engine.deploy import Overrides

MODEL_HELP = (
    "Checkpoint to serve: a folder, a .gguf file, a name of 'models list' or a hub id. Its configuration decides the "
    "pipeline; a plain language model becomes that of the assistant. Without it the assistant is served as it is."
)

StageOverrides = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|FILE",
        help='Keys of stages over the deploy file, by id or name: \'{"talker": {"executor": "process"}}\'.',
    ),
]
AsyncChunk = Annotated[
    bool | None,
    typer.Option(
        "--async-chunk/--no-async-chunk",
        help="Whether a stage hands on while it still works, or only when it is done. Unset: as in the deploy file.",
        show_default=False,
    ),
]


def overrides_of(model: str | None, stage_overrides: str | None, async_chunk: bool | None) -> Overrides:
    """The options as :func:`~duologue.engine.deploy.load_deploy` takes them. Raises ``DeployError``."""
    from duologue.engine.deploy import Overrides, parse_stage_overrides

    return Overrides(model, async_chunk, parse_stage_overrides(stage_overrides) if stage_overrides is not None else {})
