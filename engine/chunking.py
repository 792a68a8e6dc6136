"""How a stage's pieces reach the next stage: each at once, in chunks, or all together when the stage is done.

Each at once needs nothing of this module. A stage whose pipeline names a ``chunk_processor``, and every stage when
``async_chunk`` is off, is wrapped in :class:`HandingOver`, which works on the producing stage's own thread and so in
its process. What goes to the client is not held back by either.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from duologue.engine.requests import EngineRequest, TextDelta, ToolCallDelta, Usage
from duologue.engine.stage import Stage, StageContext, StageFinish, Taker
from duologue.engine.stream import OUTPUT_DELTAS


@dataclass
class Made:
    """What a stage has made for one request and not handed on. Nobody but its chunk processor changes it."""

    request: EngineRequest
    waiting: list[Any] = field(default_factory=list)
    """Pieces that no chunk has taken, oldest first."""
    chunks: int = 0
    """Chunks handed on so far."""
    context: Any = None
    """Whatever the processor keeps from one chunk for the next, such as frames of left context."""


ChunkProcessor = Callable[[Made, bool], Any | None]
"""``(made, finished) -> chunk | None``: called after each piece, and once more with ``finished`` at the stage's end.

Returns a chunk and takes what is in it out of ``made.waiting``, or None when it is not enough yet. With ``finished`` it
leaves nothing behind. It has no other effects.
"""

FullProcessor = Callable[[Sequence[Any]], Sequence[Any]]
"""All that a stage made for a request -> what the next stage is given, in order. It has no effects."""


def join_text(pieces: Sequence[Any]) -> Sequence[Any]:
    """Full processor: text in one piece, so that the next stage sees all of it at once."""
    joined: list[Any] = []
    for piece in pieces:
        if type(piece) is TextDelta and joined and type(joined[-1]) is TextDelta:
            joined[-1] = TextDelta(text=joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


class HandOver(msgspec.Struct, frozen=True):
    """How one stage hands on. Plain data, to be sent to a worker."""

    whole: bool
    """True: all together at the end, by a full processor; False: in chunks, by a chunk processor."""
    processor: str | None = None
    """``module:function``; None (only with ``whole``): the pieces as they are."""
    final: bool = False
    """The client takes the stage's pieces too."""

    def function(self) -> Any:
        """Import the processor. Raises ``ImportError``, also when it is no function."""
        if self.processor is None:
            return lambda pieces: pieces
        module, _, name = self.processor.partition(":")
        found = getattr(importlib.import_module(module), name, None)
        if not callable(found):
            raise ImportError(f"module '{module}' has no function '{name}'")
        return found


class HandingOver(Stage):
    """A stage whose pieces are handed on as its :class:`HandOver` says."""

    def __init__(self, stage: Stage, plan: HandOver) -> None:
        self._stage = stage
        self._plan = plan
        self._function = plan.function()
        self.load, self.warm_up, self.close = stage.load, stage.warm_up, stage.close  # type: ignore[method-assign]
        self.concurrency = stage.concurrency

    def start(self, request: EngineRequest) -> tuple[Any, Made]:
        """See :class:`~duologue.engine.stage.Stage`."""
        return self._stage.start(request), Made(request)

    def process(self, state: tuple[Any, Made], piece: Any, context: StageContext) -> None:
        """See :class:`~duologue.engine.stage.Stage`."""
        self._stage.process(state[0], piece, self._collecting(state[1], context))

    def finish(self, state: tuple[Any, Made], context: StageContext) -> None:
        """Let the stage finish, then flush."""
        made = state[1]
        self._stage.finish(state[0], self._collecting(made, context))
        if self._plan.whole:
            pieces, made.waiting = made.waiting, []
            for piece in self._function(pieces):
                if not context.emit(piece, "next"):
                    return
        elif not context.aborted:
            self._hand_on(made, context, finished=True)

    def interrupt(self, state: tuple[Any, Made]) -> None:
        """See :class:`~duologue.engine.stage.Stage`."""
        self._stage.interrupt(state[0])

    def release(self, state: tuple[Any, Made]) -> None:
        """See :class:`~duologue.engine.stage.Stage`."""
        self._stage.release(state[0])

    def _collecting(self, made: Made, context: StageContext) -> _Collecting:
        return _Collecting(made, context, self._plan.final, None if self._plan.whole else self._hand_on)

    def _hand_on(self, made: Made, context: StageContext, finished: bool = False) -> bool:
        chunk = self._function(made, finished)
        if chunk is None:
            return not context.aborted
        made.chunks += 1
        return context.emit(chunk, "next")


class _Collecting:
    """The context that the wrapped stage is given."""

    def __init__(
        self, made: Made, context: StageContext, final: bool, hand_on: Callable[[Made, StageContext], bool] | None
    ) -> None:
        self.request = context.request
        self._made = made
        self._context = context
        self._final = final
        self._hand_on = hand_on

    def emit(self, piece: Any, to: Taker = "all") -> bool:
        """To the client now, to the next stage when it is time."""
        if self._context.aborted:
            return False
        if isinstance(piece, Usage | StageFinish | ToolCallDelta):
            return self._context.emit(piece)
        if (
            self._final
            and to != "next"
            and isinstance(piece, OUTPUT_DELTAS)
            and not self._context.emit(piece, "client")
        ):
            return False
        if to == "client":
            return True
        self._made.waiting.append(piece)
        if self._hand_on is not None and not self._hand_on(self._made, self._context):
            return False
        self._context.working()
        return not self._context.aborted

    def working(self) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        self._context.working()

    def made(self, seconds: float) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        self._context.made(seconds)

    @property
    def left_s(self) -> float:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.left_s

    @property
    def outranked(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.outranked

    def give_way(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.give_way()

    @property
    def aborted(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.aborted
