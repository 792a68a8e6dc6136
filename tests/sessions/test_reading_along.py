"""Words of a turn that goes on: who gets them, when they are asked for, and how a long turn stays cheap."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import RATE, Driver, silence, speech

from duologue.engine.requests import Converse, Finished, ImagePart, Transcribe, TranscriptDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import EngineOutput, OpenRequest
from duologue.sessions.updating import Bound

WORD_MS = 250


def words_at(start_ms: int, end_ms: int) -> str:
    """The talker counts, four numbers a second; a number that is cut is misheard."""
    first, last = -(-start_ms // WORD_MS), end_ms // WORD_MS
    half = ["half"] if end_ms % WORD_MS > WORD_MS // 2 else []
    return " ".join([*(f"n{number}" for number in range(first, last)), *half])


class Reader:
    """A recogniser that knows when the turn of :func:`words_at` began, and answers at once."""

    def __init__(self, driver: Driver, pause_every_ms: int | None = None) -> None:
        self.driver = driver
        self.pause_every_ms = pause_every_ms
        self.asked: list[Transcribe] = []
        self.settled_ms = 0

    def answer(self) -> None:
        for request_id in self.driver.pending(Transcribe):
            payload = self.driver.requests[request_id].payload
            assert isinstance(payload, Transcribe)
            self.asked.append(payload)
            ms = len(payload.audio) * 500 // RATE
            start = self.settled_ms
            if payload.settle:
                if self.pause_every_ms is None or ms < self.pause_every_ms:
                    ms = 0
                else:
                    ms = self.settled_ms = self.pause_every_ms
                    self.settled_ms += start
            if ms:
                delta = TranscriptDelta(text=words_at(start, start + ms), end_sample=ms * RATE // 1000, language="en")
                self.driver.do(EngineOutput(request_id, delta))
            self.driver.finish(request_id)

    def say(self, ms: int, chunk_ms: float = 20) -> None:
        for _ in range(int(ms / chunk_ms)):
            self.driver.say(speech(int(chunk_ms)), chunk_ms=chunk_ms)
            self.answer()


def transcribing(**kwargs: Any) -> Driver:
    session = {"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
    driver = Driver(session, transcription=False, bound=Bound(type=False, model=False), read_along=True, **kwargs)
    driver.update({"audio": {"input": {"turn_detection": {"type": "server_vad", "prefix_padding_ms": 0}}}})
    return driver


def conversing(**kwargs: Any) -> Driver:
    kwargs.setdefault("read_along", True)
    return Driver({"audio": {"input": {"turn_detection": {"type": "server_vad", "prefix_padding_ms": 0}}}}, **kwargs)


def deltas(driver: Driver) -> list[str]:
    return [str(event.delta) for event in driver.all(events.TranscriptionDelta)]


def settle_turn(driver: Driver, reader: Reader) -> None:
    driver.say(silence(800))
    reader.answer()


def test_a_transcription_session_gets_words_while_they_are_spoken() -> None:
    driver = transcribing()
    reader = Reader(driver)
    reader.say(3000)
    early = deltas(driver)
    assert len(early) >= 4
    assert not driver.all(events.InputAudioCommitted)
    started = driver.last(events.SpeechStarted).item_id
    assert {event.item_id for event in driver.all(events.TranscriptionDelta)} == {started}
    settle_turn(driver, reader)
    completed = driver.last(events.TranscriptionCompleted)
    assert "".join(deltas(driver)) == completed.transcript
    assert completed.transcript.split()[:10] == [f"n{number}" for number in range(10)]
    assert driver.last(events.ItemAdded).item.id == completed.item_id == started


@pytest.mark.parametrize(("delay", "most"), [("minimal", 14), ("low", 9), ("medium", 5), ("high", 3), ("xhigh", 2)])
def test_the_delay_says_how_often_words_are_asked_for(delay: str, most: int) -> None:
    driver = transcribing()
    driver.update({"audio": {"input": {"transcription": {"delay": delay}}}})
    reader = Reader(driver)
    reader.say(3400)
    assert most - 3 <= len(reader.asked) <= most
    assert reader.asked
    assert all(payload.urgency == "partial" for payload in reader.asked)


def test_a_conversation_is_read_along_only_where_the_client_asks_for_it() -> None:
    driver = conversing()
    reader = Reader(driver)
    reader.say(3000)
    assert reader.asked == []
    driver.update({"audio": {"input": {"transcription": {"delay": "low"}}}})
    reader.say(1000)
    assert deltas(driver)
    settle_turn(driver, reader)
    assert "".join(deltas(driver)) == driver.last(events.TranscriptionCompleted).transcript


def test_the_first_words_of_an_answered_turn_are_read_by_the_language_model_while_the_user_speaks() -> None:
    driver = conversing(prepares=True, speculate=True)
    reader = Reader(driver)
    reader.say(2400)
    assert reader.asked == []
    reader.say(2800)
    assert len(reader.asked) == 2
    preparations = [
        request.payload
        for request in driver.requests.values()
        if isinstance(request.payload, Converse) and request.payload.prepare
    ]
    heard = words_at(0, 5000).split()
    assert [payload.begun for payload in preparations][-1] == " ".join(heard[:-2])
    assert all(" ".join(heard).startswith(payload.begun) for payload in preparations)
    assert len(driver.pending(Converse)) <= 1, "the newest takes the others' place"
    assert deltas(driver) == []
    driver.say(silence(800))
    driver.transcribe("Quite other words.")
    (answer,) = driver.pending(Converse)
    payload = driver.requests[answer].payload
    assert isinstance(payload, Converse)
    assert payload.messages[-1].text == "Quite other words.", "nobody has seen what was read along"
    assert not payload.prepare


@pytest.mark.parametrize(
    "detection",
    [None, {"type": "server_vad", "create_response": False}],
)
def test_a_turn_that_nobody_has_asked_to_answer_is_not_read_ahead(detection: dict[str, Any] | None) -> None:
    driver = conversing(prepares=True)
    driver.update({"audio": {"input": {"turn_detection": detection}}})
    reader = Reader(driver)
    reader.say(4000)
    assert reader.asked == []


def test_words_behind_pictures_are_not_read_ahead() -> None:
    driver = conversing(prepares=True)
    driver.machine._core.see(ImagePart(b"x", "image/jpeg"))
    reader = Reader(driver)
    reader.say(4000)
    assert reader.asked == []


def test_words_that_come_behind_a_pause_prepare_nothing_that_the_answer_does_not_wait_for() -> None:
    driver = conversing(prepares=True, speculate=True)
    driver.say(speech(3000))
    (reading,) = driver.pending(Transcribe)
    driver.say(silence(160))
    assert reading in driver.aborted
    (speculation,) = driver.pending(Transcribe)
    driver.say(silence(20))
    assert driver.pending(Transcribe) == [speculation]


def test_the_words_of_a_conversation_wait_for_the_item() -> None:
    driver = conversing()
    reader = Reader(driver, pause_every_ms=5000)
    reader.say(12_000)
    assert [payload.settle for payload in reader.asked] == [True, True]
    assert deltas(driver) == []
    driver.say(silence(800))  # the words of the last seconds are not known yet
    (first,) = deltas(driver)
    kinds = driver.kinds()
    assert kinds.index("conversation.item.added") < kinds.index("conversation.item.input_audio_transcription.delta")
    assert first == words_at(0, 10_000)
    (request,) = (driver.requests[name].payload for name in driver.pending(Transcribe))
    assert isinstance(request, Transcribe)
    assert request.before.endswith("n39")
    assert len(request.audio) / 2 / RATE < 3
    driver.transcribe("n40 and so on.")
    assert driver.last(events.TranscriptionCompleted).transcript == f"{first} n40 and so on."
    assert driver.asked().messages[-1].text == f"{first} n40 and so on."


def test_nothing_is_read_along_while_the_server_is_busy_but_what_would_cost_more_later() -> None:
    driver = transcribing()
    object.__setattr__(driver.machine._core.context, "may_read_along", lambda: False)
    reader = Reader(driver, pause_every_ms=10_000)
    reader.say(14_000)
    assert reader.asked == []
    reader.say(3000)
    assert [payload.settle for payload in reader.asked] == [True]


def test_there_is_one_request_at_a_time_and_a_pause_takes_its_place() -> None:
    driver = conversing(speculate=True)
    driver.update({"audio": {"input": {"transcription": {"delay": "minimal"}}}})
    driver.say(speech(3000))
    (partial,) = driver.pending(Transcribe)
    driver.say(silence(200))
    (speculative,) = driver.pending(Transcribe)
    assert driver.aborted == [partial]
    payload = driver.requests[speculative].payload
    assert isinstance(payload, Transcribe)
    assert payload.urgency == "speculative"
    due = [effect.request.due_in_s for effect in driver.effects_of(OpenRequest)]
    assert due[0] == 1.0
    assert 0 < due[-1] < 0.5


def test_a_speculation_begins_with_what_has_been_sent_and_is_the_turns_transcript() -> None:
    driver = conversing(speculate=True)
    driver.update({"audio": {"input": {"transcription": {"delay": "low"}}}})
    reader = Reader(driver)
    reader.say(2000)
    sent = "".join(deltas(driver))
    assert sent
    driver.say(silence(200))
    driver.transcribe(f"{sent} and more.")
    assert driver.asked().messages[-1].text == f"{sent} and more."
    driver.say(silence(600))
    assert driver.last(events.TranscriptionCompleted).transcript == "".join(deltas(driver)) == f"{sent} and more."


def test_a_pause_in_a_transcription_session_is_recognised_at_once() -> None:
    driver = transcribing(speculate=True)
    driver.say(speech(600), silence(200))
    driver.transcribe("Hello.")
    assert not driver.pending(Converse)
    driver.say(silence(600))
    assert driver.last(events.TranscriptionCompleted).transcript == "Hello."
    assert not driver.pending(Transcribe)


def test_a_turn_that_is_cleared_is_read_no_further() -> None:
    driver = transcribing()
    driver.say(speech(1000))
    (partial,) = driver.pending(Transcribe)
    driver.do(client.InputAudioClear())
    assert driver.aborted == [partial]
    driver.do(EngineOutput(partial, Finished(reason="completed")))
    assert not deltas(driver)
    reader = Reader(driver)
    reader.say(2000)
    assert driver.all(events.TranscriptionDelta)[0].item_id == driver.last(events.SpeechStarted).item_id


def test_without_turn_detection_the_id_of_the_buffers_item_is_known_before_the_commit() -> None:
    driver = transcribing()
    driver.update({"audio": {"input": {"turn_detection": None}}})
    reader = Reader(driver)
    reader.say(3000)
    (early,) = {event.item_id for event in driver.all(events.TranscriptionDelta)}
    driver.do(client.InputAudioCommit())
    reader.answer()
    assert driver.last(events.InputAudioCommitted).item_id == early
    completed = driver.last(events.TranscriptionCompleted)
    assert (completed.item_id, completed.transcript) == (early, "".join(deltas(driver)))
    reader.settled_ms = 0
    reader.say(2000)
    assert driver.last(events.TranscriptionDelta).item_id != early


def test_fc_048_words_of_a_turn_that_goes_on_end_no_turn_and_are_answered_by_nobody() -> None:
    driver = conversing()
    driver.update({"audio": {"input": {"transcription": {"delay": "minimal"}}}})
    Reader(driver).say(3000)
    assert deltas(driver)
    assert not driver.all(events.InputAudioCommitted)
    assert not driver.pending(Converse)


def test_fc_058_words_that_come_late_interrupt_nobody() -> None:
    driver = conversing(speculate=True)
    driver.update({"audio": {"input": {"transcription": {"delay": "minimal"}}}})
    driver.say(speech(1000))
    (late,) = driver.pending(Transcribe)
    driver.say(silence(800))
    driver.transcribe("Hello.")
    driver.write("Hello to you.")
    driver.do(EngineOutput(late, TranscriptDelta(text="Hello there", end_sample=RATE)))
    driver.do(EngineOutput(late, Finished(reason="completed")))
    driver.finish()
    assert driver.last(events.ResponseDone).response.status == "completed"
    assert driver.last(events.TranscriptionCompleted).transcript == "".join(deltas(driver)) == "Hello."


def test_a_partial_that_was_dropped_says_nothing() -> None:
    driver = transcribing()
    driver.say(speech(1000))
    (partial,) = driver.pending(Transcribe)
    driver.finish(partial)
    assert not deltas(driver)
    driver.say(speech(1000))
    assert driver.pending(Transcribe) not in ([], [partial])


def test_a_partial_that_fails_is_no_failure_of_the_turn() -> None:
    driver = transcribing()
    driver.say(speech(1000))
    driver.finish(driver.pending(Transcribe)[0], "failed", "No memory.")
    assert not driver.all(events.TranscriptionFailed)
    driver.say(silence(800))
    driver.transcribe("Hello.")
    assert driver.last(events.TranscriptionCompleted).transcript == "Hello."


@pytest.mark.parametrize("chunk_ms", [10, 20, 85, 200])
def test_fc_041_the_chunking_of_the_input_changes_nothing(chunk_ms: int) -> None:
    def run(size_ms: int) -> tuple[list[str], str, list[int]]:
        driver = transcribing()
        reader = Reader(driver, pause_every_ms=5000)
        driver_say = driver.say
        audio = speech(17_000)
        step = RATE * 2 * size_ms // 1000
        for first in range(0, len(audio), step):
            driver_say(audio[first : first + step], chunk_ms=size_ms)
            reader.answer()
        settle_turn(driver, reader)
        asked = [effect.request.payload for effect in driver.effects_of(OpenRequest)]
        return deltas(driver), driver.last(events.TranscriptionCompleted).transcript, [len(a.audio) for a in asked]

    assert run(chunk_ms)[1] == run(32)[1]
    if chunk_ms <= 32:  # a longer chunk holds several frames, of which only one can be answered at once
        assert run(chunk_ms) == run(32)


def test_a_monologue_of_ten_minutes_stays_cheap() -> None:
    driver = transcribing()
    driver.update({"audio": {"input": {"turn_detection": None}}})
    reader = Reader(driver, pause_every_ms=4000)
    for _ in range(600 * 2):
        reader.say(500, chunk_ms=100)
    seconds = [len(payload.audio) / 2 / RATE for payload in reader.asked]
    assert max(seconds) < 8
    assert max(len(payload.before) for payload in reader.asked) <= 400
    driver.do(client.InputAudioCommit())
    (last,) = (driver.requests[name].payload for name in driver.pending(Transcribe))
    assert isinstance(last, Transcribe)
    assert len(last.audio) / 2 / RATE < 8
    reader.answer()
    heard = driver.last(events.TranscriptionCompleted).transcript
    assert heard == "".join(deltas(driver)) == words_at(0, 600_000)
