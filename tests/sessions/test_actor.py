"""The actor and the manager: effects are carried out, nothing waits for ever, nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from scripted_engine import TIMEOUT_S, LoudnessStream, ScriptedEngine, ScriptedTransport
from session_driver import NAMES, silence, speech

from duologue.codecs.noise_suppression import NoiseSuppressor
from duologue.engine.deploy import DeployConfig
from duologue.engine.deploy.config import DuplexSession
from duologue.engine.engine import ServedNames
from duologue.engine.pipeline import Capabilities
from duologue.engine.requests import AudioDelta, Converse, Finished, TextDelta, Transcribe, TranscriptDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.actor import MAILBOX_EVENTS, SessionActor
from duologue.sessions.config import Limits
from duologue.sessions.errors import ProtocolError
from duologue.sessions.input_audio import PIECE_BYTES
from duologue.sessions.items import InputText, MessageItem
from duologue.sessions.manager import CapacityError, ManagerSettings, SessionManager, settings_from_deploy
from duologue.sessions.translation_events import TranslationAppend

HELLO = client.ItemCreate(item=MessageItem(role="user", content=(InputText(text="Hello"),)))


def manager_of(engine: ScriptedEngine, **settings: object) -> SessionManager:
    defaults = {"limits": Limits(), "speculate": False, **settings}
    return SessionManager(
        engine,  # type: ignore[arg-type]
        ManagerSettings(names=NAMES, model="assistant", voice="heart", instructions="", **defaults),  # type: ignore[arg-type]
    )


@asynccontextmanager
async def session(manager: SessionManager) -> AsyncIterator[ScriptedTransport]:
    """A session in progress; on leaving the client hangs up, and nothing of the session may be left."""
    before = asyncio.all_tasks()
    transport = ScriptedTransport()
    task = asyncio.create_task(manager.serve(transport, None))
    await transport.until(events.SessionCreated)
    try:
        yield transport
    finally:
        transport.gate.set()
        transport.hang_up()
        await asyncio.wait_for(task, TIMEOUT_S)
        assert asyncio.all_tasks() <= before


async def test_a_spoken_turn_from_sound_to_sound() -> None:
    engine = ScriptedEngine()
    manager = manager_of(engine)
    async with session(manager) as transport:
        for _ in range(35):
            transport.say(client.InputAudioAppend(audio=speech(20)))
        for _ in range(40):
            transport.say(client.InputAudioAppend(audio=silence(20)))
        recogniser = await engine.opened()
        assert isinstance(recogniser.request.payload, Transcribe)
        recogniser.give(TranscriptDelta(text="Hello."), Finished(reason="completed"))
        answer = await engine.opened()
        assert isinstance(answer.request.payload, Converse)
        answer.give(TextDelta(text="Hi."), AudioDelta(pcm=speech(100)), Finished(reason="completed"))
        done = await transport.until(events.ResponseDone)
    assert done.response.status == "completed"
    sound = b"".join(event.delta for event in transport.sent if isinstance(event, events.OutputAudioDelta))
    assert sound == speech(100)
    assert all(detector.closed for detector in engine.detectors)
    assert manager.open_sessions == 0


async def test_a_turn_ends_before_the_frame_is_complete_that_its_silence_ends_in() -> None:
    async with session(manager_of(ScriptedEngine(), limits=Limits(input_gap_ms=0))) as transport:
        transport.say(client.InputAudioAppend(audio=speech(640)))
        for _ in range(25):  # 500 ms are 15 frames and 20 of 32 ms
            transport.say(client.InputAudioAppend(audio=silence(20)))
        stopped = await transport.until(events.SpeechStopped)
    assert stopped.audio_end_ms == 640 + 500


async def test_the_turn_model_is_asked_and_its_answer_ends_the_turn() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine, judges_turns=True)) as transport:
        detection = {"type": "semantic_vad", "eagerness": "high"}
        transport.say(client.SessionUpdate(session={"audio": {"input": {"turn_detection": detection}}}))
        for _ in range(35):
            transport.say(client.InputAudioAppend(audio=speech(20)))
        for _ in range(15):
            transport.say(client.InputAudioAppend(audio=silence(20)))
        question = await engine.turn_model.asked()
        assert question.sample_rate == 24_000
        assert question.pcm.startswith(speech(640))
        question.answer(0.99, "answered")
        await transport.until(events.SpeechStopped)
        await engine.opened()


async def test_a_question_to_the_turn_model_ends_with_its_session() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine, judges_turns=True)) as transport:
        transport.say(client.SessionUpdate(session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}))
        for _ in range(35):
            transport.say(client.InputAudioAppend(audio=speech(20)))
        for _ in range(15):
            transport.say(client.InputAudioAppend(audio=silence(20)))
        question = await engine.turn_model.asked()
    assert question.withdrawn


async def test_fc_119_a_client_that_hangs_up_aborts_its_requests_everywhere() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine)) as transport:
        transport.say(HELLO, client.ResponseCreate())
        answer = await engine.opened()
        answer.give(TextDelta(text="Hi."))
        await transport.until(events.OutputAudioTranscriptDelta)
    assert answer.aborted


async def test_the_engine_is_told_when_a_session_is_over() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine)) as transport:
        (created,) = [event for event in transport.sent if isinstance(event, events.SessionCreated)]
        assert engine.ended == []
    assert engine.ended == [created.session.id]


async def test_a_session_gives_its_room_up_even_if_the_engine_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: ScriptedEngine, session_id: str) -> None:
        raise ConnectionError("the worker is gone")

    monkeypatch.setattr(ScriptedEngine, "end_session", fail)
    manager = manager_of(ScriptedEngine())
    with pytest.raises(ConnectionError):
        async with session(manager):
            assert manager.open_sessions == 1
    assert manager.open_sessions == 0


async def test_an_interruption_reaches_the_engine_and_nothing_old_leaves() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine)) as transport:
        transport.say(HELLO, client.ResponseCreate())
        answer = await engine.opened()
        answer.give(TextDelta(text="Hi."), AudioDelta(pcm=speech(2000)))
        await transport.until(events.OutputAudioDelta)
        transport.say(client.InputAudioAppend(audio=speech(200)))
        done = await transport.until(events.ResponseDone)
        assert done.response.status_details.reason == "turn_detected"
        assert answer.aborted
        answer.give(AudioDelta(pcm=speech(100)))
    last = max(index for index, event in enumerate(transport.sent) if isinstance(event, events.OutputAudioDelta))
    started = next(index for index, event in enumerate(transport.sent) if isinstance(event, events.SpeechStarted))
    assert last < started


async def test_fc_131_a_client_that_reads_nothing_holds_its_own_answer_back_and_loses_nothing() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine, output_buffer_bytes=100_000)) as transport:
        transport.say(HELLO, client.ResponseCreate())
        answer = await engine.opened()
        transport.gate.clear()
        answer.give(TextDelta(text="Hi."))
        pieces = 400
        for _ in range(pieces):
            answer.give(AudioDelta(pcm=speech(20)))
        answer.give(Finished(reason="completed"))
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(answer._deltas) > pieces // 4, "the engine's stream is not read past the bound"
        transport.gate.set()
        await transport.until(events.ResponseDone)
    sound = b"".join(event.delta for event in transport.sent if isinstance(event, events.OutputAudioDelta))
    assert sound == speech(20) * pieces


async def test_a_refused_request_fails_its_response_and_the_session_lives() -> None:
    engine = ScriptedEngine()
    async with session(manager_of(engine)) as transport:
        engine.refuse = True
        transport.say(HELLO, client.ResponseCreate())
        done = await transport.until(events.ResponseDone)
        assert done.response.status == "failed"
        engine.refuse = False
        transport.say(client.ResponseCreate())
        (await engine.opened()).give(TextDelta(text="Hi."), Finished(reason="completed"))
        done = await transport.until(events.ResponseDone, 2)
        assert done.response.status == "completed"


async def test_fc_122_sessions_do_not_hear_each_other() -> None:
    engine = ScriptedEngine()
    manager = manager_of(engine)
    async with session(manager) as first, session(manager) as second:
        for transport, marker in ((first, "red"), (second, "blue")):
            item = MessageItem(role="user", content=(InputText(text=marker),))
            transport.say(client.ItemCreate(item=item), client.ResponseCreate())
        answers = {}
        for _ in range(2):
            stream = await engine.opened()
            answers[stream.request.payload.messages[-1].text] = stream  # type: ignore[union-attr]
        for marker in ("blue", "red"):
            answers[marker].give(TextDelta(text=marker), Finished(reason="completed"))
        for transport, marker in ((first, "red"), (second, "blue")):
            done = await transport.until(events.OutputAudioTranscriptDone)
            assert done.transcript == marker
    assert not {event.event_id for event in first.sent} & {event.event_id for event in second.sent}


async def test_the_session_timer_rings_without_traffic() -> None:
    engine = ScriptedEngine()
    manager = manager_of(engine, limits=Limits(max_duration_s=0.05))
    transport = ScriptedTransport()
    await asyncio.wait_for(manager.serve(transport, None), TIMEOUT_S)
    assert transport.closed is not None
    assert transport.closed[0] == 1001
    assert any(
        isinstance(event, events.ErrorEvent) and event.error.code == "session_expired" for event in transport.sent
    )


async def test_capacity_is_refused_before_anything_is_made() -> None:
    engine = ScriptedEngine()
    manager = manager_of(engine, max_sessions=1)
    async with session(manager):
        assert not manager.has_room()
        with pytest.raises(CapacityError):
            await manager.serve(ScriptedTransport(), None)
    assert manager.has_room()


async def test_an_unknown_model_is_refused_with_the_known_names() -> None:
    with pytest.raises(ProtocolError, match="gpt-realtime"):
        await manager_of(ScriptedEngine()).serve(ScriptedTransport(), "gpt-17")


async def test_drain_lets_answers_finish_and_cancels_who_is_late() -> None:
    engine = ScriptedEngine()
    manager = manager_of(engine)
    quick, stuck = ScriptedTransport(), ScriptedTransport()
    tasks = [asyncio.create_task(manager.serve(transport, None)) for transport in (quick, stuck)]
    streams = []
    for transport in (quick, stuck):
        transport.say(HELLO, client.ResponseCreate())
        streams.append(await engine.opened())
    draining = asyncio.create_task(manager.drain(timeout_s=0.2))
    await asyncio.sleep(0)
    assert not manager.has_room()
    streams[0].give(TextDelta(text="Hi."), Finished(reason="completed"))
    await asyncio.wait_for(draining, TIMEOUT_S)
    assert quick.closed is not None
    assert quick.closed[0] == 1001
    assert any(isinstance(event, events.ResponseDone) for event in quick.sent)
    assert streams[1].aborted
    assert all(task.done() for task in tasks)
    assert manager.open_sessions == 0


@pytest.mark.parametrize("speculate", [True, False])
async def test_the_deploy_file_decides_whether_answers_are_prepared_in_a_pause(speculate: bool) -> None:
    served = ServedNames(models=("assistant",), voices=("heart",), transcription_models=("whisper",))
    deploy = DeployConfig(pipeline="assistant", duplex_session=DuplexSession(speculate=speculate))
    engine = ScriptedEngine()
    settings = settings_from_deploy(deploy, served, Capabilities())
    async with session(SessionManager(engine, settings)) as transport:  # type: ignore[arg-type]
        transport.say(client.InputAudioAppend(audio=speech(640)), client.InputAudioAppend(audio=silence(300)))
        await transport.until(events.SpeechStarted)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(engine.streams) == (1 if speculate else 0)


@pytest.mark.parametrize(("speculate", "reads_ahead"), [(True, True), (True, False), (False, True)])
async def test_first_words_are_asked_for_only_where_a_language_model_reads_them_ahead(
    speculate: bool, reads_ahead: bool
) -> None:
    served = ServedNames(models=("assistant",), voices=("heart",), transcription_models=("whisper",))
    deploy = DeployConfig(pipeline="assistant", duplex_session=DuplexSession(speculate=speculate))
    engine = ScriptedEngine()
    settings = settings_from_deploy(deploy, served, Capabilities(reads_ahead=reads_ahead))
    async with session(SessionManager(engine, settings)) as transport:  # type: ignore[arg-type]
        transport.say(client.InputAudioAppend(audio=speech(3000)))
        await transport.until(events.SpeechStarted)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(engine.streams) == (1 if speculate and reads_ahead else 0)


async def test_fc_046_several_feeds_of_one_event_wait_for_a_slow_detector_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed: list[bytes] = []
    monkeypatch.setattr(LoudnessStream, "pending_frames", 1000)
    monkeypatch.setattr(LoudnessStream, "feed_pcm", lambda stream, pcm: fed.append(pcm))
    engine, transport = ScriptedEngine(), ScriptedTransport()
    task = asyncio.create_task(manager_of(engine).translate(transport, None))
    sound = b"".join(bytes([number]) * 9600 for number in range(1, 30))
    for first in range(0, len(sound), 50_000):
        transport.say(TranslationAppend(audio=sound[first : first + 50_000]))
    for _ in range(500):
        await asyncio.sleep(0)
    transport.hang_up()
    await asyncio.wait_for(task, TIMEOUT_S)
    assert b"".join(fed) == sound


async def test_a_long_append_that_is_cleaned_of_noise_leaves_others_their_turn() -> None:
    """Between its pieces the loop goes round; what comes after it waits, and is not lost."""
    turns = 0

    class Frames:
        delay = 0

        def process(self, frame: bytes) -> bytes:
            worked.append(turns)
            return frame

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    worked: list[int] = []
    engine = ScriptedEngine()
    manager = manager_of(engine, make_suppressor=lambda sample_rate: NoiseSuppressor(Frames(), sample_rate))
    async with session(manager) as transport:
        counting = asyncio.create_task(count())
        settings = {"noise_reduction": {"type": "near_field"}, "turn_detection": None}
        transport.say(client.SessionUpdate(session={"audio": {"input": settings}}))
        transport.say(client.InputAudioAppend(audio=speech(10_000)), client.InputAudioCommit())
        await transport.until(events.InputAudioCommitted)
        counting.cancel()
        await asyncio.wait([counting])
    assert len(worked) == 1000
    assert max(worked.count(turn) for turn in set(worked)) <= PIECE_BYTES // 480 + 1


@pytest.mark.parametrize("buffer_s", [0.0, 0.5])
async def test_of_a_call_the_newest_sound_waits_while_the_session_is_busy(buffer_s: float) -> None:
    engine, track = ScriptedEngine(), Track()
    manager = manager_of(engine, input_buffer_s=buffer_s)
    transport = ScriptedTransport()
    task = asyncio.create_task(manager.serve(transport, None, media=track))
    await transport.until(events.SessionCreated)
    assert track.listener is not None
    track.listener.hear(silence(20))
    (detector,) = engine.detectors
    fed: list[bytes] = []
    caught_up, all_fed = asyncio.Event(), asyncio.Event()

    def feed(pcm: bytes) -> None:
        fed.append(pcm)
        if len(fed) == 1 + MAILBOX_EVENTS:
            all_fed.set()

    async def wait_below(limit: int) -> None:
        await caught_up.wait()
        detector.pending_frames = 0

    detector.pending_frames, detector.wait_below, detector.feed_pcm = 64, wait_below, feed  # type: ignore[method-assign]
    numbers = [number.to_bytes(2, "little") * 480 for number in range(500)]  # 20 ms each, and no two alike
    for pcm in numbers:
        track.listener.hear(pcm)
    caught_up.set()
    await asyncio.wait_for(all_fed.wait(), TIMEOUT_S)
    assert b"".join(fed) == b"".join(numbers[: 1 + MAILBOX_EVENTS])
    last = silence(20)
    track.listener.hear(last)
    newest = b"".join(numbers)[len(numbers) * 960 - round(buffer_s * 48_000) :]
    assert b"".join(fed[1 + MAILBOX_EVENTS :]) == newest + last
    transport.hang_up()
    await asyncio.wait_for(task, TIMEOUT_S)


class Track:
    """The media track of a call."""

    queued_bytes = 0

    def __init__(self) -> None:
        self.listener: Any = None

    def attach(self, listener: Any) -> None:
        self.listener = listener

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        raise AssertionError("nobody answers")

    def finish(self, response_id: str) -> None:
        raise AssertionError("nobody answers")

    def clear(self) -> None:
        """Nothing is queued."""


def test_an_actor_has_no_dict_of_attributes() -> None:
    """With more than 30 attributes it would be one of its own, which every event would have to be looked up in."""
    assert "__dict__" not in dir(SessionActor)
