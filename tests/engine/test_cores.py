"""How many cores a process counts on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duologue.engine.cores import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no processor affinity")
@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 4), ("150000 100000", 2), ("1000 100000", 1), ("900000 100000", 4), ("?", 4)]
)
def test_affinity_and_a_containers_quota_bound_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path / "cpu.max") == cores
    assert usable_cores(tmp_path / "none") == 4
