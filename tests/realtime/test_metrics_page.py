"""``docs/metrics.md`` names every family there is, and no other."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from prometheus_client import REGISTRY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_lists_what_is_exported() -> None:
    for module in ("duologue.realtime.metrics", "duologue.sessions.metrics", "duologue.engine.metrics"):
        importlib.import_module(module)
    exported = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in REGISTRY.collect()
        if family.name.startswith("duologue_")
    }
    assert set(re.findall(r"`(duologue_\w+)", PAGE.read_text())) == exported
