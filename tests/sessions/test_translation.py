"""Translation sessions: stretches of speech in, append-only text and sound out, and positions in the input."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_driver import NAMES, silence, speech

from duologue.codecs.noise_suppression import MakeSuppressor, NoiseSuppressor, no_suppressor
from duologue.engine.requests import (
    AudioDelta,
    Converse,
    EngineRequest,
    Finished,
    TextDelta,
    Transcribe,
    TranscriptDelta,
)
from duologue.sessions import translation_events as events
from duologue.sessions.config import Limits
from duologue.sessions.core import SessionContext
from duologue.sessions.effects import (
    AbortRequest,
    CloseSession,
    EngineOutput,
    FeedVoiceActivity,
    GoOn,
    OpenRequest,
    Send,
    Shutdown,
    Tick,
    VoiceActivity,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.outbox import Outbox
from duologue.sessions.server_events import ErrorEvent
from duologue.sessions.translation import (
    FRAME_BYTES,
    MAX_WAITING,
    TranslationMachine,
    TranslationSettings,
    configured,
)


class Interpreter:
    """A machine, and a detector and an engine by hand."""

    def __init__(
        self,
        patch: dict[str, Any] | None = None,
        limits: Limits | None = None,
        make_suppressor: MakeSuppressor = no_suppressor,
    ) -> None:
        numbers = itertools.count()
        self.context = SessionContext(
            NAMES, lambda prefix: f"{prefix}_{next(numbers)}", limits or Limits(), make_suppressor=make_suppressor
        )
        self.now = 100.0
        self.sent: list[Any] = []
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: list[str] = []
        self.closed: CloseSession | None = None
        self._heard = bytearray()
        session = events.TranslationSession(id="sess_1", model="assistant", expires_at=0)
        self.machine = TranslationMachine(
            configured(session, patch or {}, self.context), self.context, TranslationSettings("heart"), self.now
        )
        self._carry(self.machine.start())

    def do(self, event: Any) -> list[Any]:
        before = len(self.sent)
        self._carry(self.machine.handle(event, self.now))
        return self.sent[before:]

    def say(self, *pieces: bytes, chunk: int = FRAME_BYTES) -> None:
        audio = b"".join(pieces)
        for first in range(0, len(audio), chunk):
            self.do(events.TranslationAppend(audio=audio[first : first + chunk]))

    def pending(self, kind: Any) -> list[str]:
        return [key for key, request in self.requests.items() if isinstance(request.payload, kind)]

    def recognise(self, words: str) -> None:
        request_id = self.pending(Transcribe)[0]
        if words:
            self.do(EngineOutput(request_id, TranscriptDelta(text=words)))
        self.finish(request_id)

    def translate(self, *texts: str) -> None:
        (request_id,) = self.pending(Converse)
        for text in texts:
            self.do(EngineOutput(request_id, TextDelta(text=text)))
            self.do(EngineOutput(request_id, AudioDelta(pcm=speech(40))))
        self.finish(request_id)

    def finish(self, request_id: str, reason: Any = "completed", error: str | None = None) -> None:
        del self.requests[request_id]
        self.do(EngineOutput(request_id, Finished(reason=reason, error=error)))

    def all(self, kind: Any) -> list[Any]:
        return [event for event in self.sent if isinstance(event, kind)]

    def text(self, kind: Any = events.TranslatedTextDelta) -> str:
        return "".join(event.delta for event in self.all(kind))

    def _carry(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Send(event=event):
                    self.sent.append(event)
                case OpenRequest(request=request):
                    self.requests[request.request_id] = request
                case AbortRequest(request_id=request_id):
                    self.aborted.append(request_id)
                    self.requests.pop(request_id, None)
                case CloseSession():
                    self.closed = effect
        for effect in effects:
            if isinstance(effect, FeedVoiceActivity):
                self._heard += effect.pcm
        while len(self._heard) >= 1536:
            frame, self._heard = self._heard[:1536], self._heard[1536:]
            self.do(VoiceActivity(0, 0.95 if frame.count(0) < 768 else 0.01))
        for effect in effects:
            if isinstance(effect, GoOn):
                self.do(effect.rest)


def test_the_session_is_announced_first_with_every_default() -> None:
    (created,) = Interpreter().sent
    assert isinstance(created, events.TranslationCreated)
    assert created.session.audio.output.language == "en"


def test_a_stretch_of_speech_is_recognised_translated_and_spoken() -> None:
    interpreter = Interpreter(
        {"audio": {"output": {"language": "es"}, "input": {"transcription": {"model": "whisper-1"}}}}
    )
    interpreter.say(silence(1000), speech(1000), silence(600))
    (request,) = interpreter.requests.values()
    assert isinstance(request.payload, Transcribe)
    assert len(request.payload.audio) / 48 == pytest.approx(300 + 1000 + 400, abs=70)
    interpreter.recognise(" Good morning. ")
    (request,) = interpreter.requests.values()
    assert isinstance(request.payload, Converse)
    assert "Spanish" in request.payload.messages[0].text
    assert request.payload.messages[1].text == "Good morning."
    assert request.payload.voice == "heart"
    interpreter.translate("Buenos", " días.")
    assert interpreter.text(events.SourceTranscriptDelta) == "Good morning."
    assert interpreter.text() == "Buenos días."
    assert len(interpreter.all(events.TranslatedAudioDelta)) == 2
    assert {event.elapsed_ms for event in interpreter.all(events.Timed)} == {2400}


def test_the_source_is_transcribed_only_on_request() -> None:
    interpreter = Interpreter()
    interpreter.say(speech(1000), silence(600))
    interpreter.recognise("Good morning.")
    interpreter.translate("Good morning.")
    assert interpreter.all(events.SourceTranscriptDelta) == []


def test_stretches_are_recognised_ahead_and_translated_in_order() -> None:
    interpreter = Interpreter()
    for _ in range(3):
        interpreter.say(speech(600), silence(600))
    first, second, third = interpreter.pending(Transcribe)
    for request_id, words in ((third, "Three."), (first, "One."), (second, "Two.")):
        interpreter.do(EngineOutput(request_id, TranscriptDelta(text=words)))
        interpreter.finish(request_id)
        assert len(interpreter.pending(Converse)) <= 1
    for text in ("Uno.", "Dos.", "Tres."):
        interpreter.translate(text)
    assert interpreter.text() == "Uno. Dos. Tres."
    times = [event.elapsed_ms for event in interpreter.all(events.Timed)]
    assert times == sorted(times)
    assert all(time % 200 == 0 for time in times)


def test_languages_without_spaces_get_none() -> None:
    interpreter = Interpreter({"audio": {"output": {"language": "ja-JP"}}})
    for _ in range(2):
        interpreter.say(speech(600), silence(600))
        interpreter.recognise("Hello.")
        assert "Japanese (ja-JP)" in interpreter.requests[interpreter.pending(Converse)[0]].payload.messages[0].text
        interpreter.translate("こん", "にちは。")
    assert interpreter.text() == "こんにちは。こんにちは。"


def test_silence_and_stretches_without_words_say_nothing() -> None:
    interpreter = Interpreter()
    interpreter.say(silence(5000))
    assert interpreter.requests == {}
    interpreter.say(speech(600), silence(600))
    interpreter.recognise("  ")
    assert interpreter.requests == {}
    assert len(interpreter.sent) == 1


def test_endless_speech_is_cut_so_that_the_listener_is_not_left_behind() -> None:
    interpreter = Interpreter()
    interpreter.say(speech(30_000))
    assert len(interpreter.pending(Transcribe)) == 2


def test_a_failed_stretch_is_told_and_the_next_one_goes_on() -> None:
    interpreter = Interpreter()
    for _ in range(2):
        interpreter.say(speech(600), silence(600))
    interpreter.finish(interpreter.pending(Transcribe)[0], "failed", "The recogniser died.")
    assert interpreter.all(ErrorEvent)[-1].error.message == "The recogniser died."
    interpreter.recognise("Two.")
    interpreter.finish(interpreter.pending(Converse)[0], "failed", "The model died.")
    assert len(interpreter.all(ErrorEvent)) == 2
    interpreter.say(speech(600), silence(600))
    interpreter.recognise("Three.")
    interpreter.translate("Tres.")
    assert interpreter.text() == "Tres."


def test_an_engine_that_falls_behind_leaves_speech_out_and_says_so() -> None:
    interpreter = Interpreter()
    for _ in range(MAX_WAITING + 2):
        interpreter.say(speech(600), silence(600))
    assert len(interpreter.requests) == MAX_WAITING
    assert [error.error.type for error in interpreter.all(ErrorEvent)] == ["server_error"] * 2


# -- settings ----------------------------------------------------------------------------------------------------------


def test_an_update_changes_the_language_of_what_follows() -> None:
    interpreter = Interpreter()
    (answer,) = interpreter.do(events.TranslationUpdate(session={"audio": {"output": {"language": "fr"}}}))
    assert answer.session.audio.output.language == "fr"
    interpreter.say(speech(600), silence(600))
    interpreter.recognise("Hello.")
    assert "French" in interpreter.requests[interpreter.pending(Converse)[0]].payload.messages[0].text


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"audio": {"input": {"format": {"type": "audio/pcmu"}}}}, "session.audio.input.format"),
        ({"audio": {"output": {"language": "?"}}}, "session.audio.output.language"),
        ({"audio": {"output": {"voice": "heart"}}}, "session.audio.output.voice"),
        ({"audio": {"input": {"transcription": {"model": "nobody"}}}}, "session.audio.input.transcription.model"),
        ({"type": "realtime"}, "session.type"),
        ({"model": "second"}, "session.model"),
        ({"model": 3}, "session.model"),
        ({"id": "sess_2"}, "session.id"),
        ({"instructions": "x"}, "session.instructions"),
    ],
)
def test_what_cannot_be_set_is_named_and_nothing_changes(patch: dict[str, Any], param: str) -> None:
    interpreter = Interpreter()
    before = interpreter.machine.session
    (answer,) = interpreter.do(events.TranslationUpdate(event_id="mine", session=patch))
    assert (answer.error.param, answer.error.event_id) == (param, "mine")
    assert interpreter.machine.session is before
    with pytest.raises(ProtocolError):
        configured(before, patch, interpreter.context)


def test_the_model_may_be_repeated_by_any_of_its_names() -> None:
    interpreter = Interpreter()
    (answer,) = interpreter.do(events.TranslationUpdate(session={"model": "gpt-realtime", "type": "translation"}))
    assert isinstance(answer, events.TranslationUpdated)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_fc_082_closing_drains_what_was_said_and_then_closes_with_1000() -> None:
    interpreter = Interpreter()
    interpreter.say(speech(650))
    interpreter.do(events.TranslationClose())
    (error,) = interpreter.do(events.TranslationAppend(audio=speech(200)))
    assert error.error.code == "invalid_event"
    interpreter.recognise("Last words.")
    assert interpreter.closed is None
    interpreter.translate("Palabras", " finales.")
    assert interpreter.text() == "Palabras finales."
    assert {event.elapsed_ms for event in interpreter.all(events.Timed)} == {800}
    assert isinstance(interpreter.sent[-1], events.TranslationClosed)
    assert interpreter.closed == CloseSession(1000, "")


def test_closing_a_silent_session_is_immediate() -> None:
    interpreter = Interpreter()
    interpreter.say(silence(500))
    interpreter.do(events.TranslationClose())
    assert interpreter.closed is not None


def test_a_server_that_leaves_drains_and_closes_with_1001() -> None:
    interpreter = Interpreter()
    interpreter.do(Shutdown())
    assert interpreter.closed == CloseSession(1001, "")


def test_an_engine_that_never_answers_cannot_hold_a_closing_session() -> None:
    interpreter = Interpreter()
    interpreter.say(speech(600), silence(600))
    interpreter.do(events.TranslationClose())
    (request_id,) = interpreter.requests
    interpreter.now = interpreter.machine.deadline
    interpreter.do(Tick())
    assert interpreter.closed is not None
    assert interpreter.aborted == [request_id]


def test_a_session_expires_with_an_error_and_1001() -> None:
    interpreter = Interpreter(limits=Limits(max_duration_s=60))
    interpreter.now += 60
    interpreter.do(Tick())
    assert interpreter.all(ErrorEvent)[0].error.code == "session_expired"
    assert interpreter.closed is not None
    assert interpreter.closed.code == 1001


# -- how it is chunked and queued --------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(chunks=st.lists(st.integers(1, 30_000), min_size=1, max_size=30), stretches=st.integers(1, 3))
def test_how_the_sound_is_divided_changes_nothing(chunks: list[int], stretches: int) -> None:
    audio = b"".join([speech(700), silence(700)] * stretches)

    def heard(sizes: Any) -> list[tuple[bytes, int]]:
        interpreter = Interpreter()
        position = 0
        for size in sizes:
            interpreter.say(audio[position : position + size], chunk=size)
            position += size
        interpreter.do(events.TranslationClose())
        requests = [interpreter.requests[key].payload.audio for key in interpreter.pending(Transcribe)]
        for _ in requests:
            interpreter.recognise("word")
            interpreter.translate("palabra")
        times = [event.elapsed_ms for event in interpreter.all(events.TranslatedTextDelta)]
        assert interpreter.closed is not None
        return list(zip(requests, times, strict=True))

    assert heard(itertools.islice(itertools.cycle(chunks), len(audio) // min(chunks) + 1)) == heard([len(audio)])


def test_deltas_of_one_stretch_are_merged_for_a_slow_reader_and_their_sound_is_counted() -> None:
    outbox = Outbox()
    for time in (200, 200, 400):
        outbox.push(events.TranslatedTextDelta(event_id="t", delta="a", elapsed_ms=time))
        outbox.push(events.TranslatedAudioDelta(event_id="s", delta=bytes(10), elapsed_ms=time))
    assert (len(outbox), outbox.audio_bytes) == (4, 30)
    taken = [outgoing.event for outgoing in (*outbox.take(), *outbox.take())]
    assert [(type(event).__name__, len(event.delta)) for event in taken] == [  # type: ignore[attr-defined]
        ("TranslatedTextDelta", 2),
        ("TranslatedAudioDelta", 20),
        ("TranslatedTextDelta", 1),
        ("TranslatedAudioDelta", 10),
    ]
    assert outbox.audio_bytes == 0


class Halved:
    """Halves what is loud, at once."""

    delay = 0

    def process(self, frame: bytes) -> bytes:
        return frame.replace(b"\x10\x27", b"\x88\x13")


def test_noise_reduction_is_what_the_recogniser_gets_and_it_may_change() -> None:
    patch = {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}}
    interpreter = Interpreter(patch, make_suppressor=lambda sample_rate: NoiseSuppressor(Halved(), sample_rate))
    interpreter.say(silence(400) + speech(600) + silence(1000), chunk=10**6)
    interpreter.do(events.TranslationUpdate(session={"audio": {"input": {"noise_reduction": None}}}))
    interpreter.say(speech(600), silence(1000))
    payloads = [request.payload for request in interpreter.requests.values()]
    clean, raw = (payload.audio for payload in payloads if isinstance(payload, Transcribe))
    assert clean.count(b"\x88\x13") == raw.count(b"\x10\x27") == 24 * 600
    assert b"\x10\x27" not in clean
