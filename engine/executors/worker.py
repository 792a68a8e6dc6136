"""The worker process of one replica: ``python -m duologue.engine.executors.worker STAGE INDEX FD``.

It runs the same threads as the inline executor (:class:`InlineReplica`) behind a connection to the gateway. When that
connection ends, for whatever reason, it frees the run's shared memory and exits.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn, Protocol

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.executors.base import Emitted
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.wire import (
    Abort,
    Channel,
    Close,
    Down,
    EndInput,
    EndSession,
    Grant,
    Launch,
    NotReady,
    Open,
    Ping,
    Pong,
    Push,
    Ready,
    Sent,
    WarmUp,
    down_decoder,
)
from duologue.engine.executors.worker_base import log_to, run_worker
from duologue.engine.requests import EngineRequest, Usage
from duologue.engine.stage import Stage, StageContext, StageFinish, Taker


class Packer(Protocol):
    """The end of a connector at which pieces are packed."""

    def pack(self, piece: Any) -> Any:
        """The piece as it is sent."""


class PackingContext:
    """A stage's context that packs on the worker's thread what the stage emits."""

    def __init__(self, context: StageContext, connector: Packer) -> None:
        self.request = context.request
        self._context = context
        self._connector = connector

    def emit(self, piece: Any, to: Taker = "all") -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        if self._context.aborted:
            return False
        packed = piece if isinstance(piece, Usage | StageFinish) else self._connector.pack(piece)
        return self._context.emit(packed, to)

    def working(self) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        self._context.working()

    def made(self, seconds: float) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        self._context.made(seconds)

    @property
    def left_s(self) -> float:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.left_s

    @property
    def outranked(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.outranked

    def give_way(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.give_way()

    @property
    def aborted(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._context.aborted


class PackingStage(Stage):
    """A stage whose pieces leave the process."""

    def __init__(self, stage: Stage, connector: Packer) -> None:
        self._connector = connector
        self._stage = stage
        self.load, self.warm_up, self.close = stage.load, stage.warm_up, stage.close  # type: ignore[method-assign]
        self.concurrency = stage.concurrency
        self.start, self.release = stage.start, stage.release  # type: ignore[method-assign]
        self.interrupt, self.end_session = stage.interrupt, stage.end_session  # type: ignore[method-assign]

    def process(self, state: Any, piece: Any, context: StageContext) -> None:
        """See :class:`~duologue.engine.stage.Stage`."""
        self._stage.process(state, piece, PackingContext(context, self._connector))

    def finish(self, state: Any, context: StageContext) -> None:
        """See :class:`~duologue.engine.stage.Stage`."""
        self._stage.finish(state, PackingContext(context, self._connector))


class Worker:
    """Acts on the gateway's messages. Lives on the event loop of the worker process."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.clean = False
        self.channel: Channel[Down] = Channel(down_decoder, self._on_messages, self._on_lost)
        self._replica: InlineReplica | None = None
        self._connector: SharedMemoryConnector | None = None
        self._worker = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def _on_lost(self) -> None:
        if self._connector is not None:
            self._connector.segments.sweep_run()
        self.over.set()

    def _on_messages(self, messages: list[Down]) -> None:
        for message in messages:
            self._on_message(message)

    def _on_message(self, message: Down) -> None:
        if type(message) is Launch:
            self._spawn(self._load(message))
            return
        assert self._replica is not None
        match message:
            case Open():
                self._open(message)
            case Push():
                self._push(message)
            case EndInput():
                self._replica.end_input(message.request_id)
            case Grant():
                self._replica.grant(message.request_id, message.total)
            case Abort():
                self._replica.abort(message.request_id)
            case EndSession():
                self._replica.end_session(message.session_id)
            case WarmUp():
                self._spawn(self._warm_up())
            case Ping():
                self.channel.send([Pong()])
            case Close():
                self._spawn(self._close())

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, launch: Launch) -> None:
        segments = Segments(launch.run, launch.worker, Path(launch.folder))
        log_to(self.channel, launch.log_level)

        def build() -> Stage:
            assert self._connector is not None
            return PackingStage(launch.build(), self._connector)

        try:
            self._connector = SharedMemoryConnector(PieceTypes(launch.types), segments, launch.threshold_bytes)
            self._worker = launch.worker
            self._replica = InlineReplica(launch.stage, build, launch.slots)
            await self._replica.load()
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is the gateway's to report
            self._not_ready(error)
            return
        self.channel.send([Ready()])

    async def _warm_up(self) -> None:
        assert self._replica is not None
        try:
            await self._replica.warm_up()
        except Exception as error:  # noqa: BLE001 - as above
            self._not_ready(error)
            return
        self.channel.send([Ready()])
        self._spawn(self._forward(self._replica))

    def _not_ready(self, error: Exception) -> None:
        self.channel.send([NotReady(type(error).__name__, str(error) or type(error).__name__)])

    async def _forward(self, replica: InlineReplica) -> None:
        assert self._connector is not None
        while True:
            frame: list[Any] = []
            for message in await replica.messages():
                if type(message) is Emitted:
                    piece = self._connector.pack(message.piece).give_to(self._worker)
                    frame.append(Sent(message.request_id, piece, message.at, message.to))
                else:
                    frame.append(message)
            self.channel.send(frame)

    def _open(self, message: Open) -> None:
        assert self._replica is not None
        assert self._connector is not None
        request: EngineRequest = self._connector.receive(message.request).open()
        self._replica.open(request)

    def _push(self, message: Push) -> None:
        assert self._replica is not None
        assert self._connector is not None
        if message.piece is None:
            self._replica.push_payload(message.request_id)
        else:
            self._replica.push(message.request_id, self._connector.receive(message.piece))

    async def _close(self) -> None:
        assert self._replica is not None
        self.clean = await self._replica.close()
        self.over.set()


async def _run(fd: int) -> bool:
    worker = Worker()
    await asyncio.get_running_loop().create_unix_connection(lambda: worker.channel, sock=socket.socket(fileno=fd))
    await worker.over.wait()
    return worker.clean


def main() -> NoReturn:
    """Run until the gateway says so or is gone."""
    run_worker(_run, int(sys.argv[3]))


if __name__ == "__main__":
    main()
