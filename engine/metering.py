"""What is measured of one request, kept beside it while it runs and written down once, at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from duologue.engine import metrics
from duologue.engine.continuity import RealTimePlayer
from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.executors.base import HOST_CLOCK
from duologue.engine.metrics import Tally
from duologue.engine.pipeline import wanted_outputs
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    Converse,
    EngineRequest,
    FinishReason,
    TextDelta,
    Transcribe,
)

trace_logger = logging.getLogger("duologue.trace")
"""Gets one record a request, at level debug."""

Label = tuple[str, str]
"""A stage and the number of its replica."""

REMEMBERED_WORK_S: Final = 600.0

EVENTS: Final = ("emitted", "sent", "accepted", "produced")


class RequestTrace(msgspec.Struct, frozen=True):
    """Where the time of one request went: the field ``trace`` of its log record."""

    request_id: str
    session_id: str
    kind: str
    reason: FinishReason
    failure: metrics.FailureReason | None
    opened: float
    """When it was opened, in seconds of ``time.monotonic`` of the gateway's machine."""
    edges: tuple[EdgeTrace, ...]
    busy_s: dict[str, float]
    """Seconds that each ``stage replica`` worked on it."""
    released: dict[str, float]
    """When each of them was known to be through with it, on the same clock as ``opened``."""


class Work:
    """How long stages have worked on requests that were of use, and on those that were superseded: the price of
    working in advance. Older work counts for less."""

    def __init__(self) -> None:
        self.useful_s = 0.0
        self.wasted_s = 0.0

    def add(self, seconds: float, wasted: bool) -> None:
        """A request is through with all stages."""
        if wasted:
            self.wasted_s += seconds
        else:
            self.useful_s += seconds
        if self.useful_s + self.wasted_s > REMEMBERED_WORK_S:
            self.useful_s, self.wasted_s = self.useful_s / 2, self.wasted_s / 2


class Hop:
    """The tallies of what crosses from one replica to another."""

    __slots__ = ("_in_flight", "_size", "_tx")

    def __init__(self, source: Label, target: Label) -> None:
        self._size = metrics.transfer_size_bytes.of(*source, *target)
        self._tx = metrics.transfer_tx_s.of(*source, *target)
        self._in_flight: Tally = metrics.transfer_in_flight_s.of(*source, *target)

    def sent(self, size: int | None, tx_s: float | None) -> None:
        """A chunk was handed on so long after it was emitted; None: not known."""
        if size is not None:
            self._size.observe(size)
        if tx_s is not None:
            self._tx.observe(tx_s if tx_s > 0.0 else 0.0)

    def worked_off(self, seconds: float) -> None:
        """A chunk that was handed on so long ago has been worked off."""
        self._in_flight.observe(seconds)


class RequestMeter:
    """Measures one request. All times are seconds of ``time.monotonic``."""

    def __init__(self, request: EngineRequest, work: Work) -> None:
        self._request = request
        self._work = work
        self._opened = time.monotonic()
        self._first_text: tuple[Label, float] | None = None
        self._voice: Label | None = None
        self._first_audio = 0.0
        self._player = RealTimePlayer()
        self._busy: dict[Label, float] = {}
        self._released: dict[Label, float] = {}
        self._reason: FinishReason = "aborted"
        self._failure: metrics.FailureReason | None = None

    def to_client(self, delta: Any, stage: Label, now: float) -> None:
        """A stage's delta was put on the client's stream."""
        if type(delta) is AudioDelta:
            if self._voice is None:
                self._voice, self._first_audio = stage, now
            self._player.receive(now, len(delta.pcm) / 2 / OUTPUT_SAMPLE_RATE)
        elif self._first_text is None and type(delta) is TextDelta:
            self._first_text = stage, now

    def released(self, stage: Label, busy_s: float) -> None:
        """A stage is through with the request."""
        self._busy[stage] = busy_s
        self._released[stage] = time.monotonic()
        metrics.stage_gen_time_s.of(*stage).observe(busy_s)

    def finished(self, reason: FinishReason, failure: metrics.FailureReason | None) -> None:
        """The terminal outcome is known."""
        self._reason, self._failure = reason, failure
        metrics.count_finished(reason, failure)
        kind = type(self._request.payload).__name__.lower()
        metrics.e2e_request_latency_s.labels(kind).observe(time.monotonic() - self._opened)

    def close(self, trace: Sequence[EdgeTrace]) -> None:
        """Every stage has released and the client has read to the end: write down the rest."""
        superseded = self._reason == "aborted" and self._failure is None
        self._work.add(sum(self._busy.values()), wasted=superseded and self._speculative)
        if self._first_text is not None:
            stage, at = self._first_text
            metrics.time_to_first_token_s.of(*stage).observe(at - self._opened)
        if "audio" in wanted_outputs(self._request.payload):
            self._close_audio()
        for edge in trace:
            self._close_edge(edge)
        if trace_logger.isEnabledFor(logging.DEBUG):
            self._log(trace)

    @property
    def _speculative(self) -> bool:
        """Whether it was begun while the turn that it is about might go on."""
        match self._request.payload:
            case Transcribe(urgency=urgency):
                return urgency == "speculative"
            case Converse(prepare=prepare):
                return self._request.due_in_s > 0 and not prepare
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    def _close_audio(self) -> None:
        player = self._player
        if self._voice is None:
            skipped = {"completed": "no_audio", "length": "no_audio"}.get(self._reason, self._reason)
            metrics.audio_skipped_requests.labels(skipped).inc()
            return
        metrics.audio_ttfp_s.of(*self._voice).observe(self._first_audio - self._opened)
        metrics.audio_duration_s.of(*self._voice).observe(player.sound_s)
        if player.sound_s and self._voice in self._busy:
            metrics.audio_rtf.of(*self._voice).observe(self._busy[self._voice] / player.sound_s)
        if player.chunks < 2:
            metrics.audio_skipped_requests.labels("single_chunk").inc()
            return
        metrics.audio_underrun_s.of(*self._voice).observe(player.underrun_s)
        for threshold in metrics.CONTINUITY_THRESHOLDS_MS:
            if player.underrun_s * 1000 < threshold:
                metrics.audio_continuity_ok.labels(str(threshold)).inc()

    def _close_edge(self, edge: EdgeTrace) -> None:
        for event in EVENTS:
            seconds = edge.since(self._opened, event)
            if seconds is not None:
                metrics.first_event_of(edge.source, edge.target, event, HOST_CLOCK).observe(max(0.0, seconds))

    def _log(self, trace: Sequence[EdgeTrace]) -> None:
        request = self._request
        record = RequestTrace(
            request_id=request.request_id,
            session_id=request.session_id,
            kind=type(request.payload).__name__.lower(),
            reason=self._reason,
            failure=self._failure,
            opened=self._opened,
            edges=tuple(trace),
            busy_s={" ".join(label): round(busy, 6) for label, busy in self._busy.items()},
            released={" ".join(label): at for label, at in self._released.items()},
        )
        said = ", ".join(f"{e.source} > {e.target} {_milliseconds(e, self._opened)}" for e in trace)
        trace_logger.debug("trace of %s: %s", request.request_id, said, extra={"trace": msgspec.to_builtins(record)})


def _milliseconds(edge: EdgeTrace, opened: float) -> str:
    """The four first-events, in milliseconds since the request was opened."""
    times = (edge.since(opened, event) for event in EVENTS)
    return "/".join("-" if seconds is None else f"{seconds * 1000:.1f}" for seconds in times)
