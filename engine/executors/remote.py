"""What the replicas outside this process have in common: their open requests, reports, death and restart.

A worker that is lost fails its open requests at once, and a new one is started (:class:`Restarts`).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import Final, Literal

import msgspec

from duologue.engine.executors.base import Done, Failed, Message, Released
from duologue.engine.executors.restarts import Restarts
from duologue.engine.executors.wire import Abort, EndInput, EndSession, Grant
from duologue.engine.requests import EngineRequest

ABORT_S: Final = 30.0
"""Longer than any stage's own bound for an abort."""

State = Literal["starting", "ready", "restarting", "failed", "closed"]


class RemoteReplica(ABC):
    """Base of the implementations of :class:`~duologue.engine.executors.base.Replica` over a worker."""

    def __init__(self, stage: str, slots: int, index: int) -> None:
        self.stage = stage
        self.index = index
        self.state: State = "starting"
        self._slots = slots
        self._open: dict[str, EngineRequest] = {}
        self._done: set[str] = set()
        self._aborted: dict[str, float] = {}
        self._reports: deque[Message] = deque()
        self._reported = asyncio.Event()
        self._restarts = Restarts(f"Stage '{stage}' (replica {index})")
        self._supervisor: asyncio.Task[None] | None = None

    # -- for the orchestrator ------------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        return self.state == "ready"

    def end_input(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._send(EndInput(request_id))

    def grant(self, request_id: str, total: int) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._send(Grant(request_id, total))

    def abort(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._aborted.setdefault(request_id, time.monotonic())
            self._send(Abort(request_id))

    def end_session(self, session_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if self.live:
            self._send(EndSession(session_id))

    async def messages(self) -> list[Message]:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        while not self._reports:
            self._reported.clear()
            await self._reported.wait()
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def depth(self) -> tuple[int, int]:
        """Requests open, and how many more they are than the worker has slots."""
        return len(self._open), max(0, len(self._open) - self._slots)

    # -- the worker's own ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def load(self) -> None:
        """Start a worker and let it read its weights. Raises ``WorkerError``."""

    @abstractmethod
    async def warm_up(self) -> None:
        """Warm the stage up, and be ready. Raises ``WorkerError``."""

    @abstractmethod
    def _send(self, message: msgspec.Struct) -> None:
        """Tell the worker. Does not wait; dropped when there is none."""

    @abstractmethod
    async def _reap(self, patience_s: float) -> bool:
        """Wait for the end of the worker, enforce it after so long, free what it leaves. True: it ended well."""

    # -- inside --------------------------------------------------------------------------------------------------------

    def _is_ready(self) -> None:
        self.state = "ready"
        self._restarts.ready()

    def _is_stuck(self) -> bool:
        oldest = next(iter(self._aborted.values()), None)
        return oldest is not None and time.monotonic() - oldest > ABORT_S

    def _report(self, message: Message) -> None:
        """Pass a report on, and note what it says of the request."""
        self._reports.append(message)
        if type(message) is Done:
            self._done.add(message.request_id)
        elif type(message) is Released:
            self._forget(message.request_id)
        self._reported.set()

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._done.discard(request_id)
        self._aborted.pop(request_id, None)

    def _fail(self, request_id: str, sentence: str) -> None:
        if request_id not in self._done:
            self._reports.append(Failed(request_id, sentence))
        self._report(Released(request_id, 0.0))

    def _fail_all(self, sentence: str) -> None:
        for request_id in list(self._open):
            self._fail(request_id, sentence)

    def _worker_died(self, sentence: str) -> None:
        """The worker is gone: fail its requests, and start another one if it was at work."""
        was_ready = self.state == "ready"
        if was_ready:
            self.state = "restarting"
        self._fail_all(sentence)
        if was_ready:
            self._supervisor = asyncio.create_task(self._restart(), name=f"restart {self.stage} {self.index}")

    async def _stop_restarting(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def _restart(self) -> None:
        if not await self._restarts.run(self._start, partial(self._reap, 0)):
            self.state = "failed"

    async def _start(self) -> None:
        await self.load()
        await self.warm_up()
