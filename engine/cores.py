"""How many processor cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use (control groups, version 2): microseconds of processor time, or ``max``, per period."""


def usable_cores(quota: Path = _QUOTA) -> int:
    """Cores that the process may run on, fewer where a container's quota is smaller; at least 1.

    The machine may have many more: a thread for each of those would only take turns with its neighbours.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        limit = cores if allowed == "max" else math.ceil(int(allowed) / int(period))
    except (OSError, ValueError):
        limit = cores
    return max(1, min(cores, limit))
