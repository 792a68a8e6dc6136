"""Keeps the number of a stage's replicas to its load, between the bounds of the deploy file.

Looked at when a request is opened and when one is released, and at no other time. More replicas are started at once;
one is removed only when it was not needed for ``cooldown_s``, and a timer for that exists only while there are more
than needed. A replica that is removed takes no new requests and is closed when those it has have been released.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from duologue.engine.deploy import Autoscale, DeployError
from duologue.engine.executors.base import Replica
from duologue.engine.executors.restarts import WorkerError

logger = logging.getLogger(__name__)


class Pool(Protocol):
    """Where replicas take requests; the orchestrator."""

    def add_replica(self, stage_id: int, replica: Replica) -> None:
        """Let a replica take requests."""

    def remove_replica(self, stage_id: int, replica: Replica) -> Awaitable[None]:
        """Let it take no more, and return when it has released those that it has."""


def replicas_wanted(bounds: Autoscale, open_requests: int) -> int:
    """So many that each has ``target_queue_depth`` requests at most, within the bounds."""
    needed = math.ceil(open_requests / bounds.target_queue_depth)
    return max(bounds.min_replicas, min(bounds.max_replicas, needed))


class Autoscaler:
    """Scales one stage. Lives on the event loop; owns the tasks that start and end replicas."""

    def __init__(
        self,
        stage_id: int,
        bounds: Autoscale,
        replicas: Sequence[Replica],
        pool: Pool,
        start: Callable[[int], Awaitable[Replica]],
        end: Callable[[Replica], Awaitable[None]],
    ) -> None:
        """``start`` makes the replica of that index, loaded and warm; ``end`` closes one that has drained."""
        self._stage_id = stage_id
        self._bounds = bounds
        self._serving = list(replicas)
        self._pool = pool
        self._start = start
        self._end = end
        self._starting: set[int] = set()
        self._draining: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cooldown: asyncio.TimerHandle | None = None
        self._held_until = 0.0
        """After a failed start no other is tried until then."""
        self._closed = False

    @property
    def serving(self) -> Sequence[Replica]:
        """The replicas that take requests."""
        return self._serving

    def look(self) -> None:
        """Compare the replicas with the load, and do what follows."""
        if self._closed:
            return
        missing = self._wanted() - len(self._serving) - len(self._starting)
        if missing >= 0 or self._starting:
            self._stop_cooldown()
        if missing > 0 and asyncio.get_running_loop().time() >= self._held_until:
            for _ in range(missing):
                self._spawn(self._grow(self._free_index()))
        elif missing < 0 and not self._starting and self._cooldown is None:
            self._cooldown = asyncio.get_running_loop().call_later(self._bounds.cooldown_s, self._cooled_down)

    async def close(self) -> None:
        """Start and end nothing more. What is half done is undone by ``end`` or by the engine's own close."""
        self._closed = True
        self._stop_cooldown()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        return replicas_wanted(self._bounds, sum(replica.depth()[0] for replica in self._serving))

    def _free_index(self) -> int:
        taken = {replica.index for replica in self._serving} | self._starting | self._draining
        index = min(set(range(len(taken) + 1)) - taken)
        self._starting.add(index)
        return index

    def _stop_cooldown(self) -> None:
        if self._cooldown is not None:
            self._cooldown.cancel()
            self._cooldown = None

    def _cooled_down(self) -> None:
        self._cooldown = None
        if self._wanted() < len(self._serving):
            # One that is not live serves nobody; else the one with the least to drain, of several the last.
            leaving = min(self._serving, key=lambda r: (r.live, r.depth()[0], -r.index))
            self._serving.remove(leaving)
            self._draining.add(leaving.index)
            self._spawn(self._shrink(leaving))
        self.look()

    async def _grow(self, index: int) -> None:
        try:
            replica = await self._start(index)
        except (WorkerError, DeployError, OSError, RuntimeError) as error:
            self._held_until = asyncio.get_running_loop().time() + self._bounds.cooldown_s
            logger.error("One more replica of stage %d could not start: %s", self._stage_id, error)
        else:
            self._pool.add_replica(self._stage_id, replica)
            self._serving.append(replica)
            logger.info("Stage '%s' has %d replicas now.", replica.stage, len(self._serving))
        finally:
            self._starting.discard(index)
        self.look()

    async def _shrink(self, replica: Replica) -> None:
        try:
            await self._pool.remove_replica(self._stage_id, replica)
            await self._end(replica)
            logger.info("Stage '%s' has %d replicas now.", replica.stage, len(self._serving))
        finally:
            self._draining.discard(replica.index)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"scale stage {self._stage_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
