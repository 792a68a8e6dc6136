"""The client's end of a request: an iterator of deltas that merges what a slow reader has not taken yet."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.requests import (
    AbortReason,
    AudioDelta,
    Delta,
    Finished,
    TextDelta,
    ToolCallDelta,
    TranscriptDelta,
    Usage,
    WordSpan,
)

OutputDelta = TranscriptDelta | TextDelta | ToolCallDelta | AudioDelta
OUTPUT_DELTAS = (TranscriptDelta, TextDelta, ToolCallDelta, AudioDelta)


class StreamOwner(Protocol):
    """What a stream asks of the orchestrator's record of its request."""

    def abort(self, reason: AbortReason) -> None: ...

    def read_out(self) -> None:
        """The reader has taken the last delta, or wants no more."""

    def room(self) -> None:
        """The reader has caught up after :attr:`Stream.full`."""

    async def push(self, piece: Any) -> None: ...

    def end_input(self) -> None: ...


class Stream:
    """Async iterator of :data:`~duologue.engine.requests.Delta`; the last one is always ``Finished``. One reader.

    Deltas that the reader has not taken yet are merged, kind by kind. Text may move ahead of sound in that, but sound
    never ahead of text, so that the text a word span points to is always there. Not more than ``limit`` bytes (plus
    one window of pieces) are kept: beyond, the producing stage waits. ``Finished`` has a place of its own.
    """

    def __init__(self, request_id: str, owner: StreamOwner, limit: int, trace: Sequence[EdgeTrace]) -> None:
        self.request_id = request_id
        self.trace = tuple(trace)
        """First-events of every edge that the request uses; the last entries are those to the client."""
        self._owner = owner
        self._limit = limit
        self._pending: deque[_Merged] = deque()
        self._bytes = 0
        self._full = False
        self.usage = Usage()
        """Tokens used so far, as the stages have reported them."""
        self._finished: Finished | None = None
        self._aborted = False
        self._exhausted = False
        self._reader: asyncio.Future[None] | None = None
        """What the reader waits on, while it waits."""
        self._notify: Callable[[], None] | None = None

    # -- reader --------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        while (delta := self.take()) is None:
            if self._exhausted:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return delta

    def take(self) -> Delta | None:
        """The next delta if there is one; None: not yet, or none after ``Finished``."""
        if not self._pending:
            if self._finished is None or self._exhausted:
                return None
            self._exhausted = True
            if not self._aborted:
                self._owner.read_out()
            return self._finished
        cell = self._pending.popleft()
        if cell.edge.accepted is None:
            cell.edge.accepted = time.monotonic()
        self._bytes -= cell.size
        if self._full and self._bytes <= self._limit // 2:
            self._full = False
            self._owner.room()
        return cell.joined()

    @property
    def readable(self) -> bool:
        """Whether :meth:`take` has something to give."""
        return bool(self._pending) or (self._finished is not None and not self._exhausted)

    def on_delta(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` whenever there is something to take: now, if there is something already.

        It is called in the middle of the orchestrator's work, and may do no more than remember it.
        """
        self._notify = notify
        if self._pending or self._finished is not None:
            notify()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self, reason: AbortReason = "client_abort") -> None:
        """End the request now. Idempotent; harmless after the end. ``reason`` is for the statistics.

        Nothing comes out any more but one ``Finished("aborted")``, also when the request had already completed and
        its last deltas were only waiting to be read.
        """
        if self._aborted or self._exhausted:
            return
        self._aborted = True
        self._pending.clear()
        self._bytes = 0
        self._finished = Finished(reason="aborted", usage=self.usage)
        self._wake()
        self._owner.abort(reason)
        self._owner.read_out()

    async def push(self, piece: Any) -> None:
        """Give a request that was opened with ``more_input`` its next piece; waits while its entry stage is behind."""
        await self._owner.push(piece)

    def end_input(self) -> None:
        """The input of a request that was opened with ``more_input`` is complete."""
        self._owner.end_input()

    @property
    def pending_bytes(self) -> int:
        """Size of what the reader has not taken yet."""
        return self._bytes

    # -- orchestrator --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True from the moment the limit is passed until the reader has taken half of it."""
        return self._full

    def put(self, delta: OutputDelta, edge: EdgeTrace) -> None:
        """Add a delta that came over ``edge``. Ignored after the end."""
        if self._finished is not None:
            return
        kind, size = _measured(delta)
        self._bytes += size
        if self._bytes > self._limit:
            self._full = True
        if self._pending and (cell := self._cell(kind)) is not None:
            cell.add(delta, size, edge)
        else:
            self._pending.append(_Merged(kind, delta, size, edge))
        self._wake()

    def count(self, usage: Usage) -> None:
        """Add to the tokens that ``Finished`` reports."""
        sums = {name: getattr(self.usage, name) + getattr(usage, name) for name in Usage.__struct_fields__}
        self.usage = Usage(**sums)

    def finish(self, finished: Finished) -> None:
        """Set the terminal delta, which comes out after all that waits; the first one wins."""
        if self._finished is None:
            self._finished = msgspec.structs.replace(finished, usage=self.usage)
            self._wake()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._notify is not None:
            self._notify()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _cell(self, kind: _Kind) -> _Merged | None:
        """The pending delta that one of this kind may join."""
        if self._pending[-1].kind == kind:
            return self._pending[-1]
        if kind is not AudioDelta:
            for cell in self._pending:
                if cell.kind == kind:
                    return cell
        return None


_Kind = type[OutputDelta] | tuple[type[ToolCallDelta], str]
"""What may be joined: deltas of one type, and of tool calls those of one call."""


def _measured(delta: OutputDelta) -> tuple[_Kind, int]:
    """Its kind and size."""
    if isinstance(delta, AudioDelta):
        return AudioDelta, len(delta.pcm)
    if isinstance(delta, ToolCallDelta):
        return (ToolCallDelta, delta.call_id), len(delta.arguments)
    return type(delta), len(delta.text)


class _Merged:
    """Pending deltas of one kind, joined only when they are read."""

    __slots__ = ("_parts", "edge", "kind", "size")

    def __init__(self, kind: _Kind, first: OutputDelta, size: int, edge: EdgeTrace) -> None:
        self.kind = kind
        self.size = size
        self.edge = edge
        self._parts: list[Any] = [first]

    def add(self, delta: OutputDelta, size: int, edge: EdgeTrace) -> None:
        self._parts.append(delta)
        self.size += size
        self.edge = edge

    def joined(self) -> OutputDelta:
        if len(self._parts) == 1:
            only: OutputDelta = self._parts[0]
            return only
        if isinstance(self._parts[0], ToolCallDelta):
            arguments = "".join(part.arguments for part in self._parts)
            return msgspec.structs.replace(self._parts[0], arguments=arguments)
        if self.kind is AudioDelta:
            words: list[WordSpan] = []
            for part in self._parts:
                words += part.words
            return AudioDelta(pcm=b"".join(part.pcm for part in self._parts), words=tuple(words))
        text = "".join(part.text for part in self._parts)
        if self.kind is TextDelta:
            return TextDelta(text=text)
        logprobs = tuple(logprob for part in self._parts for logprob in part.logprobs)
        joined: TranscriptDelta = msgspec.structs.replace(self._parts[-1], text=text, logprobs=logprobs)
        return joined
