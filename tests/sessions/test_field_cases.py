"""Faults that users met elsewhere, replayed against the session core on a scripted clock."""

from __future__ import annotations

import pytest
from session_driver import Driver, silence, speech

from duologue.engine.requests import Converse, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events

MANUAL = {"audio": {"input": {"turn_detection": None}}}


def test_fc_017_whatever_interrupts_the_user_is_answered_without_speaking_again() -> None:
    driver = Driver()
    driver.say(speech(640), silence(640))
    driver.transcribe("Wait.")
    driver.write("One two")
    driver.say(speech(640), silence(640))
    driver.transcribe("What time is it?")
    assert driver.pending(Converse), "a response is under way, nobody has to speak again"
    driver.answer()
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["cancelled", "completed"]


def test_fc_048_words_that_come_late_commit_nothing_while_the_user_speaks() -> None:
    driver = Driver()
    driver.say(speech(640), silence(640))
    driver.say(speech(640))
    committed = len(driver.all(events.InputAudioCommitted))
    driver.transcribe("First half.")
    assert len(driver.all(events.InputAudioCommitted)) == committed == 1
    assert not driver.all(events.ResponseCreated)


def test_fc_058_late_words_of_a_turn_do_not_interrupt_its_answer() -> None:
    driver = Driver(MANUAL)
    driver.say(speech(500))
    driver.do(client.InputAudioCommit())
    driver.say(speech(500))
    driver.do(client.InputAudioCommit())
    driver.do(client.ResponseCreate())
    driver.transcribe("One.")
    driver.transcribe("Two.")
    driver.write("Hello")
    driver.say(silence(200))
    driver.speak(100)
    driver.finish()
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["completed"]


@pytest.mark.parametrize("reason", ["completed", "failed", "aborted"])
def test_fc_062_the_last_word_on_a_transcription_always_comes(reason: str) -> None:
    driver = Driver(MANUAL)
    driver.say(speech(500))
    driver.do(client.InputAudioCommit())
    driver.transcribe("Hello." if reason == "completed" else "", reason)
    ended = [*driver.all(events.TranscriptionCompleted), *driver.all(events.TranscriptionFailed)]
    assert len(ended) == 1


def test_fc_072_an_item_is_announced_before_anything_is_said_of_its_words() -> None:
    driver = Driver(speculate=True)
    driver.say(speech(640), silence(256))
    driver.transcribe("Hello.")  # known before the turn is over
    driver.say(silence(320))
    kinds = driver.kinds()
    first = kinds.index("conversation.item.input_audio_transcription.delta")
    assert "conversation.item.added" in kinds[:first]


def test_fc_078_fc_079_the_documented_flow_from_append_to_close() -> None:
    driver = Driver(MANUAL)
    for text in ("Hello.", "And then?"):
        driver.say(speech(500))
        driver.do(client.InputAudioCommit())
        driver.do(client.ResponseCreate())
        driver.transcribe(text)
        driver.answer(ms=400)
        driver.wait(1)
    assert [role for role, _ in driver.context()] == ["system", "user", "assistant", "user"]
    driver.update({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    driver.say(speech(640), silence(640))
    driver.transcribe("Tell me more.")
    driver.write("Well")
    driver.speak(3000)
    driver.say(speech(200))
    assert driver.kinds()[-6:] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert driver.closed is None
    assert not driver.pending(Transcribe)
