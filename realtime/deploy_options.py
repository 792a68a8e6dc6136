"""Options that several commands lay over the deploy file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

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
Speculation = Annotated[
    Literal["on", "off"] | None,
    typer.Option(
        help="Whether answers are prepared in a pause that may be the end of a turn. Unset: as in the deploy file.",
        show_default=False,
    ),
]


def overrides_of(
    model: str | None, stage_overrides: str | None, async_chunk: bool | None, speculation: str | None
) -> Overrides:
    """The options as :func:`~duologue.engine.deploy.load_deploy` takes them. Raises ``DeployError``."""
    from duologue.engine.deploy import Overrides, parse_stage_overrides

    speculate = None if speculation is None else speculation == "on"
    stages = parse_stage_overrides(stage_overrides) if stage_overrides is not None else {}
    return Overrides(model, async_chunk, speculate, stages)
