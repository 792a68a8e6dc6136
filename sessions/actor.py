"""The actor around a session's machine: one mailbox, one worker, one writer, and the engine streams it has open.

The machine decides, the actor carries out. Everything that happens to a session passes through the mailbox, so the
machine is touched by the worker alone; every task lives in one task group and dies with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from duologue.codecs.pcm import pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, StreamResampler
from duologue.engine.engine import Engine, RequestRefused
from duologue.engine.requests import AbortReason, EngineRequest, Finished
from duologue.engine.stream import Stream
from duologue.engine.voice_activity import VoiceActivityStream
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.config import AnySession
from duologue.sessions.effects import (
    AbortRequest,
    AudioSent,
    CloseSession,
    DropAudio,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    HangUp,
    Input,
    OpenRequest,
    Send,
    Shutdown,
    StopVoiceActivity,
    Tick,
    VoiceActivity,
)
from duologue.sessions.metrics import SessionMeter
from duologue.sessions.outbox import Outbox, Outgoing
from duologue.sessions.server_events import OfPart, ServerEvent
from duologue.sessions.timebase import VAD_SAMPLE_RATE
from duologue.sessions.translation_events import TranslationSession

MAILBOX_EVENTS = 32
MAX_PENDING_FRAMES = 64
"""Voice-activity frames (32 ms each) that may wait for the detector before more input is read."""


class Transport(Protocol):
    """How a session reaches its client."""

    async def receive(self) -> ClientEvent | InvalidEvent | None:
        """The next event; None once the peer is gone."""

    async def send(self, events: Sequence[ServerEvent]) -> None:
        """Write events; returns when the transport is ready for more. ``ConnectionError``: the peer is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close with a WebSocket close code, or what it means on this transport."""


class Machine(Protocol):
    """A session core: takes one event at a time, and says what follows."""

    @property
    def session(self) -> AnySession | TranslationSession: ...

    @property
    def deadline(self) -> float: ...

    @property
    def speculations_wasted(self) -> int: ...

    def start(self) -> list[Effect]: ...

    def handle(self, event: Input, now: float) -> list[Effect]: ...


class SessionHandle(Protocol):
    """A running session, for those who join it besides its own transport."""

    @property
    def session(self) -> AnySession:
        """The effective configuration."""

    async def submit(self, event: ClientEvent | InvalidEvent) -> None:
        """Hand in an event, as if the session's own client had; waits while the mailbox is full."""

    def hang_up(self) -> None:
        """End the session now, with whatever it is saying."""


class Mailbox:
    """Events for the worker, in order. ``put`` waits while the box is full; ``post`` is for producers that are bounded
    by other means (voice-activity frames, reports of the writer, the timer)."""

    def __init__(self, limit: int = MAILBOX_EVENTS) -> None:
        self._limit = limit
        self._events: deque[Input | None] = deque()
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def post(self, event: Input | None) -> None:
        self._events.append(event)
        self._filled.set()
        if len(self._events) >= self._limit:
            self._room.clear()

    async def put(self, event: Input | None) -> None:
        while not self._room.is_set():
            await self._room.wait()
        self.post(event)

    async def get(self) -> Input | None:
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        event = self._events.popleft()
        if len(self._events) < self._limit:
            self._room.set()
        return event


class _SessionOver(Exception):
    """Ends the actor's task group."""


class SessionActor:
    """Runs one session until its client has gone or the machine has closed it."""

    def __init__(
        self,
        machine: Machine,
        engine: Engine,
        transport: Transport,
        *,
        clock: Callable[[], float],
        output_buffer_bytes: int,
        on_requests_changed: Callable[[int], None] = lambda change: None,
    ) -> None:
        self._machine = machine
        self._engine = engine
        self._transport = transport
        self._clock = clock
        self._output_buffer_bytes = output_buffer_bytes
        self._on_requests_changed = on_requests_changed
        self._meter = SessionMeter()
        self._mailbox = Mailbox()
        self._outbox = Outbox()
        self._outbox_filled = asyncio.Event()
        self._outbox_roomy = asyncio.Event()
        self._outbox_roomy.set()
        self._closing: CloseSession | None = None
        self._client_gone = False
        self._streams: dict[str, Stream] = {}
        self._voice_activity: VoiceActivityStream | None = None
        self._voice_stream = 0
        self._resampler: StreamResampler | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serve the session to its end; afterwards nothing of it is left in the engine."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._read(), name="session-read")
                tasks.create_task(self._write(), name="session-write")
                tasks.create_task(self._work(), name="session-work")
        except* (_SessionOver, ConnectionError):
            pass
        finally:
            self._release()

    def shut_down(self) -> None:
        """Ask the session to finish its answer and close."""
        self._mailbox.post(Shutdown())

    # -- SessionHandle -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> AnySession:
        session = self._machine.session
        assert not isinstance(session, TranslationSession)
        return session

    async def submit(self, event: ClientEvent | InvalidEvent) -> None:
        await self._mailbox.put(event)

    def hang_up(self) -> None:
        self._mailbox.post(HangUp())

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while (event := await self._transport.receive()) is not None:
            await self._mailbox.put(event)
        self._client_gone = self._closing is None
        raise _SessionOver

    async def _work(self) -> None:
        await self._perform(self._machine.start())
        self._set_timer()
        while True:
            event = await self._mailbox.get()
            if event is not None:
                await self._perform(self._machine.handle(event, self._clock()))
                self._meter.wasted(self._machine.speculations_wasted)
                self._set_timer()

    async def _write(self) -> None:
        while True:
            await self._outbox_filled.wait()
            batch = list(self._outbox.take())
            self._note_outbox()
            try:
                await self._transport.send([outgoing.event for outgoing in batch])
            except ConnectionError:
                self._client_gone = True
                raise
            self._report_sent(batch)
            if self._closing is not None and not self._outbox:
                await self._transport.close(self._closing.code, self._closing.reason)
                raise _SessionOver

    async def _pump(self, request_id: str, stream: Stream) -> None:
        try:
            async for delta in stream:
                await self._outbox_roomy.wait()
                await self._mailbox.put(EngineOutput(request_id, delta, stream.usage))
        finally:
            self._abort(request_id)

    # -- effects -------------------------------------------------------------------------------------------------------

    async def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event=event, samples=samples):
                    self._outbox.push(event, samples)
                    self._meter.sent(event, self._clock())
                case DropAudio(response_id=response_id):
                    self._outbox.drop_audio(response_id)
                case FeedVoiceActivity():
                    await self._feed(effect)
                case StopVoiceActivity():
                    self._stop_voice_activity()
                case OpenRequest(request=request):
                    self._open(request)
                case AbortRequest(request_id=request_id, reason=reason):
                    self._abort(request_id, reason)
                case CloseSession():
                    self._closing = effect
        self._note_outbox()

    def _open(self, request: EngineRequest) -> None:
        assert self._tasks is not None
        try:
            stream = self._engine.open(request)
        except RequestRefused as error:
            self._mailbox.post(EngineOutput(request.request_id, Finished(reason="failed", error=str(error))))
            return
        self._streams[request.request_id] = stream
        self._on_requests_changed(+1)
        self._tasks.create_task(self._pump(request.request_id, stream), name=f"session-pump-{request.request_id}")

    def _abort(self, request_id: str, reason: AbortReason | None = None) -> None:
        """Forget a request; what of it still runs is aborted. Harmless for one that has ended or is unknown.

        Without a reason it is the end of the session.
        """
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._on_requests_changed(-1)
            stream.abort(reason or ("client_disconnect" if self._client_gone else "unknown"))

    async def _feed(self, effect: FeedVoiceActivity) -> None:
        if self._voice_activity is None or effect.stream != self._voice_stream:
            self._start_voice_activity(effect.stream, effect.sample_rate)
        voice_activity, resampler = self._voice_activity, self._resampler
        assert voice_activity is not None
        assert resampler is not None
        second = effect.sample_rate * 2
        for first in range(0, len(effect.pcm), second):
            await voice_activity.wait_below(MAX_PENDING_FRAMES)
            voice_activity.feed(resampler.process(pcm16_to_float(effect.pcm[first : first + second])))

    def _start_voice_activity(self, stream: int, sample_rate: int) -> None:
        self._stop_voice_activity()
        self._voice_stream = stream
        self._resampler = StreamResampler(sample_rate, VAD_SAMPLE_RATE, VOICE_ACTIVITY_QUALITY)
        self._voice_activity = self._engine.voice_activity.open(
            lambda probability: self._mailbox.post(VoiceActivity(stream, probability))
        )

    def _stop_voice_activity(self) -> None:
        if self._voice_activity is not None:
            self._voice_activity.close()
        self._voice_activity = self._resampler = None

    def _report_sent(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            if outgoing.samples and isinstance(outgoing.event, OfPart):
                self._mailbox.post(AudioSent(outgoing.event.item_id, outgoing.samples))

    def _note_outbox(self) -> None:
        if self._outbox or self._closing is not None:
            self._outbox_filled.set()
        else:
            self._outbox_filled.clear()
        if self._outbox.audio_bytes < self._output_buffer_bytes:
            self._outbox_roomy.set()
        else:
            self._outbox_roomy.clear()

    def _set_timer(self) -> None:
        deadline = self._machine.deadline
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, deadline - self._clock())
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._mailbox.post(Tick())

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stop_voice_activity()
        for request_id in list(self._streams):
            self._abort(request_id)
