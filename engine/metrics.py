"""Prometheus families of the engine. Registered once, at import; any number of engines share them.

What happens once a request is written to ordinary families. What happens with each piece is too frequent for their
locks: it goes to a :class:`Tally`, which only the event loop writes and which is read when scraped.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duologue.engine.executors.base import Replica
from duologue.engine.requests import FinishReason

FailureReason = Literal["client_abort", "client_disconnect", "stage_error", "timeout", "unknown"]

SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
FAST_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 60)
WORK_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 0.9, 1, 1.25, 1.5, 2, 5, 10)
SIZES = tuple(4**power for power in range(2, 13))
"""16 bytes to 16 MiB."""

CONTINUITY_THRESHOLDS_MS = (100,)
"""A request whose simulated player was silent for less than that, in all, counts as continuous."""

requests_total = Counter("duologue_requests", "Requests by terminal reason", ["finished_reason"])
requests_failed_total = Counter(
    "duologue_requests_failed", "Requests that brought no whole answer, by cause", ["reason"]
)
e2e_request_latency_s = Histogram(
    "duologue_e2e_request_latency_s",
    "Seconds from opening a request to its terminal outcome",
    ["kind"],
    buckets=SECONDS,
)
edge_first_event_s = Histogram(
    "duologue_edge_first_event_s",
    "Seconds from opening a request to the first time that something happened on an edge",
    ["from_stage", "to_stage", "event", "clock"],
    buckets=FAST_SECONDS,
)
audio_continuity_ok = Counter(
    "duologue_audio_continuity_ok", "Requests whose sound came in time, by the silence allowed", ["threshold_ms"]
)
audio_skipped_requests = Counter(
    "duologue_audio_skipped_requests", "Requests for sound whose continuity could not be measured", ["reason"]
)
turn_model_questions = Counter(
    "duologue_turn_model_questions", "Questions to the model that judges the end of a turn", ["outcome"]
)
turn_model_answer_s = Histogram(
    "duologue_turn_model_answer_s", "Seconds from a question to the turn model until its answer", buckets=FAST_SECONDS
)
turn_model_run_s = Histogram(
    "duologue_turn_model_run_s", "Seconds that the turn model worked on a question", buckets=FAST_SECONDS
)
loop_lag_s = Histogram(
    "duologue_loop_lag_s", "How late the event loop is, while requests are in progress", buckets=FAST_SECONDS
)


@cache
def first_event_of(from_stage: str, to_stage: str, event: str, clock: str) -> Histogram:
    """The member of :data:`edge_first_event_s`, found once: a request writes to a dozen of them."""
    return edge_first_event_s.labels(from_stage, to_stage, event, clock)


def count_finished(reason: FinishReason, failure: FailureReason | None) -> None:
    """Record the one terminal outcome of a request."""
    requests_total.labels(reason).inc()
    if failure is not None:
        requests_failed_total.labels(failure).inc()


class Tally:
    """A histogram without labels and locks. For one thread."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets, and the sum of all values."""
        total, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return buckets, self._sum

    @property
    def empty(self) -> bool:
        """True until something was counted."""
        return not any(self._counts)


class ReplicaHistogram:
    """A histogram whose labels name replicas: ``stage, replica``, or ``from_..., to_...`` of two of them."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], ends: Sequence[str] = ("",)) -> None:
        self.name = name
        self._documentation = documentation
        self._buckets = buckets
        self._labels = [f"{end}{label}" for end in ends for label in ("stage", "replica")]
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def of(self, *labels: str) -> Tally:
        """The tally with these labels."""
        tally = self._tallies.get(labels)
        if tally is None:
            tally = self._tallies[labels] = Tally(self._buckets)
        return tally

    def forget(self, stage: str, replica: str) -> None:
        """Drop what names that replica."""
        for labels in [labels for labels in self._tallies if (stage, replica) in _ends(labels)]:
            del self._tallies[labels]

    def collect(self, live: set[tuple[str, str]]) -> Metric:
        """Series all of whose ends are live and that have counted something."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=self._labels)
        for labels, tally in list(self._tallies.items()):
            if not tally.empty and all(end in live for end in _ends(labels)):
                family.add_metric(labels, *tally.sample())
        return family


def _ends(labels: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(labels[n], labels[n + 1]) for n in range(0, len(labels), 2)]


HOP = ("from_", "to_")
CLIENT = ("client", "")
"""The end of an edge that is no stage."""

stage_gen_time_s = ReplicaHistogram(
    "duologue_stage_gen_time_s", "Seconds a stage worked on a request, waiting for credit excluded", WORK_SECONDS
)
time_to_first_token_s = ReplicaHistogram(
    "duologue_time_to_first_token_s", "Seconds from opening a request to the first text for the client", SECONDS
)
audio_ttfp_s = ReplicaHistogram(
    "duologue_audio_ttfp_s", "Seconds from opening a request to the first sound for the client", SECONDS
)
audio_duration_s = ReplicaHistogram("duologue_audio_duration_s", "Seconds of sound made for a request", SECONDS)
audio_rtf = ReplicaHistogram(
    "duologue_audio_rtf", "Seconds the last stage worked for a second of the request's sound", RATIOS
)
audio_underrun_s = ReplicaHistogram(
    "duologue_audio_underrun_s", "Silence in a player that plays a request's sound as it is made", (0.0, *FAST_SECONDS)
)
transfer_size_bytes = ReplicaHistogram("duologue_transfer_size_bytes", "Payload of a chunk", SIZES, HOP)
transfer_tx_s = ReplicaHistogram(
    "duologue_transfer_tx_s", "Seconds from a stage's emit until the chunk was handed on", FAST_SECONDS, HOP
)
transfer_in_flight_s = ReplicaHistogram(
    "duologue_transfer_in_flight_s", "Seconds from handing a chunk on until it was worked off", FAST_SECONDS, HOP
)
REPLICA_HISTOGRAMS = (
    stage_gen_time_s,
    time_to_first_token_s,
    audio_ttfp_s,
    audio_duration_s,
    audio_rtf,
    audio_underrun_s,
    transfer_size_bytes,
    transfer_tx_s,
    transfer_in_flight_s,
)


class ReplicaCollector(Collector):
    """Everything that belongs to a replica: read when scraped, and gone with the replica."""

    def __init__(self) -> None:
        self._replicas: weakref.WeakSet[Replica] = weakref.WeakSet()

    def add(self, replica: Replica) -> None:
        """Export a replica until it is removed or forgotten."""
        self._replicas.add(replica)

    def remove(self, replica: Replica) -> None:
        """Stop exporting it, and drop what was counted for it. Harmless for one that is unknown."""
        self._replicas.discard(replica)
        label = (replica.stage, str(replica.index))
        if label not in {(other.stage, str(other.index)) for other in self._replicas}:
            for histogram in REPLICA_HISTOGRAMS:
                histogram.forget(*label)

    def collect(self) -> Iterator[Metric]:
        """The gauges of depth, and the histograms of replicas that are live."""
        labels = ["stage", "replica"]
        in_flight = GaugeMetricFamily("duologue_stage_in_flight", "Requests open at a replica", labels=labels)
        waiting = GaugeMetricFamily("duologue_stage_waiting_requests", "Requests waiting for a worker", labels=labels)
        live = {CLIENT}
        for replica in [r for r in self._replicas if r.live]:
            label = (replica.stage, str(replica.index))
            live.add(label)
            is_open, is_waiting = replica.depth()
            in_flight.add_metric(label, is_open)
            waiting.add_metric(label, is_waiting)
        yield in_flight
        yield waiting
        for histogram in REPLICA_HISTOGRAMS:
            yield histogram.collect(live)


replicas = ReplicaCollector()
REGISTRY.register(replicas)
