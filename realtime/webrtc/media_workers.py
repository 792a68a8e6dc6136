"""Media workers: processes in which the peer connections of calls live, spawned and supervised by the gateway.

A call is placed with the worker that has the fewest and stays there, its later peer connections too. When a worker is
lost its calls end at once (``worker_lost``), the other workers' go on, and it is started again
(:class:`~duologue.engine.executors.restarts.Restarts`). One that is alive and does not answer is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import Final, Literal

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.executors.heartbeat import Heartbeat
from duologue.engine.executors.restarts import Restarts, WorkerError
from duologue.engine.executors.spawn import WorkerProcess
from duologue.engine.executors.wire import Close, Log, Ping, Pong, Ready, Wire
from duologue.realtime import metrics
from duologue.realtime.webrtc.call_media import CallListener, Video
from duologue.realtime.webrtc.media_wire import Launch, Link, OfCall, Up, up_decoder
from duologue.realtime.webrtc.media_worker import HANG_UP_S
from duologue.realtime.webrtc.remote_media import RemoteMedia
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)

PROGRAM = "duologue.realtime.webrtc.media_worker"
START_S: Final = 60.0
"""Longest time for a worker to be ready."""
CLOSE_S: Final = HANG_UP_S + 1.0

State = Literal["starting", "ready", "restarting", "failed", "closed"]


class MediaWorker:
    """One worker, whatever process it has at the time."""

    def __init__(self, index: int, settings: WebRtcDeploy) -> None:
        self.index = index
        self.state: State = "starting"
        self._settings = settings
        self._calls: dict[int, RemoteMedia] = {}
        self._numbers = itertools.count(1)
        self._process: WorkerProcess | None = None
        self._link: Link[Up] | None = None
        self._lost = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._restarts = Restarts(f"Media worker {index}")
        self._supervisor: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(ask=lambda: self._post(Ping()), hung=self._on_hung, busy=lambda: bool(self._calls))

    @property
    def calls(self) -> int:
        """How many it has."""
        return len(self._calls)

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return self._process.pid if self._process else None

    def open(self, listener: CallListener, video: Video) -> RemoteMedia:
        """Make the media of a call there."""
        number = next(self._numbers)
        media = self._calls[number] = RemoteMedia(number, self._post, listener, video)
        self._heartbeat.work()
        return media

    async def start(self) -> None:
        """Spawn the process and wait until it is ready. Raises :class:`WorkerError` or ``OSError``."""
        self._lost = asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        link: Link[Up] = Link(up_decoder, self._on_messages, self._on_lost)
        name = f"media-{self.index}"
        self._process = await WorkerProcess.start(PROGRAM, [str(self.index)], link, {}, name)
        self._link = link
        link.post(Launch(self._settings, logging.getLogger().getEffectiveLevel()))
        try:
            async with asyncio.timeout(START_S):
                await self._ready
        except TimeoutError as error:
            raise WorkerError(f"Media worker {self.index} was not ready within {START_S:g} s.") from error
        self.state = "ready"
        self._restarts.ready()
        self._heartbeat.start()

    async def close(self) -> None:
        """End the process: by itself, else by force."""
        was_ready, self.state = self.state == "ready", "closed"
        self._heartbeat.stop()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._post(Close())
        await self._reap(CLOSE_S if was_ready else 0.0)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _post(self, message: Wire) -> None:
        if self._link is not None:
            self._link.post(message)

    def _on_messages(self, messages: list[Up]) -> None:
        self._heartbeat.heard()
        for message in messages:
            match message:
                case OfCall(call=number):
                    if (call := self._calls.get(number)) is not None:
                        self._tell(call, message)
                case Ready():
                    if self._ready is not None and not self._ready.done():
                        self._ready.set_result(None)
                case Log():
                    logging.getLogger(message.name).log(message.level, "%s", message.text)
                case Pong():
                    pass

    def _tell(self, call: RemoteMedia, message: OfCall) -> None:
        try:
            call.take(message)
        except Exception:  # the other calls of the worker are not to suffer by it
            logger.exception("a call failed")
            call.hang_up()
        if call.over:
            del self._calls[call.number]

    def _on_lost(self) -> None:
        """The process is gone: its calls are over, and another one is started if it was at work."""
        self._link = None
        self._lost.set()
        self._heartbeat.stop()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(WorkerError(f"Media worker {self.index} ended before it was ready."))
        was_ready = self.state == "ready"
        if was_ready:
            self.state = "restarting"
            metrics.media_workers_lost.inc()
        lost, self._calls = self._calls, {}
        for call in lost.values():
            call.lost()
        if was_ready:
            self._supervisor = asyncio.create_task(self._restart(), name=f"restart media worker {self.index}")

    def _on_hung(self) -> None:
        logger.error("Media worker %d is alive but does not answer; it is killed.", self.index)
        if self._process is not None:
            self._process.kill()

    async def _restart(self) -> None:
        if not await self._restarts.run(self.start, partial(self._reap, 0.0)):
            self.state = "failed"

    async def _reap(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.ended(patience_s)
            if self._link is not None:
                await self._lost.wait()  # everything it sent is read


class MediaWorkers:
    """Implements :class:`~duologue.realtime.webrtc.call_media.MediaHost` over several workers."""

    def __init__(self, settings: WebRtcDeploy, count: int) -> None:
        self.workers = [MediaWorker(index, settings) for index in range(count)]

    async def start(self) -> None:
        """Start all of them. Raises :class:`WorkerError` or ``OSError``; then none is left."""
        outcomes = await asyncio.gather(*(worker.start() for worker in self.workers), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                await self.close()
                raise outcome

    def open(self, listener: CallListener, video: Video) -> RemoteMedia:
        ready = [worker for worker in self.workers if worker.state == "ready"]
        if not ready:
            raise ProtocolError("duologue.not_ready", "No media process is ready for a call; try again later.")
        return min(ready, key=lambda worker: worker.calls).open(listener, video)

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))
