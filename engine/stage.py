"""The interface between the engine and a model component.

A stage lives on worker threads of its executor and never sees the event loop. For each request it gets pieces from
the stage before it (or the request's payload, if the request enters here) and emits pieces as soon as they exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from duologue.engine.requests import ChatMessage, EngineRequest

Ability = Literal["tools", "image_in", "multilingual", "reads_ahead"]
"""What depends on the model that a stage runs, and not on the pipeline: the field of
:class:`~duologue.engine.pipeline.Capabilities` of that name."""


class NotSupported(ValueError):
    """The model cannot do what the request asks for; the message names both."""


def take_no_pictures(messages: Iterable[ChatMessage], model: str) -> None:
    """Raises :class:`NotSupported` when there is a picture among the messages."""
    if any(message.images for message in messages):
        raise NotSupported(f"The {model} takes no pictures.")


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

    def made(self, seconds: float) -> None:
        """Say that what was emitted will keep the listener busy for so many seconds more, the silence in it included.

        Requests are worked on by urgency: one whose sound is about to run dry first, one that is far ahead last.
        """

    @property
    def left_s(self) -> float:
        """Seconds that are left to be heard of what :meth:`made` has told of; 0 before the first of it."""

    @property
    def outranked(self) -> bool:
        """True while a more urgent request waits for this one's place; checked between steps of a long piece."""

    def give_way(self) -> bool:
        """Let more urgent requests go first; returns when it is this one's turn again. False: the request is dead."""

    @property
    def aborted(self) -> bool:
        """True once the request is dead; checked between steps that emit nothing."""


class Stage(ABC):
    """One model component. A subclass says in its docstring which pieces it takes and which it emits, and how much it
    still computes after an abort: its bound.

    ``load`` and ``warm_up`` run once, on a worker thread, before anything else. Everything about one request lives
    in the object that ``start`` returns; a stage keeps no per-request state of its own.
    """

    concurrency: int | None = None
    """Requests that are best worked on at the same time, where that is fewer than are open (``max_num_seqs``)."""

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """What a stage made with these arguments adds to its pipeline's capabilities.

        Called in the gateway, without loading: from the arguments, and from small files of the checkpoint.
        """
        return frozenset()

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

    def interrupt(self, state: Any) -> None:
        """The request was aborted: wake ``process`` or ``finish`` if one of them waits for something outside.

        For stages whose step can take long without the chance to look at ``context.aborted``. Called at most between
        ``start`` and ``release``, from any thread, under a lock of the executor, perhaps twice: it returns at once.
        """

    def release(self, state: Any) -> None:
        """The request is over, however it ended: free what ``start`` took. Called exactly once."""

    def end_session(self, session_id: str) -> None:
        """No request of this session will come any more: what was kept for the next one may go.

        Called from any thread, perhaps while the session's last requests are still open: it returns at once.
        """

    def close(self) -> None:
        """The server stops: free the model."""
