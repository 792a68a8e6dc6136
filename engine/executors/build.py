"""How a replica makes its stage: the class by name, with the arguments of the deploy file. Plain data, to be sent."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from duologue.engine.chunking import HandingOver, HandOver
from duologue.engine.deploy import DeployError
from duologue.engine.pipeline import import_stage
from duologue.engine.stage import Stage


class StageBuild(msgspec.Struct, frozen=True):
    """A call of a stage's class."""

    target: str
    """``module:Class``."""
    given: dict[str, Any] = {}
    """Arguments that the class must take."""
    offered: dict[str, Any] = {}
    """Arguments that it gets if it takes them."""
    where: str = "stage"
    """What an error names: file and stage."""
    hand_over: HandOver | None = None
    """None: each piece is handed on as it is, at once."""

    def __call__(self) -> Stage:
        """Make the stage. Raises :class:`DeployError` for an argument that it does not know."""
        stage = import_stage(self.target)(**self.arguments())
        return HandingOver(stage, self.hand_over) if self.hand_over else stage

    def arguments(self) -> dict[str, Any]:
        """What the class is called with. Raises :class:`DeployError` as above; imports the class, loads nothing."""
        made_by = import_stage(self.target)
        signature = inspect.signature(made_by)
        known = {name: value for name, value in self.offered.items() if name in signature.parameters}
        arguments = known | self.given
        try:
            signature.bind(**arguments)
        except TypeError as error:
            names = ", ".join(signature.parameters) or "none"
            raise DeployError(f"{self.where}: engine_args: {error}. Known: {names}") from error
        return arguments
