"""Sessions come, go and are killed; afterwards the server holds what it held before.

The long one: ``pytest -m soak tests/soak``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from churn import DEPLOY, churn, held, settled
from served import server


async def run(folder: Path, warm_up: int, sessions: int, killed: int, growth_mib: float) -> None:
    """The first ``warm_up`` sessions are not measured: until then pools, caches and arenas grow to their size."""
    deploy = folder / "deploy.yaml"
    deploy.write_text(DEPLOY)
    with server(folder, "--deploy-config", str(deploy)) as served:
        await churn(served, warm_up, warm_up // 5)
        before = settled(served, held(served))
        await churn(served, sessions, killed)
        after = settled(served, before)
        print(f"\nbefore: {before}\nafter:  {after}")
        assert after.countable == before.countable, (before, after)
        assert after.rss_mib - before.rss_mib < growth_mib, (before, after)
        assert served.stop()[0] == 0
    assert "Traceback" not in served.errors.read_text()


@pytest.mark.models
async def test_forty_sessions_leave_nothing(tmp_path: Path) -> None:
    await run(tmp_path, 20, 40, killed=10, growth_mib=64)


@pytest.mark.soak
async def test_a_thousand_sessions_leave_nothing(tmp_path: Path) -> None:
    await run(tmp_path, 100, 1000, killed=200, growth_mib=16)
