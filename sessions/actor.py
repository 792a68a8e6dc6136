"""The actor around a session's machine: one mailbox, one writer, and the engine streams it has open.

The machine decides, the actor carries out. Everything that happens to a session passes through the mailbox, and what is
in it is handled at once, by whoever put it there, one event after the other: a task for each of fifty events a second
and session would cost more than the events. Only what has to wait has a task: the reader, the writer for a peer that is
slow, calls of tools, and input that comes faster than voice activity can follow. Every task lives in one
task group and dies with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

from duologue.engine.engine import RequestRefused
from duologue.engine.requests import AbortReason, EngineRequest, Finished, ImagePart
from duologue.engine.turn_model import Question
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.config import AnySession
from duologue.sessions.effects import (
    AbandonCall,
    AbortRequest,
    AskTurnModel,
    AudioSent,
    CallTool,
    CloseSession,
    Dialled,
    DropAudio,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    FinishPlaying,
    GoOn,
    HangUp,
    Input,
    Interrupted,
    ListTools,
    McpEndpoint,
    MediaAudio,
    MediaPicture,
    OpenRequest,
    Play,
    PlayoutReport,
    Send,
    Shutdown,
    StopPlaying,
    StopVoiceActivity,
    Tick,
    ToolAnswered,
    ToolsListed,
    TurnJudged,
    VoiceActivity,
)
from duologue.sessions.interfaces import (
    Answer,
    Detector,
    DirectTransport,
    Machine,
    SessionEngine,
    ToolServers,
    Transport,
)
from duologue.sessions.media import Media
from duologue.sessions.metrics import SessionMeter
from duologue.sessions.outbox import Outbox, Outgoing
from duologue.sessions.server_events import OfPart
from duologue.sessions.translation_events import TranslationSession

EVENT_OF = attrgetter("event")
MAILBOX_EVENTS = 32
MAX_PENDING_FRAMES = 64
"""Voice-activity frames (32 ms each) that may wait for the detector before more input is read."""
MEDIA_BYTES_PER_SECOND = 2 * 24_000


class Mailbox:
    """Events in order, handled at once by whoever puts them in: ``on_event`` is called for each and takes what it can.

    There are three ways in. ``put`` waits while the box is full; ``take`` is for who has found it :meth:`ready`;
    ``post`` is for producers that are bounded by other means (voice-activity frames, reports of the writer, the timer).
    """

    def __init__(self, on_event: Callable[[], None], limit: int = MAILBOX_EVENTS) -> None:
        self._on_event = on_event
        self._limit = limit
        self.events: deque[Input] = deque()
        """Whoever takes something out lets others in then (:meth:`let_in`)."""
        self.waiting = 0
        """How many wait to put something in."""
        self._room: asyncio.Event | None = None
        """Set once there is room again; there only while somebody waits for that."""

    def ready(self) -> bool:
        """Whether the next event can be taken now, and does not overtake one that waits."""
        return not self.waiting and len(self.events) < self._limit

    def post(self, event: Input) -> None:
        """Put an event in, whether there is room or not."""
        self.events.append(event)
        self._on_event()

    def take(self, event: Input) -> None:
        self.post(event)

    async def put(self, event: Input) -> None:
        """Put an event in as soon as there is room."""
        if self.full():
            self.waiting += 1
            try:
                await self._wait_for_room()
            finally:
                self.waiting -= 1
        self.post(event)

    async def _wait_for_room(self) -> None:
        while self.full():
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def full(self) -> bool:
        return len(self.events) >= self._limit

    def let_in(self) -> None:
        """Something has been taken out: those who wait may put theirs in."""
        if self._room is not None and len(self.events) < self._limit:
            self._room.set()
            self._room = None


class _SessionOver(Exception):
    """Ends the actor's task group."""


class SessionActor:
    """Runs one session until its client has gone or the machine has closed it."""

    # CPython looks attributes of an instance with more than 30 of them up in a dict of its own, each time; not these.
    __slots__ = (
        "_client_gone",
        "_clock",
        "_closing",
        "_direct",
        "_drain_due",
        "_engine",
        "_fault",
        "_idle",
        "_input_buffer_bytes",
        "_loop",
        "_machine",
        "_mailbox",
        "_media",
        "_meter",
        "_on_requests_changed",
        "_outbox",
        "_outbox_filled",
        "_output_buffer_bytes",
        "_question",
        "_readable",
        "_streams",
        "_tasks",
        "_timer",
        "_timer_at",
        "_tool_calls",
        "_tool_servers",
        "_transport",
        "_unfed",
        "_unheard",
        "_voice_activity",
        "_voice_stream",
        "_writing",
        "_yielding",
    )

    def __init__(
        self,
        machine: Machine,
        engine: SessionEngine,
        transport: Transport,
        *,
        clock: Callable[[], float],
        output_buffer_bytes: int,
        input_buffer_s: float,
        on_requests_changed: Callable[[int, EngineRequest], None] = lambda change, request: None,
        tool_servers: ToolServers | None = None,
        media: Media | None = None,
    ) -> None:
        """``media``: by what sound comes and goes, if not inside events; ``input_buffer_s``: how much of what comes
        over it may wait while the session is busy."""
        self._machine = machine
        self._media = media
        self._unheard = b""
        self._engine = engine
        self._transport = transport
        self._clock = clock
        self._output_buffer_bytes = output_buffer_bytes
        self._input_buffer_bytes = int(input_buffer_s * MEDIA_BYTES_PER_SECOND) // 2 * 2
        self._on_requests_changed = on_requests_changed
        self._meter = SessionMeter()
        self._direct = transport if isinstance(transport, DirectTransport) else None
        self._mailbox = Mailbox(self._run_on)
        self._idle = False
        """Whether an event may be handled now: not before the start, in the middle of another, nor after a fault."""
        self._fault: asyncio.Future[NoReturn] | None = None
        """Fails with what the machine, or carrying out its effects, has raised."""
        self._outbox = Outbox()
        self._outbox_filled = asyncio.Event()
        self._writing = False
        self._closing: CloseSession | None = None
        self._client_gone = False
        self._streams: dict[str, tuple[Answer, EngineRequest]] = {}
        self._readable: dict[str, Answer] = {}
        """Those of the streams that have something to take."""
        self._drain_due = False
        self._tool_servers = tool_servers
        self._tool_calls: dict[str, asyncio.Task[None]] = {}
        self._voice_activity: Detector | None = None
        self._voice_stream = 0
        self._question: Question | None = None
        """What the turn model was asked last."""
        self._unfed: deque[bytes] = deque()
        """Input that waits until voice activity has caught up. Until then no event is handled."""
        self._yielding = False
        """Until the event loop has had a turn no event is handled either."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._tasks: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop
        """The one it runs on, from then on: asking for it costs a system call in Python 3.11."""

    async def run(self) -> None:
        """Serve the session to its end; afterwards nothing of it is left in the engine."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._loop = asyncio.get_running_loop()
                self._fault = self._loop.create_future()
                tasks.create_task(self._read(), name="session-read")
                tasks.create_task(self._write(), name="session-write")
                tasks.create_task(self._work(self._fault), name="session-work")
        except BaseExceptionGroup as group:  # not ``except*``: mypyc cannot compile that
            _, rest = group.split((_SessionOver, ConnectionError))
            if rest is not None:
                raise rest from None
        finally:
            self._release()
            if self._tool_servers is not None:
                await self._tool_servers.close()

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

    # -- MediaListener -------------------------------------------------------------------------------------------------

    def hear(self, pcm: bytes) -> None:
        if self._mailbox.full():  # a track does not wait: what comes meanwhile is joined, the newest is kept
            unheard = self._unheard + pcm
            self._unheard = unheard[max(0, len(unheard) - self._input_buffer_bytes) :]
            return
        if self._unheard:
            pcm, self._unheard = self._unheard + pcm, b""
        self._mailbox.post(MediaAudio(pcm))

    def see(self, picture: ImagePart | None) -> None:
        self._mailbox.post(MediaPicture(picture))

    def dialled(self, digit: str, received_at: float) -> None:
        self._mailbox.post(Dialled(digit, received_at))

    def playout(self, report: PlayoutReport) -> None:
        self._mailbox.post(report)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        if self._direct is not None:
            self._direct.deliver_to(self._mailbox)
        while (event := await self._transport.receive()) is not None:
            await self._mailbox.put(event)
        self._client_gone = self._closing is None
        raise _SessionOver

    async def _work(self, fault: asyncio.Future[NoReturn]) -> None:
        if self._media is not None:
            self._media.attach(self)
        self._perform(self._machine.start(), self._clock())
        self._idle = True
        self._run_on()
        try:
            await fault
        finally:
            self._idle = False

    async def _write(self) -> None:
        while True:
            await self._outbox_filled.wait()
            batch = list(self._outbox.take())
            self._writing = True
            self._note_outbox()
            try:
                await self._transport.send([outgoing.event for outgoing in batch])
            except ConnectionError:
                self._client_gone = True
                raise
            self._writing = False
            self._report_sent(batch)
            self._run_on()
            if self._closing is not None and not self._outbox.slots:
                await self._transport.close(self._closing.code, self._closing.reason)
                raise _SessionOver

    # -- events --------------------------------------------------------------------------------------------------------

    def _run_on(self) -> None:
        """Handle what is in the mailbox and write what comes of it, as far as neither has to wait."""
        if not self._idle:
            return
        self._idle = False
        mailbox, machine = self._mailbox, self._machine
        events = mailbox.events
        try:
            while True:
                while events and not self._unfed and not self._yielding:
                    now = self._clock()
                    if effects := machine.handle(events.popleft(), now):
                        self._perform(effects, now)
                if mailbox.waiting:
                    mailbox.let_in()
                if not (self._outbox.slots and self._write_now()):
                    break
            if machine.deadline != self._timer_at:
                self._set_timer()
        except Exception as error:  # noqa: BLE001 - ends the session through its task group, not whoever posted
            if self._fault is not None and not self._fault.done():
                self._fault.set_exception(error)
            return
        self._idle = True
        if self._outbox.slots or self._closing is not None:
            self._note_outbox()
        if self._readable and not self._drain_due and self._has_room:
            self._drain_soon()

    def _write_now(self) -> bool:
        """Write one batch, unless that has to wait."""
        if self._direct is None or self._writing:
            return False
        batch = self._outbox.peek()
        if not self._direct.send_now([*map(EVENT_OF, batch)]):
            return False
        self._outbox.drop(len(batch))
        self._report_sent(batch)
        return True

    # -- streams of the engine -----------------------------------------------------------------------------------------

    @property
    def _has_room(self) -> bool:
        """Whether more output may be taken from the engine. While not, the streams merge theirs, and then wait."""
        unplayed = 0 if self._media is None else self._media.queued_bytes
        held = self._outbox.audio_bytes + self._machine.held_bytes + unplayed
        return held < self._output_buffer_bytes and not self._mailbox.full()

    def _note_delta(self, request_id: str, stream: Answer) -> None:
        """Called by a stream in the middle of the orchestrator's work: the session's own comes after it."""
        if request_id in self._streams:
            self._readable[request_id] = stream
            self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Hand on what the streams have, one delta of each in turn."""
        readable = self._readable
        while readable and self._has_room:
            request_id = next(iter(readable))
            stream = readable.pop(request_id)
            delta = stream.take()
            if delta is None:
                continue
            if stream.readable:
                readable[request_id] = stream
            self._mailbox.post(EngineOutput(request_id, delta, stream.usage))
            if type(delta) is Finished:
                self._abort(request_id)
        self._drain_due = False

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            if type(effect) is Send:  # these two, fifty times a second each: a pattern takes longer
                self._outbox.push(effect.event, effect.samples)
                self._meter.sent(effect.event, now)
            elif type(effect) is FeedVoiceActivity:
                self._feed(effect)
            else:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Play() | FinishPlaying() | StopPlaying():
                self._play(effect)
            case DropAudio(response_id=response_id):
                self._outbox.drop_audio(response_id)
            case StopVoiceActivity():
                self._stop_voice_activity()
            case Interrupted(after_s=after_s):
                self._meter.interrupted(after_s)
            case AskTurnModel():
                self._ask(effect)
            case GoOn(rest=rest):
                self._mailbox.events.appendleft(rest)
                self._yielding = True
                self._loop.call_soon(self._after_yield)
            case OpenRequest(request=request):
                self._open(request)
            case AbortRequest(request_id=request_id, reason=reason):
                self._abort(request_id, reason)
                self._meter.wasted(self._machine.speculations_wasted)
            case ListTools(item_id=item_id, server=server):
                self._begin_tool_call(item_id, self._list_tools(item_id, server))
            case CallTool(item_id=item_id):
                self._begin_tool_call(item_id, self._call_tool(effect))
            case AbandonCall(item_id=item_id):
                if (call := self._tool_calls.pop(item_id, None)) is not None:
                    call.cancel()
            case CloseSession():
                self._closing = effect

    def _play(self, effect: Play | FinishPlaying | StopPlaying) -> None:
        assert self._media is not None  # only a machine with a media clock asks for this
        match effect:
            case Play(response_id=response_id, item_id=item_id, pcm=pcm):
                self._media.play(response_id, item_id, pcm)
            case FinishPlaying(response_id=response_id):
                self._media.finish(response_id)
            case StopPlaying():
                self._media.clear()

    def _open(self, request: EngineRequest) -> None:
        try:
            stream = self._engine.open(request)
        except RequestRefused as error:
            self._mailbox.post(EngineOutput(request.request_id, Finished(reason="failed", error=str(error))))
            return
        self._streams[request.request_id] = stream, request
        self._on_requests_changed(+1, request)
        stream.on_delta(partial(self._note_delta, request.request_id, stream))

    def _abort(self, request_id: str, reason: AbortReason | None = None) -> None:
        """Forget a request; what of it still runs is aborted. Harmless for one that has ended or is unknown.

        Without a reason it is the end of the session.
        """
        stream, request = self._streams.pop(request_id, (None, None))
        if stream is not None and request is not None:
            self._readable.pop(request_id, None)
            self._on_requests_changed(-1, request)
            stream.abort(reason or ("client_disconnect" if self._client_gone else "unknown"))

    def _begin_tool_call(self, item_id: str, call: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(call, name=f"session-tool-{item_id}")
        self._tool_calls[item_id] = task
        task.add_done_callback(lambda _: self._tool_calls.pop(item_id, None))

    async def _list_tools(self, item_id: str, server: McpEndpoint) -> None:
        assert self._tool_servers is not None  # no policy lets a session name a server without them
        await self._mailbox.put(ToolsListed(item_id, await self._tool_servers.list_tools(server)))

    async def _call_tool(self, call: CallTool) -> None:
        assert self._tool_servers is not None
        result = await self._tool_servers.call(call.server, call.name, call.arguments)
        await self._mailbox.put(ToolAnswered(call.item_id, result))

    def _feed(self, effect: FeedVoiceActivity) -> None:
        if self._voice_activity is None or effect.stream != self._voice_stream:
            self._start_voice_activity(effect.stream, effect.sample_rate)
        voice_activity = self._voice_activity
        assert voice_activity is not None
        second = effect.sample_rate * 2
        catching_up = bool(self._unfed)
        if not catching_up and len(effect.pcm) <= second and voice_activity.pending_frames < MAX_PENDING_FRAMES:
            voice_activity.feed_pcm(effect.pcm)
            return
        self._unfed.extend(effect.pcm[first : first + second] for first in range(0, len(effect.pcm), second))
        if not catching_up:
            assert self._tasks is not None
            self._tasks.create_task(self._catch_up(voice_activity), name="session-catch-up")

    async def _catch_up(self, voice_activity: Detector) -> None:
        """Feed what waits, a second at a time."""
        while self._unfed:
            await voice_activity.wait_below(MAX_PENDING_FRAMES)
            voice_activity.feed_pcm(self._unfed[0])
            self._unfed.popleft()
        self._run_on()

    def _after_yield(self) -> None:
        self._yielding = False
        self._run_on()

    def _start_voice_activity(self, stream: int, sample_rate: int) -> None:
        self._stop_voice_activity()
        self._voice_stream = stream
        self._voice_activity = self._engine.voice_activity.open(
            lambda frame: self._mailbox.post(
                VoiceActivity(stream, frame.probability, frame.quiet_ms, frame.heard_from)
            ),
            sample_rate,
        )

    def _stop_voice_activity(self) -> None:
        if self._voice_activity is not None:
            self._voice_activity.close()
        self._voice_activity = None

    def _ask(self, effect: AskTurnModel) -> None:
        """Ask the turn model; it is bounded, and a question of before that is still open is not wanted any more."""
        number = effect.question
        self._withdraw_question()
        self._question = self._engine.turn_model.ask(
            effect.pcm,
            effect.sample_rate,
            lambda probability: self._mailbox.post(TurnJudged(number, probability)),
        )

    def _withdraw_question(self) -> None:
        if self._question is not None:
            self._question.withdraw()
        self._question = None

    def _report_sent(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            if outgoing.samples and isinstance(outgoing.event, OfPart):
                # Straight to the machine: it is a fact already, and need not queue behind what may follow.
                sent, now = AudioSent(outgoing.event.item_id, outgoing.samples), self._clock()
                if effects := self._machine.handle(sent, now):
                    self._perform(effects, now)

    def _note_outbox(self) -> None:
        """Wake the writer if there is something for it."""
        if (self._outbox.slots and not self._writing) or self._closing is not None:
            self._outbox_filled.set()
        else:
            self._outbox_filled.clear()

    def _set_timer(self) -> None:
        deadline = self._machine.deadline
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, deadline - self._clock())
        self._timer_at = deadline
        self._timer = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._mailbox.post(Tick())

    def _release(self) -> None:
        if self._media is not None:
            self._media.attach(None)
        if self._direct is not None:
            self._direct.deliver_to(None)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_voice_activity()
        self._withdraw_question()
        for request_id in list(self._streams):
            self._abort(request_id)
