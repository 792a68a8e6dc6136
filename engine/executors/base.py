"""What the orchestrator and a replica say to each other, whatever the executor.

Downwards the orchestrator calls the methods of :class:`Replica`; none of them blocks. Upwards the replica reports with
the messages below, which the orchestrator's reader task takes from :meth:`Replica.messages`. For one request a replica
reports in order, and :class:`Released` is the last.

Credit: a replica may have ``WINDOW`` pieces of a request on their way; :meth:`Replica.grant` raises the number that it
may have emitted in all. Pieces that are taken are reported in batches (:class:`Consumed`).

Times are seconds of this machine's monotonic clock (``time.monotonic``).
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from duologue.engine.requests import EngineRequest
from duologue.engine.stage import Taker

HOST_CLOCK = "host"
"""The monotonic clock of this machine: one clock for all of its processes."""

WINDOW = 32
"""Pieces that a stage may be ahead of the slowest taker of its pieces."""


class Message(msgspec.Struct, gc=False, tag=True, array_like=True):
    """Base of what a replica reports."""

    request_id: str


class Emitted(Message):
    piece: Any
    at: float
    """When the stage emitted it."""
    to: Taker = "all"


class Consumed(Message):
    count: int
    """Pieces taken and worked on since the last report."""
    first_accepted: float
    """When the first piece of the request was taken."""


class Working(Message):
    """The stage is at work on the request, with nothing to hand on."""


class Done(Message):
    """``finish`` has returned: this stage emits nothing more for the request."""


class Failed(Message):
    error: str
    """A sentence for people."""


class Released(Message):
    busy_s: float
    """Time the stage worked on the request, waiting for credit excluded."""


class Replica(Protocol):
    """One running copy of a stage."""

    stage: str
    index: int
    clock: str
    """Whose monotonic clock the times in its reports are on: :data:`HOST_CLOCK`, or the name of another host."""

    @property
    def live(self) -> bool:
        """True while it can take requests. One that is opened all the same is reported as failed."""

    async def load(self) -> None:
        """Build the stage and read its weights. Raises what the stage raises."""

    async def warm_up(self) -> None: ...

    def open(self, request: EngineRequest) -> None:
        """Prepare for a request."""

    def push(self, request_id: str, piece: Any) -> None:
        """Hand over a piece. The caller keeps within ``WINDOW`` pieces not yet reported as consumed."""

    def end_input(self, request_id: str) -> None: ...

    def grant(self, request_id: str, total: int) -> None:
        """The request may have emitted ``total`` pieces."""

    def abort(self, request_id: str) -> None:
        """Stop at the stage's next boundary and release. Harmless when the request is unknown."""

    def end_session(self, session_id: str) -> None:
        """No request of this session will be opened any more."""

    async def messages(self) -> list[Message]:
        """Wait for reports; at least one, in order. One caller at a time."""

    def depth(self) -> tuple[int, int]:
        """Requests open, and requests that wait for a worker."""

    async def close(self) -> bool:
        """Stop everything. False: a worker did not come back in time and was left behind."""
