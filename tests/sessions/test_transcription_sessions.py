"""Sessions that only listen, and how a session becomes one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from session_driver import NAMES, Driver, silence, speech

from duologue.engine.requests import Converse, TokenLogprob, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import RealtimeSession, Transcription, TranscriptionSession
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputText, MessageItem
from duologue.sessions.manager import ManagerSettings, Opening, SessionManager
from duologue.sessions.updating import Bound

OPEN = Bound(type=False, model=False)
LISTEN = {"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper-1", "language": "en"}}}}


def listening(**kwargs: Any) -> Driver:
    return Driver(LISTEN, transcription=False, bound=OPEN, **kwargs)


def test_the_first_update_decides_what_the_session_is_for() -> None:
    driver = listening()
    updated = driver.last(events.SessionUpdated).session
    assert isinstance(updated, TranscriptionSession)
    assert updated.object == "realtime.transcription_session"
    assert updated.audio.input.transcription is not None
    assert updated.audio.input.transcription.language == "en"
    assert updated.id == driver.last(events.SessionCreated).session.id
    driver.update({"type": "realtime"})
    assert driver.last(events.ErrorEvent).error.param == "session.type"


def test_a_later_update_cannot_turn_a_conversation_into_a_transcription() -> None:
    driver = Driver({"instructions": "Hi."}, transcription=False, bound=OPEN)
    driver.update(LISTEN)
    assert driver.last(events.ErrorEvent).error.param == "session.type"
    assert isinstance(driver.machine.session, RealtimeSession)


def test_nor_can_the_first_update_once_something_has_been_said() -> None:
    driver = Driver(transcription=False, bound=OPEN)
    driver.do(client.ItemCreate(item=MessageItem(role="user", content=(InputText(text="Hi"),))))
    driver.update(LISTEN)
    assert driver.last(events.ErrorEvent).error.param == "session.type"


def test_turns_become_words_and_nothing_answers() -> None:
    driver = listening(speculate=True)
    seen = len(driver.sent)
    driver.say(speech(600), silence(800))
    driver.transcribe("Hello.")
    assert driver.kinds()[seen:] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    driver.wait(60)
    assert not driver.pending(Converse)
    assert not driver.pending(Transcribe)


def test_a_manual_commit_is_recognised_with_the_sessions_language() -> None:
    driver = listening()
    driver.update({"audio": {"input": {"turn_detection": None}}})
    driver.say(speech(300))
    driver.do(client.InputAudioCommit())
    request = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(request, Transcribe)
    assert request.language == "en"
    driver.transcribe("Hello.")
    assert driver.last(events.TranscriptionCompleted).transcript == "Hello."


def test_without_transcription_nothing_is_recognised() -> None:
    driver = listening()
    driver.update({"audio": {"input": {"transcription": None}}})
    driver.say(speech(600), silence(800))
    assert driver.all(events.InputAudioCommitted)
    assert not driver.requests


@pytest.mark.parametrize("response", [{}, {"conversation": "none"}])
def test_a_response_is_refused(response: dict[str, Any]) -> None:
    driver = listening()
    (error,) = driver.do(client.ResponseCreate(response=response, event_id="r"))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.event_id == "r"
    assert not driver.requests


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"output_modalities": ["text"]}, "session.output_modalities"),
        ({"audio": {"output": {"voice": "heart"}}}, "session.audio.output"),
        ({"audio": {"input": {"transcription": {"model": "no"}}}}, "session.audio.input.transcription.model"),
    ],
)
def test_fields_of_conversations_are_refused(patch: dict[str, Any], param: str) -> None:
    driver = listening()
    driver.update(patch)
    assert driver.last(events.ErrorEvent).error.param == param


def test_retrieve_works_and_keeps_the_input_format() -> None:
    driver = listening()
    driver.say(speech(600), silence(800))
    (retrieved,) = driver.do(client.ItemRetrieve(item_id=driver.last(events.InputAudioCommitted).item_id))
    assert retrieved.item.content[0].audio  # type: ignore[attr-defined]


# -- the model of a connection without one -----------------------------------------------------------------------------


def test_the_first_model_named_binds_and_an_alias_of_it_is_no_change() -> None:
    driver = Driver(bound=OPEN)
    driver.update({"model": "second"})
    assert driver.last(events.SessionUpdated).session.model == "second"  # type: ignore[union-attr]
    driver.update({"model": "gpt-realtime"})
    assert driver.last(events.ErrorEvent).error.param == "session.model"


def test_updates_without_a_model_leave_it_open() -> None:
    driver = Driver(bound=OPEN)
    driver.update({"instructions": "Hi."})
    driver.update({"model": "second"})
    assert not driver.all(events.ErrorEvent)


def test_a_model_of_the_url_is_fixed() -> None:
    driver = Driver(bound=Bound(type=False, model=True))
    driver.update({"model": "default"})
    assert not driver.all(events.ErrorEvent)
    driver.update({"model": "second"})
    assert driver.last(events.ErrorEvent).error.param == "session.model"


# -- what a session begins with ----------------------------------------------------------------------------------------


def configured(model: str | None, **opening: Any) -> Any:
    settings = ManagerSettings(
        names=NAMES, model="assistant", voice="heart", instructions="", limits=Driver().machine._core.context.limits
    )
    return SessionManager(None, settings).configure(model, Opening(**opening))  # type: ignore[arg-type]


def test_an_intent_to_transcribe_names_the_recogniser_in_the_url() -> None:
    session = configured("whisper-1", type="transcription")
    assert isinstance(session, TranscriptionSession)
    assert session.audio.input.transcription.model == "whisper-1"  # type: ignore[union-attr]
    assert configured(None, type="transcription").audio.input.transcription.model in NAMES.transcription_models


@pytest.mark.parametrize("model", ["gpt-realtime-whisper", "gpt-live-transcribe"])
def test_recognisers_without_turn_detection_leave_the_turns_to_the_client(model: str) -> None:
    """LiveKit's plugin commits by its own detector, and a commit of ours before it would be one turn too many."""
    session = TranscriptionSession.of(Driver(transcription=False).machine.session, model)
    assert session.audio.input.turn_detection is None
    assert session.audio.input.transcription == Transcription(model=model)


def test_a_secrets_configuration_is_laid_over_the_defaults() -> None:
    session = configured(None, type="realtime", config={"instructions": "Bound.", "model": "second"})
    assert (session.instructions, session.model, session.audio.output.voice) == ("Bound.", "second", "heart")


@pytest.mark.parametrize(
    ("model", "opening"),
    [
        ("assistant", {"type": "transcription"}),
        ("whisper-1", {}),
        (None, {"config": {"nonsense": 1}}),
    ],
)
def test_what_does_not_hold_is_refused(model: str | None, opening: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        configured(model, **opening)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("speculate", [True, False])
def test_logprobs_and_the_language_come_with_the_words(wanted: bool, speculate: bool) -> None:
    driver = listening(gives_logprobs=True, speculate=speculate)
    if wanted:
        driver.update({"include": ["item.input_audio_transcription.logprobs"]})
    driver.say(speech(600), silence(800))
    payload = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(payload, Transcribe)
    assert payload.logprobs is wanted
    token = TokenLogprob(token="né", logprob=-0.25, bytes="né".encode())
    driver.transcribe("né", logprobs=(token,), language="fr")
    delta, completed = driver.last(events.TranscriptionDelta), driver.last(events.TranscriptionCompleted)
    expected = (events.Logprob(token="né", logprob=-0.25, bytes=(110, 195, 169)),) if wanted else UNSET
    assert delta.logprobs == completed.logprobs == expected
    assert completed.languages == (events.Language(code="fr"),)
