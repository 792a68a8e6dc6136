"""A replica as an actor on any node of a Ray cluster, supervised.

Three parties: the event loop, which owns the state here; one thread per actor, which packs pieces and calls the actor,
so that no payload is copied on the loop; and the actor (:mod:`~duologue.engine.executors.ray_actor`). Nothing polls:
reports are the results of calls that wait at the actor.

Death shows in three ways. The actor's process ends: Ray fails the waiting calls within milliseconds. Its node falls
silent: nothing ends, so while requests are open the actor sends a beat, and a timer here, which exists for as long,
watches for it; the requests fail after ``silent_after_s``, and after ``dead_after_s`` the actor is given up. Nothing is
asked of it meanwhile: Ray itself notices. A lost actor is replaced after a pause that grows, wherever there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.deploy import Resources
from duologue.engine.executors import process
from duologue.engine.executors.base import Done, Emitted, Failed, Message, Released
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import CLOSE_TIMEOUT_S
from duologue.engine.executors.process import State, WorkerError
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.requests import EngineRequest

logger = logging.getLogger(__name__)

WAITING_CALLS: Final = 2
"""Calls of ``reports`` under way: while one is on its way back the next is there already."""
BEATS: Final = 4
"""Beats in ``silent_after_s``."""
MOST_AT_ONCE: Final = 64
"""Messages of one call of ``tell``."""


class RaySpec(msgspec.Struct, frozen=True):
    """What an actor runs, and what it takes up."""

    build: StageBuild
    types: PieceTypes
    threshold_bytes: int
    slots: int = 1
    final: bool = False
    resources: Resources = Resources()
    env: Mapping[str, str | int | float] = {}


class _Piece(msgspec.Struct):
    """To be packed on the sender's thread. ``piece`` None: the request itself."""

    request_id: str
    piece: Any
    request: EngineRequest | None = None


class RayReplica:
    """Implements :class:`~duologue.engine.executors.base.Replica` over an actor. Used on the event loop."""

    def __init__(
        self,
        stage: str,
        spec: RaySpec,
        cluster: RayCluster,
        index: int = 0,
        local: SharedMemoryConnector | None = None,
    ) -> None:
        """``local``: stages in worker processes take the pieces, so large ones are brought to this host's memory."""
        self.stage = stage
        self.index = index
        self.state: State = "starting"
        self.silent = False
        self._spec = spec
        self._cluster = cluster
        self._local = local
        self._open: dict[str, EngineRequest] = {}
        self._done: set[str] = set()
        self._reports: deque[Message] = deque()
        self._reported = asyncio.Event()
        self._actor: Any = None
        self._sender: _Sender | None = None
        self._listener: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._restarts = 0
        self._ready_at = 0.0
        self.place: tuple[str, int] = ("", 0)
        """The address of the actor's node, and its process there."""

    # -- life ----------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Start the actor and let it read its weights. Raises :class:`WorkerError`, and ``DeployError``."""
        await self._cluster.connect()
        self._actor = await run_in_thread(self._new_actor, f"{self.stage}-place")
        await self._wait_for_place()
        await self._ask(self._actor.load.remote(self._launch()))

    async def warm_up(self) -> None:
        """Warm the stage up. Raises :class:`WorkerError`."""
        await self._ask(self._actor.warm_up.remote())
        self._sender = _Sender(self._actor, self._spec, f"{self.stage}-ray", self._pack_failed)
        self.state, self.silent, self._ready_at = "ready", False, time.monotonic()
        self._listener = asyncio.create_task(self._listen(self._actor), name=f"listen {self.stage} {self.index}")

    async def close(self) -> bool:
        """End the actor: by itself within the stage's bound, else by force. False: by force."""
        was_ready, self.state = self.state == "ready", "closed"
        self._stop_watching()
        await _ended(self._supervisor)
        clean = True
        if was_ready:
            clean = await self._closed_by_itself()
        await self._discard()
        return clean

    @property
    def live(self) -> bool:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        return self.state == "ready" and not self.silent

    # -- work ----------------------------------------------------------------------------------------------------------

    def open(self, request: EngineRequest) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`. Without an actor the request is failed at once."""
        self._open[request.request_id] = request
        if not self.live:
            self._fail(request.request_id, f"Stage '{self.stage}' has no running worker.")
            return
        self._send(_Piece(request.request_id, None, request))
        if self._watch is None:
            self._heard_at = time.monotonic()
            self._watch_from_now(self._cluster.settings.silent_after_s)

    def push(self, request_id: str, piece: Any) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        request = self._open.get(request_id)
        if request is not None:
            self._send(process.Push(request_id, None) if piece is request.payload else _Piece(request_id, piece))

    def end_input(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._send(process.EndInput(request_id))

    def grant(self, request_id: str, total: int) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._send(process.Grant(request_id, total))

    def abort(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._send(process.Abort(request_id))

    async def messages(self) -> list[Message]:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        while not self._reports:
            self._reported.clear()
            await self._reported.wait()
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def depth(self) -> tuple[int, int]:
        """Requests open, and how many more they are than the actor has slots."""
        return len(self._open), max(0, len(self._open) - self._spec.slots)
