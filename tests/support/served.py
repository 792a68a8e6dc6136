"""``duologue serve`` as a child process: started, waited for by its own words, stopped as a user stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "duologue.realtime.cli")
PATIENCE_S = 300.0
"""Longest wait for a line of output: enough to fetch the models on a slow line."""


@dataclass
class Served:
    """A running server. ``url`` is its HTTP address without a path."""

    process: subprocess.Popen[str]
    errors: Path
    url: str = ""
    ready: str = ""

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/realtime"

    def wait_for(self, beginning: str) -> str:
        """Read standard output up to a line with that beginning. Fails with the server's own words if none comes."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith(beginning):
                    return line.strip()
        finally:
            watchdog.cancel()
        raise AssertionError(f"no line '{beginning}...' from the server; it said: {self.errors.read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, float]:
        """Signal the server; returns its exit code and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        return code, time.monotonic() - began


@contextmanager
def server(folder: Path, *arguments: str, ready: bool = True, **environment: str) -> Iterator[Served]:
    """Run ``duologue serve`` on a free port; if wanted, wait until it is ready."""
    errors = folder / "server.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment},
        )
    served = Served(process, errors)
    try:
        served.url = served.wait_for("Listening on ").split()[2]
        if ready:
            served.ready = served.wait_for("duologue ready ")
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
