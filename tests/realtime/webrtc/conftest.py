"""The server of ``tests/realtime`` is served here as well, with the media of calls in its own process or in workers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from rtc_client import LOOPBACK

from duologue.realtime.gateway import EdgeSettings


@pytest.fixture(params=[0, 2], ids=["own-process", "workers"])
def settings(request: pytest.FixtureRequest) -> EdgeSettings:
    """Calls over loopback, their media in this process and then in two workers."""
    workers: Any = request.param
    return EdgeSettings(webrtc=replace(LOOPBACK, media_workers=workers))
