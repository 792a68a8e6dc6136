"""Answers that are prepared while a pause may be the end of the turn."""

from __future__ import annotations

import pytest
from session_driver import Driver, silence, speech, spread

from duologue.engine.requests import AudioDelta, Converse, Finished, TextDelta, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import EngineOutput
from duologue.sessions.items import InputText, MessageItem
from duologue.sessions.speculation import ALLOWANCE_S, affordable
from duologue.sessions.turns.silence import PAUSE_MS


def paused(driver: Driver) -> None:
    """The user has spoken and is silent, but not for long enough to be done."""
    driver.say(speech(640), silence(256))


def prepared(driver: Driver, transcript: str = "Hello.", text: str = "One two.", ms: int = 500) -> str:
    """Recogniser, language model and codec have begun in secret. Returns the answer's request."""
    paused(driver)
    driver.transcribe(transcript)
    request_id = driver.write(text)
    driver.speak(ms, spread(text, ms), request_id)
    return request_id


def test_the_answer_is_made_in_secret_and_released_at_the_confirmed_end() -> None:
    driver = Driver(speculate=True)
    request_id = prepared(driver)
    assert "response.created" not in driver.kinds()
    assert "conversation.item.added" not in driver.kinds()
    seen = len(driver.sent)
    driver.say(silence(320))
    assert driver.kinds()[seen:] == [
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
    ]
    driver.finish(request_id)
    assert driver.last(events.ResponseDone).response.status == "completed"
    assert not driver.requests
    assert not driver.aborted


def test_fc_056_whoever_goes_on_speaking_gets_one_turn_and_one_answer() -> None:
    driver = Driver(speculate=True)
    request_id = prepared(driver)
    driver.say(speech(320))
    assert request_id in driver.aborted
    driver.say(silence(256))
    driver.transcribe("Hello there.")
    driver.answer("Three.")
    driver.say(silence(320))
    assert len(driver.all(events.InputAudioCommitted)) == 1
    assert len(driver.all(events.ResponseDone)) == 1
    assert driver.last(events.OutputAudioTranscriptDone).transcript == "Three."
    assert driver.machine.speculations_wasted == 1


def test_late_output_of_a_dropped_answer_stays_unheard() -> None:
    driver = Driver(speculate=True)
    request_id = prepared(driver)
    driver.say(speech(320))
    seen = len(driver.sent)
    driver.do(EngineOutput(request_id, TextDelta(text="old")))
    driver.do(EngineOutput(request_id, AudioDelta(pcm=speech(100))))
    driver.do(EngineOutput(request_id, Finished(reason="aborted")))
    assert len(driver.sent) == seen


def test_a_recogniser_that_is_still_busy_at_the_end_serves_the_item() -> None:
    driver = Driver(speculate=True)
    driver.say(speech(640), silence(800))
    assert len(driver.pending(Transcribe)) == 1
    driver.transcribe("Hello.")
    assert driver.last(events.TranscriptionCompleted).transcript == "Hello."
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"
    assert driver.machine.speculations_wasted == 0


def test_an_answer_that_was_finished_in_secret_is_sent_whole() -> None:
    driver = Driver(speculate=True)
    driver.finish(prepared(driver))
    driver.say(silence(320))
    assert driver.last(events.ResponseDone).response.status == "completed"
    assert driver.last(events.OutputAudioDelta).delta == speech(500)


def test_a_changed_conversation_voids_what_was_prepared_but_not_the_words() -> None:
    driver = Driver(speculate=True)
    request_id = prepared(driver)
    driver.do(client.ItemCreate(item=MessageItem(role="system", content=(InputText(text="Be rude."),))))
    driver.say(silence(320))
    assert request_id in driver.aborted
    assert not driver.pending(Transcribe)
    assert ("system", "Be rude.") in driver.context()
    driver.answer("Three.")
    assert driver.last(events.OutputAudioTranscriptDone).transcript == "Three."


def test_changed_settings_void_what_was_prepared() -> None:
    driver = Driver(speculate=True)
    request_id = prepared(driver)
    driver.update({"instructions": "Shout."})
    driver.say(silence(320))
    assert request_id in driver.aborted
    assert driver.context()[0] == ("system", "Shout.")


def test_a_pause_without_words_prepares_nothing() -> None:
    driver = Driver(speculate=True)
    paused(driver)
    driver.transcribe("")
    assert not driver.pending(Converse)
    driver.say(silence(320))
    assert not driver.all(events.ResponseCreated)


def test_nothing_is_prepared_where_no_response_is_wanted() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"create_response": False}}}}, speculate=True)
    paused(driver)
    assert not driver.requests


def test_a_failed_recogniser_is_asked_again_at_the_end() -> None:
    driver = Driver(speculate=True)
    paused(driver)
    driver.transcribe("", reason="failed")
    driver.say(silence(320))
    driver.transcribe("Hello.")
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_an_answer_that_failed_in_secret_fails_as_if_it_had_not_been_one() -> None:
    driver = Driver(speculate=True)
    paused(driver)
    driver.transcribe("Hello.")
    driver.finish(reason="failed", error="boom")
    driver.say(silence(320))
    assert driver.last(events.ResponseDone).response.status == "failed"


def test_clear_and_commit_drop_what_was_prepared() -> None:
    for event in (client.InputAudioClear(), client.InputAudioCommit()):
        driver = Driver(speculate=True)
        request_id = prepared(driver)
        driver.do(event)
        assert request_id in driver.aborted
        driver.say(silence(640))
        assert not driver.all(events.ResponseCreated)


def test_what_the_model_is_shown_is_the_same_as_without() -> None:
    contexts = []
    for speculate in (True, False):
        driver = Driver(speculate=speculate)
        driver.spoken_turn("Hello.", "One two.")
        driver.wait(5)
        driver.spoken_turn("And then?", "Three.")
        contexts.append(driver.context())
    assert contexts[0] == contexts[1]


def test_what_has_been_said_is_read_while_the_user_speaks_and_not_once_the_answer_is_wanted() -> None:
    driver = Driver(prepares=True)
    driver.spoken_turn("Hello.", "One two.")
    driver.say(silence(2000), speech(320))
    (preparation,) = driver.pending(Converse)
    request = driver.requests[preparation]
    assert isinstance(request.payload, Converse)
    assert request.payload.prepare
    assert [message.text for message in request.payload.messages] == ["Be brief.", "Hello.", "One two."]
    assert request.due_in_s > 0, "others' answers come first"
    driver.say(speech(320), silence(640))
    driver.transcribe("And then?")
    assert preparation in driver.aborted, "read after the answer, it would push the answer out of the cache"
    (answer,) = driver.pending(Converse)
    assert driver.requests[answer].due_in_s == 0
    assert driver.context()[:-1] == [(message.role, message.text) for message in request.payload.messages]


def test_a_preparation_that_ends_is_silent_and_an_interruption_is_prepared_for_as_cut() -> None:
    driver = Driver(prepares=True)
    driver.say(speech(640), silence(640))
    driver.finish(driver.pending(Converse)[0])
    driver.transcribe("Tell me.")
    request_id = driver.write("One two.")
    driver.speak(2000, spread("One two.", 2000), request_id)
    seen = len(driver.sent)
    driver.wait(1.2)
    driver.say(speech(320))
    (preparation,) = driver.pending(Converse)
    assert driver.context() == [("system", "Be brief."), ("user", "Tell me."), ("assistant", "One")]
    before = driver.kinds()[seen:]
    driver.finish(preparation)
    assert driver.kinds()[seen:] == before


def test_work_in_advance_says_when_it_is_wanted() -> None:
    driver = Driver(
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 700}}}}, speculate=True
    )
    paused(driver)
    driver.wait(0.2)
    driver.transcribe("Hello.")
    (answer,) = driver.pending(Converse)
    noticed = PAUSE_MS / 1000
    assert driver.requests[answer].due_in_s == pytest.approx(0.7 - noticed - (0.256 - noticed) - 0.2, abs=0.04)


def test_speculation_stops_where_it_has_cost_three_tenths_of_what_was_of_use() -> None:
    assert affordable(0.0, 0.0)
    assert affordable(0.0, ALLOWANCE_S)
    assert not affordable(0.0, ALLOWANCE_S + 0.1)
    assert affordable(100.0, 30.0 + ALLOWANCE_S)
    assert not affordable(100.0, 30.1 + ALLOWANCE_S)
