"""The interface between the engine and a model component.

A stage lives on worker threads of its executor and never sees the event loop. For each request it gets pieces from
the stage before it (or the request's payload, if the request enters here) and emits pieces as soon as they exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol

import msgspec

from duologue.engine.requests import EngineRequest


class StageFinish(msgspec.Struct, frozen=True):
    """Piece by which a stage says that it stopped short: the request ends as ``reason`` once everything is flushed.

    Like :class:`~duologue.engine.requests.Usage` it may be emitted by any stage at any time, goes to the orchestrator
    only, and reaches neither the next stage nor the client.
    """

    reason: Literal["length"] = "length"


Taker = Literal["all", "client", "next"]
"""Who is given a piece: everybody, the client only, the next stage only."""


class StageContext(Protocol):
    """What a stage may do for one request while it works on it. Safe to use from the worker thread only."""

    request: EngineRequest

    def emit(self, piece: Any, to: Taker = "all") -> bool:
        """Hand a piece on: to the next stage, and to the client if the stage's output is final.

        Blocks while the next stage is too far behind. False: the request is dead; return at once.
        """

    def working(self) -> None:
        """Say that the work goes on where nothing is emitted for long: it puts off the request's timeout."""

    @property
    def aborted(self) -> bool:
        """True once the request is dead; checked between steps that emit nothing."""


class Stage(ABC):
    """One model component. A subclass says in its docstring which pieces it takes and which it emits.

    ``load`` and ``warm_up`` run once, on a worker thread, before anything else. Everything about one request lives
    in the object that ``start`` returns; a stage keeps no per-request state of its own.
    """

    def load(self) -> None:
        """Read the weights. Raises ``ModelUnavailable`` with one line that says what to do."""

    def warm_up(self) -> None:
        """Run once on realistic input so that the first request is not slower than the others."""

    def start(self, request: EngineRequest) -> Any:
        """State for a new request. Called before its first piece arrives, so this is the place to prepare."""
        return None

    @abstractmethod
    def process(self, state: Any, piece: Any, context: StageContext) -> None:
        """Work on one piece and emit what comes of it. Pieces of one request arrive in order, one at a time."""

    def finish(self, state: Any, context: StageContext) -> None:
        """The input of this request is complete: emit what is left."""

    def release(self, state: Any) -> None:
        """The request is over, however it ended: free what ``start`` took. Called exactly once."""

    def close(self) -> None:
        """The server stops: free the model."""
