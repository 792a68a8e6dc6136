"""Interruption, truncation, and what the model is told that it said."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import RATE, Driver, silence, speech, spread

from duologue.engine.requests import AudioDelta, WordSpan
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import DropAudio, EngineOutput, Interrupted
from duologue.sessions.items import InputText, MessageItem

ANSWER = "one two three four five six seven eight nine ten"


def answered(driver: Driver, ms: int = 10_000, text: str = ANSWER) -> str:
    """A spoken turn whose answer of ``ms`` is generated at once; returns the answer's item id."""
    return driver.spoken_turn(text=text, ms=ms)


def heard(driver: Driver) -> str:
    """What the model is shown of the assistant's last answer."""
    return [text for role, text in driver.context() if role == "assistant"][-1]


def next_turn(driver: Driver) -> None:
    driver.say(speech(640), silence(800))
    driver.transcribe("What did you say last?")


def test_o27_barge_in_ends_the_answer_at_once() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    request_id = driver.write(ANSWER)
    driver.speak(5000)
    seen = len(driver.sent)
    driver.say(speech(128))
    assert driver.kinds()[seen:] == [
        "input_audio_buffer.speech_started",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    details = driver.last(events.ResponseDone).response.status_details
    assert details is not None
    assert details.reason == "turn_detected"
    assert driver.aborted == [request_id]


def test_fc_011_nothing_of_the_old_answer_follows() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    request_id = driver.write(ANSWER)
    driver.speak(500)
    driver.say(speech(640))
    seen = len(driver.sent)
    driver.speak(500, request_id=request_id)
    driver.write(" more", request_id)
    driver.finish(request_id)
    assert len(driver.sent) == seen


def test_fc_003_after_a_truncate_the_model_sees_the_words_that_were_played() -> None:
    driver = Driver()
    item_id = answered(driver)
    driver.wait(2.0)
    driver.say(speech(128))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=2500))
    assert driver.last(events.ItemTruncated).audio_end_ms == 2500
    driver.say(speech(640), silence(800))
    driver.transcribe("What did you say last?")
    assert heard(driver) == "one two"


def test_fc_004_without_a_truncate_the_context_is_cut_by_the_clock() -> None:
    driver = Driver()
    answered(driver)
    driver.wait(3.2)
    driver.say(speech(640), silence(800))
    driver.transcribe("What did you say last?")
    # Speech is known to be speech 64 ms after its onset: 3.26 s of ten words in ten seconds.
    assert heard(driver) == "one two three"
    assert not driver.all(events.ItemTruncated)


def test_an_answer_that_was_played_out_stays_whole() -> None:
    driver = Driver()
    answered(driver, ms=2000)
    driver.wait(3.0)
    next_turn(driver)
    assert heard(driver) == ANSWER


def test_an_answer_generated_ahead_of_time_can_be_interrupted_in_its_playing_tail() -> None:
    driver = Driver()
    answered(driver)
    assert driver.last(events.ResponseDone).response.status == "completed"
    driver.wait(6.0)
    seen = len(driver.sent)
    driver.say(speech(128))
    assert driver.kinds()[seen:] == ["input_audio_buffer.speech_started"]
    driver.say(speech(640), silence(800))
    driver.transcribe("And then?")
    assert heard(driver) == "one two three four five six"


def test_a_later_truncate_wins_over_the_clock() -> None:
    driver = Driver()
    item_id = answered(driver)
    driver.wait(5.0)
    driver.say(speech(128))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=1000))
    driver.say(speech(640), silence(800))
    driver.transcribe("And then?")
    assert heard(driver) == "one"


def test_fc_008_an_answer_of_which_nothing_was_heard_is_not_in_the_context() -> None:
    driver = Driver()
    item_id = answered(driver)
    driver.say(speech(128))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=0))
    driver.say(speech(640), silence(800))
    driver.transcribe("Sorry?")
    assert [role for role, _ in driver.context()] == ["system", "user", "user"]


def test_fc_001_truncate_at_zero_before_the_first_sound() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    driver.write("One")
    item_id = driver.last(events.ContentPartAdded).item_id
    driver.say(speech(128))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=0))
    assert driver.last(events.ItemTruncated).item_id == item_id
    assert not driver.all(events.ErrorEvent)
    driver.say(silence(800))
    driver.transcribe("Stop.")
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_fc_022_five_interruptions_in_ten_seconds_and_the_sixth_turn_is_answered() -> None:
    driver = Driver()
    for _ in range(5):
        driver.say(speech(640), silence(640))
        driver.transcribe("Wait.")
        driver.write(ANSWER)
        driver.speak(3000)
    driver.say(speech(640), silence(640))
    driver.transcribe("Now.")
    driver.answer()
    statuses = [event.response.status for event in driver.all(events.ResponseDone)]
    assert statuses == ["cancelled"] * 5 + ["completed"]


def test_fc_027_interrupted_in_the_very_first_sound() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    driver.write("One")
    driver.speak(20)
    driver.say(speech(640), silence(800))
    driver.transcribe("Again.")
    driver.answer()
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["cancelled", "completed"]


def test_the_user_goes_on_before_the_words_of_the_first_half_are_known() -> None:
    driver = Driver()
    driver.say(speech(640), silence(600))
    driver.say(speech(640))
    driver.transcribe("I would like")
    assert not driver.all(events.ResponseCreated)
    driver.say(silence(800))
    driver.transcribe("some tea.")
    assert len(driver.all(events.ResponseCreated)) == 1
    assert driver.context()[-2:] == [("user", "I would like"), ("user", "some tea.")]


def test_words_that_were_never_sent_do_not_count_as_said_after_a_cancel() -> None:
    driver = Driver()
    driver.do(client.ItemCreate(item=MessageItem(role="user", content=(InputText(text="Count."),))))
    driver.do(client.ResponseCreate())
    driver.write(ANSWER)
    driver.speak(2000, spread("one two", 2000))
    driver.do(client.ResponseCancel())
    driver.do(client.ResponseCreate())
    assert heard(driver) == "one two"


def ack(driver: Driver, item_id: str, played_ms: int, committed_ms: int | None = None, **others: str) -> None:
    response_id = others.pop("response_id", driver.last(events.OutputItemDone).response_id)
    committed = played_ms if committed_ms is None else committed_ms
    driver.do(
        client.PlaybackAck(
            response_id=response_id, item_id=item_id, played_ms=played_ms, committed_ms=committed, **others
        )
    )


REPORTS = {"extensions": ["playback"]}


def test_fc_005_a_report_is_believed_and_not_the_clock() -> None:
    driver = Driver(REPORTS)
    item_id = answered(driver)
    for _ in range(5):
        driver.wait(1.0)
    ack(driver, item_id, 2_200)
    driver.wait(1.0)
    driver.say(speech(640), silence(800))
    driver.transcribe("What did you say last?")
    assert heard(driver) == "one two"


def test_fc_005_a_report_that_comes_late_still_counts_and_one_that_comes_too_late_is_an_error() -> None:
    driver = Driver(REPORTS)
    item_id = answered(driver)
    ack(driver, item_id, 1_000)
    driver.wait(3.0)
    driver.say(speech(640), silence(800))
    ack(driver, item_id, 3_000, 3_000)
    assert not driver.all(events.ErrorEvent)
    driver.transcribe("What did you say last?")
    assert heard(driver) == "one two three"
    ack(driver, item_id, 4_000, event_id="late")
    error = driver.last(events.ErrorEvent).error
    assert (error.code, error.event_id) == ("playback_ack_too_late", "late")


def test_a_late_report_voids_an_answer_that_was_prepared_without_it() -> None:
    driver = Driver(REPORTS, speculate=True)
    item_id = answered(driver)
    ack(driver, item_id, 1_000)
    driver.wait(3.0)
    driver.say(speech(640), silence(256))
    driver.transcribe("What did you say?")
    assert heard(driver) == "one"
    ack(driver, item_id, 3_000)
    driver.say(silence(600))
    assert heard(driver) == "one two three"


def test_a_truncate_wins_over_reports() -> None:
    driver = Driver(REPORTS)
    item_id = answered(driver)
    ack(driver, item_id, 4_000)
    driver.say(speech(128))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=2_000))
    ack(driver, item_id, 5_000)
    assert driver.last(events.ErrorEvent).error.code == "playback_ack_too_late"
    next_turn(driver)
    assert heard(driver) == "one two"


@pytest.mark.parametrize(
    ("patch", "fields", "code", "param"),
    [
        (None, {}, "invalid_event", "type"),
        (REPORTS, {"item_id": "item_unknown"}, "playback_item_not_found", "item_id"),
        (REPORTS, {"response_id": "resp_unknown"}, "playback_item_not_found", "item_id"),
        (REPORTS, {"committed_ms": 1_001}, "invalid_value", "committed_ms"),
    ],
)
def test_a_wrong_report_changes_nothing(patch: Any, fields: dict[str, Any], code: str, param: str) -> None:
    driver = Driver(patch)
    item_id = answered(driver)
    ack(driver, **{"item_id": item_id, "played_ms": 1_000, **fields})
    error = driver.last(events.ErrorEvent).error
    assert (error.code, error.param) == (code, param)
    assert driver.machine._core.ledger.item(item_id).reported is None


def test_fc_015_how_long_a_user_speaks_before_the_answer_stops_is_told() -> None:
    driver = Driver()
    answered(driver)
    driver.wait(2.0)
    assert not driver.effects_of(Interrupted)
    driver.say(speech(640), silence(800))
    (interrupted,) = driver.effects_of(Interrupted)
    assert 0.064 <= interrupted.after_s <= 0.064 + 0.032 + 0.020
    driver.transcribe("Wait.")
    driver.answer(ms=500)
    driver.wait(5.0)
    driver.say(speech(640))
    assert len(driver.effects_of(Interrupted)) == 1, "nothing sounded any more"


def test_two_interruptions_cut_two_answers_each_where_it_was() -> None:
    driver = Driver()
    first = answered(driver)
    driver.wait(2.0)
    driver.say(speech(640), silence(800))
    driver.transcribe("And then?")
    driver.answer(ANSWER, ms=10_000)
    driver.wait(4.0)
    driver.say(speech(640), silence(800))
    driver.transcribe("Stop.")
    said = [text for role, text in driver.context() if role == "assistant"]
    assert said == ["one two", "one two three four"]
    driver.do(client.ItemTruncate(item_id=first, audio_end_ms=1_000))
    next_turn(driver)
    said = [text for role, text in driver.context() if role == "assistant"]
    assert said[0] == "one"


def test_sound_that_has_not_left_is_dropped_though_its_response_is_complete() -> None:
    driver = Driver(deliver=False)
    answered(driver)
    response = driver.last(events.ResponseDone).response
    assert response.status == "completed"
    driver.say(speech(128))
    assert [effect.response_id for effect in driver.effects_of(DropAudio)] == [response.id]
    next_turn(driver)
    assert [role for role, _ in driver.context()] == ["system", "user", "user"]


@pytest.mark.parametrize("samples", [24_001, 24_010, 24_023])
def test_a_client_that_played_all_and_rounds_down_has_heard_the_last_word(samples: int) -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    request_id = driver.write("one")
    word = WordSpan(text_start=0, text_end=3, end_sample=samples)
    driver.do(EngineOutput(request_id, AudioDelta(pcm=bytes(samples * 2), words=(word,))))
    driver.finish(request_id)
    item_id = str(driver.last(events.OutputItemDone).item.id)
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=samples * 1000 // RATE))
    next_turn(driver)
    assert heard(driver) == "one"


# -- truncate and retrieve ---------------------------------------------------------------------------------------------


def test_o31_retrieve_after_truncate_has_the_sound_and_no_transcript() -> None:
    driver = Driver()
    item_id = answered(driver)
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=2000))
    (retrieved,) = driver.do(client.ItemRetrieve(item_id=item_id))
    assert isinstance(retrieved, events.ItemRetrieved)
    (part,) = retrieved.item.content  # type: ignore[union-attr]
    assert len(part.audio) == 2 * RATE * 2  # type: ignore[union-attr, arg-type]
    assert not part.transcript  # type: ignore[union-attr]


def test_truncate_beyond_the_end_is_refused_but_for_a_frame_of_rounding() -> None:
    driver = Driver()
    item_id = answered(driver, ms=1000)
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=1021, event_id="t"))
    error = driver.last(events.ErrorEvent).error
    assert (error.code, error.event_id) == ("invalid_value", "t")
    assert error.message == "Audio content of 1000ms is already shorter than 1021ms"
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=1020))
    assert driver.all(events.ItemTruncated)


def test_a_truncation_is_clamped_to_what_was_sent() -> None:
    driver = Driver(deliver=False)
    item_id = answered(driver)
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=9000))
    driver.do(client.ResponseCreate())
    assert [role for role, _ in driver.context()] == ["system", "user"]


@pytest.mark.parametrize("which", ["unknown", "user"])
def test_only_the_assistants_sound_can_be_truncated(which: str) -> None:
    driver = Driver()
    answered(driver)
    user_id = str(driver.all(events.ItemDone)[0].item.id)
    item_id = user_id if which == "user" else "item_unknown"
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=0))
    code = driver.last(events.ErrorEvent).error.code
    assert code == ("invalid_value" if which == "user" else "item_truncate_invalid_item_id")
    assert not driver.all(events.ItemTruncated)
