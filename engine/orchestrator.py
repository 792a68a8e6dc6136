"""Moves pieces from stage to stage.

All of it runs on the event loop and never waits for a stage: one reader task per replica takes that replica's reports
(:mod:`duologue.engine.executors.base`) and hands each to the request that it is about
(:mod:`duologue.engine.live_request`). A request uses the part of the pipeline between its entry and the outputs it
wants (``PipelineConfig.route``) and stays with one replica per stage. Its id is taken until all of them have released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from duologue.engine import metrics
from duologue.engine.executors.base import Message, Replica
from duologue.engine.live_request import LiveRequest
from duologue.engine.loop_lag import LoopLag
from duologue.engine.metering import Work
from duologue.engine.pipeline import OutputType, PipelineConfig, PipelineError, Route, wanted_outputs
from duologue.engine.replica_policy import DEFAULT, PolicyName, ReplicaPool
from duologue.engine.requests import FIRST_CHUNK_RANGE_S, EngineRequest, RequestRefused
from duologue.engine.stream import Stream

logger = logging.getLogger(__name__)

__all__ = ["Orchestrator", "RequestRefused"]


class Orchestrator:
    """Routes the requests of one pipeline over its replicas."""

    def __init__(
        self,
        pipeline: PipelineConfig,
        replicas: Mapping[int, Sequence[Replica]],
        output_limit: int = 2_097_152,
        policies: Mapping[int, PolicyName] | None = None,
    ) -> None:
        """``policies`` name for each stage how its requests are spread over its replicas; by default
        :data:`~duologue.engine.replica_policy.DEFAULT`."""
        self._pipeline = pipeline
        self._pools = {i: ReplicaPool(some, (policies or {}).get(i, DEFAULT)) for i, some in replicas.items()}
        self._output_limit = output_limit
        self._runs: dict[str, LiveRequest] = {}
        self._routes: dict[tuple[type, tuple[OutputType, ...]], Route] = {}
        """By what is asked and what is wanted: all that a route depends on."""
        self.work = Work()
        self._readers: dict[Replica, asyncio.Task[None]] = {}
        self._closed = False
        self.on_load: Callable[[], None] = lambda: None
        """Called when a request was opened, and when one was released by every stage."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._lag = LoopLag()

    def start(self) -> None:
        """Start one reader task per replica."""
        for stage_id, pool in self._pools.items():
            for replica in pool.replicas:
                self._start_reader(stage_id, replica)
        logger.info("Pipeline '%s': event-driven, %d readers", self._pipeline.name, len(self._readers))

    def add_replica(self, stage_id: int, replica: Replica) -> None:
        """Let a replica that is loaded and warm take requests from now on."""
        self._start_reader(stage_id, replica)
        self._pools[stage_id].replicas.append(replica)

    async def remove_replica(self, stage_id: int, replica: Replica) -> None:
        """Bind no more requests to a replica, and return when it has released those that it has.

        A stage keeps its last one: raises ``ValueError``. The replica is the caller's to close.
        """
        pool = self._pools[stage_id].replicas
        if pool == [replica]:
            raise ValueError(f"Replica {replica.index} is the last one of stage '{replica.stage}'.")
        pool.remove(replica)
        while bound := [run for run in self._runs.values() if run.uses(stage_id, replica)]:
            await bound[0].released.wait()
        reader = self._readers.pop(replica)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        metrics.replicas.remove(replica)

    def open(self, request: EngineRequest, more_input: bool = False) -> Stream:
        """Start a request and return the stream of its deltas. Does not wait.

        With ``more_input`` the payload is only the first piece, and ``Stream.push`` and ``end_input`` give the rest.
        Raises :class:`RequestRefused` for an id in use, or a payload that the pipeline cannot answer.
        """
        if self._closed:
            raise RequestRefused("The engine is closed.")
        if request.request_id in self._runs:
            raise RequestRefused(f"Request id '{request.request_id}' is in use.")
        low, high = FIRST_CHUNK_RANGE_S
        if request.first_chunk_s is not None and not low <= request.first_chunk_s <= high:
            raise RequestRefused(f"first_chunk_s is {request.first_chunk_s:g}; it is from {low:g} to {high:g}.")
        route = self._route(request)
        replicas = {i: self._pools[i].bind(request.session_id) for i in route.stages}
        run = LiveRequest(request, route, replicas, self._output_limit, self.work, self._forget)
        self._runs[request.request_id] = run
        self._idle.clear()
        self._lag.start()
        run.start(more_input)
        self.on_load()
        return run.stream

    def end_session(self, session_id: str) -> None:
        """No request of this session will come any more: what the stages keep for it may go."""
        for pool in self._pools.values():
            for replica in pool.replicas:
                replica.end_session(session_id)

    @property
    def live(self) -> int:
        """Requests whose stages have not all released yet."""
        return len(self._runs)

    async def idle(self) -> None:
        """Wait until no request is live."""
        await self._idle.wait()

    def stalled_stages(self) -> set[str]:
        """Names of stages that a timed-out request is still stuck in."""
        return {name for run in self._runs.values() if (name := run.stuck_in())}

    @property
    def healthy(self) -> bool:
        """True while every reader task runs."""
        return not self._closed and not any(reader.done() for reader in self._readers.values())

    async def close(self) -> None:
        """Abort every request and stop the readers. The replicas are the caller's to close."""
        self._closed = True
        for run in list(self._runs.values()):
            run.terminate("aborted", failure="unknown")
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)
        for run in self._runs.values():
            run.released.set()
        self._runs.clear()
        self._idle.set()
        self._lag.stop()
        for pool in self._pools.values():
            for replica in pool.replicas:
                metrics.replicas.remove(replica)

    def _route(self, request: EngineRequest) -> Route:
        asked = type(request.payload), wanted_outputs(request.payload)
        if asked not in self._routes:
            try:
                self._routes[asked] = self._pipeline.route(request)
            except PipelineError as error:
                raise RequestRefused(str(error)) from error
        return self._routes[asked]

    def _forget(self, request_id: str) -> None:
        """Every stage has released."""
        del self._runs[request_id]
        if not self._runs:
            self._idle.set()
            self._lag.stop()
        self.on_load()

    def _start_reader(self, stage_id: int, replica: Replica) -> None:
        name = f"reader {replica.stage} {replica.index}"
        self._readers[replica] = asyncio.create_task(self._read(stage_id, replica), name=name)
        metrics.replicas.add(replica)

    async def _read(self, stage_id: int, replica: Replica) -> None:
        while True:
            self.route(stage_id, await replica.messages())
            await asyncio.sleep(0)  # a busy replica's reader lets the others have their turn

    def route(self, stage_id: int, messages: Sequence[Message]) -> None:
        """Act on reports of a stage's replica. Keeps none: a parcel nobody took is freed at once."""
        runs = self._runs
        now = asyncio.get_running_loop().time()
        for message in messages:
            if run := runs.get(message.request_id):
                try:
                    run.handle(run.nodes[stage_id], message, now)
                except Exception:
                    logger.exception("Routing request %s failed", message.request_id)
                    run.terminate("failed", "The engine failed to route the request.", "unknown")
