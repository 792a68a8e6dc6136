"""A replica in a worker process of its own, spawned as a fresh interpreter and supervised.

The gateway's end lives on the event loop: the connection's protocol, no thread, no polling. The end of the connection
is the sign of death. Then every open request of the worker is reported as failed and released at once, its shared
memory is swept, and a new worker is started (:mod:`duologue.engine.executors.remote`). A worker that is alive and does
not answer (:mod:`duologue.engine.executors.heartbeat`), or whose stage does not release an aborted request within
``ABORT_S``, is hung: it is killed, and the rest is the same.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from duologue.engine.connectors.pieces import PieceError
from duologue.engine.connectors.segments import SharedMemoryError
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.executors.base import HOST_CLOCK, Emitted, Failed, Message
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.heartbeat import Heartbeat
from duologue.engine.executors.inline import CLOSE_TIMEOUT_S
from duologue.engine.executors.remote import RemoteReplica
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.executors.spawn import WorkerProcess
from duologue.engine.executors.wire import (
    Channel,
    Close,
    Launch,
    Log,
    NotReady,
    Open,
    Ping,
    Pong,
    Push,
    Ready,
    Sent,
    Up,
    WarmUp,
    up_decoder,
)
from duologue.engine.requests import EngineRequest

logger = logging.getLogger(__name__)

_workers = itertools.count(1)
"""Numbers of workers, never used twice."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker runs, and in which environment."""

    build: StageBuild
    slots: int = 1
    env: Mapping[str, str | int | float] = {}
    """Added to this process's environment for the worker only."""
    start_timeout_s: float = 600.0
    """For loading, and again for warming up."""


class ProcessReplica(RemoteReplica):
    """Implements :class:`~duologue.engine.executors.base.Replica` over a worker process. Used on the event loop."""

    clock = HOST_CLOCK

    def __init__(self, stage: str, spec: WorkerSpec, connector: SharedMemoryConnector, index: int = 0) -> None:
        super().__init__(stage, spec.slots, index)
        self._spec = spec
        self._connector = connector
        self._worker = 0
        self._process: WorkerProcess | None = None
        self._channel: Channel[Up] | None = None
        self._lost = asyncio.Event()
        self._answer: asyncio.Future[None] | None = None
        self._heartbeat = Heartbeat(
            ask=lambda: self._send(Ping()), hung=self._on_hung, busy=lambda: bool(self._open), stuck=self._is_stuck
        )
        self._end = "died"

    # -- life ----------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Spawn the worker and let it read its weights. Raises :class:`WorkerError`."""
        await self._start_process()
        await self._ask(self._launch())

    async def warm_up(self) -> None:
        """Warm the stage up. Raises :class:`WorkerError`."""
        await self._ask(WarmUp())
        self._is_ready()

    async def close(self) -> bool:
        """End the worker: by itself within the stage's bound, else by force. False: by force."""
        was_ready, self.state = self.state == "ready", "closed"
        self._heartbeat.stop()
        await self._stop_restarting()
        if self._channel is not None and was_ready:
            self._channel.send([Close()])
        clean = await self._reap(CLOSE_TIMEOUT_S + 1 if was_ready else 0)
        return clean or not was_ready

    @property
    def pid(self) -> int | None:
        """Process id of the worker, while there is one."""
        return self._process.pid if self._process else None

    # -- work ----------------------------------------------------------------------------------------------------------

    def open(self, request: EngineRequest) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`. Without a worker the request is failed at once."""
        self._open[request.request_id] = request
        self._heartbeat.work()
        if not self.live:
            self._fail(request.request_id, f"Stage '{self.stage}' has no running worker.")
            return
        try:
            packed = self._connector.pack(request).give_to(self._worker)
        except (SharedMemoryError, PieceError) as error:
            self._fail(request.request_id, f"Stage '{self.stage}' failed: {error}")
        else:
            self._send(Open(packed))

    def push(self, request_id: str, piece: Any) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        request = self._open.get(request_id)
        if request is None:
            return
        try:
            packed = None if piece is request.payload else self._connector.pack(piece).give_to(self._worker)
        except (SharedMemoryError, PieceError) as error:
            self._report(Failed(request_id, f"Stage '{self.stage}' failed: {error}"))
        else:
            self._send(Push(request_id, packed))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _send(self, message: msgspec.Struct) -> None:
        if self._channel is not None:
            self._channel.send([message])

    def _launch(self) -> Launch:
        segments = self._connector.segments
        return Launch(
            stage=self.stage,
            build=self._spec.build,
            slots=self._spec.slots,
            run=segments.run,
            worker=self._worker,
            folder=str(segments.folder),
            threshold_bytes=self._connector.threshold_bytes,
            types=list(self._connector.types.names),
            log_level=logging.getLogger().getEffectiveLevel(),
        )

    async def _start_process(self) -> None:
        self._worker = next(_workers)
        self._lost = asyncio.Event()
        channel: Channel[Up] = Channel(up_decoder, self._on_messages, self._on_lost)
        self._process = await WorkerProcess.start(
            "duologue.engine.executors.worker",
            [self.stage, str(self.index)],
            channel,
            {name: str(value) for name, value in self._spec.env.items()},
            self.stage,
        )
        self._channel = channel

    async def _ask(self, message: msgspec.Struct) -> None:
        """Send a step of the start and wait for its outcome."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._channel is None:
            raise self._died()
        self._channel.send([message])
        try:
            async with asyncio.timeout(self._spec.start_timeout_s):
                await self._answer
        except TimeoutError as error:
            limit = f"{self._spec.start_timeout_s:g} s (stage_init_timeout_s)"
            raise WorkerError(f"Stage '{self.stage}': its worker process was not ready within {limit}.") from error

    def _is_ready(self) -> None:
        super()._is_ready()
        self._end = "died"
        self._heartbeat.start()

    def _on_hung(self) -> None:
        logger.error("Stage '%s': worker %d is alive but does not answer; it is killed.", self.stage, self._worker)
        self._end = "hung and was killed"
        if self._process is not None:
            self._process.kill()

    def _died(self) -> WorkerError:
        return WorkerError(f"Stage '{self.stage}': its worker process ended.")

    def _on_messages(self, messages: list[Up]) -> None:
        self._heartbeat.heard()
        for message in messages:
            match message:
                case Sent():
                    self._report(self._emitted(message))
                case Ready() | NotReady():
                    self._on_answer(message)
                case Pong():
                    pass
                case Log():
                    logging.getLogger(message.name).log(message.level, "%s", message.text)
                case _:
                    self._report(message)

    def _emitted(self, message: Sent) -> Message:
        """A small piece is read here, a large one stays in its segment for the taker."""
        parcel = self._connector.receive(message.piece)
        piece = parcel.open() if parcel.in_memory else parcel
        return Emitted(message.request_id, piece, message.at, message.to)

    def _on_answer(self, message: Ready | NotReady) -> None:
        if self._answer is not None and not self._answer.done():
            if type(message) is NotReady:
                self._answer.set_exception(WorkerError(message.error, message.kind))
            else:
                self._answer.set_result(None)

    def _on_lost(self) -> None:
        """The worker is gone: report it, and start another if it was at work."""
        self._channel = None
        self._heartbeat.stop()
        self._lost.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._died())
        self._worker_died(f"Stage '{self.stage}' failed: its worker process {self._end}.")

    async def _reap(self, patience_s: float) -> bool:
        process, self._process = self._process, None
        if process is None:
            return True
        try:
            code = await process.ended(patience_s)
            if self._channel is not None:
                await self._lost.wait()  # everything it sent is read before what it left is swept
        finally:
            self._connector.segments.sweep(self._worker)
        return code == 0
