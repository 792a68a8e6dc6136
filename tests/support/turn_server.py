"""A coturn of the test's own, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from missing import missing

USER, PASSWORD = "caller", "sesame"
SECRET = "open-sesame"


@contextmanager
def turn_server(folder: Path, secret: bool = False) -> Iterator[tuple[int, Path]]:
    """Its port, and the log that says what it did. ``secret``: it takes accounts made of ``SECRET`` and no others."""
    program = shutil.which("turnserver")
    if program is None:
        missing("turnserver is not installed: apt-get install coturn")
    assert program is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "turn.log"
    accounts = ["--lt-cred-mech", f"--user={USER}:{PASSWORD}"]
    if secret:
        accounts = ["--use-auth-secret", f"--static-auth-secret={SECRET}"]
    options = [
        *("--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1", f"--listening-port={port}", "--min-port=49000"),
        *("--max-port=49100", "--realm=test", "--no-cli", "--no-tls"),
        *accounts,
        *("--no-dtls", "--allow-loopback-peers", "--no-multicast-peers", f"--log-file={log}", "--simple-log", "-v"),
        *(f"--pidfile={folder / 'turn.pid'}", f"--userdb={folder / 'turn.db'}"),
    ]
    process = subprocess.Popen([program, "-n", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(process, port)
        yield port, log
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    """STUN binding requests until one is answered (RFC 8489 section 5)."""
    request = bytes.fromhex("000100002112a442") + b"duologue-tst"
    deadline = time.monotonic() + 20
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(0.2)
        while time.monotonic() < deadline and process.poll() is None:
            try:
                asking.sendto(request, ("127.0.0.1", port))
                asking.recv(1500)
            except (TimeoutError, ConnectionRefusedError):
                continue
            return
    raise AssertionError(f"turnserver did not come up (exit code {process.poll()})")
