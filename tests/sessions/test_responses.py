"""The life of a response: event sequences, outcomes, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from session_driver import Driver, silence, speech

from duologue.engine.requests import Converse, Usage
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.items import InputText, MessageItem

AUDIO_SEQUENCE = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def typed(driver: Driver, text: str, **response: object) -> None:
    """A typed question and a request for an answer."""
    driver.do(client.ItemCreate(item=MessageItem(role="user", content=(InputText(text=text),))))
    driver.do(client.ResponseCreate(response=response) if response else client.ResponseCreate())


def test_o16_o17_an_audio_response() -> None:
    driver = Driver()
    typed(driver, "Hi")
    seen = driver.kinds().index("response.created")
    driver.answer()
    assert driver.kinds()[seen:] == AUDIO_SEQUENCE
    done = driver.last(events.ResponseDone).response
    assert done.status == "completed"
    assert done.usage is not None
    assert (done.usage.total_tokens, done.usage.input_token_details.cached_tokens) == (12, 3)
    assert driver.last(events.ResponseCreated).response.usage is None


def test_o18_a_text_response() -> None:
    driver = Driver({"output_modalities": ["text"]})
    typed(driver, "Hi")
    request = driver.requests[driver.pending(Converse)[0]].payload
    assert isinstance(request, Converse)
    assert request.modalities == ("text",)
    seen = driver.kinds().index("response.created")
    driver.write("Hello")
    driver.write(" there.")
    driver.finish()
    assert driver.kinds()[seen:] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]


def test_o20_joined_deltas_are_the_text_everywhere() -> None:
    driver = Driver()
    typed(driver, "Hi")
    for piece in ("One", " two", " three."):
        driver.write(piece)
    driver.speak(500)
    driver.finish()
    joined = "".join(event.delta for event in driver.all(events.OutputAudioTranscriptDelta))
    assert joined == "One two three."
    assert driver.last(events.OutputAudioTranscriptDone).transcript == joined
    assert driver.last(events.ContentPartDone).part.transcript == joined
    for item in (driver.last(events.ItemDone).item, *driver.last(events.ResponseDone).response.output):
        assert item.content[0].transcript == joined  # type: ignore[union-attr]


def test_o23_fc_065_a_second_response_is_refused_and_the_first_goes_on() -> None:
    driver = Driver()
    typed(driver, "Hi")
    driver.do(client.ResponseCreate(event_id="second"))
    error = driver.last(events.ErrorEvent).error
    assert error.code == "conversation_already_has_active_response"
    assert error.event_id == "second"
    assert driver.last(events.ResponseCreated).response.id in error.message
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_o25_cancel_closes_what_is_open_and_aborts_the_engine() -> None:
    driver = Driver()
    typed(driver, "Hi")
    request_id = driver.write("One")
    driver.speak(300)
    seen = len(driver.sent)
    driver.do(client.ResponseCancel())
    assert driver.kinds()[seen:] == AUDIO_SEQUENCE[-6:]
    details = driver.last(events.ResponseDone).response.status_details
    assert details is not None
    assert (details.type, details.reason) == ("cancelled", "client_cancelled")
    assert driver.aborted == [request_id]


def test_fc_068_nothing_follows_a_cancel() -> None:
    driver = Driver()
    typed(driver, "Hi")
    request_id = driver.write("One")
    driver.do(client.ResponseCancel())
    seen = len(driver.sent)
    driver.write(" two", request_id)
    driver.finish(request_id)
    assert len(driver.sent) == seen
    assert [event.response.status for event in driver.all(events.ResponseDone)] == ["cancelled"]


@pytest.mark.parametrize("response_id", [None, "resp_other"])
def test_cancel_without_an_active_response_is_one_harmless_error(response_id: str | None) -> None:
    driver = Driver()
    (error,) = driver.do(client.ResponseCancel(response_id=response_id))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.code == "response_cancel_not_active"
    assert error.error.message.startswith("Cancellation failed")


def test_a_cancel_before_the_first_delta_ends_without_an_item() -> None:
    driver = Driver()
    typed(driver, "Hi")
    driver.do(client.ResponseCancel())
    done = driver.last(events.ResponseDone).response
    assert done.status == "cancelled"
    assert done.output == ()
    assert not driver.all(events.OutputItemAdded)


def test_fc_110_a_used_up_budget_is_incomplete() -> None:
    driver = Driver()
    typed(driver, "Hi", max_output_tokens=5)
    request = driver.requests[driver.pending(Converse)[0]].payload
    assert isinstance(request, Converse)
    assert request.max_output_tokens == 5
    driver.write("One")
    driver.speak(200)
    driver.finish(reason="length")
    response = driver.last(events.ResponseDone).response
    assert response.status == "incomplete"
    assert response.status_details is not None
    assert response.status_details.reason == "max_output_tokens"


def test_fc_116_fc_084_a_failed_stage_is_an_error_and_a_terminal_event() -> None:
    driver = Driver()
    typed(driver, "Hi")
    driver.write("One")
    driver.finish(reason="failed", error="Stage 'talker' made no progress for 60 s.")
    assert driver.last(events.ErrorEvent).error.type == "server_error"
    response = driver.last(events.ResponseDone).response
    assert response.status == "failed"
    assert response.status_details is not None
    assert "talker" in response.status_details.error.message  # type: ignore[union-attr]
    typed(driver, "Again")
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_overrides_hold_for_one_response() -> None:
    driver = Driver()
    typed(
        driver,
        "Hi",
        instructions="Shout.",
        output_modalities=["text"],
        metadata={"client_event_id": "x"},
    )
    assert driver.context()[0] == ("system", "Shout.")
    created = driver.last(events.ResponseCreated).response
    assert created.metadata == {"client_event_id": "x"}
    assert created.output_modalities == ("text",)
    driver.write("HELLO")
    driver.finish()
    assert driver.last(events.ResponseDone).response.metadata == {"client_event_id": "x"}
    driver.do(client.ResponseCreate())
    assert driver.context()[0] == ("system", "Be brief.")
    assert driver.last(events.ResponseCreated).response.output_modalities == ("audio",)


def test_the_first_chunk_is_as_long_as_the_response_or_else_the_session_says() -> None:
    driver = Driver()

    def asked_for(**response: Any) -> float | None:
        typed(driver, "Hi", **response)
        (request,) = driver.requests.values()
        driver.finish()
        return request.first_chunk_s

    assert asked_for() is None
    driver.update({"instructions": "x"})
    assert "first_chunk_ms" not in msgspec.to_builtins(driver.machine.session)["audio"]["output"]
    driver.update({"audio": {"output": {"first_chunk_ms": 250}}})
    assert driver.last(events.SessionUpdated).session.audio.output.first_chunk_ms == 250  # type: ignore[union-attr]
    assert asked_for() == 0.25
    assert asked_for(audio={"output": {"first_chunk_ms": 13}}) == 0.013
    driver.update({"audio": {"output": {"first_chunk_ms": None}}})
    assert asked_for() is None


def test_an_answer_that_turn_detection_begins_has_the_first_chunk_of_the_session() -> None:
    driver = Driver({"audio": {"output": {"first_chunk_ms": 400}}})
    driver.say(speech(600), silence(700))
    driver.transcribe("Hello there.")
    (request_id,) = driver.pending(Converse)
    assert driver.requests[request_id].first_chunk_s == 0.4


@pytest.mark.parametrize(
    ("response", "param"),
    [
        ({"audio": {"output": {"first_chunk_ms": 0}}}, "response.audio.output.first_chunk_ms"),
        ({"modalities": ["text"]}, "response.modalities"),
        ({"metadata": {"k": 1}}, "response.metadata"),
        ({"max_output_tokens": 0}, "response.max_output_tokens"),
        ({"audio": {"output": {"voice": "nobody"}}}, "response.audio.output.voice"),
        ({"conversation": "other"}, "response.conversation"),
        ({"input": [{"type": "item_reference"}]}, "response.input"),
        ({"prompt": {"id": 3}}, "response.prompt"),
        ({"reasoning": {"effort": "utmost"}}, "response.reasoning"),
    ],
)
def test_a_wrong_override_names_its_field_and_starts_nothing(response: dict[str, object], param: str) -> None:
    driver = Driver()
    (error,) = driver.do(client.ResponseCreate(response=response, event_id="e"))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param is not None
    assert error.error.param.startswith(param)
    assert error.error.event_id == "e"
    assert not driver.requests


def test_g711_output_is_in_the_format_that_the_response_names() -> None:
    driver = Driver({"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    typed(driver, "Hi")
    driver.write("One")
    for _ in range(10):
        driver.speak(100)
    driver.finish()
    sent = b"".join(event.delta for event in driver.all(events.OutputAudioDelta))
    assert len(sent) == pytest.approx(8000, abs=8)
    assert driver.kinds().index("response.output_audio.done") > max(
        index for index, kind in enumerate(driver.kinds()) if kind == "response.output_audio.delta"
    )


def test_fc_063_a_response_may_be_created_while_the_user_speaks() -> None:
    driver = Driver()
    driver.say(speech(640))
    driver.do(client.ResponseCreate())
    driver.answer()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_a_response_created_by_hand_takes_the_place_of_the_automatic_one() -> None:
    driver = Driver()
    driver.say(speech(640), bytes(48 * 800))
    driver.do(client.ResponseCreate())
    driver.transcribe("Hello.")
    assert len(driver.all(events.ResponseCreated)) == 1
    assert not driver.all(events.ErrorEvent)
    driver.answer()
    assert len(driver.all(events.ResponseDone)) == 1


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("how", ["cancel", "interrupt"])
def test_a_response_that_is_broken_off_says_what_it_has_used(speculate: bool, how: str) -> None:
    driver = Driver(speculate=speculate)
    driver.say(speech(600), silence(200))
    if speculate:
        driver.transcribe("Hello.")
        driver.write("One", usage=Usage(input_tokens=20, cached_tokens=12, output_tokens=1))
        driver.say(silence(600))
    else:
        driver.say(silence(600))
        driver.transcribe("Hello.")
        driver.write("One", usage=Usage(input_tokens=20, cached_tokens=12, output_tokens=1))
    driver.write(" two", usage=Usage(input_tokens=20, cached_tokens=12, output_tokens=9))
    if how == "cancel":
        driver.do(client.ResponseCancel())
    else:
        driver.say(speech(300))
    usage = driver.last(events.ResponseDone).response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 9, 29)
    assert usage.input_token_details.cached_tokens == 12


def test_fc_063_a_response_waits_until_the_user_is_silent_where_that_is_the_option() -> None:
    driver = Driver(limits=Limits(wait_for_silence_s=10))
    driver.say(speech(600))
    assert not driver.do(client.ResponseCreate(response={"metadata": {"asked": "by hand"}}))
    (refused,) = driver.do(client.ResponseCreate(event_id="second"))
    assert isinstance(refused, events.ErrorEvent)
    assert (refused.error.code, refused.error.event_id) == ("conversation_already_has_active_response", "second")
    driver.do(client.ResponseCreate(response={"conversation": "none"}))
    assert driver.last(events.ResponseCreated).response.conversation_id is None
    driver.say(silence(800))
    driver.transcribe("Hello.")
    made = [event.response for event in driver.all(events.ResponseCreated) if event.response.conversation_id]
    assert [response.metadata for response in made] == [{"asked": "by hand"}]
    assert driver.context()[-1] == ("user", "Hello.")


@pytest.mark.parametrize("how", ["time", "clear"])
def test_fc_063_it_does_not_wait_for_ever(how: str) -> None:
    driver = Driver(limits=Limits(wait_for_silence_s=2))
    driver.say(speech(600))
    driver.do(client.ResponseCreate())
    driver.wait(1.9)
    assert not driver.all(events.ResponseCreated)
    driver.wait(0.2) if how == "time" else driver.do(client.InputAudioClear())
    assert len(driver.all(events.ResponseCreated)) == 1
