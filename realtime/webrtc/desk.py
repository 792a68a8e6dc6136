"""Places calls: from an offer to a session of its own, and the tasks that carry both until they are over."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from duologue.realtime.calls import LiveSession
from duologue.realtime.dialects import Dialect
from duologue.realtime.endpoint import watched
from duologue.realtime.gateway import Gateway
from duologue.realtime.sideband import SharedTransport
from duologue.realtime.webrtc.call import CallTransport
from duologue.realtime.webrtc.call_media import MediaHost, Video
from duologue.realtime.webrtc.local_media import LocalHost
from duologue.realtime.webrtc.media_workers import MediaWorker, MediaWorkers
from duologue.realtime.webrtc.offer import parsed
from duologue.realtime.websocket import edge_event_id
from duologue.sessions.config import shown
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import SessionHandle
from duologue.sessions.manager import Opening
from duologue.sessions.server_events import SessionCreated

logger = logging.getLogger(__name__)

LEVEL_METER: Final = "level_meter"
EXTENSIONS = (LEVEL_METER,)
"""What a client may ask for with ``?extensions=``: a video track that shows how loud the server speaks."""

_HANG_UP_S: Final = 1.0


@dataclass
class Call:
    """One call in progress."""

    id: str
    transport: CallTransport
    handle: SessionHandle
    video: Video
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Opens the route on which a new peer connection joins, and nothing else."""


@dataclass(frozen=True)
class Placed:
    """What the client gets."""

    call_id: str
    answer: str
    token: str


class CallDesk:
    """Every call of a server that came by an offer."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._host: MediaHost = LocalHost(gateway.settings.webrtc)
        self._workers: MediaWorkers | None = None
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start_workers(self, count: int) -> None:
        """Place calls with so many media workers from now on. Raises ``WorkerError`` or ``OSError``."""
        self._host = self._workers = MediaWorkers(self._gateway.settings.webrtc, count)
        await self._workers.start()

    @property
    def workers(self) -> Sequence[MediaWorker]:
        """The media workers, if there are any."""
        return () if self._workers is None else self._workers.workers

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def extensions(self) -> Collection[str]:
        """What a client may ask for besides the protocol."""
        return EXTENSIONS

    async def place(
        self, sdp: str, model: str | None, opening: Opening, dialect: Dialect, extensions: Collection[str] = ()
    ) -> Placed:
        """Answer an offer and begin its session. ``extensions``: those of :data:`EXTENSIONS` that the client wants.

        Raises ``ProtocolError`` for an offer or a configuration that cannot be served, and then holds nothing of it.
        """
        video = Video(
            seen=self._gateway.engine.pipeline.capabilities.image_in,
            source=LEVEL_METER if LEVEL_METER in extensions else None,
        )
        offer = parsed(sdp, takes_video=video.any)
        self._gateway.sessions.configure(model, opening)
        call_id = f"rtc_{secrets.token_hex(12)}"
        transport = CallTransport(
            dialect,
            self._gateway.settings.bounds,
            partial(self._greeting, call_id),
            partial(self._host.open, video=video),
        )
        try:
            answer = await transport.join(offer)
        except BaseException:
            await transport.close_peers()
            raise
        begun: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        serving = self._serve(call_id, transport, video, (model, opening), begun)
        task = asyncio.create_task(serving, name=f"call-{call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call = await begun
        return Placed(call_id, answer, call.token)

    async def rejoin(self, call_id: str, sdp: str) -> str:
        """Answer the offer of a new peer connection to a call. Raises ``ProtocolError``."""
        call = self._calls.get(call_id)
        if call is None:
            raise ProtocolError("call_id_not_found", f"There is no call with the id '{call_id[:64]}'.", "call_id")
        offer = parsed(sdp, takes_video=call.video.any)
        answer = await call.transport.join(offer)
        if self._calls.get(call_id) is not call:
            raise ProtocolError("call_id_not_found", "The call has just ended.", "call_id")
        return answer

    def opens(self, call_id: str, offered: Iterable[str]) -> bool:
        """Whether one of the keys offered is the token of that call."""
        call = self._calls.get(call_id)
        if call is None:
            return False
        return any([hmac.compare_digest(key.encode(), call.token.encode()) for key in offered])

    @property
    def av_delay_difference_s(self) -> float:
        """Mean over the calls that have both sound and pictures; not a number where none has."""
        differences = [call.transport.av_delay_difference_s for call in self._calls.values()]
        measured = [difference for difference in differences if difference is not None]
        return sum(measured) / len(measured) if measured else math.nan

    async def close(self) -> None:
        """End every call now."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_HANG_UP_S)
        await self._host.close()  # with it end the calls of a worker that hangs
        await asyncio.gather(*tasks, return_exceptions=True)

    def _greeting(self, call_id: str) -> SessionCreated:
        return SessionCreated(event_id=edge_event_id(), session=shown(self._calls[call_id].handle.session))

    async def _serve(
        self,
        call_id: str,
        transport: CallTransport,
        video: Video,
        wanted: tuple[str | None, Opening],
        begun: asyncio.Future[Call],
    ) -> None:
        """Run a call to its end. ``begun`` gets it once its session has begun, or why there is none."""
        gateway, (model, opening) = self._gateway, wanted
        shared = SharedTransport(transport, gateway.settings.bounds)

        def on_begin(handle: SessionHandle) -> None:
            call = self._calls[call_id] = Call(call_id, transport, handle, video)
            gateway.calls.file(call_id, LiveSession(shared, handle))
            begun.set_result(call)

        try:
            await watched(shared, gateway.sessions.serve(shared, model, opening, on_begin, media=transport))
        except ProtocolError as error:
            begun.set_exception(error)
        finally:
            self._calls.pop(call_id, None)
            gateway.calls.remove(call_id)
            shared.end()
            await transport.close_peers()
            if not begun.done():
                begun.set_exception(ProtocolError("duologue.going_away", "The server is shutting down."))
