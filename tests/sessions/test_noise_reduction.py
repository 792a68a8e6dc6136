"""``noise_reduction``: what voice activity, the recogniser and ``retrieve`` get is clean, and nothing moves by it."""

from __future__ import annotations

from typing import Any

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_driver import RATE, Driver, silence, speech

from duologue.codecs.noise_suppression import NoiseSuppressor
from duologue.engine.requests import Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import FeedVoiceActivity, OpenRequest
from duologue.sessions.input_audio import InputTimeline

NOISE = b"\x01\x00"
DELAY = 176


class Gate:
    """Takes away what is as soft as ``NOISE``, 176 samples late."""

    delay = DELAY

    def __init__(self) -> None:
        self._kept = bytes(DELAY * 2)

    def process(self, frame: bytes) -> bytes:
        both = self._kept + frame.replace(NOISE, b"\x00\x00")
        self._kept = both[len(frame) :]
        return both[: len(frame)]


def gate(sample_rate: int) -> NoiseSuppressor:
    return NoiseSuppressor(Gate(), sample_rate)


def noise(ms: int) -> bytes:
    return NOISE * (RATE * ms // 1000)


def patch(setting: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    return {"audio": {"input": {"noise_reduction": setting, **others}}}


NEAR = {"type": "near_field"}


def detected(driver: Driver) -> bytes:
    return b"".join(effect.pcm for effect in driver.effects if isinstance(effect, FeedVoiceActivity))


def recognised(driver: Driver) -> list[bytes]:
    requests = [effect.request for effect in driver.effects if isinstance(effect, OpenRequest)]
    return [request.payload.audio for request in requests if isinstance(request.payload, Transcribe)]


@pytest.mark.parametrize("kind", ["near_field", "far_field"])
def test_detector_recogniser_and_retrieve_get_clean_sound(kind: str) -> None:
    driver = Driver(patch({"type": kind}), make_suppressor=gate)
    driver.say(noise(400), speech(600), noise(800))
    assert NOISE not in detected(driver)
    (heard,) = recognised(driver)
    assert NOISE * 2 not in heard
    item_id = driver.last(events.InputAudioCommitted).item_id
    driver.do(client.ItemRetrieve(item_id=item_id))
    content = driver.last(events.ItemRetrieved).item.content[0]
    sound = content.audio if isinstance(content.audio, bytes) else pybase64.b64decode(content.audio)
    assert sound == heard


def turn_of(driver: Driver, chunk_ms: float = 20) -> tuple[int, int, list[bytes]]:
    driver.say(silence(400), speech(600), silence(900), chunk_ms=chunk_ms)
    started, stopped = driver.last(events.SpeechStarted), driver.last(events.SpeechStopped)
    return started.audio_start_ms, stopped.audio_end_ms, recognised(driver)


@pytest.mark.parametrize("chunk_ms", [1, 7.5, 20, 85, 1900])
def test_times_and_audio_are_the_same_with_and_without_for_any_chunks(chunk_ms: float) -> None:
    assert turn_of(Driver(patch(NEAR), make_suppressor=gate), chunk_ms) == turn_of(Driver())


@given(st.lists(st.tuples(st.integers(1, 900), st.booleans()), min_size=1, max_size=20))
def test_switching_it_loses_and_doubles_nothing(steps: list[tuple[int, bool]]) -> None:
    timeline = InputTimeline("pcm")
    given_out, sent = b"", b""
    for size, on in steps:
        if on != timeline.suppresses_noise:
            given_out += timeline.suppress_noise(gate(RATE) if on else None)
        piece = b"".join((1000 + len(sent) // 2 + index).to_bytes(2, "little") for index in range(size))
        sent += piece
        given_out += timeline.append(piece)
        assert timeline.cut(0, timeline.end) == sent
        assert given_out == sent[: timeline.clean_end // 2 * 2]
    given_out += timeline.suppress_noise(None)
    assert given_out == sent


def test_what_is_cleared_or_dropped_does_not_come_back() -> None:
    timeline = InputTimeline("pcm")
    timeline.suppress_noise(gate(RATE))
    timeline.append(speech(5))
    timeline.clear()
    assert timeline.cut(0, timeline.end) == b""
    timeline.append(silence(100))
    assert timeline.cut(0, timeline.end) == silence(100)


def test_the_setting_changes_in_mid_session_without_a_gap_for_the_detector() -> None:
    driver = Driver(make_suppressor=gate)
    driver.say(noise(105))
    driver.update(patch(NEAR))
    driver.say(noise(105))
    driver.update(patch(None))
    driver.say(noise(105), speech(600), noise(800))
    fed = detected(driver)
    assert len(fed) == len(noise(1715))
    raw = len(noise(105))
    assert NOISE * 5 in fed[:raw]
    assert NOISE not in fed[raw : 2 * raw - 2 * (DELAY + 240)]


def test_a_strength_of_zero_is_none_and_another_rate_begins_anew() -> None:
    rates: list[int] = []

    def make(sample_rate: int) -> NoiseSuppressor:
        rates.append(sample_rate)
        return gate(sample_rate)

    driver = Driver(patch({"type": "near_field", "strength": 0}), make_suppressor=make)
    assert rates == []
    driver.update(patch({"strength": 0.5}))
    driver.update(patch({"type": "far_field"}))
    assert rates == [RATE]
    driver.update(patch(NEAR, format={"type": "audio/pcmu"}))
    assert rates == [RATE, 8000]


def test_by_hand_a_commit_takes_what_has_come_to_the_last_sample() -> None:
    driver = Driver(patch(NEAR, turn_detection=None), make_suppressor=gate)
    driver.say(noise(333))
    driver.do(client.InputAudioCommit())
    (heard,) = recognised(driver)
    assert len(heard) == len(noise(333))
    assert 0 < len(heard) - heard.index(NOISE) <= 2 * (DELAY + 240)
    driver.say(noise(200))
    driver.do(client.InputAudioCommit())
    assert len(recognised(driver)[1]) == len(noise(200))


def test_a_long_append_is_taken_in_pieces_and_is_the_same() -> None:
    driver = Driver(patch(NEAR, turn_detection=None), make_suppressor=gate)
    sound = speech(4_000) + noise(5_000) + speech(1_234)
    driver.do(client.InputAudioAppend(audio=sound))
    driver.do(client.InputAudioCommit())
    assert recognised(driver)[0] == sound.replace(NOISE, b"\x00\x00")


def test_without_a_suppressor_it_is_accepted_and_echoed() -> None:
    driver = Driver(patch(NEAR))
    setting = driver.last(events.SessionUpdated).session.audio.input.noise_reduction
    assert setting is not None
    assert (setting.type, setting.strength) == ("near_field", 1.0)
    assert driver.spoken_turn()


def test_a_detector_that_joins_begins_where_the_clean_sound_does() -> None:
    driver = Driver(patch(NEAR, turn_detection=None), make_suppressor=gate)
    driver.say(noise(105))  # 2,520 samples, of which 10 frames less the delay are clean: 2,224
    driver.update({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    driver.say(noise(500), speech(600), noise(800))
    frame = 2_224 / 24 + 16 * 32  # the first that is all speech
    assert driver.last(events.SpeechStarted).audio_start_ms == int(frame - 300)
