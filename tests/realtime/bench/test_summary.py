from __future__ import annotations

import pytest

from duologue.realtime.bench.summary import metric


def test_golden_percentiles():
    result = metric([100, 200, 300, 400], "ms", "f")
    assert (result.p50, result.p95, result.p99) == (250, 385, pytest.approx(397))
    assert (result.n, result.mean, result.min, result.max) == (4, 250, 100, 400)


def test_nothing_measured_is_null_and_not_zero():
    result = metric([None, None], "ms", "f")
    assert result.n == 0
    assert {result.mean, result.p50, result.p95, result.p99, result.min, result.max} == {None}


def test_unmeasured_values_are_left_out():
    assert metric([None, 2.0], "ms", "f").mean == 2.0
