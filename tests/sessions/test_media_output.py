"""A session with a media clock: the track says what it plays, the server cuts what was not heard (O29, O30)."""

from __future__ import annotations

import pytest
from session_driver import RATE, Driver, silence, speech, spread
from traced import TracedDriver

from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import AudioSent, Play, Shutdown

ANSWER = "one two three four five six seven eight nine ten"
STARTED, STOPPED, CLEARED = (f"output_audio_buffer.{name}" for name in ("started", "stopped", "cleared"))


def answered(driver: Driver, ms: int = 10_000) -> str:
    """A turn of the user whose answer of ``ms`` is generated at once; nothing of it has been played. Its item's id."""
    driver.speak_into(speech(600), silence(800))
    driver.transcribe("Hello there.")
    driver.answer(ANSWER, ms)
    return str(driver.last(events.OutputItemDone).item.id)


def ask_again(driver: Driver) -> None:
    driver.speak_into(silence(800))
    driver.transcribe("What did you say last?")


def said_by_assistant(driver: Driver) -> str:
    """What the model is shown of its last answer."""
    return [text for role, text in driver.context() if role == "assistant"][-1]


def test_o30_an_answer_starts_and_stops_and_no_sound_is_in_events() -> None:
    driver = Driver(media_clock=True)
    answered(driver, 1000)
    assert STARTED not in driver.kinds()
    driver.listen(1000)
    kinds = driver.kinds()
    assert kinds.index("response.content_part.added") < kinds.index(STARTED) < kinds.index(STOPPED)
    assert kinds.index("response.done") < kinds.index(STOPPED)
    assert "response.output_audio.delta" not in kinds
    assert "response.output_audio.done" in kinds
    assert b"".join(effect.pcm for effect in driver.effects_of(Play)) == speech(1000)


@pytest.mark.parametrize("generating", [False, True])
def test_o29_an_interruption_cuts_at_what_was_played(generating: bool) -> None:
    """FC-003 over WebRTC: a 10 s answer that is made at once is interrupted after 2 s."""
    driver = Driver(media_clock=True)
    if generating:
        driver.speak_into(speech(600), silence(800))
        driver.transcribe("Hello there.")
        request_id = driver.write(ANSWER)
        driver.speak(10_000, spread(ANSWER, 10_000), request_id)
        item_id = str(driver.last(events.OutputItemAdded).item.id)
    else:
        item_id = answered(driver)
    driver.listen(2000)
    driver.speak_into(speech(128))
    truncated, cleared = driver.last(events.ItemTruncated), driver.last(events.OutputAudioCleared)
    assert (truncated.item_id, truncated.content_index) == (item_id, 0)
    # the detector heard the user for 64 to 128 ms, in which the track went on
    assert 2000 < truncated.audio_end_ms <= 2128
    assert driver.kinds().count(CLEARED) == 1
    assert STOPPED not in driver.kinds()
    done = driver.last(events.ResponseDone).response
    assert done.id == cleared.response_id
    assert done.status == ("cancelled" if generating else "completed")
    ask_again(driver)
    assert said_by_assistant(driver) == "one two"
    item = driver.do(client.ItemRetrieve(item_id=item_id))[-1].item  # type: ignore[attr-defined]
    assert len(item.content[0].audio) == truncated.audio_end_ms * RATE // 1000 * 2
    assert not item.content[0].transcript
    before = len(driver.sent)
    driver.listen(500)
    assert driver.kinds()[before:] == []


def test_a_report_that_was_on_its_way_when_the_user_broke_in_counts_until_a_model_was_shown() -> None:
    driver = Driver(media_clock=True)
    item_id = answered(driver)
    driver.listen(2000)
    driver.speak_into(speech(128))
    missing = 3 * RATE - driver.last(events.ItemTruncated).audio_end_ms * RATE // 1000
    driver.do(AudioSent(item_id, missing))
    ask_again(driver)
    assert said_by_assistant(driver) == "one two three"
    driver.do(AudioSent(item_id, RATE))
    driver.speak_into(speech(600))
    ask_again(driver)
    assert said_by_assistant(driver) == "one two three"


def test_what_has_been_played_to_its_end_is_not_cut() -> None:
    driver = Driver(media_clock=True)
    answered(driver, 1000)
    driver.listen(1000)
    driver.speak_into(speech(640))
    assert driver.all(events.ItemTruncated) == []
    assert CLEARED not in driver.kinds()
    ask_again(driver)
    assert said_by_assistant(driver) == ANSWER


def test_an_answer_that_nobody_heard_is_cut_to_nothing() -> None:
    driver = Driver(media_clock=True)
    item_id = answered(driver)
    driver.machine.handle(client.OutputAudioClear(), driver.now)
    driver = Driver(media_clock=True)
    item_id = answered(driver)
    driver.do(client.OutputAudioClear())
    truncated = driver.last(events.ItemTruncated)
    assert (truncated.item_id, truncated.audio_end_ms) == (item_id, 0)
    assert not {STARTED, STOPPED, CLEARED} & set(driver.kinds())


def test_a_client_cancels_and_clears_as_the_javascript_client_does() -> None:
    driver = Driver(media_clock=True)
    driver.speak_into(speech(600), silence(800))
    driver.transcribe("Hello there.")
    driver.speak(10_000, spread(ANSWER, 10_000), driver.write(ANSWER))
    driver.listen(3000)
    driver.do(client.ResponseCancel())
    driver.listen(500)
    assert driver.last(events.ResponseDone).response.status == "cancelled"
    assert CLEARED not in driver.kinds(), "a cancelled answer is played as far as it was made"
    driver.do(client.OutputAudioClear())
    assert driver.last(events.ItemTruncated).audio_end_ms == 3500
    assert driver.kinds()[-1] == CLEARED
    driver.listen(100)
    assert STOPPED not in driver.kinds()


def test_clear_alone_mutes_the_rest_of_the_answer() -> None:
    driver = Driver(media_clock=True)
    driver.speak_into(speech(600), silence(800))
    driver.transcribe("Hello there.")
    request_id = driver.write(ANSWER)
    driver.speak(1000, (), request_id)
    driver.listen(200)
    driver.do(client.OutputAudioClear())
    driver.speak(1000, (), request_id)
    driver.finish(request_id)
    driver.listen(2000)
    kinds = driver.kinds()
    assert (kinds.count(STARTED), kinds.count(CLEARED), kinds.count(STOPPED)) == (1, 1, 0)


def test_without_interrupt_response_it_plays_on() -> None:
    driver = Driver(
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}}, media_clock=True
    )
    answered(driver, 2000)
    driver.listen(500)
    driver.speak_into(speech(640))
    driver.listen(1000)
    assert driver.kinds()[-1] == STOPPED
    assert driver.all(events.ItemTruncated) == []


def test_the_client_may_truncate_what_it_heard_and_the_rest_is_not_played() -> None:
    driver = Driver(media_clock=True)
    item_id = answered(driver)
    driver.listen(2000)
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=1500))
    assert [event.audio_end_ms for event in driver.all(events.ItemTruncated)] == [1500]
    assert driver.kinds()[-1] == CLEARED
    driver.listen(200)
    driver.speak_into(speech(640))
    ask_again(driver)
    assert said_by_assistant(driver) == "one"


def test_sound_in_events_is_refused_on_a_call_and_clear_without_one() -> None:
    on_call, on_socket = Driver(media_clock=True), Driver()
    for driver, event in ((on_call, client.InputAudioAppend(audio=speech(20))), (on_socket, client.OutputAudioClear())):
        error = driver.do(event)[-1]
        assert isinstance(error, events.ErrorEvent)
        assert (error.error.code, error.error.param) == ("invalid_event", "type")
    before = len(on_call.sent)
    on_call.do(client.OutputAudioClear())
    assert on_call.kinds()[before:] == [], "nothing plays: nothing is cleared"


def test_the_idle_timeout_counts_from_the_end_of_the_sound() -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 5000}
    driver = Driver({"audio": {"input": {"turn_detection": detection}}}, media_clock=True)
    answered(driver, 4000)
    driver.listen(4000)
    driver.wait(4.9)
    assert driver.all(events.IdleTimeoutTriggered) == []
    driver.wait(0.2)
    assert len(driver.all(events.IdleTimeoutTriggered)) == 1


def test_without_turn_detection_only_the_newest_sound_is_kept() -> None:
    driver = Driver(
        {"audio": {"input": {"turn_detection": None}}}, limits=Limits(max_manual_buffer_s=2.0), media_clock=True
    )
    driver.speak_into(silence(3000), speech(1000))
    assert driver.all(events.ErrorEvent) == []
    driver.do(client.InputAudioCommit())
    item = driver.do(client.ItemRetrieve(item_id=driver.last(events.InputAudioCommitted).item_id))[-1].item  # type: ignore[attr-defined]
    assert item.content[0].audio == silence(1000) + speech(1000)


def test_g711_settings_do_not_change_what_the_track_carries() -> None:
    driver = Driver(
        {"audio": {"input": {"format": {"type": "audio/pcmu"}}, "output": {"format": {"type": "audio/pcma"}}}},
        media_clock=True,
    )
    answered(driver, 500)
    driver.listen(500)
    assert driver.kinds()[-1] == STOPPED
    assert b"".join(effect.pcm for effect in driver.effects_of(Play)) == speech(500)


def test_a_shutdown_waits_until_the_answer_was_heard() -> None:
    driver = Driver(media_clock=True)
    answered(driver, 1000)
    driver.listen(100)
    driver.do(Shutdown())
    assert driver.closed is None
    driver.listen(900)
    assert driver.closed is not None
    assert driver.kinds()[-1] == STOPPED


def test_an_answer_beside_the_conversation_is_played_too() -> None:
    driver = TracedDriver(media_clock=True)
    driver.do(client.ResponseCreate(response={"conversation": "none", "input": []}))
    driver.answer("Aside.", 400)
    driver.listen(400)
    driver.read_all()
    assert driver.got()[-1]["type"] == STOPPED
