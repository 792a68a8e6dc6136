"""What the model is told that it said, against the synthesised voice's own map of its words."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import RATE, Driver, silence, speech
from voice import synthesised

from duologue.engine.requests import AudioDelta
from duologue.engine.words import word_errors
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import EngineOutput

pytestmark = pytest.mark.models
TEXT = "Sure, it costs $9.99. I can tell you a story about a small boat that crossed the great ocean in winter."


@pytest.fixture(scope="module")
def spoken() -> list[AudioDelta]:
    """``TEXT`` as talker and codec speak it."""
    return synthesised(TEXT)


def ends(spoken: list[AudioDelta]) -> list[tuple[str, int]]:
    """Words of the text with the sample at which their sound is over."""
    spans = [span for delta in spoken for span in delta.words]
    return [(TEXT[span.text_start : span.text_end], span.end_sample) for span in spans]


def answering(spoken: list[AudioDelta], patch: dict[str, Any] | None = None) -> tuple[Driver, str]:
    driver = Driver(patch)
    driver.say(speech(640), silence(800))
    driver.transcribe("Tell me something.")
    request_id = driver.write(TEXT)
    for delta in spoken:
        driver.do(EngineOutput(request_id, delta))
    item_id = (driver.machine._answering.spoken or ("", ""))[1]
    driver.finish(request_id)
    return driver, item_id


def remembered(driver: Driver) -> str:
    driver.say(silence(800))
    driver.transcribe("What did you say last?")
    said = [text for role, text in driver.context() if role == "assistant"]
    return said[-1] if said else ""


def test_the_map_covers_the_text_and_the_sound(spoken: list[AudioDelta]) -> None:
    assert word_errors(TEXT, " ".join(word for word, _ in ends(spoken))).errors == 0
    assert ends(spoken)[-1][1] == sum(len(delta.pcm) // 2 for delta in spoken)


@pytest.mark.parametrize("part", [0.0, 0.05, 0.21, 0.4, 0.63, 0.87, 1.0])
@pytest.mark.parametrize("patch", [None, {"pacing": {"lead_ms": 300}}])
def test_after_a_truncate_the_history_is_the_words_whose_sound_was_over(
    spoken: list[AudioDelta], part: float, patch: dict[str, Any] | None
) -> None:
    words, (driver, item_id) = ends(spoken), answering(spoken, patch)
    at_ms = int(words[-1][1] * part / RATE * 1000)
    driver.wait(at_ms / 1000)
    driver.say(speech(300))
    driver.do(client.ItemTruncate(item_id=item_id, audio_end_ms=at_ms))
    driver.do(client.ItemRetrieve(item_id=item_id))
    content = driver.last(events.ItemRetrieved).item.content[0]  # type: ignore[union-attr]
    expected = " ".join(word for word, end in words if end * 1000 // RATE <= at_ms)
    assert word_errors(expected, remembered(driver)).errors == 0
    kept = len(content.audio) / 2 / RATE * 1000  # type: ignore[union-attr, arg-type]
    assert abs(kept - at_ms) <= 1


@pytest.mark.parametrize("seconds", [0.5, 1.7, 3.1, 4.4])
def test_without_a_truncate_the_cut_is_where_the_clock_says(spoken: list[AudioDelta], seconds: float) -> None:
    words, (driver, item_id) = ends(spoken), answering(spoken)
    driver.wait(seconds)
    driver.say(speech(300))
    cut = driver.machine._core.ledger.heard(item_id)
    assert cut is not None
    assert 0.064 <= cut / RATE - seconds <= 0.064 + 0.032 + 0.020 + 0.020, "two frames of speech, to the chunk"
    expected = " ".join(word for word, end in words if end <= cut)
    assert word_errors(expected, remembered(driver)).errors == 0
