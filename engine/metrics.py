"""Prometheus families of the engine. Registered once, at import; any number of engines share them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Literal

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duologue.engine.executors.base import Replica
from duologue.engine.requests import FinishReason

FailureReason = Literal["stage_error", "timeout"]

requests_total = Counter("duologue_requests", "Requests by terminal reason", ["finished_reason"])
requests_failed_total = Counter("duologue_requests_failed", "Failed requests by cause", ["reason"])
stage_gen_time_s = Histogram(
    "duologue_stage_gen_time_s",
    "Seconds a stage worked on a request, waiting for credit excluded",
    ["stage"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300),
)


def count_finished(reason: FinishReason, failure: FailureReason | None) -> None:
    """Record the one terminal outcome of a request."""
    requests_total.labels(reason).inc()
    if failure is not None:
        requests_failed_total.labels(failure).inc()


class ReplicaCollector(Collector):
    """Reads the depth of live replicas when scraped, so that they cost nothing between scrapes and vanish with them."""

    def __init__(self) -> None:
        self._replicas: weakref.WeakSet[Replica] = weakref.WeakSet()

    def add(self, replica: Replica) -> None:
        """Export a replica until it is removed or forgotten."""
        self._replicas.add(replica)

    def remove(self, replica: Replica) -> None:
        """Stop exporting it."""
        self._replicas.discard(replica)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The two gauges, with labels ``stage`` and ``replica``."""
        labels = ["stage", "replica"]
        in_flight = GaugeMetricFamily("duologue_stage_in_flight", "Requests open at a replica", labels=labels)
        waiting = GaugeMetricFamily("duologue_stage_waiting_requests", "Requests waiting for a worker", labels=labels)
        for replica in [r for r in self._replicas if r.live]:
            is_open, is_waiting = replica.depth()
            in_flight.add_metric([replica.stage, str(replica.index)], is_open)
            waiting.add_metric([replica.stage, str(replica.index)], is_waiting)
        yield in_flight
        yield waiting


replicas = ReplicaCollector()
REGISTRY.register(replicas)
