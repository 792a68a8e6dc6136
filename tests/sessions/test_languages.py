"""What a session's language leads to: a recogniser that knows it, and an answer in text where no voice does."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import Driver, silence, speech

from duologue.engine.languages import WHISPER
from duologue.engine.requests import Converse, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events


def driver(**transcription: Any) -> Driver:
    made = Driver(languages=WHISPER, voice_languages=frozenset({"en"}))
    if transcription:
        made.update({"audio": {"input": {"transcription": transcription}}})
    return made


def asked(made: Driver) -> list[Transcribe]:
    return [
        payload
        for request in made.requests.values()
        if isinstance(payload := request.payload, Transcribe) and payload.audio
    ]


def turn(made: Driver) -> events.ResponseCreated:
    while made.pending(Transcribe):
        made.finish(made.pending(Transcribe)[0])  # the recogniser is ready
    made.say(speech(600), silence(800))
    made.transcribe("Guten Tag.", language="de")
    return made.last(events.ResponseCreated)


def test_the_recogniser_is_told_the_language() -> None:
    made = driver(language="de-AT")
    made.say(speech(600), silence(800))
    assert [payload.language for payload in asked(made)] == ["de-AT"]


def test_the_first_of_several_languages_is_taken() -> None:
    made = driver(languages=["fr", "en"])
    made.say(speech(600), silence(800))
    assert [payload.language for payload in asked(made)] == ["fr"]


@pytest.mark.parametrize(
    ("transcription", "param"),
    [
        ({"language": "xx"}, "session.audio.input.transcription.language"),
        ({"languages": ["en", "Klingon"]}, "session.audio.input.transcription.languages[1]"),
    ],
)
def test_a_language_that_nobody_knows_is_refused(transcription: dict[str, Any], param: str) -> None:
    made = driver()
    made.update({"audio": {"input": {"transcription": transcription}}})
    error = made.last(events.ErrorEvent).error
    assert (error.code, error.param) == ("invalid_value", param)


def test_without_a_multilingual_model_only_english_is_taken() -> None:
    made = Driver(languages=frozenset({"en"}))
    made.update({"audio": {"input": {"transcription": {"language": "de"}}}})
    assert "English only" in made.last(events.ErrorEvent).error.message
    made.update({"audio": {"input": {"transcription": {"language": "en-GB"}}}})
    assert len(made.all(events.ErrorEvent)) == 1


def test_the_recogniser_gets_ready_once_for_another_language_and_nothing_is_said_of_it() -> None:
    made = driver(language="de")
    (request_id,) = made.pending(Transcribe)
    payload = made.requests[request_id].payload
    assert isinstance(payload, Transcribe)
    assert (payload.audio, payload.language) == (b"", "de")
    seen = len(made.sent)
    made.finish(request_id, "failed", "It cannot be had.")
    assert len(made.sent) == seen
    made.update({"audio": {"input": {"transcription": {"language": "de", "prompt": "Hallo"}}}})
    assert not made.pending(Transcribe)
    made.update({"audio": {"input": {"transcription": {"language": "en"}}}})
    made.update({"audio": {"input": {"transcription": {"language": "fr"}}}})
    assert made.requests[made.pending(Transcribe)[-1]].payload.language == "fr"  # type: ignore[union-attr]


def test_nothing_has_to_get_ready_for_english() -> None:
    assert not driver(language="en").requests


def test_a_language_without_a_voice_is_answered_in_text_and_the_response_says_why() -> None:
    created = turn(driver(language="de"))
    assert created.response.output_modalities == ("text",)
    assert created.response.metadata == {"duologue.capability": "No voice here speaks German: the answer is in text."}


def test_the_engine_is_asked_for_text_and_the_note_is_in_the_end_too() -> None:
    made = driver(language="de")
    turn(made)
    assert made.asked().modalities == ("text",)
    made.write("Guten Tag.")
    made.finish(made.pending(Converse)[0])
    done = made.last(events.ResponseDone).response
    assert done.metadata is not None
    assert "German" in done.metadata["duologue.capability"]
    assert made.all(events.OutputTextDelta)


def test_the_clients_own_metadata_stays_and_is_never_too_much() -> None:
    made = driver(language="ja")
    own = {"topic": "weather"}
    made.do(client.ResponseCreate(response={"metadata": own}))
    metadata = made.last(events.ResponseCreated).response.metadata
    assert metadata is not None
    assert metadata["topic"] == "weather"
    assert "Japanese" in metadata["duologue.capability"]
    made.do(client.ResponseCancel())
    full = {f"key{number}": "value" for number in range(16)}
    made.do(client.ResponseCreate(response={"metadata": full}))
    assert made.last(events.ResponseCreated).response.metadata == full


def test_english_and_a_pipeline_that_speaks_any_language_are_answered_aloud() -> None:
    for made in (
        driver(language="en-US"),
        driver(),
        Driver({"audio": {"input": {"transcription": {"language": "de"}}}}),
    ):
        made.do(client.ResponseCreate())
        response = made.last(events.ResponseCreated).response
        assert (response.output_modalities, response.metadata) == (("audio",), None)
