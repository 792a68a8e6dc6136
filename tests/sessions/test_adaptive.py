"""Adaptive interruption: acknowledgements, coughs and single words do not stop an answer; real interruptions do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from session_driver import RATE, Driver, silence, speech

from duologue.engine.requests import AudioDelta, Converse, Transcribe
from duologue.engine.words import normalise_words
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.acknowledgements import Acknowledgements
from duologue.sessions.effects import EngineOutput
from duologue.sessions.overlap import LEAST_LEFT_S

TEN = "one two three four five six seven eight nine ten"
WHOLE = b"".join((sample % 60_000 + 1).to_bytes(2, "little") for sample in range(10 * RATE))
"""Ten seconds in which no two samples near each other are the same."""


def sound(driver: Driver) -> bytes:
    return b"".join(event.delta for event in driver.all(events.OutputAudioDelta))


def answering(seconds: float = 2.0, **settings: Any) -> Driver:
    """An answer of ten seconds, made at once, that has been heard for so many."""
    patch = {"interruption": {"mode": "adaptive", **settings}, "extensions": ["interruption"]}
    driver = Driver(patch)
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    request_id = driver.write(TEN)
    driver.do(EngineOutput(request_id, AudioDelta(pcm=WHOLE)))
    driver.finish(request_id)
    listen(driver, seconds)
    return driver


def listen(driver: Driver, seconds: float) -> None:
    """The user says nothing; the machine's timer runs."""
    for _ in range(round(seconds / 0.02)):
        driver.wait(0)
        driver.say(silence(20))


def unfaded(pcm: bytes) -> int:
    """How many of the samples are those of the answer, in order; the faded ones differ."""
    return sum(a == b for a, b in zip(memoryview(pcm).cast("H"), memoryview(WHOLE).cast("H"), strict=False))


def only_listened(driver: Driver) -> None:
    """One turn of the user, one answer, whole and in order."""
    listen(driver, 12)
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["completed"]
    assert len(driver.all(events.SpeechStarted)) == len(driver.all(events.InputAudioCommitted)) == 1
    assert len(driver.all(events.ResponseCreated)) == 1
    pcm = sound(driver)
    assert len(pcm) == len(WHOLE), "not one sample is lost or doubled"
    assert unfaded(pcm) >= len(WHOLE) // 2 - 2 * 192
    assert not driver.pending(Transcribe)


@pytest.mark.parametrize("words", ["Mm-hmm.", "", "Yeah, okay."])
def test_fc_029_an_acknowledgement_pauses_the_answer_which_goes_on_at_its_next_sample(words: str) -> None:
    driver = answering()
    driver.say(speech(300), silence(200))
    assert not driver.all(events.InterruptionDismissed)
    before = len(sound(driver))
    driver.say(silence(300))
    assert len(sound(driver)) == before, "the answer waits for the verdict"
    driver.transcribe(words)
    pending, dismissed = driver.last(events.InterruptionPending), driver.last(events.InterruptionDismissed)
    assert pending.item_id == dismissed.item_id
    assert dismissed.transcript == words
    only_listened(driver)


@pytest.mark.parametrize("words", ["Thank you.", "Makes sense!", "That makes sense, thanks."])
def test_fc_030_thanks_in_the_middle_do_not_begin_the_answer_anew(words: str) -> None:
    driver = answering()
    driver.say(speech(600), silence(300))
    driver.transcribe(words)
    only_listened(driver)


def test_fc_031_a_cough_leaves_nothing_behind() -> None:
    driver = answering()
    items = len(driver.machine.conversation)
    driver.say(speech(200), silence(400))
    driver.transcribe("")
    assert len(driver.machine.conversation) == items
    timeline = driver.machine._listening._timeline
    assert timeline.end - timeline.start < 48_000, "the input buffer is cleared"
    only_listened(driver)


def test_more_than_an_acknowledgement_interrupts_and_becomes_a_turn() -> None:
    driver = answering()
    driver.say(speech(400), silence(300))
    seen = len(driver.sent)
    driver.transcribe("No, stop.")
    assert driver.kinds()[seen] == "input_audio_buffer.speech_started"
    assert driver.kinds()[seen + 1 :][-1] == "response.done"
    started = driver.last(events.SpeechStarted)
    assert started.audio_start_ms == driver.last(events.InterruptionPending).audio_start_ms
    driver.say(silence(500))
    driver.transcribe("No, stop.")
    assert driver.pending(Converse)
    driver.answer("Fine.")
    listen(driver, 3)
    statuses = [event.response.status for event in driver.all(events.ResponseDone)]
    assert statuses == ["cancelled", "completed"]


def test_long_speech_interrupts_without_its_words_being_known() -> None:
    driver = answering()
    driver.say(speech(800))
    assert len(driver.all(events.SpeechStarted)) == 1
    driver.say(speech(128))
    assert len(driver.all(events.SpeechStarted)) == 2
    assert driver.last(events.ResponseDone).response.status == "cancelled"
    assert not driver.pending(Transcribe)


def test_the_history_is_what_was_heard_before_the_pause() -> None:
    driver = answering(3.0)
    ledger = driver.machine._core.ledger
    item_id = (driver.machine._answering.spoken or ("", ""))[1]
    driver.say(speech(1_000))
    assert 3.0 <= (ledger.heard(item_id) or 0) / RATE <= 3.0 + 0.064 + 0.34 + 0.032


def test_fc_034_one_word_is_too_few_where_three_are_asked_for() -> None:
    driver = answering(min_words=3)
    driver.say(speech(1_200))
    driver.transcribe("Tomorrow")  # what is known of it so far
    assert len(driver.all(events.SpeechStarted)) == 1
    driver.say(silence(300))
    driver.transcribe("Tomorrow?")
    only_listened(driver)


def test_fc_034_three_words_are_enough_while_they_are_being_said() -> None:
    driver = answering(min_words=3)
    driver.say(speech(1_000))
    driver.transcribe("Wait a moment")
    assert driver.last(events.ResponseDone).response.status == "cancelled"


def test_whoever_goes_on_after_an_acknowledgement_is_judged_by_all_he_says() -> None:
    driver = answering()
    driver.say(speech(400), silence(160))
    (request_id,) = driver.pending(Transcribe)
    driver.say(speech(600))
    assert request_id in driver.aborted
    assert driver.last(events.ResponseDone).response.status == "cancelled"


def test_speech_in_the_last_words_of_an_answer_is_a_reply() -> None:
    driver = answering(10 - LEAST_LEFT_S + 0.1)
    driver.say(speech(128))
    assert len(driver.all(events.SpeechStarted)) == 2
    driver.say(silence(600))
    driver.transcribe("Yes.")
    assert driver.pending(Converse), "'yes' is an answer here"


def test_two_overlaps_in_a_row_and_then_an_interruption() -> None:
    driver = answering()
    for _ in range(2):
        driver.say(speech(300), silence(300))
        driver.transcribe("Uh-huh.")
        listen(driver, 0.5)
    driver.say(speech(1_000))
    assert driver.last(events.ResponseDone).response.status == "cancelled"
    assert len(driver.all(events.InterruptionDismissed)) == 2


@pytest.mark.parametrize("what", ["clear", "commit", "manual", "immediate", "off", "cancel", "failed"])
def test_an_answer_never_stays_paused(what: str) -> None:
    driver = answering()
    driver.say(speech(300), silence(200))
    match what:
        case "clear":
            driver.do(client.InputAudioClear())
        case "commit":
            driver.do(client.InputAudioCommit())
        case "manual":
            driver.update({"audio": {"input": {"turn_detection": None}}})
        case "immediate":
            driver.update({"interruption": {"mode": "immediate"}})
        case "off":
            driver.update({"audio": {"input": {"turn_detection": {"interrupt_response": False}}}})
        case "cancel":
            driver.do(client.ResponseCancel())
        case "failed":
            driver.transcribe("", "failed")
    listen(driver, 12)
    assert not driver.machine._answering.responses.paused
    expected = "cancelled" if what in ("immediate", "cancel", "failed") else "completed"
    assert driver.all(events.ResponseDone)[0].response.status == expected
    assert driver.machine.held_bytes == 0


@pytest.mark.parametrize(("words", "status"), [("Mhm.", "completed"), ("Stop it.", "cancelled")])
def test_a_client_that_sends_no_more_in_the_middle_of_its_speech_is_judged_by_what_came(
    words: str, status: str
) -> None:
    driver = answering()
    driver.say(speech(300))
    driver.wait(1.1)
    driver.transcribe(words)
    driver.wait(12)
    assert driver.last(events.ResponseDone).response.status == status


def test_a_stock_client_that_did_not_ask_for_them_gets_no_events_of_ours() -> None:
    driver = answering()
    driver.update({"extensions": None})
    driver.say(speech(300), silence(300))
    driver.transcribe("Mhm.")
    only_listened(driver)
    assert not any(kind.startswith("x.") for kind in driver.kinds())


def test_the_default_interrupts_at_once_and_says_nothing_of_it_in_the_session() -> None:
    driver = Driver()
    driver.spoken_turn(ms=10_000)
    driver.say(speech(96))
    assert len(driver.all(events.SpeechStarted)) == 2
    driver.update({"instructions": "x"})
    session = msgspec.to_builtins(driver.last(events.SessionUpdated).session)
    assert not {"interruption", "pacing", "extensions"} & session.keys()
    assert "echo_cancellation" not in session["audio"]["input"]


@pytest.mark.parametrize(
    ("text", "acknowledges"),
    [
        ("mhm", True),
        ("Mm-hmm, yeah.", True),
        ("Uh-huh", True),
        ("I see, thank you.", True),
        ("Thank you, but no.", False),
        ("see", False),
        ("stop", False),
        ("no", False),
        ("okay so what about tomorrow", False),
    ],
)
def test_what_an_acknowledgement_is(text: str, acknowledges: bool) -> None:
    assert Acknowledgements().cover(normalise_words(text)) is acknowledges


def test_a_list_of_ones_own_takes_the_place_of_the_english_one() -> None:
    driver = answering(acknowledgements=["genau", "na klar"])
    driver.say(speech(300), silence(300))
    driver.transcribe("Genau, na klar.")
    only_listened(driver)


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"mode": "adaptiv"}, "session.interruption.mode"),
        ({"mode": "immediate", "min_words": 3}, "session.interruption.min_words"),
        ({"mode": "adaptive", "min_duration_ms": 10}, "session.interruption.min_duration_ms"),
    ],
)
def test_a_wrong_setting_is_named(patch: dict[str, Any], param: str) -> None:
    driver = Driver({"interruption": patch})
    assert driver.last(events.ErrorEvent).error.param == param
