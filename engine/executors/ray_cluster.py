"""The connection to a Ray cluster. Ray keeps one for each process, so the engines of a process share it.

Connecting runs on a thread: it blocks, and off the main thread Ray leaves the process's signal handlers alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Final

from duologue.engine.deploy import DeployError, RayDeploy
from duologue.engine.executors.threads import run_in_thread

_lock: Final = threading.Lock()
_users = 0
"""Engines that use the connection made here."""


class RayCluster:
    """One engine's use of the cluster."""

    def __init__(self, settings: RayDeploy, where: str = "deploy configuration") -> None:
        self.settings = settings
        self._where = where
        self._connecting = asyncio.Lock()
        self._connected = False

    async def connect(self) -> None:
        """Connect, or start a cluster on this host if there is none. Raises :class:`DeployError`."""
        async with self._connecting:
            if not self._connected:
                await run_in_thread(self._connect, "ray-connect")

    async def close(self) -> None:
        """Leave; the last engine disconnects, and ends a cluster that was started here. Idempotent."""
        async with self._connecting:
            if self._connected:
                self._connected = False
                await run_in_thread(_leave, "ray-disconnect")

    def _connect(self) -> None:
        global _users
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        import ray

        with _lock:
            if not ray.is_initialized():
                try:
                    ray.init(**self._arguments())
                except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                    address = self.settings.address or "a local one"
                    raise DeployError(f"{self._where}: ray.address: no Ray cluster ({address}): {error}") from error
                _users = 1
            elif _users:  # a connection that the program around us has made is not counted, nor ended
                _users += 1
            self._connected = True

    def _arguments(self) -> dict[str, Any]:
        settings = self.settings
        arguments: dict[str, Any] = {"namespace": settings.namespace, "log_to_driver": False}
        if settings.address:
            arguments["address"] = settings.address
        if settings.runtime_env:
            arguments["runtime_env"] = settings.runtime_env
        return arguments | {"include_dashboard": False, "configure_logging": False}


def _leave() -> None:
    global _users
    import ray

    with _lock:
        if _users:
            _users -= 1
            if not _users:
                ray.shutdown()
