"""Responses beside the conversation: a context of their own, in parallel, and nothing of them stays."""

from __future__ import annotations

import pytest
from session_driver import Driver, silence, speech, spread

from duologue.engine.requests import Converse
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.items import InputText, MessageItem

CLASSIFY = {
    "conversation": "none",
    "output_modalities": ["text"],
    "instructions": "Classify.",
    "metadata": {"topic": "support"},
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "My bill is wrong."}]}],
}


def create(driver: Driver, **response: object) -> list[events.ServerEvent]:
    return driver.do(client.ResponseCreate(response=response))


def typed(driver: Driver, text: str, item_id: str = "") -> None:
    item = MessageItem(id=item_id or f"id_{text}", role="user", content=(InputText(text=text),))
    driver.do(client.ItemCreate(item=item))


def test_o26_nothing_of_it_enters_the_conversation() -> None:
    driver = Driver()
    typed(driver, "Hi")
    seen, before = len(driver.sent), [entry.id for entry in driver.machine.conversation]
    create(driver, **CLASSIFY)
    driver.write("billing")
    driver.finish()
    assert driver.kinds()[seen:] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    for event in (driver.last(events.ResponseCreated), driver.last(events.ResponseDone)):
        assert event.response.conversation_id is None
        assert event.response.metadata == {"topic": "support"}
    assert [entry.id for entry in driver.machine.conversation] == before
    driver.do(client.ResponseCreate())
    assert driver.context() == [("system", "Be brief."), ("user", "Hi")]


def test_its_input_is_the_whole_context() -> None:
    driver = Driver()
    typed(driver, "Hi")
    create(driver, **CLASSIFY)
    assert driver.context() == [("system", "Classify."), ("user", "My bill is wrong.")]
    create(driver, conversation="none", input=[])
    assert driver.context() == [("system", "Be brief.")]


def test_without_input_it_sees_the_conversation() -> None:
    driver = Driver()
    typed(driver, "Hi")
    create(driver, conversation="none")
    assert driver.context() == [("system", "Be brief."), ("user", "Hi")]


def test_item_references_stand_for_items_of_the_conversation() -> None:
    driver = Driver()
    typed(driver, "one", "a")
    typed(driver, "two", "b")
    create(driver, conversation="none", input=[{"type": "item_reference", "id": "b"}, *CLASSIFY["input"]])  # type: ignore[misc]
    assert driver.context()[1:] == [("user", "two"), ("user", "My bill is wrong.")]


def test_a_reference_to_nothing_is_named_and_starts_nothing() -> None:
    driver = Driver()
    (error,) = create(driver, conversation="none", input=[{"type": "item_reference", "id": "nobody"}])
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "response.input[0].id"
    assert not driver.requests


def test_a_spoken_input_is_recognised_first_and_not_reported() -> None:
    driver = Driver()
    sound = {"type": "input_audio", "audio": "EREREREREREREREREREREREREREREQ=="}
    create(driver, conversation="none", input=[{"type": "message", "role": "user", "content": [sound]}])
    assert not driver.pending(Converse)
    driver.transcribe("Spoken.")
    assert driver.context()[1:] == [("user", "Spoken.")]
    assert not driver.all(events.TranscriptionCompleted)


def test_input_replaces_the_context_of_an_answer_in_the_conversation_too() -> None:
    driver = Driver()
    typed(driver, "Hi")
    create(driver, input=CLASSIFY["input"])
    assert driver.context()[1:] == [("user", "My bill is wrong.")]
    driver.answer("I see.")
    assert driver.last(events.ResponseDone).response.conversation_id is not None
    create(driver)
    assert driver.context()[1:] == [("user", "Hi"), ("assistant", "I see.")]


def test_o23_it_runs_beside_the_conversations_answer() -> None:
    driver = Driver()
    typed(driver, "Hi")
    create(driver)
    create(driver, **CLASSIFY)
    create(driver, **CLASSIFY)
    first, second, third = driver.pending(Converse)
    driver.write("billing", second)
    driver.write("Hello", first)
    driver.write("money", third)
    for request_id in (third, first, second):
        driver.finish(request_id)
    texts = [event.response.output[0].content[0] for event in driver.all(events.ResponseDone)]  # type: ignore[union-attr]
    assert [getattr(part, "text", None) or part.transcript for part in texts] == ["money", "Hello", "billing"]  # type: ignore[union-attr]
    create(driver)
    assert driver.all(events.ErrorEvent) == []


def test_a_turn_is_answered_while_one_is_in_progress_and_does_not_interrupt_it() -> None:
    driver = Driver()
    create(driver, **CLASSIFY)
    (beside,) = driver.pending(Converse)
    driver.say(speech(600), silence(800))
    driver.transcribe("Hello.")
    assert beside not in driver.aborted
    answer = driver.pending(Converse)[1]
    driver.write("One two.", answer)
    driver.speak(1000, spread("One two.", 1000), answer)
    driver.say(speech(300))
    assert driver.aborted == [answer]
    driver.write("billing", beside)
    driver.finish(beside)
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["cancelled", "completed"]


def test_one_is_cancelled_by_its_id_and_the_other_goes_on() -> None:
    driver = Driver()
    create(driver)
    (created,) = create(driver, **CLASSIFY)
    beside = driver.pending(Converse)[1]
    driver.write("bil", beside)
    driver.do(client.ResponseCancel(response_id=created.response.id))  # type: ignore[attr-defined]
    done = driver.last(events.ResponseDone).response
    assert (done.id, done.status) == (created.response.id, "cancelled")  # type: ignore[attr-defined]
    assert driver.aborted == [beside]
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_a_cancel_without_an_id_leaves_it_alone() -> None:
    driver = Driver()
    create(driver, **CLASSIFY)
    (error,) = driver.do(client.ResponseCancel())
    assert isinstance(error, events.ErrorEvent)
    assert error.error.code == "response_cancel_not_active"


def test_its_sound_is_no_part_of_the_conversations_playback() -> None:
    driver = Driver()
    create(driver, conversation="none")
    driver.answer("Aside.", 2000)
    assert driver.all(events.OutputAudioDelta)
    assert driver.machine._core.ledger.queue_ends_at == 0
    assert driver.machine._answering.responses.idle_since is None


def test_their_number_is_bounded() -> None:
    driver = Driver(limits=Limits(max_parallel_responses=2))
    create(driver, **CLASSIFY)
    create(driver, **CLASSIFY)
    (error,) = create(driver, **CLASSIFY)
    assert isinstance(error, events.ErrorEvent)
    driver.finish()
    (created,) = create(driver, **CLASSIFY)
    assert isinstance(created, events.ResponseCreated)


@pytest.mark.parametrize("part", ["output_text", "input_image"])
def test_what_may_not_be_said_is_named_where_it_stands(part: str) -> None:
    driver = Driver()
    content = {"type": part, "text": "x"} if part == "output_text" else {"type": part, "image_url": "data:,"}
    (error,) = create(driver, input=[{"type": "message", "role": "user", "content": [content]}])
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "response.input[0].content[0].type"
