"""Talking by microphone: the parts that need no sound card."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.loopback import Answer, LoopbackServer, tone
from duologue.realtime.client import Received, ResponseView, ServerMessage
from duologue.realtime.microphone import Conversing, Loudspeaker, talk_by_microphone
from duologue.realtime.talk import talk
from duologue.sessions.client_events import ItemTruncate

app = typer.Typer()
app.command()(talk)


def fill(speaker: Loudspeaker, size: int) -> bytes:
    out = bytearray(b"\xff" * size)
    speaker.fill(memoryview(out))
    return bytes(out)


def test_the_loudspeaker_plays_in_order_and_then_silence():
    speaker = Loudspeaker()
    speaker.play("a", b"\x01" * 6)
    speaker.play("b", b"\x02" * 4)
    assert fill(speaker, 4) == b"\x01" * 4
    assert fill(speaker, 8) == b"\x01\x01\x02\x02\x02\x02\0\0"


def test_stopping_says_what_was_heard_and_drops_what_comes_later():
    speaker = Loudspeaker()
    speaker.play("a", bytes(48_000))
    speaker.play("b", bytes(480))
    fill(speaker, 24_000)
    assert speaker.stop() == [("a", 500), ("b", 0)]
    speaker.play("a", b"\x01" * 4)
    assert fill(speaker, 4) == bytes(4)
    assert speaker.stop() == []


def test_fc_012_what_sounds_fades_out_within_10_ms_and_nothing_follows():
    loud = (12_000).to_bytes(2, "little") * 24_000
    speaker = Loudspeaker()
    speaker.play("a", loud)
    speaker.play("b", loud)
    fill(speaker, 480)
    assert speaker.stop() == [("a", 10), ("b", 0)]
    rest = np.frombuffer(fill(speaker, 480) + fill(speaker, 480), "<i2").astype(int)
    assert rest[0] > 11_900
    assert np.all(np.diff(rest) <= 0)
    assert np.diff(rest).min() > -120
    assert not rest[240:].any()


def test_an_answer_that_has_not_begun_is_not_heard_in_its_fade():
    speaker = Loudspeaker()
    fill(speaker, 480)
    speaker.play("a", b"\xff\x7f" * 4_800)
    assert speaker.stop() == [("a", 0)]
    assert fill(speaker, 480) == bytes(480)


async def test_speech_stops_the_loudspeaker_and_truncates():
    sent: list[ItemTruncate] = []

    async def send(event: ItemTruncate) -> None:
        sent.append(event)

    speaker, words = Loudspeaker(), []
    conversing = Conversing(SimpleNamespace(send=send), speaker, words.append)
    delta = ServerMessage(type="response.output_audio.delta", item_id="a")
    await conversing.handle(Received(0.0, delta, 48_000, bytes(48_000)))
    fill(speaker, 4_800)
    await conversing.handle(Received(0.1, ServerMessage(type="input_audio_buffer.speech_started")))
    assert [(event.item_id, event.audio_end_ms) for event in sent] == [("a", 100)]
    done = ServerMessage(type="response.done", response=ResponseView("r", "cancelled"))
    await conversing.handle(Received(0.2, done))
    assert len(sent) == 1
    transcript = ServerMessage(type="response.output_audio_transcript.done", transcript="Good day.")
    await conversing.handle(Received(0.3, transcript))
    assert words == ["it:   Good day."]


def test_without_sounddevice_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = CliRunner().invoke(app, ["--mic"])
    assert result.exit_code == 1
    assert result.stderr.strip().splitlines() == [
        "duologue talk: --mic needs the sounddevice package and PortAudio: pip install 'duologue[mic]'"
    ]


async def test_a_conversation_through_sound_streams(monkeypatch: pytest.MonkeyPatch):
    """A sound card in software: its input callback speaks, its output callback is played to the end."""
    recorded = tone(0.3) + bytes(48_000)
    heard = bytearray()

    class Stream:
        def __init__(self, callback, samplerate, channels, dtype, blocksize) -> None:
            assert (samplerate, channels, dtype) == (24_000, 1, "int16")
            self.callback, self.size = callback, blocksize * 2

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            pass

    class Input(Stream):
        def __enter__(self):
            for first in range(0, len(recorded), self.size):
                self.callback(recorded[first : first + self.size], self.size // 2, None, None)
            return self

    class Output(Stream):
        def __exit__(self, *error) -> None:
            for _ in range(50):
                out = bytearray(self.size)
                self.callback(out, self.size // 2, None, None)
                heard.extend(out)

    class SoundCardError(Exception):
        pass

    fake = SimpleNamespace(RawInputStream=Input, RawOutputStream=Output, PortAudioError=SoundCardError)
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    words: list[str] = []

    class Enough(Exception):
        pass

    def say(text: str) -> None:
        words.append(text)
        if text.startswith("it:"):
            raise Enough

    async with LoopbackServer(lambda turn: Answer("Hello.", "Good day.", tone(0.5))) as server:
        with pytest.raises(Enough):
            await talk_by_microphone(server.url, CallerSettings(silence_ms=200), model=None, api_key=None, say=say)
    assert words[1:] == ["you:  Hello.", "it:   Good day."]
    assert bytes(heard[: len(tone(0.5))]) == tone(0.5)
