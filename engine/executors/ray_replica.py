"""A replica as an actor on any node of a Ray cluster, supervised.

Three parties: the event loop, which owns the state here; one thread per actor, which packs pieces and calls the actor,
so that no payload is copied on the loop; and the actor (:mod:`~duologue.engine.executors.ray_actor`). Nothing polls:
reports are the results of calls that wait at the actor.

Death shows in two ways. The actor's process ends: Ray fails the waiting calls within milliseconds. Its node falls
silent: nothing ends, and Ray itself takes long to notice. So while requests are open the actor sends a beat, and a
timer here, which exists for as long, watches for it: after ``silent_after_s`` the requests fail and no new ones are
taken until it is heard again, after ``dead_after_s`` it is given up. A lost actor is replaced wherever there is room.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from duologue.engine.connectors.pieces import PieceError, PieceTypes
from duologue.engine.connectors.segments import SharedMemoryError
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.deploy import DeployError, Resources
from duologue.engine.executors.base import HOST_CLOCK, Emitted, Failed
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import CLOSE_TIMEOUT_S
from duologue.engine.executors.outbox import Outbox
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_wire import (
    Beat,
    Frame,
    InOrder,
    RayLaunch,
    encoder,
    started_decoder,
    up_decoder,
)
from duologue.engine.executors.remote import RemoteReplica
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.executors.wire import Log, Open, Push, Sent
from duologue.engine.requests import EngineRequest

logger = logging.getLogger(__name__)

WAITING_CALLS: Final = 2
"""Calls of ``reports`` under way: while one is on its way back the next is there already."""
BEATS: Final = 4
"""Beats in ``silent_after_s``."""
MOST_AT_ONCE: Final = 64
"""Messages of one call of ``tell``."""


class RaySpec(msgspec.Struct, frozen=True):
    """What an actor runs, and what it takes up."""

    build: StageBuild
    types: PieceTypes
    threshold_bytes: int
    slots: int = 1
    final: bool = False
    """The client takes the stage's deltas."""
    resources: Resources = Resources()
    num_gpus: float = 0.0
    """When ``resources`` say nothing of them."""
    env: Mapping[str, str | int | float] = {}
    """Of the actor's process only."""
    start_timeout_s: float = 600.0
    """For loading, and again for warming up."""

    def actor_options(self) -> dict[str, Any]:
        """As ``ray.remote`` takes them."""
        asked, gpus = self.resources, self.resources.num_gpus
        options: dict[str, Any] = {"num_cpus": asked.num_cpus, "num_gpus": self.num_gpus if gpus is None else gpus}
        if asked.custom:
            options["resources"] = dict(asked.custom)
        if self.env:
            options["runtime_env"] = {"env_vars": {name: str(value) for name, value in self.env.items()}}
        return options | {"max_restarts": 0, "max_task_retries": 0}  # restarts are the supervisor's, here


class RayReplica(RemoteReplica):
    """Implements :class:`~duologue.engine.executors.base.Replica` over an actor. Used on the event loop."""

    def __init__(
        self,
        stage: str,
        spec: RaySpec,
        cluster: RayCluster,
        index: int = 0,
        local: SharedMemoryConnector | None = None,
    ) -> None:
        """``local``: stages in worker processes take the pieces, so large ones are brought to this host's memory."""
        super().__init__(stage, spec.slots, index)
        self.place: tuple[str, int] = ("", 0)
        """The address of the actor's node, and its process there."""
        self.clock = HOST_CLOCK
        self._spec = spec
        self._cluster = cluster
        self._local = local
        self._silent = False
        self._heard_at = 0.0
        self._actor: Any = None
        self._sender: _Sender | None = None
        self._listener: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Start the actor and let it read its weights. Raises :class:`WorkerError`, and ``DeployError``."""
        await self._cluster.connect()
        try:
            self._actor = await run_in_thread(self._new_actor, f"{self.stage}-place")
            await self._take_place()
            await self._ask(self._actor.load.remote(encoder.encode(self._launch())))
        except BaseException:
            await self._discard()
            raise

    async def warm_up(self) -> None:
        """Warm the stage up. Raises :class:`WorkerError`."""
        from duologue.engine.connectors.ray_store import RayConnector

        await self._ask(self._actor.warm_up.remote())
        connector = RayConnector(self._spec.types, self._spec.threshold_bytes, (EngineRequest,))
        self._sender = _Sender(self._actor, connector, f"{self.stage}-ray", self._fail_over)
        self._is_ready()
        self._listener = asyncio.create_task(
            self._listen(self._actor, connector), name=f"listen {self.stage} {self.index}"
        )

    async def close(self) -> bool:
        """End the actor: by itself within the stage's bound, else by force. False: by force."""
        was_ready, self.state = self.state == "ready", "closed"
        await self._stop_restarting()
        clean = await self._reap(CLOSE_TIMEOUT_S + 1 if was_ready else 0)
        return clean or not was_ready

    @property
    def live(self) -> bool:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        return self.state == "ready" and not self._silent

    # -- work ----------------------------------------------------------------------------------------------------------

    def open(self, request: EngineRequest) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`. Without an actor the request is failed at once."""
        self._open[request.request_id] = request
        if not self.live:
            self._fail(request.request_id, f"Stage '{self.stage}' has no running worker.")
            return
        self._send(_Piece(request.request_id, request))
        if self._watch is None:
            self._heard_at = time.monotonic()
            self._watch_for(self._cluster.settings.silent_after_s)

    def push(self, request_id: str, piece: Any) -> None:
        """See :class:`~duologue.engine.executors.base.Replica`."""
        request = self._open.get(request_id)
        if request is not None:
            self._send(Push(request_id, None) if piece is request.payload else _Piece(request_id, piece))

    # -- inside: the actor ---------------------------------------------------------------------------------------------

    def _new_actor(self) -> Any:
        import ray

        from duologue.engine.executors.ray_actor import StageActor

        return ray.remote(StageActor).options(**self._spec.actor_options()).remote()

    async def _take_place(self) -> None:
        limit = self._cluster.settings.placement_timeout_s
        try:
            async with asyncio.timeout(limit):
                address, pid, host = await _result(self._actor.where.remote())
        except TimeoutError as error:
            options = self._spec.actor_options()
            asked = {name: options[name] for name in ("num_cpus", "num_gpus", "resources") if options.get(name)}
            raise WorkerError(
                f"Stage '{self.stage}': no node of the Ray cluster had room for replica {self.index} within "
                f"{limit:g} s (ray.placement_timeout_s); it needs {asked}."
            ) from error
        self.place, self.clock = (address, pid), HOST_CLOCK if host == platform.node() else host
        logger.info("Stage '%s', replica %d: node %s, process %d", self.stage, self.index, *self.place)

    def _launch(self) -> RayLaunch:
        return RayLaunch(
            stage=self.stage,
            build=self._spec.build,
            slots=self._spec.slots,
            threshold_bytes=self._spec.threshold_bytes,
            final=self._spec.final,
            types=list(self._spec.types.names),
            log_level=logging.getLogger().getEffectiveLevel(),
            beat_s=self._cluster.settings.silent_after_s / BEATS,
        )

    async def _ask(self, answer: Any) -> None:
        """Wait for a step of the start."""
        limit = self._spec.start_timeout_s
        try:
            async with asyncio.timeout(limit):
                outcome = started_decoder.decode(await _result(answer))
        except TimeoutError as error:
            raise WorkerError(
                f"Stage '{self.stage}': its actor was not ready within {limit:g} s (stage_init_timeout_s)."
            ) from error
        if outcome is not None:
            raise WorkerError(outcome.error, outcome.kind)

    def _send(self, message: msgspec.Struct) -> None:
        if self._sender is not None:
            self._sender.put(message)

    def _fail_over(self, request_id: str, error: str) -> None:
        if request_id in self._open:
            self._report(Failed(request_id, f"Stage '{self.stage}' failed: {error}"))

    async def _listen(self, actor: Any, connector: Any) -> None:
        """Take the actor's reports for as long as it lives."""
        in_order: InOrder[Frame] = InOrder()
        # Whichever call is answered: Ray may run the later one first, and the earlier one then waits for more, which if
        # nothing is open any more is the next request.
        answered: Outbox[Future[Frame]] = Outbox(asyncio.get_running_loop())

        def call() -> None:
            actor.reports.remote().future().add_done_callback(answered.put)

        try:
            for _ in range(WAITING_CALLS):
                call()
            while True:
                answers = await answered.take()
                for _ in range(len(answers)):
                    call()
                while answers:
                    await self._on_answer(answers.pop(0), in_order, connector)
        except WorkerError as error:
            self._lost(f"its worker {error}")
        except Exception:
            logger.exception("Stage '%s', replica %d: a report cannot be taken", self.stage, self.index)
            self._lost("a report of its worker cannot be taken")

    def _lost(self, how: str) -> None:
        if self.state == "ready":
            self._stop_watching()
            self._worker_died(f"Stage '{self.stage}' failed: {how}.")

    async def _on_answer(self, answer: Future[Frame], in_order: InOrder[Frame], connector: Any) -> None:
        """Not a part of the loop, which would keep references of pieces that nobody took while it waits."""
        with _errors_of_ray():
            frame = answer.result()
        for _, body, refs in in_order.put(frame[0], frame):
            self._heard()
            for message in up_decoder.decode(body):
                await self._on_message(message, refs, connector)

    async def _on_message(self, message: Any, refs: list[Any], connector: Any) -> None:
        match message:
            case Beat():
                pass
            case Log():
                logging.getLogger(message.name).log(message.level, "%s", message.text)
            case Sent() if message.request_id in self._open:
                parcel = connector.receive(message.piece, refs)
                try:
                    piece = await self._brought(parcel) if parcel.data is None else parcel.open()
                except (PieceError, SharedMemoryError, WorkerError) as error:
                    self._fail_over(message.request_id, str(error))
                    return
                if message.request_id in self._open:
                    self._report(Emitted(message.request_id, piece, message.at, message.to))
            case Sent():
                pass
            case _ if message.request_id in self._open:  # else it was failed while the actor was silent
                self._report(message)

    async def _brought(self, parcel: Any) -> Any:
        """A large piece stays where it is, unless its taker is a worker process, which has no way to Ray's store."""
        if self._local is None:
            return parcel
        local, array = self._local, await _result(parcel.ref)
        return await run_in_thread(lambda: local.carry([array.data], array.nbytes), f"{self.stage}-bring")

    # -- inside: silence -----------------------------------------------------------------------------------------------

    def _heard(self) -> None:
        self._heard_at = time.monotonic()
        if self._silent:
            self._silent = False
            logger.warning("Stage '%s', replica %d is heard again.", self.stage, self.index)

    def _watch_for(self, seconds: float) -> None:
        self._watch = asyncio.get_running_loop().call_later(max(seconds, 0.01), self._on_watch)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_watch(self) -> None:
        self._watch = None
        settings = self._cluster.settings
        silence = time.monotonic() - self._heard_at
        if not self._open and not self._silent:
            return
        if self._is_stuck() or silence >= settings.dead_after_s:
            self._worker_died(f"Stage '{self.stage}' failed: its worker hung and was given up.")
            return
        if silence >= settings.silent_after_s and not self._silent:
            self._silent = True
            logger.error("Stage '%s', replica %d is silent for %.1f s.", self.stage, self.index, silence)
            for request_id in self._open:
                self.abort(request_id)
            self._fail_all(f"Stage '{self.stage}' failed: its worker gave no sign of life for {silence:.1f} s.")
        self._watch_for((settings.dead_after_s if self._silent else settings.silent_after_s) - silence)

    # -- inside: the end -----------------------------------------------------------------------------------------------

    async def _reap(self, patience_s: float) -> bool:
        self._stop_watching()
        clean = True
        if patience_s and self._actor is not None:
            try:
                async with asyncio.timeout(patience_s):
                    clean = bool(await _result(self._actor.close.remote()))
            except (WorkerError, TimeoutError):
                clean = False
        await self._discard()
        return clean

    async def _discard(self) -> None:
        actor, self._actor = self._actor, None
        listener, self._listener = self._listener, None
        sender, self._sender = self._sender, None
        self._silent = False
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

        def end() -> None:
            import ray

            if sender is not None:
                sender.close()
            ray.kill(actor)

        if actor is not None:
            await run_in_thread(end, f"{self.stage}-discard")


class _Piece(msgspec.Struct):
    """To be packed on the sender's thread. A request opens itself."""

    request_id: str
    piece: Any


class _Sender:
    """The thread that packs and calls. What has gathered meanwhile goes with one call."""

    def __init__(self, actor: Any, connector: Any, name: str, on_error: Callable[[str, str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = connector
        self._tell = actor.tell.options(num_returns=0)
        self._on_error = on_error
        self._waiting: queue.SimpleQueue[msgspec.Struct | None] = queue.SimpleQueue()
        """Bounded by the credit of the open requests."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, message: msgspec.Struct) -> None:
        """Send it soon, after those before. Does not wait."""
        self._waiting.put(message)

    def close(self) -> None:
        """Stop; what waits is dropped. Blocks until the thread has ended."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while (first := self._waiting.get()) is not None:
            batch: list[msgspec.Struct | None] = [first]
            while len(batch) < MOST_AT_ONCE and batch[-1] is not None and not self._waiting.empty():
                batch.append(self._waiting.get())
            refs: list[Any] = []
            messages = [packed for message in batch if message is not None and (packed := self._packed(message, refs))]
            if messages:
                self._tell.remote(number, encoder.encode(messages), refs)
                number += 1
            if batch[-1] is None:
                return
            del first, batch, messages, refs  # no piece is kept while nothing waits

    def _packed(self, message: msgspec.Struct, refs: list[Any]) -> msgspec.Struct | None:
        """The message as it is sent. None: it cannot be; the request has been failed."""
        if type(message) is not _Piece:
            return message
        try:
            packed = self._connector.send(self._connector.pack(message.piece), refs)
        except Exception as error:  # noqa: BLE001 - no room in the store, a type unknown: fails the one request
            self._loop.call_soon_threadsafe(self._on_error, message.request_id, str(error))
            return None
        return Open(packed) if type(message.piece) is EngineRequest else Push(message.request_id, packed)


async def _result(ref: Any) -> Any:
    """The value of a Ray reference. Raises :class:`WorkerError` when it cannot be had any more."""
    with _errors_of_ray():
        return await asyncio.wrap_future(ref.future())


@contextmanager
def _errors_of_ray() -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise DeployError(f"ray.runtime_env, or the stage's env: {error}") from error
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
        raise WorkerError("died") from error
    except ray.exceptions.RayError as error:
        raise WorkerError(f"cannot be reached ({type(error).__name__})") from error
