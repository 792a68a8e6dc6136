"""Counts and percentiles as every benchmark reports them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np


class Metric(msgspec.Struct, frozen=True):
    """One measure over a run. Everything but ``n`` is ``None`` when nothing was measured."""

    n: int
    unit: str
    formula: str
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


def metric(values: Iterable[float | None], unit: str, formula: str) -> Metric:
    """Percentiles by linear interpolation between order statistics (numpy's default); ``None`` values are left out."""
    measured = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(measured):
        return Metric(0, unit, formula)
    p50, p95, p99 = (round(float(value), 3) for value in np.percentile(measured, (50, 95, 99)))
    low, high = round(float(measured.min()), 3), round(float(measured.max()), 3)
    return Metric(len(measured), unit, formula, round(float(measured.mean()), 3), p50, p95, p99, low, high)
