"""A transport that delivers and writes without tasks: the same events in the same order, also when something waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from scripted_engine import TIMEOUT_S, LoudnessStream, ScriptedEngine, ScriptedTransport
from session_driver import NAMES, speech

from duologue.engine.requests import AudioDelta, EngineRequest, Finished, TextDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.actor import MAILBOX_EVENTS, MAX_PENDING_FRAMES
from duologue.sessions.config import Limits
from duologue.sessions.interfaces import Inlet
from duologue.sessions.items import InputText, MessageItem
from duologue.sessions.manager import ManagerSettings, SessionManager
from duologue.sessions.server_events import ServerEvent


class DirectTransport(ScriptedTransport):
    """``say`` delivers at once if the session takes it; written at once unless ``slow``."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet: Inlet | None = None
        self.slow = False
        self.at_once = 0

    def deliver_to(self, inlet: Inlet | None) -> None:
        self.inlet = inlet

    def send_now(self, events: Sequence[ServerEvent]) -> bool:
        if self.slow:
            return False
        self.at_once += len(events)
        self.sent += events
        return True

    def say(self, *said: Any) -> None:
        for event in said:
            if self.inlet is not None and self._incoming.empty() and self.inlet.ready():
                self.inlet.take(event)
            else:
                super().say(event)


class StuckStream(LoudnessStream):
    """A detector that is behind until it is released."""

    released: asyncio.Event

    async def wait_below(self, limit: int) -> None:
        assert limit == MAX_PENDING_FRAMES
        await self.released.wait()
        self.pending_frames = 0


def session_on(engine: ScriptedEngine, transport: ScriptedTransport) -> asyncio.Task[None]:
    settings = ManagerSettings(names=NAMES, model="assistant", voice="heart", instructions="", limits=Limits())
    manager = SessionManager(engine, settings)  # type: ignore[arg-type]
    return asyncio.create_task(manager.serve(transport, None))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_answer_is_written_at_once_and_goes_the_slow_way_while_the_peer_is_slow() -> None:
    engine, transport = ScriptedEngine(), DirectTransport()
    task = session_on(engine, transport)
    await settle()
    assert isinstance(transport.sent[0], events.SessionCreated)
    item = MessageItem(role="user", content=(InputText(text="Hello"),))
    transport.say(client.ItemCreate(item=item), client.ResponseCreate())
    assert isinstance(transport.sent[-1], events.ResponseCreated), "without a turn of the event loop"
    answer = await engine.opened()
    answer.give(TextDelta(text="Hi."), AudioDelta(pcm=speech(20)))
    await settle()
    at_once, transport.slow = transport.at_once, True
    transport.gate.clear()
    answer.give(*[AudioDelta(pcm=speech(20))] * 5)
    await settle()
    assert transport.at_once == at_once == len(transport.sent)
    transport.slow = False
    transport.gate.set()
    answer.give(Finished(reason="completed"))
    await settle()
    assert isinstance(transport.sent[-1], events.ResponseDone)
    sound = b"".join(event.delta for event in transport.sent if isinstance(event, events.OutputAudioDelta))
    assert sound == speech(20) * 6
    transport.hang_up()
    await asyncio.wait_for(task, TIMEOUT_S)
    assert transport.inlet is None


async def test_nothing_overtakes_what_waits_for_voice_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    released = asyncio.Event()
    monkeypatch.setattr(StuckStream, "released", released, raising=False)
    monkeypatch.setattr("scripted_engine.LoudnessStream", StuckStream)
    engine, transport = ScriptedEngine(), DirectTransport()
    task = session_on(engine, transport)
    await settle()
    transport.say(client.InputAudioAppend(audio=speech(20)))
    engine.detectors[0].pending_frames = MAX_PENDING_FRAMES
    transport.say(client.InputAudioAppend(audio=speech(20)))
    asked = [f"item_{number}" for number in range(3 * MAILBOX_EVENTS)]
    transport.say(*(client.ItemRetrieve(item_id=item_id, event_id=item_id) for item_id in asked))
    await settle()
    assert not [event for event in transport.sent if isinstance(event, events.ErrorEvent)]
    released.set()
    for _ in range(20):
        await settle()
    errors = [event.error.event_id for event in transport.sent if isinstance(event, events.ErrorEvent)]
    assert errors == asked
    transport.hang_up()
    await asyncio.wait_for(task, TIMEOUT_S)


async def test_a_fault_ends_its_session_and_not_whoever_delivered_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ScriptedEngine, request: EngineRequest) -> None:
        raise RuntimeError("a fault")

    engine, transport = ScriptedEngine(), DirectTransport()
    task = session_on(engine, transport)
    await settle()
    monkeypatch.setattr(ScriptedEngine, "open", broken)
    transport.say(client.ResponseCreate())
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(task, TIMEOUT_S)
    assert caught.value.subgroup(RuntimeError)
    transport.say(client.InputAudioClear())  # nobody is there any more
