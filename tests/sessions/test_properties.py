"""Any order of client events, engine output and speech: the ordering rules hold; the ledger never claims too much."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from session_driver import Driver, silence, speech, spread

from duologue.engine.requests import Converse, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import AudioSent
from duologue.sessions.items import FunctionCallItem, FunctionCallOutputItem, InputText, MessageItem

WORDS = st.sampled_from(["one", "two three", "four five six"])


class AnySession(RuleBasedStateMachine):
    """Drives a session at random; speculation and delivery are on or off as the first rule decides."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(
            {"tools": [{"type": "function", "name": "look_up"}]},
            speculate=True,
            deliver=False,
            limits=Limits(max_turn_s=3.0, kept_audio_s=5.0),
            can_call_tools=True,
        )
        self.undelivered: list[tuple[str, int]] = []
        self.seen = 0
        self.heard: dict[str, int] = {}

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([20, 64, 200, 700]), chunk_ms=st.sampled_from([7.5, 20, 100]))
    def user_speaks(self, ms: int, chunk_ms: float) -> None:
        self.driver.say(speech(ms), chunk_ms=chunk_ms)

    @rule(ms=st.sampled_from([50, 200, 400, 700]))
    def user_is_silent(self, ms: int) -> None:
        self.driver.say(silence(ms), chunk_ms=50)

    @precondition(lambda self: self.driver.pending(Transcribe))
    @rule(text=st.sampled_from(["", "hello", "what is that"]), failed=st.booleans())
    def words_are_recognised(self, text: str, failed: bool) -> None:
        self.driver.transcribe(text, reason="failed" if failed else "completed")

    @precondition(lambda self: self.driver.pending(Converse))
    @rule(text=WORDS, data=st.data())
    def model_writes(self, text: str, data: Any) -> None:
        request_id = data.draw(st.sampled_from(self.driver.pending(Converse)))
        self.driver.write(text, request_id)

    @precondition(lambda self: self.driver.pending(Converse))
    @rule(ms=st.sampled_from([20, 300, 1500]), data=st.data())
    def codec_speaks(self, ms: int, data: Any) -> None:
        request_id = data.draw(st.sampled_from(self.driver.pending(Converse)))
        self.driver.speak(ms, spread("one", ms), request_id)

    @precondition(lambda self: self.driver.pending(Converse))
    @rule(key=st.sampled_from(["0", "1"]), arguments=st.sampled_from(["", "{", '"a":1}']), data=st.data())
    def model_calls(self, key: str, arguments: str, data: Any) -> None:
        request_id = data.draw(st.sampled_from(self.driver.pending(Converse)))
        self.driver.call(arguments, key, request_id=request_id)

    @precondition(lambda self: self.driver.pending(Converse))
    @rule(reason=st.sampled_from(["completed", "length", "failed"]), data=st.data())
    def answer_ends(self, reason: str, data: Any) -> None:
        request_id = data.draw(st.sampled_from(self.driver.pending(Converse)))
        self.driver.finish(request_id, reason=reason, error="stage" if reason == "failed" else None)

    @precondition(lambda self: self.undelivered)
    @rule()
    def sound_is_delivered(self) -> None:
        item_id, samples = self.undelivered.pop(0)
        self.driver.do(AudioSent(item_id, samples))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.wait(seconds)

    # -- the client ----------------------------------------------------------------------------------------------------

    @rule(
        metadata=st.none() | st.just({"k": "v"}),
        text=st.booleans(),
        conversation=st.sampled_from(["auto", "none"]),
        own_input=st.booleans(),
    )
    def response_create(self, metadata: dict[str, str] | None, text: bool, conversation: str, own_input: bool) -> None:
        response: dict[str, Any] = {"metadata": metadata, "conversation": conversation}
        if text:
            response["output_modalities"] = ["text"]
        if own_input:
            ids = [entry.id for entry in self.driver.machine.conversation][-2:]
            response["input"] = [{"type": "item_reference", "id": item_id} for item_id in ids]
        self.driver.do(client.ResponseCreate(response=response))

    @rule(named=st.booleans())
    def response_cancel(self, named: bool) -> None:
        created = self.driver.all(events.ResponseCreated)
        response_id = created[-1].response.id if named and created else None
        self.driver.do(client.ResponseCancel(response_id=response_id))

    @precondition(lambda self: self.driver.all(events.FunctionCallArgumentsDone))
    @rule(data=st.data())
    def client_gives_result(self, data: Any) -> None:
        call = data.draw(st.sampled_from(self.driver.all(events.FunctionCallArgumentsDone)))
        self.driver.do(client.ItemCreate(item=FunctionCallOutputItem(call_id=call.call_id, output="done")))

    @rule()
    def commit(self) -> None:
        self.driver.do(client.InputAudioCommit())

    @rule()
    def clear(self) -> None:
        self.driver.do(client.InputAudioClear())

    @rule(front=st.booleans())
    def item_create(self, front: bool) -> None:
        item = MessageItem(role="user", content=(InputText(text="typed"),))
        self.driver.do(client.ItemCreate(item=item, previous_item_id="root" if front else None))

    @precondition(lambda self: len(self.driver.machine.conversation))
    @rule(what=st.sampled_from(["delete", "retrieve", "truncate"]), ms=st.integers(0, 2000), data=st.data())
    def item_command(self, what: str, ms: int, data: Any) -> None:
        item_id = data.draw(st.sampled_from([entry.id for entry in self.driver.machine.conversation]))
        match what:
            case "delete":
                self.driver.do(client.ItemDelete(item_id=item_id))
            case "retrieve":
                self.driver.do(client.ItemRetrieve(item_id=item_id))
            case "truncate":
                self.driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=ms))

    @rule(
        detection=st.sampled_from(
            [
                None,
                {"type": "server_vad", "silence_duration_ms": 200, "idle_timeout_ms": 5000},
                {"type": "server_vad", "create_response": False},
                {"type": "server_vad", "interrupt_response": False},
                {"type": "semantic_vad"},
                {"type": "nonsense"},
            ]
        )
    )
    def session_update(self, detection: dict[str, Any] | None) -> None:
        self.driver.update({"audio": {"input": {"turn_detection": detection}}})

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def ledger_is_ordered_and_monotone(self) -> None:
        new, self.seen = self.driver.sent[self.seen :], len(self.driver.sent)
        self.undelivered += [
            (event.item_id, len(event.delta) // 2) for event in new if isinstance(event, events.OutputAudioDelta)
        ]
        ledger = self.driver.machine._core.ledger
        for item_id in list(ledger._items):
            item = ledger.item(item_id)
            assert 0 <= item.played(self.driver.now) <= item.sent <= item.projected <= item.generated

    def teardown(self) -> None:
        """The rules held all the way, and whatever happened, the next spoken turn is answered."""
        driver = self.driver
        assert rebuilt_list(driver.sent) == [entry.id for entry in driver.machine.conversation]
        flags = {"type": "server_vad", "create_response": True, "interrupt_response": True, "idle_timeout_ms": None}
        driver.update({"audio": {"input": {"turn_detection": flags}}})
        driver.say(silence(900))
        driver.wait(1)
        for kind in (Transcribe, Converse):
            while driver.pending(kind):
                driver.transcribe("") if kind is Transcribe else driver.finish()
        check_trace(driver.sent)
        done = len(driver.all(events.ResponseDone))
        driver.say(speech(700), silence(900))
        driver.transcribe("Are you there?")
        driver.answer()
        assert len(driver.all(events.ResponseDone)) == done + 1
        assert driver.last(events.ResponseDone).response.status == "completed"
        assert not driver.requests


def check_trace(sent: list[events.ServerEvent]) -> None:
    """Rules O1, O3, O7, O9, O12, O15, O16, O19 to O21, O23, O24 and O26 over a whole trace."""
    assert isinstance(sent[0], events.SessionCreated)
    assert len({event.event_id for event in sent}) == len(sent)
    running: dict[str, RunningResponse] = {}
    out_of_band_items: set[str] = set()
    committed: set[str] = set()
    position = 0
    for event in sent:
        match event:
            case events.SpeechStarted(audio_start_ms=ms) | events.SpeechStopped(audio_end_ms=ms):
                assert ms >= position or isinstance(event, events.SpeechStarted)
                position = max(position, ms)
                assert event.item_id not in committed
            case events.InputAudioCommitted(item_id=item_id):
                committed.add(item_id)
            case events.ResponseCreated(response=response):
                if response.conversation_id is not None:
                    assert not [other for other in running.values() if not other.out_of_band]
                running[response.id] = RunningResponse(out_of_band=response.conversation_id is None)
            case events.ResponseDone(response=response):
                ended = running.pop(response.id)
                assert response.usage is not None
                assert (response.conversation_id is None) == ended.out_of_band
                assert ended.closed == ended.order == [str(item.id) for item in response.output]
            case events.OfResponse(response_id=response_id):
                running[response_id].take(event)
                if running[response_id].out_of_band and isinstance(event, events.OutputItemAdded):
                    out_of_band_items.add(str(event.item.id))
            case events.ItemAdded(item=item) | events.ItemDone(item=item):
                assert item.id not in out_of_band_items
    assert not running
    transcriptions = Counter(
        event.item_id for event in sent if isinstance(event, events.TranscriptionCompleted | events.TranscriptionFailed)
    )
    assert all(count == 1 for count in transcriptions.values())


@dataclass
class RunningResponse:
    """What a client knows of a response in progress."""

    out_of_band: bool
    order: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    """What the deltas of each open part or call add up to."""

    def take(self, event: events.OfResponse) -> None:
        match event:
            case events.OutputItemAdded(item=item):
                assert item.id not in self.order
                assert event.output_index == len(self.order)
                assert self.closed == self.order, "items of a response follow each other"
                self.order.append(str(item.id))
                if isinstance(item, FunctionCallItem):
                    assert (item.call_id, item.name) != ("", "")
                    self.said[str(item.id)] = ""
            case events.ContentPartAdded(item_id=item_id):
                assert item_id in self.order
                self.said[item_id] = ""
            case (
                events.OutputAudioTranscriptDelta(item_id=item_id, delta=delta)
                | events.OutputTextDelta(item_id=item_id, delta=delta)
                | events.FunctionCallArgumentsDelta(item_id=item_id, delta=delta)
            ):
                self.said[item_id] += delta
            case events.OutputAudioDelta(item_id=item_id):
                assert item_id in self.said
            case (
                events.OutputAudioTranscriptDone(item_id=item_id, transcript=text)
                | events.OutputTextDone(item_id=item_id, text=text)
                | events.FunctionCallArgumentsDone(item_id=item_id, arguments=text)
            ):
                assert self.said[item_id] == text
                if isinstance(event, events.FunctionCallArgumentsDone):
                    del self.said[item_id]
            case events.ContentPartDone(item_id=item_id):
                del self.said[item_id]
            case events.OutputItemDone(item=item):
                assert item.id not in self.said
                self.closed.append(str(item.id))


def rebuilt_list(sent: list[events.ServerEvent]) -> list[str]:
    """What a client makes of ``added`` and ``deleted`` (O32); an id is never named before or after its life."""
    ids: list[str] = []
    for event in sent:
        match event:
            case events.ItemAdded(previous_item_id=previous, item=item):
                ids.insert(0 if previous is None else ids.index(previous) + 1, str(item.id))
            case events.ItemDeleted(item_id=item_id):
                ids.remove(item_id)
            case events.ItemDone(item=item) | events.ItemRetrieved(item=item):
                assert item.id in ids
            case events.TranscriptionCompleted(item_id=item_id) | events.TranscriptionFailed(item_id=item_id):
                assert item_id in ids
            case events.ItemTruncated(item_id=item_id):
                assert item_id in ids
    return ids


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
