"""No blocking call on the event loop: a real conversation under the loop's own watch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from served import COMMAND, server

pytestmark = pytest.mark.models
SLOW = re.compile(r"Executing .* took (\d+\.\d+) seconds")


def test_the_loop_is_never_blocked_for_more_than_50_ms(tmp_path: Path, speech_dir: Path) -> None:
    with server(tmp_path, "--log-level", "debug") as served:
        log = tmp_path / "server.log"
        loading = len(log.read_text())
        for name in ("librivox-austen-0880.wav", "goforward.wav"):
            talk = [*COMMAND, "talk", str(speech_dir / name), "--url", served.ws, "--json"]
            subprocess.run(talk, check=True, capture_output=True, timeout=120)
        said = log.read_text()[loading:]
        assert served.stop()[0] == 0
    assert said.count("is over") == 2, "the log does not cover the conversations"
    slow = [match.group() for match in SLOW.finditer(said)]
    assert not slow
