"""A worker process: a fresh interpreter that runs one module, and the connection to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from duologue.engine.executors.threads import run_in_thread
from duologue.engine.executors.wire import Channel


class WorkerProcess:
    """One process; made by :meth:`start`. Used on the event loop."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process = process
        self._name = name

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str], channel: Channel[Any], env: Mapping[str, str], name: str
    ) -> WorkerProcess:
        """Run ``python -m module *arguments FD`` with ``channel`` connected to the socket FD.

        ``env`` is added to this process's environment; ``name`` is that of the threads that wait. Raises ``OSError``.
        """
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, **env}
        started: list[WorkerProcess] = []

        def spawn() -> None:
            fd = theirs.fileno()
            command = [sys.executable, "-P", "-m", module, *arguments, str(fd)]
            process = subprocess.Popen(command, env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL)
            started.append(cls(process, name))

        try:
            await run_in_thread(spawn, f"{name}-spawn")
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        except BaseException:
            ours.close()
            for worker in started:
                await worker.ended(0)
            raise
        finally:
            theirs.close()
        return started[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it now; the rest follows from the end of the connection."""
        self._process.send_signal(signal.SIGKILL)

    async def ended(self, patience_s: float) -> int:
        """Wait for its end, and enforce that after ``patience_s``. Returns the exit status."""

        def wait() -> int:
            try:
                return self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.kill()
                return self._process.wait()

        return await run_in_thread(wait, f"{self._name}-reap")
