"""The far end of an echo: what sounded while a piece of input was recorded, whatever way both came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_driver import RATE, Driver, silence, speech

from duologue.codecs.noise_suppression import FarEnd, NoiseSuppressor
from duologue.engine.requests import AudioDelta
from duologue.sessions import server_events as events
from duologue.sessions.echo import EchoReference
from duologue.sessions.effects import EngineOutput
from duologue.sessions.timebase import TICKS_PER_SECOND

CANCELLED = {"audio": {"input": {"echo_cancellation": {}}}}


def counted(samples: int) -> bytes:
    return b"".join((index % 60_000 + 1).to_bytes(2, "little") for index in range(samples))


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_SECOND)


def read(reference: EchoReference, first_s: float, frames: int) -> bytes:
    return b"".join(reference.frame(ticks(first_s) + index * TICKS_PER_SECOND // 100) for index in range(frames))


@given(
    pieces=st.lists(st.integers(1, 4_000), min_size=1, max_size=8), jitter=st.lists(st.floats(0, 0.015), min_size=30)
)
def test_what_is_played_is_found_where_it_sounds_sample_by_sample(pieces: list[int], jitter: list[float]) -> None:
    reference, whole = EchoReference(), counted(sum(pieces))
    for index, late in enumerate([0.0, *jitter]):  # input in chunks of 20 ms, held up a little on their way
        reference.arrived(ticks(0.02 * (index + 1)), 50.0 + 0.02 * (index + 1) + late)
    first, at = 0, 50.1
    for samples in pieces:
        reference.made("a", whole[first * 2 : (first + samples) * 2])
        reference.sent("a", samples, at)
        first, at = first + samples, at + samples / RATE
    heard = read(reference, 0.1, 150)
    assert heard[: len(whole)] == whole
    assert not heard[len(whole) :].strip(b"\0")


def test_what_was_stopped_sounds_no_longer_than_a_client_needs_to_hear_of_it() -> None:
    reference = EchoReference()
    reference.arrived(0, 10.0)
    reference.made("a", counted(2 * RATE))
    reference.sent("a", 2 * RATE, 10.0)
    reference.stopped(10.5)
    assert len(read(reference, 0.0, 200).rstrip(b"\0")) == round(0.8 * RATE) * 2


def test_a_known_delay_moves_the_reference() -> None:
    reference = EchoReference(0.25)
    reference.arrived(0, 10.0)
    reference.made("a", counted(RATE))
    reference.sent("a", RATE, 10.0)
    assert read(reference, 0.25, 100) == counted(RATE)


def test_after_a_pause_of_the_client_the_clocks_are_tied_anew() -> None:
    reference = EchoReference()
    reference.arrived(ticks(1.0), 11.0)
    reference.arrived(ticks(1.02), 21.0)  # muted for ten seconds
    reference.made("a", counted(RATE))
    reference.sent("a", RATE, 21.0)
    assert read(reference, 1.02, 100) == counted(RATE)


class Subtracting:
    """A canceller that takes the reference for the echo, and gives its input back at once."""

    delay = 0

    def __init__(self, far_end: FarEnd) -> None:
        self._far_end, self._frames = far_end, 0

    def process(self, frame: bytes) -> bytes:
        far = self._far_end(self._frames)
        self._frames += 1
        return b"".join(
            ((near - played) & 0xFFFF).to_bytes(2, "little")
            for near, played in zip(memoryview(frame).cast("H"), memoryview(far).cast("H"), strict=True)
        )


def subtracting(sample_rate: int, far_end: FarEnd | None = None, *, noise: bool = True) -> NoiseSuppressor:
    assert far_end is not None
    return NoiseSuppressor(Subtracting(far_end), sample_rate)


@pytest.mark.parametrize("pacing", [None, {"lead_ms": 300}])
def test_fc_050_an_echo_of_what_is_said_is_gone_and_the_user_is_not(pacing: dict[str, Any] | None) -> None:
    driver = Driver({**CANCELLED, "pacing": pacing}, make_suppressor=subtracting)
    driver.say(speech(600), silence(800))
    driver.transcribe("Hello.")
    request_id, sound = driver.write("one"), speech(5_000)
    driver.do(EngineOutput(request_id, AudioDelta(pcm=sound)))
    driver.finish(request_id)
    driver.say(sound[: 2 * RATE * 2])
    assert len(driver.all(events.SpeechStarted)) == 1, "it hears itself and knows it"
    echo = int.from_bytes(speech(1)[:2], "little")
    user = [15_000 if index // 40 % 2 else -15_000 for index in range(RATE // 2)]
    driver.say(b"".join((echo + sample).to_bytes(2, "little", signed=True) for sample in user))
    assert len(driver.all(events.SpeechStarted)) == 2
    assert driver.all(events.ResponseDone)[-1].response.status == ("completed" if pacing is None else "cancelled")


def test_the_setting_is_echoed_and_can_be_taken_back() -> None:
    driver = Driver(CANCELLED, make_suppressor=subtracting)
    assert driver.last(events.SessionUpdated).session.audio.input.echo_cancellation.delay_ms == 0  # type: ignore[union-attr]
    driver.update({"audio": {"input": {"echo_cancellation": None}}})
    assert driver.machine._core.echo is None
    driver.update({"audio": {"input": {"echo_cancellation": {"delay_ms": -1}}}})
    assert driver.last(events.ErrorEvent).error.param == "session.audio.input.echo_cancellation.delay_ms"
