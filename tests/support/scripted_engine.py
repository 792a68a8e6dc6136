"""An engine, its voice activity, and a client's transport by hand: what an actor needs around its machine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from session_driver import AUDIBLE

from duologue.codecs.pcm import pcm16_to_float
from duologue.codecs.resample import VOICE_ACTIVITY_QUALITY, StreamResampler
from duologue.engine.engine import RequestRefused
from duologue.engine.metering import Work
from duologue.engine.requests import Delta, EngineRequest, Finished, Usage
from duologue.engine.turn_model import OnAnswer, Question
from duologue.engine.voice_activity import VoiceFrame
from duologue.sessions.server_events import ServerEvent

TIMEOUT_S = 10.0
"""A test that waits this long has failed."""


class ScriptedStream:
    """A request's deltas as the test gives them."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.aborted = False
        self.usage = Usage()
        self._deltas: deque[Delta] = deque()
        self._notify: Callable[[], None] = lambda: None

    def give(self, *deltas: Delta) -> None:
        self._deltas.extend(deltas)
        self._notify()

    def abort(self, reason: str = "client_abort") -> None:
        if not self.aborted:
            self.aborted = True
            self.give(Finished(reason="aborted"))

    def on_delta(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        if self._deltas:
            notify()

    @property
    def readable(self) -> bool:
        return bool(self._deltas)

    def take(self) -> Delta | None:
        return self._deltas.popleft() if self._deltas else None


class LoudnessStream:
    """Voice activity that takes any sample that is not zero for speech, one frame of 512 at a time."""

    def __init__(self, on_frame: Callable[[VoiceFrame], None], sample_rate: int) -> None:
        self._on_frame = on_frame
        self._resampler = StreamResampler(sample_rate, 16_000, VOICE_ACTIVITY_QUALITY)
        self._rest = np.zeros(0, np.float32)
        self.closed = False

    pending_frames = 0

    async def wait_below(self, limit: int) -> None:
        await asyncio.sleep(0)

    def feed_pcm(self, pcm: bytes) -> None:
        self.feed(self._resampler.process(pcm16_to_float(pcm)))

    def feed(self, samples: NDArray[np.float32]) -> None:
        pending = np.concatenate([self._rest, samples])
        while len(pending) >= 512:
            loud = float(np.abs(pending[:512]).mean()) > 0.01
            frame = VoiceFrame(0.95, 0, AUDIBLE) if loud else VoiceFrame(0.01, 32, AUDIBLE)
            asyncio.get_running_loop().call_soon(self._on_frame, frame)
            pending = pending[512:]
        self._rest = pending

    def close(self) -> None:
        self.closed = True


class ScriptedTurnModel:
    """Keeps the questions; the test answers them."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[Question] = asyncio.Queue()

    def ask(self, pcm: bytes, sample_rate: int, on_answer: OnAnswer) -> Question:
        question = Question(pcm, sample_rate, on_answer)
        self._asked.put_nowait(question)
        return question

    async def asked(self) -> Question:
        return await asyncio.wait_for(self._asked.get(), TIMEOUT_S)


class ScriptedEngine:
    """Gives out scripted streams; ``opened`` hands them to the test in order."""

    def __init__(self) -> None:
        self.streams: list[ScriptedStream] = []
        self.detectors: list[LoudnessStream] = []
        self.refuse = False
        self.voice_activity = self
        self.turn_model = ScriptedTurnModel()
        self.work = Work()
        self.ended: list[str] = []
        """Ids of sessions."""
        self._opened: asyncio.Queue[ScriptedStream] = asyncio.Queue()

    def open(self, what: Any, sample_rate: int = 16_000) -> Any:
        """Serves as ``Engine.open`` for requests and as ``VoiceActivityService.open`` for call-backs."""
        if not isinstance(what, EngineRequest):
            self.detectors.append(LoudnessStream(what, sample_rate))
            return self.detectors[-1]
        if self.refuse:
            raise RequestRefused("The engine is full.")
        stream = ScriptedStream(what)
        self.streams.append(stream)
        self._opened.put_nowait(stream)
        return stream

    def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)

    async def opened(self) -> ScriptedStream:
        return await asyncio.wait_for(self._opened.get(), TIMEOUT_S)


class ScriptedTransport:
    """The client's end: ``say`` events in, read what comes out. Closed ``gate``: the peer reads nothing."""

    def __init__(self) -> None:
        self.sent: list[ServerEvent] = []
        self.closed: tuple[int, str] | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._changed = asyncio.Condition()

    def say(self, *events: Any) -> None:
        for event in events:
            self._incoming.put_nowait(event)

    def hang_up(self) -> None:
        self._incoming.put_nowait(None)

    async def receive(self) -> Any:
        return await self._incoming.get()

    async def send(self, events: Sequence[ServerEvent]) -> None:
        await self.gate.wait()
        async with self._changed:
            self.sent += events
            self._changed.notify_all()

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    async def until(self, kind: type[ServerEvent], count: int = 1) -> Any:
        """The ``count``-th event of a kind, as soon as it has been sent."""

        def found() -> list[ServerEvent]:
            return [event for event in self.sent if isinstance(event, kind)]

        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]
