"""What is seen while a server starts: bars on a terminal, lines in the log elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from duologue.engine.engine import StageProgress
from duologue.engine.models import locate, pull

logger = logging.getLogger(__name__)

_STEPS = {"waiting": 0, "loading": 1, "warming_up": 2, "ready": 3}
"""How far a stage is, in thirds of its bar."""


class StartProgress:
    """A context manager that shows downloads and the loading of stages on standard error."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.fields[state]:>18}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def pull(self, name: str) -> Path:
        """Fetch a model unless it is here. Blocks; may be called from any thread. Raises ``ModelUnavailable``."""
        found = locate(name)
        if found is not None:
            return found
        logger.info("fetching model %s", name)
        bar = self._bars.add_task(name, total=None, state="connecting")

        def arrived(done: int, total: int) -> None:
            state = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
            self._bars.update(bar, completed=done, total=total, state=state)

        path = pull(name, arrived)
        self._bars.update(bar, state="fetched")
        logger.info("fetched model %s", name)
        return path

    def stage_moved(self, progress: StageProgress) -> None:
        """Show that a stage has reached a state."""
        if progress.stage not in self._stages:
            self._stages[progress.stage] = self._bars.add_task(progress.stage, total=_STEPS["ready"], state="")
        done = _STEPS.get(progress.state)
        self._bars.update(self._stages[progress.stage], completed=done, state=progress.state.replace("_", " "))
        logger.debug("stage %s is %s after %.1f s", progress.stage, progress.state, progress.seconds)
