"""A replica in a worker process of its own, spawned as a fresh interpreter and supervised.

The gateway's end lives on the event loop: the connection's protocol, no thread, no polling. The end of the connection
is the sign of death. Then every open request of the worker is reported as failed and released at once, its shared
memory is swept, and a new worker is started after a pause that grows; after ``MAX_RESTARTS`` in a row, none any more.
A worker that is alive and does not answer (:mod:`duologue.engine.executors.heartbeat`), or whose stage does not release
an aborted request within ``ABORT_S``, is hung: it is killed, and the rest is the same.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from duologue.engine.connectors.pieces import PieceError
from duologue.engine.connectors.segments import SharedMemoryError
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.executors.base import Done, Emitted, Failed, Message, Released
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.heartbeat import Heartbeat
from duologue.engine.executors.inline import CLOSE_TIMEOUT_S
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.executors.wire import (
    Abort,
    Channel,
    Close,
    EndInput,
    Grant,
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

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
MAX_RESTARTS: Final = 8
"""Restarts in a row; one that lived for ``HEALTHY_S`` starts the count anew."""
HEALTHY_S: Final = 60.0

ABORT_S: Final = 30.0
"""Longer than any stage's own bound for an abort."""

State = Literal["starting", "ready", "restarting", "failed", "closed"]

_workers = itertools.count(1)
"""Numbers of workers, never used twice."""


class WorkerError(RuntimeError):
    """A worker could not start; ``kind`` is the class of what its stage raised, if it raised."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker runs, and in which environment."""

    build: StageBuild
    slots: int = 1
    env: Mapping[str, str | int | float] = {}
    """Added to this process's environment for the worker only."""
    start_timeout_s: float = 600.0
    """For loading, and again for warming up."""


class ProcessReplica:
    """Implements :class:`~duologue.engine.executors.base.Replica` over a worker process. Used on the event loop."""

    def __init__(self, stage: str, spec: WorkerSpec, connector: SharedMemoryConnector, index: int = 0) -> None:
        self.stage = stage
        self.index = index
        self.state: State = "starting"
        self._spec = spec
        self._connector = connector
        self._open: dict[str, EngineRequest] = {}
        self._done: set[str] = set()
        self._reports: deque[Message] = deque()
        self._reported = asyncio.Event()
        self._worker = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[Up] | None = None
        self._lost = asyncio.Event()
        self._answer: asyncio.Future[None] | None = None
        self._restarts = 0
        self._ready_at = 0.0
        self._supervisor: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(
            ask=lambda: self._send(Ping()), hung=self._on_hung, busy=lambda: bool(self._open), stuck=self._is_stuck
        )
        self._aborted: dict[str, float] = {}
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
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._channel is not None and was_ready:
            self._channel.send([Close()])
        clean = await self._reap(CLOSE_TIMEOUT_S + 1 if was_ready else 0)
        return clean or not was_ready

    @property
    def live(self) -> bool:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        return self.state == "ready"

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
        except SharedMemoryError as error:
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
            self._reports.append(Failed(request_id, f"Stage '{self.stage}' failed: {error}"))
            self._reported.set()
        else:
            self._send(Push(request_id, packed))

    def end_input(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        self._tell(request_id, EndInput(request_id))

    def grant(self, request_id: str, total: int) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        self._tell(request_id, Grant(request_id, total))

    def abort(self, request_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        if request_id in self._open:
            self._aborted.setdefault(request_id, time.monotonic())
            self._send(Abort(request_id))

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
        return len(self._open), max(0, len(self._open) - self._spec.slots)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tell(self, request_id: str, message: EndInput | Grant) -> None:
        if request_id in self._open:
            self._send(message)

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
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "duologue.engine.executors.worker", self.stage, str(self.index)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        environment |= {name: str(value) for name, value in self._spec.env.items()}

        def spawn() -> None:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [*command, str(fd)], env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL
            )

        try:
            await run_in_thread(spawn, f"{self.stage}-spawn")
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._lost = asyncio.Event()
        channel: Channel[Up] = Channel(up_decoder, self._on_messages, self._on_lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
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
        self.state, self._ready_at, self._end = "ready", time.monotonic(), "died"
        self._heartbeat.start()

    def _is_stuck(self) -> bool:
        oldest = next(iter(self._aborted.values()), None)
        return oldest is not None and time.monotonic() - oldest > ABORT_S

    def _on_hung(self) -> None:
        logger.error("Stage '%s': worker %d is alive but does not answer; it is killed.", self.stage, self._worker)
        self._end = "hung and was killed"
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)  # the rest follows from the end of the connection

    def _died(self) -> WorkerError:
        return WorkerError(f"Stage '{self.stage}': its worker process ended.")

    def _on_messages(self, messages: list[Up]) -> None:
        self._heartbeat.heard()
        for message in messages:
            match message:
                case Sent():
                    self._reports.append(self._emitted(message))
                case Ready() | NotReady():
                    self._on_answer(message)
                case Pong():
                    pass
                case Log():
                    logging.getLogger(message.name).log(message.level, "%s", message.text)
                case _:
                    self._reports.append(message)
                    if type(message) is Done:
                        self._done.add(message.request_id)
                    elif type(message) is Released:
                        self._forget(message.request_id)
        self._reported.set()

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

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._done.discard(request_id)
        self._aborted.pop(request_id, None)

    def _fail(self, request_id: str, sentence: str) -> None:
        if request_id not in self._done:
            self._reports.append(Failed(request_id, sentence))
        self._reports.append(Released(request_id, 0.0))
        self._forget(request_id)
        self._reported.set()

    def _on_lost(self) -> None:
        """The worker is gone: report it, and start another if it was at work."""
        self._channel = None
        self._heartbeat.stop()
        self._lost.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._died())
        was_ready = self.state == "ready"
        if was_ready:
            self.state = "restarting"
        for request_id in list(self._open):
            self._fail(request_id, f"Stage '{self.stage}' failed: its worker process {self._end}.")
        if was_ready:
            self._supervisor = asyncio.create_task(self._restart(), name=f"restart {self.stage} {self.index}")

    async def _restart(self) -> None:
        await self._reap(0)
        if time.monotonic() - self._ready_at >= HEALTHY_S:
            self._restarts = 0
        while self._restarts < MAX_RESTARTS:
            pause = min(FIRST_PAUSE_S * 2**self._restarts, LONGEST_PAUSE_S)
            self._restarts += 1
            logger.error("Stage '%s' lost worker %d; the next one starts in %g s.", self.stage, self._worker, pause)
            await asyncio.sleep(pause)
            try:
                await self.load()
                await self.warm_up()
            except (WorkerError, OSError) as error:
                logger.error("Stage '%s' could not start again: %s", self.stage, error)
                await self._reap(0)
            else:
                return
        self.state = "failed"
        logger.error("Stage '%s' is given up after %d restarts.", self.stage, MAX_RESTARTS)

    async def _reap(self, patience_s: float) -> bool:
        """Wait for the process, kill it when ``patience_s`` is over, free what it leaves. True: it ended well."""
        process, self._process = self._process, None
        if process is None:
            return True
        try:
            code = await run_in_thread(lambda: _ended(process, patience_s), f"{self.stage}-reap")
            if self._channel is not None:
                await self._lost.wait()  # everything it sent is read before what it left is swept
        finally:
            self._connector.segments.sweep(self._worker)
        return code == 0


def _ended(process: subprocess.Popen[bytes], patience_s: float) -> int:
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()
