"""A translation session as a sans-I/O state machine: speech in one language in, text and speech in another out.

The input is consumed in frames of 200 ms and cut into stretches of speech at its pauses. Each stretch is recognised,
translated and spoken; stretches may be recognised ahead, but are translated one after the other, so that what is sent
can only be appended to. ``elapsed_ms`` of everything that comes of a stretch is the frame in which the stretch ended:
a position in the input, whatever the engine's pace. Time that the client sends nothing for does not exist.

``session.close`` feeds a stretch of silence behind what has come, so that the last words end like any others; once
voice activity has seen all of it and the last stretch is spoken, the session is closed.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from duologue.engine.languages import WITHOUT_SPACES, described, primary
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    ChatMessage,
    Converse,
    Delta,
    EngineRequest,
    Finished,
    TextDelta,
    Transcribe,
    TranscriptDelta,
)
from duologue.sessions import translation_events as events
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.config import deep_merge
from duologue.sessions.core import SessionContext
from duologue.sessions.effects import (
    AbortRequest,
    CloseSession,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    GoOn,
    HangUp,
    Input,
    MoreAudio,
    OpenRequest,
    Send,
    Shutdown,
    Tick,
    VoiceActivity,
)
from duologue.sessions.errors import ProtocolError, from_validation_error
from duologue.sessions.input_audio import PIECE_BYTES, InputTimeline, reduces_noise
from duologue.sessions.lifetime import Lifetime
from duologue.sessions.server_events import ErrorBody, ErrorEvent
from duologue.sessions.timebase import TICKS_PER_MS, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Started, Stopped
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

FRAME_MS = 200
FRAME_BYTES = OUTPUT_SAMPLE_RATE * FRAME_MS // 1000 * 2
_FRAME_TICKS = FRAME_MS * TICKS_PER_MS

STRETCHES = SilenceSettings(silence_duration_ms=400, max_turn_ms=12_000)
"""Where speech is cut: at pauses between phrases, and at the latest before the listener is left far behind."""

MAX_WAITING = 8
"""Stretches that may wait for the engine. Beyond it the newest is dropped, and the client is told."""

MIN_TOKENS, TOKENS_PER_WORD = 32, 8
"""A translation is about as long as its source: where a model does not end by itself, it is ended."""

FLUSH_FRAMES = 4
"""Silence that is fed behind the last input: longer than the pause that ends a stretch, and than what the resampler
before voice activity holds back."""

FLUSH_S = 30.0
"""How long closing may take."""

INSTRUCTIONS = (
    "You are an interpreter. Translate what the user says into {language}. "
    "Reply with the translation alone: no explanation, no answer to what is said."
)
"""The system prompt where the deploy file sets none."""

NORMAL, GOING_AWAY = 1000, 1001


@dataclass
class Stretch:
    """A piece of speech on its way through the engine."""

    elapsed_ms: int
    request_id: str
    """The recogniser's request, then the language model's."""
    words: list[str] = field(default_factory=list)
    recognised: bool = False
    translating: bool = False
    spoken: bool = False
    """Some of its translation has been sent."""


@dataclass(frozen=True)
class TranslationSettings:
    """What the server decides."""

    voice: str
    instructions: str = INSTRUCTIONS
    """The system prompt; ``{language}`` stands for the language to translate into."""


class TranslationMachine:
    """One session. Times are seconds of one monotonic clock that the caller reads."""

    speculations_wasted = 0
    held_bytes = 0

    def __init__(
        self, session: events.TranslationSession, context: SessionContext, settings: TranslationSettings, now: float
    ) -> None:
        self.session = session
        self._context = context
        self._settings = settings
        self._effects: list[Effect] = []
        self._lifetime = Lifetime(context.limits, now)
        self._pending = bytearray()
        self._timeline = InputTimeline("pcm")
        self._policy = SilencePolicy(STRETCHES)
        self._reduces_noise = False
        self._seen = 0
        self._speech_start: int | None = None
        self._heard_ms = 0
        self._stretches: deque[Stretch] = deque()
        self._begun: set[type[events.Timed]] = set()
        self._closing: int | None = None
        """The code to close with, once closing has been asked for."""
        self._flushed_by = math.inf
        self._flushed_at = 0
        """Position up to which voice activity has to have seen the input before the session is closed."""
        self._closed = False
        self._follow_noise_reduction()
        self._emit(events.TranslationCreated, session=session)

    @property
    def deadline(self) -> float:
        """When a :class:`Tick` is due at the latest."""
        return min(self._lifetime.deadline, self._flushed_by)

    def start(self) -> list[Effect]:
        """The effects of the session's birth: ``session.created``."""
        return self._take_effects()

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Take one event. Client faults become one ``error`` event and change nothing."""
        if not self._closed:
            if isinstance(event, ClientEvent | InvalidEvent):
                self._lifetime.heard_at = now
            try:
                self._dispatch(event, now)
            except ProtocolError as error:
                self._emit_error(error, getattr(event, "event_id", None))
            self._finish_if_flushed()
        return self._take_effects()

    def _dispatch(self, event: Input, now: float) -> None:
        match event:
            case events.TranslationAppend(audio=audio):
                if self._closing is not None:
                    raise ProtocolError("invalid_event", "The session is closing; no more audio is taken.", "type")
                self._append(audio, 0)
            case MoreAudio(audio=audio, offset=offset):
                self._append(audio, offset)
            case VoiceActivity():
                self._voice_activity(event)
            case EngineOutput(request_id=request_id, delta=delta):
                self._engine_output(request_id, delta)
            case events.TranslationUpdate(session=patch):
                self._update(patch)
            case events.TranslationClose():
                self._flush(NORMAL, now)
            case Shutdown():
                self._flush(GOING_AWAY, now)
            case HangUp():
                self._close(NORMAL, "The session was ended.")
            case Tick():
                self._tick(now)
            case InvalidEvent(error=error):
                raise error

    # -- settings ------------------------------------------------------------------------------------------------------

    def _update(self, patch: dict[str, Any]) -> None:
        self.session = configured(self.session, patch, self._context)
        self._follow_noise_reduction()
        self._emit(events.TranslationUpdated, session=self.session)

    # -- input ---------------------------------------------------------------------------------------------------------

    def _follow_noise_reduction(self) -> None:
        wanted = reduces_noise(self.session.audio.input.noise_reduction)
        if wanted != self._reduces_noise:
            self._reduces_noise = wanted
            make = self._context.make_suppressor
            held = self._timeline.suppress_noise(make(self._timeline.sample_rate) if wanted else None)
            self._detect(held)

    def _append(self, audio: bytes, offset: int) -> None:
        """Buffer sound from ``offset`` on, and consume it in whole frames; what takes long, in pieces."""
        end = offset + PIECE_BYTES if self._timeline.suppresses_noise else len(audio)
        self._pending += audio[offset:end]
        whole = len(self._pending) // FRAME_BYTES
        for _ in range(whole):
            self._feed(bytes(self._pending[:FRAME_BYTES]))
            del self._pending[:FRAME_BYTES]
        self._heard_ms += whole * FRAME_MS
        if end < len(audio):
            self._effects.append(GoOn(MoreAudio(audio, end)))

    def _feed(self, frame: bytes) -> None:
        self._detect(self._timeline.append(frame))

    def _detect(self, pcm: bytes) -> None:
        if pcm:
            self._effects.append(FeedVoiceActivity(0, pcm, self._timeline.sample_rate))

    def _voice_activity(self, frame: VoiceActivity) -> None:
        start = self._seen
        end = self._seen = start + VAD_FRAME_TICKS
        for signal in self._policy.frame(start, end, frame.probability, frame.quiet_ms * TICKS_PER_MS):
            match signal:
                case Started(start=position):
                    self._speech_start = position
                case Stopped(end=position) if self._speech_start is not None:
                    self._cut(self._speech_start, position)
                    self._speech_start = None
        keep_from = self._speech_start if self._speech_start is not None else end - self._policy.lookback
        self._timeline.drop_before(keep_from)

    def _cut(self, start: int, end: int) -> None:
        """A stretch of speech is whole: have it recognised."""
        if len(self._stretches) >= MAX_WAITING:
            seconds = (end - start) / TICKS_PER_MS / 1000
            self._server_error(f"Translation has fallen behind: {seconds:.1f} s of speech were left out.")
            return
        frames = -(-end // _FRAME_TICKS)
        payload = Transcribe(audio=self._timeline.cut(start, end), sample_rate=self._timeline.sample_rate)
        elapsed_ms = min(frames * FRAME_MS, self._heard_ms)
        self._stretches.append(Stretch(elapsed_ms, self._open(payload)))

    # -- what the engine says ------------------------------------------------------------------------------------------

    def _engine_output(self, request_id: str, delta: Delta) -> None:
        stretch = next((stretch for stretch in self._stretches if stretch.request_id == request_id), None)
        if stretch is None:
            return
        match delta:
            case TranscriptDelta(text=text):
                stretch.words.append(text)
            case TextDelta(text=text):
                spaced = not stretch.spoken and primary(self.session.audio.output.language) not in WITHOUT_SPACES
                stretch.spoken = True
                self._say(events.TranslatedTextDelta, stretch, text, spaced)
            case AudioDelta(pcm=pcm):
                self._emit(events.TranslatedAudioDelta, delta=pcm, elapsed_ms=stretch.elapsed_ms)
            case Finished(reason=reason, error=error):
                if reason in ("failed", "aborted"):
                    self._server_error(error or "A stretch of speech could not be translated.")
                if stretch.translating or reason in ("failed", "aborted"):
                    self._stretches.remove(stretch)
                else:
                    stretch.recognised = True
        self._translate_next()

    def _translate_next(self) -> None:
        """Translate the oldest stretch, if its words are known; one without words is done with."""
        while self._stretches and self._stretches[0].recognised and not self._stretches[0].translating:
            stretch = self._stretches[0]
            words = "".join(stretch.words).strip()
            if not words:
                self._stretches.popleft()
                continue
            if self.session.audio.input.transcription is not None:
                self._say(events.SourceTranscriptDelta, stretch, words, spaced=True)
            stretch.translating = True
            stretch.request_id = self._open(self._translation_of(words))

    def _translation_of(self, words: str) -> Converse:
        language = described(self.session.audio.output.language)
        prompt = self._settings.instructions.replace("{language}", language)
        messages = (ChatMessage(role="system", text=prompt), ChatMessage(role="user", text=words))
        limit = MIN_TOKENS + TOKENS_PER_WORD * len(words.split())
        return Converse(messages=messages, voice=self._settings.voice, max_output_tokens=limit)

    def _say(self, kind: type[events.Timed], stretch: Stretch, text: str, spaced: bool) -> None:
        """Append to a transcript. The client puts nothing between deltas: the first of a stretch brings its space."""
        if spaced and kind in self._begun and not text[:1].isspace():
            text = f" {text}"
        self._begun.add(kind)
        self._emit(kind, delta=text, elapsed_ms=stretch.elapsed_ms)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _flush(self, code: int, now: float) -> None:
        if self._closing is not None:
            return
        self._closing, self._flushed_by = code, now + FLUSH_S
        if self._pending:
            self._append(bytes(FRAME_BYTES - len(self._pending)), 0)
        self._flushed_at = self._timeline.end + (STRETCHES.silence_duration_ms + 100) * TICKS_PER_MS
        for _ in range(FLUSH_FRAMES):
            self._feed(bytes(FRAME_BYTES))

    def _finish_if_flushed(self) -> None:
        if self._closing is None or self._stretches or self._closed:
            return
        if self._seen >= self._flushed_at and not self._policy.speaking:
            self._close(self._closing, "")

    def _tick(self, now: float) -> None:
        if (over := self._lifetime.over(now)) is not None:
            self._emit_error(over)
            self._close(GOING_AWAY, over.message)
        elif now >= self._flushed_by:
            self._server_error("The rest could not be translated in time.")
            self._close(self._closing or NORMAL, "")

    def _close(self, code: int, reason: str) -> None:
        self._closed = True
        self._effects += [AbortRequest(stretch.request_id) for stretch in self._stretches]
        self._stretches.clear()
        self._emit(events.TranslationClosed)
        self._effects.append(CloseSession(code, reason))

    # -- effects -------------------------------------------------------------------------------------------------------

    def _open(self, payload: Transcribe | Converse) -> str:
        request_id = self._context.ids("req")
        request = EngineRequest(request_id=request_id, session_id=self.session.id, payload=payload)
        self._effects.append(OpenRequest(request))
        return request_id

    def _emit(self, kind: type[Any], **fields: Any) -> None:
        self._effects.append(Send(kind(event_id=self._context.ids("event"), **fields)))

    def _emit_error(self, error: ProtocolError, event_id: str | None = None) -> None:
        body = ErrorBody(
            type="invalid_request_error", code=error.code, message=error.message, param=error.param, event_id=event_id
        )
        self._emit(ErrorEvent, error=body)

    def _server_error(self, message: str) -> None:
        self._emit(ErrorEvent, error=ErrorBody(type="server_error", code="server_error", message=message))

    def _take_effects(self) -> list[Effect]:
        taken, self._effects = self._effects, []
        return taken


def configured(
    session: events.TranslationSession, patch: dict[str, Any], context: SessionContext
) -> events.TranslationSession:
    """``session`` with ``patch`` merged in and checked. Raises ``ProtocolError`` that names the field."""
    names, present = context.names, msgspec.to_builtins(session)
    for name in ("id", "expires_at"):
        if name in patch and patch[name] != present[name]:
            raise ProtocolError("invalid_value", f"'session.{name}' is set by the server.", f"session.{name}")
    try:
        after = msgspec.convert(deep_merge(present, patch), events.TranslationSession)
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "session") from error
    was, is_now = (names.resolve("models", model, "session.model") for model in (session.model, after.model))
    if was != is_now:
        raise ProtocolError("invalid_value", "The model of a session cannot be changed.", "session.model")
    if (transcription := after.audio.input.transcription) is not None:
        param = "session.audio.input.transcription.model"
        names.resolve("transcription_models", transcription.model, param)
    return after
