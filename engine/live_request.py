"""One request on its way through the stages: what is known of it, and the rules it follows.

- A stage's credit is what it has emitted less what its slowest taker still owes, plus a window; the client counts as a
  taker while its stream is full. So a slow reader slows its own request down, back to the first stage.
- The first terminal outcome wins: completed or length (every stage is done), failed (a stage raised, or nothing moved
  for ``timeout_s``), aborted. What arrives later is dropped. The record is kept until every stage has released.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from duologue.engine import metrics
from duologue.engine.connectors.shared_memory import Parcel
from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.executors.base import (
    HOST_CLOCK,
    WINDOW,
    Consumed,
    Done,
    Emitted,
    Failed,
    Message,
    Released,
    Replica,
)
from duologue.engine.metering import Hop, RequestMeter, Work
from duologue.engine.pipeline import Route
from duologue.engine.requests import (
    AbortReason,
    EngineRequest,
    Finished,
    FinishReason,
    RequestRefused,
    ToolCallDelta,
    Usage,
)
from duologue.engine.sizes import piece_bytes
from duologue.engine.stage import StageFinish, Taker
from duologue.engine.stream import OUTPUT_DELTAS, Stream

logger = logging.getLogger(__name__)

CLIENT = "client"


class _Edge:
    """From one stage to the next, or from the client to the entry."""

    __slots__ = ("hop", "outstanding", "sent_at", "source", "target", "trace")

    def __init__(self, source: _Node | None, target: _Node) -> None:
        self.source = source
        self.target = target
        self.outstanding = 0
        """Pieces handed over and not yet reported as consumed."""
        self.sent_at: deque[float] = deque()
        """When each of these was handed over."""
        self.hop = Hop(source.label if source else metrics.CLIENT, target.label)
        self.trace = EdgeTrace(
            source=source.name if source else CLIENT,
            target=target.name,
            source_clock=source.clock if source else HOST_CLOCK,
            target_clock=target.clock,
        )


class _Node:
    """One stage's part in a request."""

    __slots__ = (
        "client_hop",
        "clock",
        "done",
        "emitted",
        "ended",
        "final",
        "granted",
        "held",
        "incoming",
        "label",
        "name",
        "open_sources",
        "order",
        "outgoing",
        "released",
        "replica",
        "to_client",
        "traced",
    )

    def __init__(self, name: str, replica: Replica, final: bool) -> None:
        self.name = name
        self.replica = replica
        self.label = (name, str(replica.index))
        self.clock = replica.clock
        self.incoming: list[_Edge] = []
        self.outgoing: list[_Edge] = []
        self.order: deque[_Edge] = deque()
        """Where the unconsumed pieces came from, oldest first; kept only when there are several sources."""
        self.open_sources = 0
        self.emitted = 0
        self.granted = WINDOW
        self.final = final
        self.held = 0
        """Deltas put on the full stream."""
        self.to_client = EdgeTrace(source=name, target=CLIENT, source_clock=replica.clock)
        self.client_hop = Hop(self.label, metrics.CLIENT) if final else None
        self.traced: set[Taker] = set()
        """Takers that have been sent a piece."""
        self.ended = self.done = self.released = False


class LiveRequest:
    """Methods run on the event loop; the stream's calls come in through ``StreamOwner``."""

    def __init__(
        self,
        request: EngineRequest,
        route: Route,
        replicas: Mapping[int, Replica],
        output_limit: int,
        work: Work,
        on_released: Callable[[str], None],
    ) -> None:
        """``replicas`` by stage id; to ``work`` it adds what the stages do for it; ``on_released`` is called with the
        request's id when every stage has released."""
        self._on_all_released = on_released
        self._id = request.request_id
        self._request = request
        self._meter = RequestMeter(request, work)
        self.nodes = {i: _Node(replicas[i].stage, replicas[i], i in route.final) for i in route.stages}
        self._entry = _Edge(None, self.nodes[route.entry])
        for stage_id, targets in route.targets.items():
            for target in targets:
                edge = _Edge(self.nodes[stage_id], self.nodes[target])
                self.nodes[stage_id].outgoing.append(edge)
                self.nodes[target].incoming.append(edge)
        self.nodes[route.entry].incoming.append(self._entry)
        for node in self.nodes.values():
            node.open_sources = len(node.incoming)
        traces = [edge.trace for node in self.nodes.values() for edge in node.incoming]
        self.stream = Stream(
            self._id, self, output_limit, traces + [node.to_client for node in self.nodes.values() if node.final]
        )
        self._short: FinishReason = "completed"
        self._finished = False
        self._read_out = False
        self._timed_out = False
        self._unreleased = len(self.nodes)
        self.released = asyncio.Event()
        """Set when every stage has released."""
        self._input_open = True
        self._room_at_entry = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._progress = self._loop.time()
        self._timer = self._loop.call_later(request.timeout_s, self._check_progress)

    def start(self, more_input: bool) -> None:
        """Prepare every stage, then hand the payload to the first."""
        for node in self.nodes.values():
            try:
                node.replica.open(self._request)
            except Exception:
                logger.exception("Stage '%s' could not take request %s", node.name, self._id)
                self._roll_back(node)
                return
        now = self._entry.trace.emitted = self._entry.trace.sent = time.monotonic()
        self._hand_over(self._entry, self._request.payload, now)
        self._entry.hop.sent(piece_bytes(self._request.payload), None)
        if not more_input:
            self.end_input()

    def _roll_back(self, refused: _Node) -> None:
        """One stage could not be opened: those before it are aborted, it and those after it have nothing to release."""
        self.terminate("failed", f"Stage '{refused.name}' could not take the request.", "stage_error")
        nodes = list(self.nodes.values())
        for node in nodes[nodes.index(refused) :]:
            self._release(node)

    # -- called by the stream ------------------------------------------------------------------------------------------

    def abort(self, reason: AbortReason) -> None:
        """See :class:`~duologue.engine.stream.StreamOwner`."""
        self.terminate("aborted", failure=None if reason == "superseded" else reason)

    def read_out(self) -> None:
        """See :class:`~duologue.engine.stream.StreamOwner`."""
        self._read_out = True
        self._close_meter()

    def room(self) -> None:
        """See :class:`~duologue.engine.stream.StreamOwner`."""
        self._progress = self._loop.time()
        for node in self.nodes.values():
            if node.held:
                node.held = 0
                self._regrant(node)

    async def push(self, piece: Any) -> None:
        """See :class:`~duologue.engine.stream.StreamOwner`."""
        while self._entry.outstanding >= WINDOW and not self._finished:
            self._room_at_entry.clear()
            await self._room_at_entry.wait()
        if self._finished:
            return
        if not self._input_open:
            raise RequestRefused(f"The input of request '{self._id}' has ended.")
        self._progress = self._loop.time()
        self._hand_over(self._entry, piece, time.monotonic())
        self._entry.hop.sent(piece_bytes(piece), None)

    def end_input(self) -> None:
        """See :class:`~duologue.engine.stream.StreamOwner`."""
        if self._input_open and not self._finished:
            self._input_open = False
            self._progress = self._loop.time()
            self._close_source(self._entry.target)

    # -- reports of the replicas ---------------------------------------------------------------------------------------

    def handle(self, node: _Node, message: Message, now: float) -> None:
        """Act on one report. Once the request is over only releases count."""
        if type(message) is Released:
            self._on_released(node, message)
        elif not self._finished:
            self._progress = now
            if type(message) is Emitted:
                self._on_emitted(node, message)
            elif type(message) is Consumed:
                self._on_consumed(node, message)
            elif type(message) is Done:
                self._on_done(node)
            elif type(message) is Failed:
                self.terminate("failed", message.error, "stage_error")

    def _on_emitted(self, node: _Node, message: Emitted) -> None:
        piece = message.piece
        node.emitted += 1
        if type(piece) is Usage:
            self.stream.count(piece)
        elif type(piece) is StageFinish:
            self._short = piece.reason
        else:
            now = time.monotonic()
            if message.to not in node.traced:
                self._trace_first(node, message.at, now, message.to)  # before the taker can have it
            tx_s = now - message.at if node.clock == HOST_CLOCK else None
            size = piece_bytes(piece)
            client_hop = None if message.to == "next" else node.client_hop
            if type(piece) is Parcel and client_hop is not None:
                piece = piece.open()  # the client is in this process
            if message.to != "client" and type(piece) is not ToolCallDelta:
                for edge in node.outgoing:
                    shared = type(piece) is Parcel and edge is not node.outgoing[-1]
                    edge.hop.sent(size, tx_s)
                    self._hand_over(edge, piece.link() if shared else piece, now)
            if client_hop is not None and isinstance(piece, OUTPUT_DELTAS):
                client_hop.sent(size, tx_s)
                self._meter.to_client(piece, node.label, now)
                self.stream.put(piece, node.to_client)
                node.held += self.stream.full
        self._regrant(node)

    def _trace_first(self, node: _Node, emitted: float, sent: float, to: Taker) -> None:
        """Stamp the edges that this piece goes over, where it is the first."""
        node.traced.add(to)
        for edge in node.incoming:
            edge.trace.produced = edge.trace.produced or emitted
        onward = [edge.trace for edge in node.outgoing] if to != "client" else []
        for trace in (*onward, *((node.to_client,) if node.final and to != "next" else ())):
            if trace.emitted is None:
                trace.emitted, trace.sent = emitted, sent

    def _on_consumed(self, node: _Node, message: Consumed) -> None:
        now = time.monotonic()
        alone = node.incoming[0] if len(node.incoming) == 1 else None
        edges = set()
        for _ in range(message.count):
            edge = alone or node.order.popleft()
            edge.outstanding -= 1
            edge.hop.worked_off(now - edge.sent_at.popleft())
            edges.add(edge)
        for edge in edges:
            if edge.trace.accepted is None:
                edge.trace.accepted = message.first_accepted
            if edge.source is None:
                self._room_at_entry.set()
            else:
                self._regrant(edge.source)

    def _on_done(self, node: _Node) -> None:
        node.done = True
        for edge in node.outgoing:
            self._close_source(edge.target)
        if all(other.done for other in self.nodes.values()):
            self.terminate(self._short)

    def _on_released(self, node: _Node, message: Released) -> None:
        self._meter.released(node.label, message.busy_s)
        self._release(node)

    def _release(self, node: _Node) -> None:
        node.released = True
        self._unreleased -= 1
        if not self._unreleased:
            self.released.set()
            self._on_all_released(self._id)
            self._close_meter()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _close_meter(self) -> None:
        if self._read_out and not self._unreleased:
            try:
                self._meter.close(self.stream.trace)
            except Exception:
                logger.exception("Request %s could not be written down", self._id)

    def _hand_over(self, edge: _Edge, piece: Any, now: float) -> None:
        edge.outstanding += 1
        edge.sent_at.append(now)
        if len(edge.target.incoming) > 1:
            edge.target.order.append(edge)
        edge.target.replica.push(self._id, piece)

    def _close_source(self, node: _Node) -> None:
        node.open_sources -= 1
        if not node.open_sources:
            node.ended = True
            node.replica.end_input(self._id)

    def _regrant(self, node: _Node) -> None:
        """Tell the producer its credit, unless it has so much left that a later, larger step will do."""
        owed = node.held
        for edge in node.outgoing:
            owed = max(owed, edge.outstanding)
        total = node.emitted - owed + WINDOW
        if total - node.granted >= WINDOW // 2:
            node.granted = total
            node.replica.grant(self._id, total)

    def terminate(
        self, reason: FinishReason, error: str | None = None, failure: metrics.FailureReason | None = None
    ) -> None:
        """Set the terminal outcome, unless there is one, and stop what still runs."""
        if self._finished:
            return
        self._finished = True
        self._timer.cancel()
        self._room_at_entry.set()
        self.stream.finish(Finished(reason=reason, error=error))
        self._meter.finished(reason, failure)
        for node in self.nodes.values():
            if not node.done:
                node.replica.abort(self._id)

    def _check_progress(self) -> None:
        waited = self._loop.time() - self._progress
        late = self._late_stage()
        if late is None:  # it waits for the client, which may take its time
            self._timer = self._loop.call_later(self._request.timeout_s, self._check_progress)
        elif waited < self._request.timeout_s:
            self._timer = self._loop.call_later(self._request.timeout_s - waited, self._check_progress)
        else:
            self._timed_out = True
            sentence = f"Stage '{late}' made no progress for {self._request.timeout_s:g} s."
            self.terminate("failed", sentence, "timeout")

    def _late_stage(self) -> str | None:
        """The stage whose turn it is: the furthest one that has input to work on. None: it is the client's turn."""
        if self.stream.full:
            return None
        late = None
        for node in self.nodes.values():
            has_input = node.ended or any(edge.outstanding for edge in node.incoming)
            if has_input and not node.done:
                late = node.name
        return late

    def uses(self, stage_id: int, replica: Replica) -> bool:
        """True while that replica has not released this request."""
        node = self.nodes.get(stage_id)
        return node is not None and node.replica is replica and not node.released

    def stuck_in(self) -> str | None:
        """The stage that has not released since the request timed out."""
        if not self._timed_out:
            return None
        return next((node.name for node in self.nodes.values() if not node.released), None)
