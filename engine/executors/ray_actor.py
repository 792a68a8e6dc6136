"""The far end of a ``ray`` replica: an actor that runs the threads of the inline executor on its node.

The gateway calls ``tell`` with frames of messages, which returns nothing, and keeps a few calls of ``reports`` waiting,
each of which returns one frame as soon as there is something to say. When the gateway is gone Ray ends the actor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from typing import Any

import ray

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.ray_store import RayConnector
from duologue.engine.executors.base import Emitted
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.outbox import Outbox
from duologue.engine.executors.ray_wire import Beat, Down, Frame, InOrder, down_decoder, encoder, launch_decoder
from duologue.engine.executors.wire import Abort, EndInput, EndSession, Grant, Log, NotReady, Open, Push, Sent
from duologue.engine.executors.worker import PackingStage
from duologue.engine.stage import Stage
from duologue.engine.stream import OUTPUT_DELTAS


class StageActor:
    """One replica. All of it runs on the actor's event loop, but for the stage, which has threads of its own."""

    def __init__(self) -> None:
        self._replica: InlineReplica | None = None
        self._connector: RayConnector | None = None
        self._told: InOrder[tuple[bytes, list[Any]]] = InOrder()
        self._turn = asyncio.Lock()
        self._reported = 0
        self._beat_s = 1.0

    async def where(self) -> tuple[str, int, str]:
        """The address of the node, the process id, the host's name. Answers once the actor has its place."""
        return str(ray.util.get_node_ip_address()), os.getpid(), platform.node()  # type: ignore[no-untyped-call]

    async def load(self, launch: bytes) -> bytes:
        """Make the stage and read its weights. Returns a ``NotReady`` or None, encoded."""
        asked = launch_decoder.decode(launch)
        self._beat_s = asked.beat_s

        def build() -> Stage:
            assert self._connector is not None
            return PackingStage(asked.build(), self._connector)

        try:
            in_message = OUTPUT_DELTAS if asked.final else ()
            self._connector = RayConnector(PieceTypes(asked.types), asked.threshold_bytes, in_message)
            self._replica = InlineReplica(asked.stage, build, asked.slots)
            _log_to(self._replica.outbox, asked.log_level)
            await self._replica.load()
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is the gateway's to report
            return encoder.encode(NotReady(type(error).__name__, str(error) or type(error).__name__))
        return encoder.encode(None)

    async def warm_up(self) -> bytes:
        """As ``load``."""
        assert self._replica is not None
        try:
            await self._replica.warm_up()
        except Exception as error:  # noqa: BLE001 - as above
            return encoder.encode(NotReady(type(error).__name__, str(error) or type(error).__name__))
        return encoder.encode(None)

    async def tell(self, number: int, frame: bytes, refs: list[Any]) -> None:
        """Take a frame of messages."""
        for body, beside in self._told.put(number, (frame, refs)):
            for message in down_decoder.decode(body):
                self._on_message(message, beside)

    def _on_message(self, message: Down, refs: list[Any]) -> None:
        replica, connector = self._replica, self._connector
        assert replica is not None
        assert connector is not None
        match message:
            case Open():
                replica.open(connector.receive(message.request, refs).open())
                replica.outbox.put(Beat())  # type: ignore[arg-type]  # ends a wait that knows of no open request
            case Push():
                if message.piece is None:
                    replica.push_payload(message.request_id)
                else:
                    replica.push(message.request_id, connector.receive(message.piece, refs))
            case EndInput():
                replica.end_input(message.request_id)
            case Grant():
                replica.grant(message.request_id, message.total)
            case Abort():
                replica.abort(message.request_id)
            case EndSession():
                replica.end_session(message.session_id)

    async def reports(self) -> Frame:
        """Wait for reports, but while requests are open no longer than for the beat, and return them as one frame."""
        async with self._turn:  # calls that wait are served in turn
            messages = await self._wait()
            refs: list[Any] = []
            body = encoder.encode([self._wired(message, refs) for message in messages])
            number, self._reported = self._reported, self._reported + 1
            return number, body, refs

    async def _wait(self) -> list[Any]:
        assert self._replica is not None
        try:
            async with asyncio.timeout(self._beat_s if self._replica.depth()[0] else None):
                return await self._replica.messages()
        except TimeoutError:
            return [Beat()]

    def _wired(self, message: Any, refs: list[Any]) -> Any:
        if type(message) is not Emitted:
            return message
        assert self._connector is not None
        packed = self._connector.send(self._connector.pack(message.piece), refs)
        return Sent(message.request_id, packed, message.at, message.to)

    async def close(self) -> bool:
        """Abort everything and close the stage. False: it did not stop in time."""
        return self._replica is None or await self._replica.close()


class _OutboxHandler(logging.Handler):
    """Puts log records among the reports; the gateway logs them as its own."""

    def __init__(self, outbox: Outbox[Any]) -> None:
        super().__init__()
        self._outbox = outbox
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        self._outbox.put(Log(record.levelno, record.name, self.format(record)))


def _log_to(outbox: Outbox[Any], level: int) -> None:
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(_OutboxHandler(outbox))
