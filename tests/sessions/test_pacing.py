"""Pacing: no more sound is sent than a lead ahead of what is heard, and nothing is lost, moved or doubled by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_driver import RATE, Driver, silence, speech, spread

from duologue.engine.requests import AudioDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import EngineOutput

TEN = "one two three four five six seven eight nine ten"
PACED = {"pacing": {"lead_ms": 300}}


def counted(ms: int) -> bytes:
    """Sound in which every sample is another."""
    return b"".join((sample % 60_000 + 1).to_bytes(2, "little") for sample in range(RATE * ms // 1000))


def asked(patch: dict[str, Any] | None = None, **settings: Any) -> Driver:
    driver = Driver({**PACED, **(patch or {})}, **settings)
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    return driver


def sound(driver: Driver) -> bytes:
    return b"".join(event.delta for event in driver.all(events.OutputAudioDelta))


def test_fc_026_a_ten_second_answer_made_in_no_time_stays_within_the_lead() -> None:
    driver = asked()
    driver.answer(TEN, ms=10_000)
    began = driver.now
    for _ in range(97):
        ahead = len(sound(driver)) / 2 / RATE - (driver.now - began)
        assert 0.2 < ahead <= 0.34
        driver.wait(0.1)
    driver.wait(1.0)
    assert len(sound(driver)) == 10 * RATE * 2
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_fc_026_interrupted_at_six_seconds_a_client_that_cannot_clear_its_queue_has_0_3_s_of_it() -> None:
    driver = asked()
    driver.answer(TEN, ms=10_000)
    driver.wait(6.0)
    driver.say(speech(640), silence(800))
    assert len(sound(driver)) / 2 / RATE <= 6.0 + 0.064 + 0.34
    done = driver.last(events.ResponseDone).response
    assert (done.status, done.status_details.reason) == ("cancelled", "turn_detected")  # type: ignore[union-attr]
    driver.transcribe("What did you say last?")
    assert [text for role, text in driver.context() if role == "assistant"] == ["one two three four five six"]


def test_without_pacing_all_is_sent_at_once() -> None:
    driver = asked({"pacing": None})
    driver.answer(TEN, ms=10_000)
    assert len(sound(driver)) == 10 * RATE * 2


def test_the_first_sound_is_not_delayed() -> None:
    driver = asked()
    driver.write("One")
    driver.speak(100)
    assert len(sound(driver)) == RATE // 10 * 2


@given(
    pieces=st.lists(st.integers(1, 2_000), min_size=1, max_size=6),
    lead_ms=st.integers(100, 1_000),
    waits=st.lists(st.floats(0.001, 1.0), max_size=8),
)
def test_every_sample_comes_once_and_in_order(pieces: list[int], lead_ms: int, waits: list[float]) -> None:
    driver = asked({"pacing": {"lead_ms": lead_ms}})
    request_id = driver.write("One two")
    whole = counted(sum(pieces))
    first, steps = 0, iter(waits)
    for ms in pieces:
        size = RATE * ms // 1000 * 2
        driver.do(EngineOutput(request_id, AudioDelta(pcm=whole[first : first + size])))
        first += size
        driver.wait(next(steps, 0.0))
        assert whole.startswith(sound(driver))
    driver.finish(request_id)
    driver.wait(15)
    assert sound(driver) == whole[:first]
    ledger = driver.machine._core.ledger
    item = ledger.item(str(driver.last(events.OutputItemDone).item.id))
    assert item.sent == item.projected == item.generated == first // 2
    assert driver.kinds()[-1] == "response.done"
    assert driver.machine.held_bytes == 0


def test_a_call_waits_for_the_words_before_it() -> None:
    driver = asked({"tools": [{"type": "function", "name": "look_up"}]}, can_call_tools=True)
    request_id = driver.write("One moment.")
    driver.speak(2_000, spread("One moment.", 2_000))
    driver.call("{}", request_id=request_id)
    driver.finish(request_id)
    assert not driver.all(events.FunctionCallArgumentsDone)
    driver.wait(2.0)
    assert driver.all(events.FunctionCallArgumentsDone)
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_a_client_that_cancels_gets_nothing_of_what_is_held() -> None:
    driver = asked()
    driver.answer(TEN, ms=10_000)
    before = sound(driver)
    driver.do(client.ResponseCancel())
    driver.wait(20)
    assert sound(driver) == before
    assert driver.last(events.ResponseDone).response.status == "cancelled"
    assert driver.machine.held_bytes == 0


def test_a_slow_peer_is_not_sent_more_than_the_lead() -> None:
    driver = asked(deliver=False)
    driver.answer(TEN, ms=10_000)
    driver.wait(5.0)
    assert len(sound(driver)) / 2 / RATE <= 0.34


def test_fc_005_a_client_that_reports_slow_playback_is_followed() -> None:
    driver = asked({"extensions": ["playback"]})
    driver.answer(TEN, ms=10_000)
    response_id, item_id = driver.machine._answering.spoken or ("", "")
    for step in range(1, 11):  # it plays at half speed
        driver.wait(0.2)
        driver.do(
            client.PlaybackAck(response_id=response_id, item_id=item_id, played_ms=step * 100, committed_ms=step * 100)
        )
        assert len(sound(driver)) / 2 / RATE <= step * 0.1 + 0.3 + 0.2
    assert not driver.all(events.ErrorEvent)
    driver.wait(60)
    assert len(sound(driver)) == 10 * RATE * 2


@pytest.mark.parametrize("lead_ms", [99, 10_001, "1"])
def test_a_wrong_lead_is_named(lead_ms: Any) -> None:
    driver = Driver({"pacing": {"lead_ms": lead_ms}})
    assert driver.last(events.ErrorEvent).error.param == "session.pacing.lead_ms"
