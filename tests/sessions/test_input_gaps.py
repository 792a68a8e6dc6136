"""Clients that stop sending in mid-speech: muted, a key let go, discontinuous transmission."""

from __future__ import annotations

import pytest
from session_driver import RATE, Driver, silence, speech

from duologue.engine.requests import Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits

GAP_S = 2.0
"""The default of ``input_gap_ms``."""
FRAME_MS = 32


def test_a_client_muted_in_mid_speech_is_answered() -> None:
    driver = Driver()
    driver.say(silence(320), speech(640))
    driver.wait(GAP_S - 0.1)
    assert not driver.all(events.SpeechStopped)
    driver.wait(0.2)
    assert len(driver.all(events.SpeechStopped)) == 1
    driver.transcribe("Hello.")
    assert driver.all(events.ResponseCreated)


def test_no_position_lies_beyond_what_the_client_has_sent() -> None:
    driver = Driver()
    driver.say(silence(320), speech(650))
    driver.wait(GAP_S + 1)
    assert driver.last(events.SpeechStopped).audio_end_ms == 970
    driver.say(silence(350), speech(640), silence(800))
    assert driver.last(events.SpeechStarted).audio_start_ms == pytest.approx(970 + 350 - 300, abs=FRAME_MS)
    assert driver.last(events.SpeechStopped).audio_end_ms == pytest.approx(970 + 350 + 640 + 500, abs=FRAME_MS)


def test_no_sample_of_the_turn_is_lost() -> None:
    driver = Driver()
    driver.say(speech(650))
    driver.wait(GAP_S + 1)
    payload = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(payload, Transcribe)
    assert payload.audio.rstrip(b"\x00") == speech(650)


@pytest.mark.parametrize("gap_s", [0.2, 1.0, 1.9])
def test_dtx_in_mid_speech_shorter_than_the_option_is_no_end(gap_s: float) -> None:
    driver = Driver()
    driver.say(speech(640))
    driver.wait(gap_s)
    driver.say(speech(320), silence(800))
    assert len(driver.all(events.SpeechStopped)) == 1
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 320 + 500


def test_the_time_without_audio_adds_to_the_silence_before_it() -> None:
    limits = Limits(input_gap_ms=300)
    driver = Driver(limits=limits)
    driver.say(speech(640), silence(256))
    driver.wait(0.31)
    assert driver.all(events.SpeechStopped)


def test_a_gap_shorter_than_the_window_is_a_pause_and_the_turn_goes_on() -> None:
    driver = Driver(limits=Limits(input_gap_ms=200))
    driver.say(speech(640))
    driver.wait(0.3)
    assert not driver.all(events.SpeechStopped)
    driver.say(speech(640), silence(800))
    assert len(driver.all(events.SpeechStarted)) == len(driver.all(events.SpeechStopped)) == 1
    assert driver.last(events.SpeechStopped).audio_end_ms == pytest.approx(1280 + 500, abs=FRAME_MS)


def test_it_is_off_where_the_option_is_0() -> None:
    driver = Driver(limits=Limits(input_gap_ms=0))
    driver.say(speech(640))
    driver.wait(60)
    assert not driver.all(events.SpeechStopped)
    driver.say(silence(800))
    assert driver.all(events.SpeechStopped)


@pytest.mark.parametrize("chunk_ms", [1000 / RATE, 10, 20, 85, 200])
def test_fc_041_a_gap_ends_the_turn_however_the_audio_came(chunk_ms: float) -> None:
    driver = Driver()
    driver.say(silence(64), speech(160), chunk_ms=chunk_ms)
    driver.wait(GAP_S + 0.5)
    assert driver.last(events.SpeechStarted).audio_start_ms == 0
    assert driver.last(events.SpeechStopped).audio_end_ms == 224


def test_the_gap_is_heard_by_the_turn_model() -> None:
    detection = {"type": "semantic_vad", "eagerness": "high"}
    driver = Driver({"audio": {"input": {"turn_detection": detection}}}, judge=lambda question: 0.99)
    driver.say(speech(640))
    driver.wait(GAP_S + 0.1)
    assert driver.all(events.SpeechStopped)
    (question,) = driver.questions
    assert question.pcm.endswith(b"\x00" * 2 * (RATE // 10))


def test_an_unfinished_turn_in_a_gap_waits_as_long_as_in_silence() -> None:
    detection = {"type": "semantic_vad", "eagerness": "high"}
    driver = Driver({"audio": {"input": {"turn_detection": detection}}}, judge=lambda question: 0.0)
    driver.say(speech(640), silence(320))
    driver.wait(1.6)
    assert not driver.all(events.SpeechStopped)
    driver.wait(0.5)
    assert driver.all(events.SpeechStopped)


def test_nobody_watches_a_client_that_is_silent_or_commits_by_hand() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": None}}})
    driver.say(speech(640))
    driver.wait(30)
    assert not driver.all(events.InputAudioCommitted)
    driver.update({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    driver.do(client.InputAudioClear())
    driver.wait(30)
    assert not driver.all(events.SpeechStarted)


def test_a_speculation_is_begun_in_the_gap_and_released_at_the_end() -> None:
    driver = Driver(limits=Limits(input_gap_ms=200), speculate=True)
    driver.say(speech(640))
    driver.wait(0.25)
    assert driver.pending(Transcribe)
    driver.wait(1)
    driver.transcribe("Hello.")
    assert driver.all(events.ResponseCreated)
