"""Our own voice comes back: the session does not interrupt itself, and the user still can.

Real detector, real canceller, real recordings in the place of the voice; the clock is that of the samples.

``pytest -m soak`` runs the ten minutes of the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echo_room import EchoRoom, Samples
from missing import need_package
from session_driver import RATE

from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.engine.silero import SileroModel
from duologue.sessions import server_events as events

pytestmark = pytest.mark.models
CANCELLED = {"audio": {"input": {"echo_cancellation": {}}}}


@pytest.fixture(scope="module")
def model(silero_path: Path) -> SileroModel:
    need_package("livekit")
    return SileroModel(silero_path)


@pytest.fixture(scope="module")
def voices(speech_dir: Path) -> list[Samples]:
    """Recordings at one level, in the place of the synthesised voice."""
    read = (read_wav(path) for path in sorted(speech_dir.glob("*.wav")))
    sounds = [resample(samples, rate, RATE) for samples, rate in read]
    return [(0.6 * sound / np.abs(sound).max()).astype(np.float32) for sound in sounds]


def delays(seed: int) -> Iterator[float]:
    """Another one for each answer, within 80 to 200 ms: a client's buffer fills anew each time."""
    rng = np.random.default_rng(seed)
    return (float(rng.uniform(0.08, 0.2)) for _ in itertools.count())


def converse(room: EchoRoom, voices: list[Samples], seconds: float, seed: int) -> None:
    """Answers of a few seconds, one after the other, and nobody else speaks."""
    rng = np.random.default_rng(seed)
    while room.time < seconds:
        request_id = room.ask()
        voice = voices[rng.integers(len(voices))]
        room.say_aloud(request_id, voice)
        if request_id in room.requests:
            room.finish(request_id)
        room.live(len(voice) / RATE + float(rng.uniform(0.4, 2.0)))


@pytest.mark.parametrize(
    ("minutes", "pacing"), [(0.7, None), (0.7, {"lead_ms": 300}), pytest.param(10.0, None, marks=pytest.mark.soak)]
)
def test_fc_050_echo_at_minus_20_db_does_not_interrupt(
    model: SileroModel, voices: list[Samples], minutes: float, pacing: dict[str, Any] | None
) -> None:
    room = EchoRoom(model, delays(1), patch={**CANCELLED, "pacing": pacing}, jitter_s=0.008)
    converse(room, voices, minutes * 60, seed=2)
    started = room.all(events.SpeechStarted)
    print(f"{len(started)} self-interruptions in {room.time / 60:.1f} minutes")
    assert len(started) <= 1


def test_fc_050_without_cancellation_it_interrupts_itself(model: SileroModel, voices: list[Samples]) -> None:
    room = EchoRoom(model, delays(1))
    converse(room, voices, 8, seed=2)
    assert room.all(events.SpeechStarted)


@pytest.mark.parametrize("level", [1.0, 0.3])
def test_fc_050_the_user_interrupts_over_the_echo(model: SileroModel, voices: list[Samples], level: float) -> None:
    """As soon as without an echo, give or take two frames of the detector."""
    room = EchoRoom(model, delays(1), patch=CANCELLED, jitter_s=0.008)
    converse(room, voices, 5, seed=2)
    user, longest = voices[0][: 2 * RATE] * np.float32(level), max(voices, key=len)
    late = []
    for echo in (True, False):
        before = len(room.all(events.SpeechStarted))
        if echo:
            room.say_aloud(room.ask(), longest)
        room.live(2.0)
        assert len(room.all(events.SpeechStarted)) == before
        spoke_at = room.time
        while len(room.all(events.SpeechStarted)) == before and room.time < spoke_at + 2:
            first = round((room.time - spoke_at) * RATE)
            room.live(0.02, user[first : first + RATE // 50])
        late.append(room.time - spoke_at)
        room.live(3.0)
    assert late[0] <= late[1] + 0.064
    statuses = [event.response.status for event in room.all(events.ResponseDone)]
    assert statuses[-1] == "cancelled"
