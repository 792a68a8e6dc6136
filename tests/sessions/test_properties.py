"""Any order of client events, engine output and speech, read at any pace: the rules O1 to O35 hold, the ledger never
claims too much, and the model is shown what was heard.

``DUOLOGUE_FUZZ`` multiplies the number of examples (1 unless it is set).
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from ordering import slow_reader_problems, violations
from pictures import data_url, png
from session_driver import FRAME_BYTES, RATE, silence, speech
from traced import TracedDriver

from duologue.engine.requests import AudioDelta, Converse, Transcribe, Usage, WordSpan
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import DropAudio, EngineOutput, MediaAudio, OpenRequest
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
)

MAX_ITEMS = 25
EXAMPLES = 100 * max(1, int(os.environ.get("DUOLOGUE_FUZZ", "1")))
TOOL = {"type": "function", "name": "look_up"}
GIVEN_IDS = ["mine", "yours"]

ITEMS: list[Item] = [
    MessageItem(role="user", content=(InputText(text="typed"),)),
    MessageItem(role="system", content=(InputText(text="Be kind."),)),
    MessageItem(role="assistant", content=(OutputText(text="said before"),)),
    MessageItem(role="user", content=(InputImage(image_url=data_url(png(2, 2))), InputText(text="look"))),
    MessageItem(role="user", content=(InputAudio(audio=speech(200)),)),
    FunctionCallItem(name="look_up", arguments="{}", call_id="given"),
    FunctionCallOutputItem(call_id="given", output="found"),
    # refused:
    MessageItem(role="user", content=()),
    MessageItem(role="user", content=(InputImage(image_url="https://example.com/cat.png"),)),
    MessageItem(role="assistant", content=(InputText(text="wrong kind"),)),
    FunctionCallOutputItem(call_id="nobody", output="lost"),
]

DETECTION: list[dict[str, Any] | None] = [
    None,
    {"type": "server_vad", "silence_duration_ms": 200, "idle_timeout_ms": 5000},
    *(
        {"type": "server_vad", "create_response": create, "interrupt_response": interrupt}
        for create, interrupt in itertools.product([True, False], repeat=2)
    ),
    {"type": "semantic_vad", "create_response": True, "interrupt_response": True},
    {"type": "nonsense"},
]
PATCHES: list[dict[str, Any]] = [
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"]},
    {"instructions": "Be long."},
    {"audio": {"output": {"voice": "other"}}},
    {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
    {"audio": {"output": {"format": {"type": "audio/pcm"}, "speed": 1.2}}},
    {"audio": {"input": {"transcription": None}}},
    {"audio": {"input": {"transcription": {"model": "whisper-1"}}}},
    {"include": ["item.input_audio_transcription.logprobs"]},
    {"parallel_tool_calls": False},
    {"tool_choice": "none"},
    {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
    {"tracing": "auto"},
    {"tracing": None},
    {"prompt": {"id": "nobody"}},
    {"model": "second"},
    {"type": "transcription"},
    {"max_output_tokens": 0},
    {"modalities": ["text"]},
]


EXTENDED: list[dict[str, Any]] = [
    {},
    {"extensions": ["playback"]},
    {"pacing": {"lead_ms": 100}, "extensions": ["playback"]},
    {"interruption": {"mode": "adaptive", "min_words": 2}},
    {"interruption": {"mode": "adaptive"}, "pacing": {"lead_ms": 1_000}},
]


class AnySession(RuleBasedStateMachine):
    """Drives a session at random. The client reads when a rule says so; words are told apart by their numbers."""

    driver: TracedDriver

    @initialize(speculate=st.booleans(), transcription=st.booleans(), extended=st.sampled_from(EXTENDED))
    def begin(self, speculate: bool, transcription: bool, extended: dict[str, Any]) -> None:
        self.driver = TracedDriver(
            {"tools": [TOOL], **extended},
            speculate=speculate,
            transcription=transcription,
            limits=Limits(max_turn_s=3.0, kept_audio_s=5.0, max_items=MAX_ITEMS, kept_images=2),
            can_call_tools=True,
            takes_images=True,
            gives_logprobs=True,
        )
        self.numbers = itertools.count()
        self.texts: dict[str, str] = defaultdict(str)
        self.spoken: dict[str, int] = defaultdict(int)
        """Characters of an answer's text that have been spoken, by request."""
        self.samples: dict[str, int] = defaultdict(int)
        self.word_end: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        """Samples up to which the client says that it has played an item, as far as they were sent."""
        self.checked = len(self.driver.effects)

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([20, 64, 200, 700]), chunk_ms=st.sampled_from([17.5, 20, 100]))
    def user_speaks(self, ms: int, chunk_ms: float) -> None:
        self.driver.say(speech(ms), chunk_ms=chunk_ms)

    @rule(ms=st.sampled_from([50, 200, 400, 700]))
    def user_is_silent(self, ms: int) -> None:
        self.driver.say(silence(ms), chunk_ms=50)

    @rule(ms=st.sampled_from([200, 700]), text=st.sampled_from(["hello", "hello", ""]))
    def user_takes_a_turn(self, ms: int, text: str) -> None:
        """What the rules above and below do in small steps, so that answers are common enough."""
        self.driver.say(speech(ms), silence(700), chunk_ms=50)
        while self.driver.pending(Transcribe):
            self.driver.transcribe(text)

    @precondition(lambda self: self._speaking())
    @rule(count=st.integers(1, 3), ms=st.sampled_from([300, 1500]), data=st.data())
    def answer_goes_on(self, count: int, ms: int, data: Any) -> None:
        request_id = data.draw(st.sampled_from(self._speaking()))
        self._write(request_id, count)
        self._speak(request_id, count, ms)

    def _speaking(self) -> list[str]:
        """Open requests whose answer is to be spoken."""
        payloads = (
            (request_id, self.driver.requests[request_id].payload) for request_id in self.driver.pending(Converse)
        )
        return [name for name, payload in payloads if isinstance(payload, Converse) and "audio" in payload.modalities]

    @precondition(lambda self: self.driver.pending(Transcribe))
    @rule(text=st.sampled_from(["", "hello", "what is that"]), failed=st.booleans())
    def words_are_recognised(self, text: str, failed: bool) -> None:
        self.driver.transcribe(text, reason="failed" if failed else "completed")

    @precondition(lambda self: self.driver.pending(Converse))
    @rule(count=st.integers(1, 3), data=st.data())
    def model_writes(self, count: int, data: Any) -> None:
        self._write(data.draw(st.sampled_from(self.driver.pending(Converse))), count)

    def _write(self, request_id: str, count: int) -> None:
        text = "".join(f" w{next(self.numbers)}" for _ in range(count))
        self.texts[request_id] += text
        self.driver.write(text, request_id, Usage(input_tokens=9, output_tokens=len(self.texts[request_id])))

    @precondition(lambda self: self._speaking())
    @rule(ms=st.sampled_from([20, 300, 1500]), count=st.integers(0, 3), data=st.data())
    def codec_speaks(self, ms: int, count: int, data: Any) -> None:
        self._speak(data.draw(st.sampled_from(self._speaking())), count, ms)

    def _speak(self, request_id: str, count: int, ms: int) -> None:
        words = self._next_words(request_id, count, RATE * ms // 1000)
        usage = Usage(input_tokens=9, output_tokens=len(self.texts[request_id]))
        self.driver.do(EngineOutput(request_id, AudioDelta(pcm=speech(ms), words=words), usage))

    def _next_words(self, request_id: str, count: int, samples: int) -> tuple[WordSpan, ...]:
        """The next words of an answer, spread over ``samples`` more of its sound."""
        text, spans = self.texts[request_id], []
        for index in range(1, count + 1):
            start = text.find("w", self.spoken[request_id])
            if start < 0:
                break
            end = text.find(" ", start) if " " in text[start:] else len(text)
            at = self.samples[request_id] + samples * index // count
            spans.append(WordSpan(text_start=start, text_end=end, end_sample=at))
            self.word_end[text[start:end]], self.spoken[request_id] = at, end
        self.samples[request_id] += samples
        return tuple(spans)

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

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.wait(seconds)

    # -- the client ----------------------------------------------------------------------------------------------------

    @rule(pieces=st.sampled_from([1, 2, 100]))
    def client_reads(self, pieces: int) -> None:
        for _ in range(pieces):
            if not self.driver.read():
                break

    @rule(
        metadata=st.none() | st.just({"k": "v"}),
        text=st.booleans(),
        conversation=st.sampled_from(["auto", "none"]),
        own_input=st.booleans(),
        wrong=st.sampled_from([{}, {}, {}, {"voice": "flat"}, {"tool_choice": {"type": "function", "name": "nobody"}}]),
    )
    def response_create(
        self,
        metadata: dict[str, str] | None,
        text: bool,
        conversation: str,
        own_input: bool,
        wrong: dict[str, Any],
    ) -> None:
        response: dict[str, Any] = {"metadata": metadata, "conversation": conversation, **wrong}
        if text:
            response["output_modalities"] = ["text"]
        if own_input:
            ids = [entry.id for entry in self.driver.machine.conversation][-2:]
            response["input"] = [{"type": "item_reference", "id": item_id} for item_id in ids]
        self.driver.do(client.ResponseCreate(response=response))
        self._check_prompts(whole=not own_input)

    @rule(which=st.sampled_from(["default", "last", "nobody"]))
    def response_cancel(self, which: str) -> None:
        created = self.driver.all(events.ResponseCreated)
        response_id = created[-1].response.id if which == "last" and created else None
        self.driver.do(client.ResponseCancel(response_id="nobody" if which == "nobody" else response_id))

    @precondition(lambda self: self.driver.all(events.FunctionCallArgumentsDone))
    @rule(data=st.data())
    def client_gives_result(self, data: Any) -> None:
        call = data.draw(st.sampled_from(self.driver.all(events.FunctionCallArgumentsDone)))
        self.driver.do(client.ItemCreate(item=FunctionCallOutputItem(call_id=call.call_id, output="done")))

    @rule(event=st.sampled_from([client.InputAudioCommit(), client.InputAudioClear()]))
    def input_buffer(self, event: client.AnyClientEvent) -> None:
        self.driver.do(event)

    @rule(
        item=st.sampled_from(ITEMS),
        item_id=st.none() | st.sampled_from(GIVEN_IDS),
        previous=st.sampled_from([None, "root", "mine", "nobody"]),
    )
    def item_create(self, item: Item, item_id: str | None, previous: str | None) -> None:
        given = item if item_id is None else replace(item, id=item_id)
        self.driver.do(client.ItemCreate(item=given, previous_item_id=previous))

    @precondition(lambda self: len(self.driver.machine.conversation))
    @rule(what=st.sampled_from(["delete", "retrieve", "truncate"]), ms=st.integers(0, 2000), data=st.data())
    def item_command(self, what: str, ms: int, data: Any) -> None:
        item_id = data.draw(st.sampled_from([*(entry.id for entry in self.driver.machine.conversation), "nobody"]))
        match what:
            case "delete":
                self.driver.do(client.ItemDelete(item_id=item_id))
            case "retrieve":
                self.driver.do(client.ItemRetrieve(item_id=item_id))
            case "truncate":
                self._truncate(item_id, ms)

    @precondition(lambda self: self.driver.machine._core.ledger._items)
    @rule(ms=st.integers(0, 2000), data=st.data(), then=st.booleans())
    def truncate_what_was_spoken(self, ms: int, data: Any, then: bool) -> None:
        self._truncate(data.draw(st.sampled_from(sorted(self.driver.machine._core.ledger._items))), ms)
        if then:
            self.driver.do(client.ResponseCreate())
            self._check_prompts(whole=True)

    def _truncate(self, item_id: str, ms: int) -> None:
        sent = self.driver.machine._core.ledger.item(item_id).sent
        done = self.driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=ms))
        if isinstance(done[-1], events.ItemTruncated):
            self.cuts[item_id] = min(ms * RATE // 1000, sent)

    @precondition(lambda self: self.driver.machine._core.ledger._items)
    @rule(played=st.integers(0, 2000), less=st.integers(-1, 500), data=st.data(), right=st.booleans())
    def client_reports(self, played: int, less: int, data: Any, right: bool) -> None:
        ledger = self.driver.machine._core.ledger
        item_id = data.draw(st.sampled_from(sorted(ledger._items)))
        report = client.PlaybackAck(
            response_id=ledger.item(item_id).response_id if right else "nobody",
            item_id=item_id,
            played_ms=played,
            committed_ms=max(0, played - less),
        )
        self.driver.do(report)

    @rule(patch=st.sampled_from([*PATCHES, *({"audio": {"input": {"turn_detection": d}}} for d in DETECTION), None]))
    def session_update(self, patch: dict[str, Any] | None) -> None:
        if patch is None:
            self.driver.do(client.InvalidEvent(error=ProtocolError("invalid_event", "No such event.", "type")))
        else:
            self.driver.update(patch)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def ledger_is_ordered(self) -> None:
        ledger = self.driver.machine._core.ledger
        for item_id in list(ledger._items):
            item = ledger.item(item_id)
            assert 0 <= item.played(self.driver.now) <= item.sent <= item.projected <= item.generated

    @invariant()
    def the_model_is_never_shown_what_was_not_heard(self) -> None:
        self._check_prompts(whole=False)

    def _check_prompts(self, *, whole: bool) -> None:
        """O31: of a truncated item the model is shown the words whose sound had ended, and no other; of prompts that
        hold the ``whole`` conversation, each of them."""
        new, self.checked = self.driver.effects[self.checked :], len(self.driver.effects)
        for effect in new:
            if not isinstance(effect, OpenRequest) or not isinstance(effect.request.payload, Converse):
                continue
            messages = effect.request.payload.messages
            shown = {word for message in messages if message.role == "assistant" for word in message.text.split()}
            for item_id, cut in self.cuts.items():
                entry = self.driver.machine.conversation.find(item_id)
                if entry is None:
                    continue
                said = set(entry.spoken_text.split())
                heard = {word for word in said if self.word_end.get(word, cut + 1) <= cut}
                assert shown & said <= heard
                assert not whole or heard <= shown

    def teardown(self) -> None:
        """The rules held all the way, and whatever happened, the next spoken turn is answered if it has room."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        flags = {"type": "server_vad", "create_response": True, "interrupt_response": True, "idle_timeout_ms": None}
        extended: dict[str, Any] = {"interruption": None, "pacing": None, "extensions": None}
        driver.update({**extended, "output_modalities": ["audio"], "audio": {"input": {"turn_detection": flags}}})
        driver.say(silence(900))
        driver.wait(1)
        for kind in (Transcribe, Converse):
            while driver.pending(kind):
                driver.transcribe("") if kind is Transcribe else driver.finish()
        for entry in tuple(driver.machine.conversation)[MAX_ITEMS - 2 :]:
            driver.do(client.ItemDelete(item_id=entry.id))
        driver.read_all()
        done = len(driver.all(events.ResponseDone))
        driver.say(speech(700), silence(900))
        while driver.pending(Transcribe):  # of older items too, whose words nobody has wanted so far
            driver.transcribe("Are you there?")
        driver.answer()
        driver.read_all()
        assert len(driver.all(events.ResponseDone)) == done + 1
        assert driver.last(events.ResponseDone).response.status == "completed"
        assert not driver.requests
        assert violations(driver.trace) == []
        interrupted = {effect.response_id for effect in driver.effects_of(DropAudio)}
        assert list(slow_reader_problems(driver.said, driver.got(), interrupted)) == []


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)


# -- over a media track ------------------------------------------------------------------------------------------------


class MediaDriver(TracedDriver):
    """The user's sound comes over the track, which plays meanwhile."""

    def say(self, *pieces: bytes, chunk_ms: float = 20) -> None:
        audio = b"".join(pieces)
        for first in range(0, len(audio), FRAME_BYTES):
            self.do(MediaAudio(audio[first : first + FRAME_BYTES]))
            self.listen(20)

    def wait(self, seconds: float) -> None:
        self.listen(round(seconds * 1000))
        super().wait(0)

    def read_all(self) -> None:
        while self.track.queued_bytes:
            self.listen(20)
        super().read_all()


class AnyCall(AnySession):
    """Like any session, but that the server owns the clock of the playout."""

    driver: MediaDriver

    @initialize(speculate=st.booleans(), transcription=st.booleans())
    def begin(self, speculate: bool, transcription: bool) -> None:
        self.driver = MediaDriver(
            {"tools": [TOOL]},
            speculate=speculate,
            transcription=transcription,
            limits=Limits(max_turn_s=3.0, kept_audio_s=5.0, max_items=MAX_ITEMS, kept_images=2),
            can_call_tools=True,
            takes_images=True,
            gives_logprobs=True,
            media_clock=True,
        )
        self.numbers = itertools.count()
        self.texts: dict[str, str] = defaultdict(str)
        self.spoken: dict[str, int] = defaultdict(int)
        self.samples: dict[str, int] = defaultdict(int)
        self.word_end: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.checked = len(self.driver.effects)

    @rule(ms=st.sampled_from([20, 300, 2000]))
    def the_track_plays(self, ms: int) -> None:
        self.driver.listen(ms)

    @rule()
    def client_clears(self) -> None:
        self.driver.do(client.OutputAudioClear())

    def _truncate(self, item_id: str, ms: int) -> None:
        self.driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=ms))

    def _check_prompts(self, *, whole: bool) -> None:
        ledger: Any = self.driver.machine._core.ledger
        for event in self.driver.all(events.ItemTruncated):
            said = event.audio_end_ms * RATE // 1000
            if event.item_id in ledger:
                self.cuts[event.item_id] = min(said, ledger.item(event.item_id).sent)
        super()._check_prompts(whole=whole)


TestAnyCall = AnyCall.TestCase
TestAnyCall.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
