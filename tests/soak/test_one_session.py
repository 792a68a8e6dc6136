"""One session for an hour of sound, faster than it can be spoken: nothing of it may pile up.

The real actor, machine, conversation, ledger and outbox on a clock that moves with the sound. The engine is scripted.
Every answer is 3 s long; two in three are spoken into, truncated and cut, and the oldest items are deleted. The long
one: ``pytest -m soak tests/soak``. Whether a whole server grows in real time is what
``duologue bench gateway --minutes 60`` measures.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import deque
from typing import Any

import msgspec
import pytest
from scripted_engine import TIMEOUT_S, ScriptedEngine, ScriptedStream, ScriptedTransport
from session_driver import NAMES, silence, speech

from duologue.engine.requests import AudioDelta, EngineRequest, Finished, TextDelta, Transcribe, TranscriptDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.actor import SessionActor
from duologue.sessions.config import Limits
from duologue.sessions.manager import ManagerSettings, SessionManager

CHUNK_MS = 100
KEPT_ITEMS = 12
ROUND = (*[silence(CHUNK_MS)] * 10, *[speech(CHUNK_MS)] * 12, *[silence(CHUNK_MS)] * 18)
"""4 s: a second of silence, 1.2 s of speech, then silence in which the answer begins."""
ROUND_S = len(ROUND) * CHUNK_MS / 1000
ANSWER_S = 3.0


class AnsweringEngine(ScriptedEngine):
    """Answers of itself: words at once, sound as the clock goes on. Keeps nothing of what is over."""

    def __init__(self) -> None:
        super().__init__()
        self.answering: dict[str, tuple[ScriptedStream, float]] = {}

    def open(self, what: Any, sample_rate: int = 16_000) -> Any:
        stream = super().open(what, sample_rate)
        if isinstance(what, EngineRequest):
            self._opened.get_nowait()
            self.streams.clear()
            if isinstance(what.payload, Transcribe):
                stream.give(TranscriptDelta(text="And so on."), Finished(reason="completed"))
            else:
                stream.give(TextDelta(text="Yes."))
                self.answering[what.request_id] = (stream, 0.0)
        return stream

    def pass_time(self, seconds: float) -> None:
        for request_id, (stream, said) in list(self.answering.items()):
            if stream.aborted or said >= ANSWER_S:
                del self.answering[request_id]
            if stream.aborted:
                continue
            stream.give(AudioDelta(pcm=speech(round(seconds * 1000))))
            if said + seconds >= ANSWER_S:
                stream.give(Finished(reason="completed"))
            self.answering[request_id] = (stream, said + seconds)


class Caller:
    """Reacts to what the session says, as a client does."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self.transport = transport
        self.items: deque[str] = deque()
        self.answers: dict[str, int] = {}
        self.truncated = self.deleted = 0
        self.errors: list[str] = []
        self._playing: str | None = None
        self._received_ms = 0

    def react(self) -> None:
        sent, self.transport.sent = self.transport.sent, []
        for event in sent:
            match event:
                case events.OutputAudioDelta(item_id=item_id, delta=delta):
                    if item_id != self._playing:
                        self._playing, self._received_ms = item_id, 0
                    self._received_ms += len(delta) // 48
                case events.SpeechStarted() if self._playing is not None:
                    heard = self._received_ms // 2
                    self.transport.say(client.ItemTruncate(item_id=self._playing, audio_end_ms=heard))
                    self._playing = None
                    self.truncated += 1
                case events.InputAudioCommitted(item_id=item_id) | events.OutputAudioDone(item_id=item_id):
                    self.items.append(item_id)
                    self.transport.say(client.ItemRetrieve(item_id=self.items[0]))
                case events.ResponseDone(response=response):
                    self.answers[response.status] = self.answers.get(response.status, 0) + 1
                    if response.status == "completed":
                        self._playing = None
                case events.ErrorEvent(error=error):
                    self.errors.append(error.message)
        while len(self.items) > KEPT_ITEMS:
            self.transport.say(client.ItemDelete(item_id=self.items.popleft()))
            self.deleted += 1


class Held(msgspec.Struct, frozen=True):
    """What a session holds on to."""

    memory: int
    items: int
    spoken_items: int
    timeline_bytes: int
    waiting: int
    streams: int
    tasks: int


def held_by(actor: SessionActor) -> Held:
    gc.collect()
    machine: Any = actor._machine
    core = machine._core
    waiting = len(actor._mailbox.events) + len(actor._outbox.slots) + len(actor._unfed) + len(core.effects)
    return Held(
        memory=tracemalloc.get_traced_memory()[0],
        items=len(core.conversation),
        spoken_items=len(core.ledger._items),
        timeline_bytes=machine._listening._timeline._pcm.size,
        waiting=waiting,
        streams=len(actor._streams),
        tasks=len(asyncio.all_tasks()),
    )


async def settle() -> None:
    """Let everything that can happen happen; the scripted detector answers by call-backs."""
    for _ in range(8):
        await asyncio.sleep(0)


async def talk(minutes: float) -> tuple[Caller, Held, Held]:
    """What the session held on to after half of the time, and at the end; both at the same point of a round."""
    engine, transport, now = AnsweringEngine(), ScriptedTransport(), 0.0
    settings = ManagerSettings(
        names=NAMES, model="assistant", voice="heart", instructions="", limits=Limits(max_duration_s=1e6)
    )
    manager = SessionManager(engine, settings, clock=lambda: now)  # type: ignore[arg-type]
    task = asyncio.create_task(manager.serve(transport, None))
    await transport.until(events.SessionCreated)
    (actor,) = manager._actors
    caller, rounds = Caller(transport), round(minutes * 60 / ROUND_S)
    early: Held | None = None
    tracemalloc.start()
    try:
        for number in range(rounds):
            for chunk in ROUND if number % 3 else [silence(CHUNK_MS)] * len(ROUND):
                transport.say(client.InputAudioAppend(audio=chunk))
                now += CHUNK_MS / 1000
                engine.pass_time(CHUNK_MS / 1000)
                await settle()
                caller.react()
            if number == rounds // 6 * 3 - 1:
                early = held_by(actor)
        late = held_by(actor)
    finally:
        tracemalloc.stop()
        transport.hang_up()
        await asyncio.wait_for(task, TIMEOUT_S)
    assert early is not None
    return caller, early, late


@pytest.mark.parametrize("minutes", [2.0, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_one_session_does_not_grow(minutes: float) -> None:
    before = asyncio.all_tasks()
    caller, early, late = await talk(minutes)
    assert not caller.errors
    turns = minutes * 60 / ROUND_S * 2 / 3
    assert sum(caller.answers.values()) >= turns - 2, "every turn was answered"
    assert caller.answers["completed"] > turns / 4
    assert caller.truncated >= turns / 4
    assert caller.deleted > turns / 2
    assert late.items <= KEPT_ITEMS + 2
    assert late.spoken_items <= late.items
    assert (late.waiting, late.streams, late.tasks) == (early.waiting, early.streams, early.tasks)
    assert late.timeline_bytes <= early.timeline_bytes + 48_000
    assert late.memory - early.memory < 256 * 1024, "beyond the sound of a few items nothing may have been added"
    assert asyncio.all_tasks() <= before
