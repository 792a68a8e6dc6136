"""When a request's pieces passed an edge between two stages."""

from __future__ import annotations

import msgspec

from duologue.engine.executors.base import HOST_CLOCK


class EdgeTrace(msgspec.Struct):
    """The four first-events of one edge of one request, in seconds of ``time.monotonic``; None: not happened (yet)."""

    source: str
    target: str
    emitted: float | None = None
    """The producer emitted its first piece."""
    sent: float | None = None
    """The orchestrator handed it on."""
    accepted: float | None = None
    """The consumer took it."""
    produced: float | None = None
    """The consumer emitted its own first piece; stays None where the consumer is the client."""
    source_clock: str = HOST_CLOCK
    """Whose clock ``emitted`` is on. Times on different clocks cannot be compared."""
    target_clock: str = HOST_CLOCK
    """Whose clock ``accepted`` and ``produced`` are on; ``sent`` is always on this machine's."""

    def clock_of(self, event: str) -> str:
        """The clock that one of the four events is on."""
        return {"emitted": self.source_clock, "sent": HOST_CLOCK}.get(event, self.target_clock)

    def since(self, start: float, event: str) -> float | None:
        """Seconds from ``start``, on this machine's clock, to an event; None if it has not happened or cannot be
        compared."""
        at: float | None = getattr(self, event)
        return None if at is None or self.clock_of(event) != HOST_CLOCK else at - start
