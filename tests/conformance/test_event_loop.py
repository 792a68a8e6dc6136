"""No blocking call on the event loop: a real conversation under the loop's own watch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from served import COMMAND, Served, server

pytestmark = pytest.mark.models
SLOW = re.compile(r"Executing .* took (\d+\.\d+) seconds")
"""What asyncio's debug mode says of a callback that held the loop for more than the 50 ms that ``serve`` sets."""


def said_during_a_conversation(served: Served, speech_dir: Path) -> str:
    """The server's log of two spoken turns."""
    before = len(served.errors.read_text())
    for name in ("librivox-austen-0880.wav", "goforward.wav"):
        talk = [*COMMAND, "talk", str(speech_dir / name), "--url", served.ws, "--json"]
        subprocess.run(talk, check=True, capture_output=True, timeout=120)
    log = served.errors.read_text()[before:]
    assert log.count("is over") == 2, "the log does not cover the conversations"
    return log


def test_the_loop_is_never_blocked_for_more_than_50_ms(tmp_path: Path, speech_dir: Path) -> None:
    with server(tmp_path, "--log-level", "debug") as served:
        slow = SLOW.findall(said_during_a_conversation(served, speech_dir))
        if slow:  # a machine that stalled does so once, a call that blocks does so again
            slow = SLOW.findall(said_during_a_conversation(served, speech_dir))
        assert served.stop()[0] == 0
    assert not slow
