"""A replica on worker threads of this process.

Each live request is a *lane*: the pieces waiting for it and its stage state. A lane with something to do waits in
``ready``; the most urgent one (:mod:`duologue.engine.executors.urgency`) is given to a worker, which works on a piece.
No lane is ever worked on by two workers.

At most ``slots`` lanes compute, or the stage's own ``concurrency`` if that is less; to begin and to release a request
takes no slot. A lane that waits for credit inside ``emit``, or that gives way to a more urgent one, gives its slot away
(another thread is started to use it) and is given one again before it goes on. There are thus at most ``slots`` plus
the number of open requests threads. An answer that is far ahead of its listener takes no slot while one that is not
computes.

All shared state is guarded by one lock, held for a few instructions at a time. Nothing polls.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from duologue.engine.connectors.pieces import opened
from duologue.engine.executors.base import (
    HOST_CLOCK,
    WINDOW,
    Consumed,
    Done,
    Emitted,
    Failed,
    Message,
    Released,
    Working,
)
from duologue.engine.executors.outbox import Outbox
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.executors.urgency import RESTED_S, RESTS_S, Urgency
from duologue.engine.requests import EngineRequest
from duologue.engine.stage import Stage, Taker

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 3.0
"""How long ``close`` waits for stages to reach their next boundary."""

WORKING_S = 1.0
"""How often a stage that emits nothing is reported as being at work."""


class InlineReplica:
    """Implements :class:`~duologue.engine.executors.base.Replica` with threads. Made and used on the event loop."""

    clock = HOST_CLOCK

    def __init__(self, stage: str, build: Callable[[], Stage], slots: int, index: int = 0) -> None:
        self.stage = stage
        self.index = index
        self.slots = slots
        self.lock = threading.Lock()
        self.ready: list[Lane] = []
        """Lanes with something to do, oldest first."""
        self.outbox: Outbox[Message] = Outbox(asyncio.get_running_loop())
        self._build = build
        self._model: Stage | None = None
        self._lanes: dict[str, Lane] = {}
        self._idle = threading.Condition(self.lock)
        self._resuming: list[Lane] = []
        """Lanes in the middle of a piece that wait for a slot."""
        self._handed_out: deque[Lane] = deque()
        """Lanes that the next free workers take."""
        self._at_once = slots
        self._threads: set[threading.Thread] = set()
        self._computing = 0
        self._blocked = 0
        self._closing = False

    # -- called on the event loop --------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Build the stage and read its weights, on a thread of its own. Raises what the stage raises."""

        def build_and_load() -> Stage:
            model = self._build()
            model.load()
            return model

        self._model = await run_in_thread(build_and_load, f"{self.stage}-load")
        self._at_once = min(self.slots, self._model.concurrency or self.slots)

    async def warm_up(self) -> None:
        """Warm the stage up and start the workers."""
        assert self._model is not None
        await run_in_thread(self._model.warm_up, f"{self.stage}-warm-up")
        with self.lock:
            for _ in range(self.slots):
                self._start_worker()

    def open(self, request: EngineRequest) -> None:
        """Prepare for a request: the stage's ``start`` runs as soon as a worker is free."""
        assert self._model is not None
        lane = Lane(self, self._model, request)
        with self.lock:
            self._lanes[request.request_id] = lane
            self._make_ready(lane)

    def push(self, request_id: str, piece: Any) -> None:
        """Hand over a piece."""
        lane = self._lanes.get(request_id)
        if lane is None or lane.dead:
            return
        with self.lock:
            lane.inbox.append(piece)
            if not lane.scheduled:
                self._make_ready(lane)

    def push_payload(self, request_id: str) -> None:
        """Hand over the request's own payload."""
        lane = self._lanes.get(request_id)
        if lane is not None:
            self.push(request_id, lane.request.payload)

    def end_input(self, request_id: str) -> None:
        """Nothing more will be pushed."""
        lane = self._lanes.get(request_id)
        if lane is None or lane.dead:
            return
        with self.lock:
            lane.ended = True
            if not lane.scheduled:
                self._make_ready(lane)

    def grant(self, request_id: str, total: int) -> None:
        """The request may have emitted ``total`` pieces."""
        lane = self._lanes.get(request_id)
        if lane is None:
            return
        with self.lock:
            lane.granted = total
            lane.changed.notify()

    def abort(self, request_id: str) -> None:
        """Drop what waits, wake a blocked ``emit``, and release at the stage's next boundary."""
        with self.lock:
            lane = self._lanes.get(request_id)
            if lane is not None:
                self._kill(lane)

    def end_session(self, session_id: str) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        assert self._model is not None
        self._model.end_session(session_id)

    @property
    def live(self) -> bool:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        return True

    async def messages(self) -> list[Message]:
        """Reports of the workers, in order."""
        return await self.outbox.take()

    def depth(self) -> tuple[int, int]:
        """Requests open, and requests that wait for a worker."""
        return len(self._lanes), len(self.ready) + len(self._handed_out)

    def outranked(self, lane: Lane) -> bool:
        """Whether a more urgent lane waits for the slot of one that computes, and not for that of a less urgent one; or
        whether the lane is so far ahead that it rests while others compute."""
        if len(self._lanes) == 1:
            return False
        now = time.monotonic()
        with self.lock:
            self._hand_out()  # one that has rested may have to go on by now
            if lane.urgency.left_s(now) > RESTS_S and self._somebody_needs_it(now):
                return True
            if self._computing < self._at_once:
                return False
            rank = lane.urgency.rank(now)
            wanted = sum(other.urgency.rank(now) < rank for other in self._waiting())
            others = sum(other.has_slot and other.urgency.rank(now) > rank for other in self._lanes.values())
            return wanted > others

    async def close(self) -> bool:
        """Abort everything, join the workers, close the stage. False: a worker was left behind in its stage."""
        with self.lock:
            for lane in self._lanes.values():
                self._kill(lane)
            self._closing = True
            self._idle.notify_all()
        clean = await run_in_thread(self._join, f"{self.stage}-close")
        if not clean:
            logger.warning("Stage '%s' did not stop in %g s; a thread was left behind.", self.stage, CLOSE_TIMEOUT_S)
        return clean

    def _join(self) -> bool:
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with self.lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        clean = not any(thread.is_alive() for thread in threads)
        if clean and self._model is not None:
            self._model.close()  # never under a worker that is still inside the model
        return clean

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _make_ready(self, lane: Lane) -> None:
        lane.scheduled = True
        self.ready.append(lane)
        self._hand_out()

    def _kill(self, lane: Lane) -> None:
        lane.dead = True
        lane.inbox.clear()
        lane.changed.notify()
        lane.interrupt()
        if not lane.scheduled:
            self._make_ready(lane)
        else:
            self._hand_out()

    def _start_worker(self) -> None:
        thread = threading.Thread(target=self._run_worker, name=f"{self.stage}-worker", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _surplus(self) -> bool:
        return len(self._threads) - self._blocked > self.slots

    def _waiting(self) -> list[Lane]:
        return [lane for lane in (*self._resuming, *self.ready) if lane.computes]

    def _hand_out(self) -> None:
        """Give lanes that need no slot, and the most urgent of the others while there are slots, to their workers."""
        for lane in [lane for lane in self.ready if not lane.computes]:
            self._give_to_worker(lane)
        now = time.monotonic()
        while self._computing < self._at_once and (waiting := self._not_resting(now)):
            lane = min(waiting, key=lambda lane: lane.urgency.rank(now))
            self._computing += 1
            lane.has_slot = True
            if lane in self._resuming:
                self._resuming.remove(lane)
                lane.changed.notify()
            else:
                self._give_to_worker(lane)

    def _not_resting(self, now: float) -> list[Lane]:
        waiting = self._waiting()
        if not self._somebody_needs_it(now):
            return waiting
        return [lane for lane in waiting if lane.urgency.left_s(now) <= RESTED_S]

    def _somebody_needs_it(self, now: float) -> bool:
        """Whether a lane computes whose listener waits, or soon will."""
        return any(
            lane.has_slot and not lane.dead and lane.urgency.left_s(now) <= RESTED_S for lane in self._lanes.values()
        )

    def _give_to_worker(self, lane: Lane) -> None:
        self.ready.remove(lane)
        self._handed_out.append(lane)
        self._idle.notify()

    def _free_slot(self, lane: Lane) -> None:
        """Of one that had nothing to compute there is none."""
        if lane.has_slot:
            lane.has_slot = False
            self._computing -= 1

    # -- on the worker threads -----------------------------------------------------------------------------------------

    def _run_worker(self) -> None:
        while (lane := self._next_lane()) is not None:
            lane.work()
            with self.lock:
                self._free_slot(lane)
                if lane.over:
                    del self._lanes[lane.request.request_id]
                    self.outbox.put(Released(lane.request.request_id, lane.busy_s))
                elif lane.has_work():
                    self._make_ready(lane)
                else:
                    lane.scheduled = False
                self._hand_out()
                if self._closing and not self._lanes:
                    self._idle.notify_all()

    def _next_lane(self) -> Lane | None:
        """Wait for a lane to work on. None: this worker is not needed any more."""
        with self.lock:
            while not self._handed_out:
                if self._surplus() or (self._closing and not self._lanes):
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle.wait()
            return self._handed_out.popleft()

    def step_aside(self, lane: Lane, until: Callable[[], bool]) -> bool:
        """Called in the middle of a piece: give the slot away, and wait until ``until`` holds and the lane is the most
        urgent one for a free slot. False: the request is dead."""
        with self.lock:
            self._free_slot(lane)
            self._blocked += 1
            if len(self._threads) - self._blocked < self.slots:
                self._start_worker()
            if not until():
                self._hand_out()
                while not lane.dead and not until():
                    lane.changed.wait()
            self._resuming.append(lane)
            self._hand_out()
            while not lane.dead and not lane.has_slot:
                lane.changed.wait()
            if lane in self._resuming:
                self._resuming.remove(lane)
            self._blocked -= 1
            if self._surplus():
                self._idle.notify()
            return not lane.dead


class Lane:
    """One request at one replica; also the :class:`~duologue.engine.stage.StageContext` that its stage is given."""

    def __init__(self, replica: InlineReplica, model: Stage, request: EngineRequest) -> None:
        self.request = request
        self.inbox: deque[Any] = deque()
        self.changed = threading.Condition(replica.lock)
        self.emitted = 0
        self.granted = WINDOW
        self.scheduled = False
        """In the ready queue, or with a worker."""
        self.ended = False
        self.dead = False
        self.over = False
        """Released: the lane can be forgotten."""
        self.has_slot = False
        self.urgency = Urgency(time.monotonic() + request.due_in_s)
        self.busy_s = 0.0
        self._replica = replica
        self._outbox = replica.outbox
        self._model = model
        self._state: Any = None
        self._started = False
        self._taken = 0
        self._first_accepted = 0.0
        self._worked_at = 0.0
        self._waited_s = 0.0

    def has_work(self) -> bool:
        """True while a worker should come back to this lane. Only with the lock held."""
        return self.dead or bool(self.inbox) or self.ended

    @property
    def computes(self) -> bool:
        """Whether what it does next takes a slot. Only with the lock held."""
        return self._started and not self.dead

    def interrupt(self) -> None:
        """Wake the stage where it waits for something outside. Only with the lock held."""
        if self._started and not self.over:
            try:
                self._model.interrupt(self._state)
            except Exception:
                logger.exception("Stage '%s' failed to interrupt %s", self._replica.stage, self.request.request_id)

    # -- StageContext --------------------------------------------------------------------------------------------------

    def emit(self, piece: Any, to: Taker = "all") -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        if self.dead:
            return False
        if self.emitted >= self.granted and not self._step_aside(lambda: self.emitted < self.granted):
            return False
        self.emitted += 1
        self._worked_at = time.monotonic()
        self._outbox.put(Emitted(self.request.request_id, piece, self._worked_at, to))
        return not self.dead

    def working(self) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        now = time.monotonic()
        if now - self._worked_at >= WORKING_S and not self.dead:
            self._worked_at = now
            self._outbox.put(Working(self.request.request_id))

    def made(self, seconds: float) -> None:
        """See :class:`~duologue.engine.stage.StageContext`."""
        self.urgency.made(seconds, time.monotonic())

    @property
    def left_s(self) -> float:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self.urgency.left_s(time.monotonic())

    @property
    def outranked(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._replica.outranked(self)

    def give_way(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self._step_aside(lambda: True)

    def _step_aside(self, until: Callable[[], bool]) -> bool:
        before = time.monotonic()
        alive = self._replica.step_aside(self, until)
        self._waited_s += time.monotonic() - before
        return alive

    @property
    def aborted(self) -> bool:
        """See :class:`~duologue.engine.stage.StageContext`."""
        return self.dead

    # -- on a worker ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do the next thing: start, pieces (more than one only while no other request waits), finish, release."""
        began = time.monotonic()
        self._waited_s = 0.0
        if not self.dead:
            try:
                self._advance()
            except Exception as error:  # noqa: BLE001 - whatever a stage raises fails its own request only
                self._fail(error)
        if self.dead:
            self._release()
        self.busy_s += time.monotonic() - began - self._waited_s

    def _advance(self) -> None:
        if not self._started:
            self._state = self._model.start(self.request)
            self._started = True
            return
        if self.inbox:
            self._process_pieces()
        # Whoever waits for the last piece waits for its end too: it is not put off until others have had their turns.
        if self.ended and not self.inbox and not self.dead:
            self._model.finish(self._state, self)
            if not self.dead:
                self._outbox.put(Done(self.request.request_id))
                self._release()

    def _process_pieces(self) -> None:
        while True:
            try:
                piece = self.inbox.popleft()
            except IndexError:
                return  # emptied by an abort, or worked off
            self._first_accepted = self._first_accepted or time.monotonic()
            self._model.process(self._state, opened(piece), self)
            self.urgency.had_a_turn(time.monotonic())
            self._taken += 1
            if not self.inbox or self._taken >= WINDOW // 2:
                self._outbox.put(Consumed(self.request.request_id, self._taken, self._first_accepted))
                self._taken = 0
            if self._replica.ready:  # any of them may be more urgent
                return

    def _fail(self, error: Exception) -> None:
        stage, request_id = self._replica.stage, self.request.request_id
        if self.dead:
            logger.debug("Stage '%s' raised after the abort of %s: %s", stage, request_id, error)
            return
        logger.error("Stage '%s' failed on request %s", stage, request_id, exc_info=error)
        self._outbox.put(Failed(request_id, f"Stage '{stage}' failed: {str(error) or type(error).__name__}"))
        self.dead = True

    def _release(self) -> None:
        with self._replica.lock:
            if self.over:
                return
            self.over = True  # from here on `interrupt` leaves the state alone
        if self._started:
            try:
                self._model.release(self._state)
            except Exception:
                logger.exception("Stage '%s' failed to release %s", self._replica.stage, self.request.request_id)
        self._state = None
