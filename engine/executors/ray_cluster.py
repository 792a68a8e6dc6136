"""The connection to a Ray cluster. Ray keeps one for each process, so the engines of a process share it.

Connecting runs on a thread: it blocks, and off the main thread Ray leaves the process's signal handlers alone. That
thread stays for as long as the connection: the processes of a cluster that Ray starts here die with the thread that
started them (PR_SET_PDEATHSIG), and the program with them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from duologue.engine.deploy import DeployError, RayDeploy

_lock: Final = threading.Lock()
_users = 0
"""Engines that use the connection made here."""
_thread: ThreadPoolExecutor | None = None


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
                try:
                    await asyncio.get_running_loop().run_in_executor(_keeper(), self._connect)
                finally:
                    _dismiss_keeper()

    async def close(self) -> None:
        """Leave; the last engine disconnects, and ends a cluster that was started here. Idempotent."""
        async with self._connecting:
            if self._connected:
                self._connected = False
                await asyncio.get_running_loop().run_in_executor(_keeper(), _leave)
                _dismiss_keeper()

    def _connect(self) -> None:
        global _users
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        if not (self.settings.address or os.environ.get("RAY_ADDRESS") or _cluster_of_this_host().exists()):
            # A cluster of our own is for this host alone, so it is reached over the loopback interface. Left to itself
            # Ray takes the address of a network interface, and where that cannot be reached it ends the process.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
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


def _keeper() -> ThreadPoolExecutor:
    """The thread that connects and disconnects."""
    global _thread
    if _thread is None:
        _thread = ThreadPoolExecutor(1, thread_name_prefix="ray-connection")
    return _thread


def _dismiss_keeper() -> None:
    global _thread
    if not _users and _thread is not None:
        _thread.shutdown(wait=False)
        _thread = None


def _cluster_of_this_host() -> Path:
    """What ``ray start`` writes down for those who come after."""
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"


def _leave() -> None:
    global _users
    import ray

    with _lock:
        if _users:
            _users -= 1
            if not _users:
                ray.shutdown()
