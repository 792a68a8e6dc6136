"""A scripted world around one session machine: a clock, a detector, an engine and a player, all by hand.

The detector hears speech wherever a sample is not zero, so what counts as speech is decided by the test's audio.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from duologue.codecs.noise_suppression import MakeSuppressor, no_suppressor
from duologue.engine.requests import (
    AudioDelta,
    Converse,
    EngineRequest,
    Finished,
    TextDelta,
    ToolCallDelta,
    Transcribe,
    TranscriptDelta,
    Usage,
    WordSpan,
)
from duologue.realtime.webrtc.playout_queue import FRAME_BYTES, PlayoutQueue
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Audio, AudioOutput, Limits, Names, RealtimeSession
from duologue.sessions.core import SessionContext
from duologue.sessions.effects import (
    AbortRequest,
    AskTurnModel,
    AudioSent,
    CloseSession,
    DropAudio,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    FinishPlaying,
    GoOn,
    Input,
    MediaAudio,
    OpenRequest,
    Play,
    PlayoutCleared,
    PlayoutReport,
    PlayoutStarted,
    PlayoutStopped,
    Send,
    StopPlaying,
    Tick,
    TurnJudged,
    VoiceActivity,
)
from duologue.sessions.machine import ConversationMachine
from duologue.sessions.mcp.policy import McpPolicy, McpRules
from duologue.sessions.stored_prompts import PromptTemplate
from duologue.sessions.updating import Bound

RATE = 24_000
LATE = -1.0
"""What a judge says that has not made up its mind: the test gives the answer, or none."""
Judge = Callable[[AskTurnModel], float | None]
"""The turn model: a question to the probability that the turn is over."""
AUDIBLE = 1e-6
"""Power of -60 dBFS."""
SPEECH, SILENCE = b"\x10\x27", b"\x00\x00"
E = TypeVar("E", bound=events.ServerEvent)
F = TypeVar("F", bound=Effect)

NAMES = Names(
    models={"assistant": "assistant", "default": "assistant", "gpt-realtime": "assistant", "second": "second"},
    voices={"heart": "heart", "alloy": "heart", "other": "other"},
    transcription_models={"whisper-tiny.en": "whisper-tiny.en", "whisper-1": "whisper-tiny.en"},
)


def speech(ms: int) -> bytes:
    return SPEECH * (RATE * ms // 1000)


def silence(ms: int) -> bytes:
    return SILENCE * (RATE * ms // 1000)


class Driver:
    """Feeds a machine and keeps what it did. Time moves only by :meth:`wait` and with appended audio."""

    def __init__(
        self,
        patch: dict[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        speculate: bool = False,
        prepares: bool = False,
        read_along: bool = False,
        languages: frozenset[str] | None = None,
        voice_languages: frozenset[str] = frozenset(),
        deliver: bool = True,
        transcription: bool = True,
        can_call_tools: bool = False,
        takes_images: bool = False,
        gives_logprobs: bool = False,
        judge: Judge | None = None,
        prompts: dict[str, PromptTemplate] | None = None,
        make_suppressor: MakeSuppressor = no_suppressor,
        bound: Bound | None = None,
        mcp: McpPolicy | None = None,
        media_clock: bool = False,
        heard_from: float = 0.0,
    ) -> None:
        """``heard_from``: power from which on the detector hears something; 0: it knows silence by whole frames."""
        numbers = itertools.count()
        context = SessionContext(
            names=NAMES,
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            limits=limits or Limits(),
            can_call_tools=can_call_tools,
            takes_images=takes_images,
            gives_logprobs=gives_logprobs,
            prompts=prompts or {},
            make_suppressor=make_suppressor,
            mcp=mcp or McpPolicy(McpRules()),
            judges_turns=judge is not None,
            media_clock=media_clock,
            may_speculate=lambda: speculate,
            prepares=prepares,
            may_read_along=lambda: read_along,
            languages=languages,
            voice_languages=voice_languages,
        )
        session = RealtimeSession(
            id="sess_test",
            model="assistant",
            expires_at=0,
            instructions="Be brief.",
            audio=Audio(output=AudioOutput(voice="heart")),
        )
        self.now = 100.0
        self.deliver = deliver
        self.sent: list[events.ServerEvent] = []
        self.effects: list[Effect] = []
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: list[str] = []
        self.closed: CloseSession | None = None
        self._judge = judge
        self._heard_from = heard_from
        self.questions: list[AskTurnModel] = []
        """What the turn model has been asked."""
        self._frame: bytearray = bytearray()
        self._stream = -1
        self.reports: deque[PlayoutReport] = deque()
        """What the track has said and the machine has not been told: it has the effects in hand to finish first."""
        self.track = PlayoutQueue(_Reports(self))
        """What plays with a media clock, while :meth:`listen` lets it."""
        self.machine = ConversationMachine(session, context, self.now, bound or Bound(type=True, model=True))
        self._carry(self.machine.start())
        if transcription:
            self.update({"audio": {"input": {"transcription": {"model": "whisper-1"}}}})
        if patch is not None:
            self.update(patch)

    # -- the client ----------------------------------------------------------------------------------------------------

    def do(self, event: Input) -> list[events.ServerEvent]:
        """Hand an event to the machine; returns what it sent for it."""
        before = len(self.sent)
        self._carry(self.machine.handle(event, self.now))
        while self.reports:
            self._carry(self.machine.handle(self.reports.popleft(), self.now))
        return self.sent[before:]

    def update(self, patch: dict[str, Any]) -> list[events.ServerEvent]:
        return self.do(client.SessionUpdate(session=patch))

    def say(self, *pieces: bytes, chunk_ms: float = 20) -> None:
        """Append audio in real time, in chunks."""
        audio = b"".join(pieces)
        size = max(1, int(RATE * 2 * chunk_ms / 1000))
        for first in range(0, len(audio), size):
            chunk = audio[first : first + size]
            self.now += len(chunk) / 2 / RATE
            self.do(client.InputAudioAppend(audio=chunk))

    def wait(self, seconds: float) -> None:
        """Let time pass; the machine gets its ticks."""
        end = self.now + seconds
        while self.closed is None and self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            self.do(Tick())
        self.now = end

    # -- a media track -------------------------------------------------------------------------------------------------

    def speak_into(self, *pieces: bytes) -> None:
        """Sound over the media track in real time, while it plays."""
        audio = b"".join(pieces)
        for first in range(0, len(audio), FRAME_BYTES):
            self.do(MediaAudio(audio[first : first + FRAME_BYTES]))
            self.listen(20)

    def listen(self, ms: int) -> None:
        """Let the track play."""
        for _ in range(ms // 20):
            self.now += 0.02
            self.track.take()
            while self.reports:
                self.do(self.reports.popleft())

    # -- the engine ----------------------------------------------------------------------------------------------------

    def pending(self, kind: type[Transcribe] | type[Converse]) -> list[str]:
        """Ids of open requests of a kind, oldest first."""
        return [request_id for request_id, request in self.requests.items() if isinstance(request.payload, kind)]

    def transcribe(self, text: str, reason: Any = "completed", **fields: Any) -> str:
        """The oldest open recogniser request ends with these words."""
        request_id = self.pending(Transcribe)[0]
        if text:
            self.do(EngineOutput(request_id, TranscriptDelta(text=text, **fields)))
        self.finish(request_id, reason)
        return request_id

    def write(self, text: str, request_id: str | None = None, usage: Usage | None = None) -> str:
        request_id = request_id or self.pending(Converse)[0]
        self.do(EngineOutput(request_id, TextDelta(text=text), usage or Usage()))
        return request_id

    def speak(self, ms: int, words: Sequence[WordSpan] = (), request_id: str | None = None) -> str:
        request_id = request_id or self.pending(Converse)[0]
        self.do(EngineOutput(request_id, AudioDelta(pcm=speech(ms), words=tuple(words))))
        return request_id

    def call(self, arguments: str, key: str = "call_0", name: str = "look_up", request_id: str | None = None) -> str:
        """The language model writes a piece of a call's arguments; ``key`` is its own name for the call."""
        request_id = request_id or self.pending(Converse)[0]
        self.do(EngineOutput(request_id, ToolCallDelta(call_id=key, name=name, arguments=arguments)))
        return request_id

    def finish(self, request_id: str | None = None, reason: Any = "completed", error: str | None = None) -> None:
        request_id = request_id or self.pending(Converse)[0]
        self.requests.pop(request_id, None)
        usage = Usage(input_tokens=7, cached_tokens=3, output_tokens=5)
        self.do(EngineOutput(request_id, Finished(reason=reason, usage=usage, error=error)))

    def answer(self, text: str = "One two.", ms: int = 1000) -> str:
        """The oldest open answer is made whole, in one piece of text and one of sound, word by word evenly."""
        request_id = self.write(text)
        self.speak(ms, spread(text, ms), request_id)
        self.finish(request_id)
        return request_id

    def spoken_turn(self, transcript: str = "Hello there.", text: str = "One two.", ms: int = 1000) -> str:
        """The user speaks, stops, and is answered. Returns the id of the answer's item."""
        self.say(speech(600), silence(800))
        self.transcribe(transcript)
        self.answer(text, ms)
        return str(self.last(events.OutputItemDone).item.id)

    # -- looking -------------------------------------------------------------------------------------------------------

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.sent if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E:
        return self.all(kind)[-1]

    def effects_of(self, kind: type[F]) -> list[F]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def kinds(self) -> list[str]:
        return [str(type(event).__struct_config__.tag) for event in self.sent]

    def asked(self) -> Converse:
        """What the language model was asked last."""
        payloads = [
            effect.request.payload
            for effect in self.effects
            if isinstance(effect, OpenRequest) and isinstance(effect.request.payload, Converse)
        ]
        return payloads[-1]

    def context(self) -> list[tuple[str, str]]:
        """Role and text of what the language model was shown last."""
        return [(message.role, message.text) for message in self.asked().messages]

    # -- carrying out effects ------------------------------------------------------------------------------------------

    def _carry(self, effects: list[Effect]) -> None:
        self.effects += effects
        dropped = {effect.response_id for effect in effects if isinstance(effect, DropAudio)}
        for effect in effects:
            match effect:
                case Send(event=event, samples=samples):
                    self.sent.append(event)
                    leaves = isinstance(event, events.OfPart) and event.response_id not in dropped
                    if samples and self.deliver and leaves:
                        self.do(AudioSent(event.item_id, samples))
                case Play(response_id=response_id, item_id=item_id, pcm=pcm):
                    self.track.push(response_id, item_id, pcm)
                case FinishPlaying(response_id=response_id):
                    self.track.finish(response_id)
                case StopPlaying():
                    self.track.clear()
                case OpenRequest(request=request):
                    self.requests[request.request_id] = request
                case AbortRequest(request_id=request_id):
                    self.aborted.append(request_id)
                    self.requests.pop(request_id, None)
                case CloseSession():
                    self.closed = effect
        for effect in effects:  # what the detector says comes after what has been said already
            if isinstance(effect, FeedVoiceActivity):
                self._detect(effect)
            elif isinstance(effect, AskTurnModel):
                self.questions.append(effect)
                answer = self._judge(effect) if self._judge is not None else None
                if answer != LATE:
                    self.do(TurnJudged(effect.question, answer))
            elif isinstance(effect, GoOn):
                self.do(effect.rest)

    def _detect(self, effect: FeedVoiceActivity) -> None:
        if effect.stream != self._stream:
            self._stream, self._frame = effect.stream, bytearray()
        self._frame += effect.pcm
        size = effect.sample_rate * 32 // 1000 * 2
        while len(self._frame) >= size:
            frame, self._frame = self._frame[:size], self._frame[size:]
            loud = frame.count(0) < len(frame) // 2
            self.do(VoiceActivity(effect.stream, 0.95 if loud else 0.01, heard_from=self._heard_from))


class _Reports:
    """What the track says, told to the machine once it has done with the effects in hand."""

    def __init__(self, driver: Driver) -> None:
        self._say = driver.reports.append

    def on_started(self, response_id: str) -> None:
        self._say(PlayoutStarted(response_id))

    def on_played(self, item_id: str, samples: int) -> None:
        self._say(AudioSent(item_id, samples))

    def on_stopped(self, response_id: str) -> None:
        self._say(PlayoutStopped(response_id))

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        self._say(PlayoutCleared(response_id))


def spread(text: str, ms: int) -> list[WordSpan]:
    """Words of ``text`` at equal lengths over ``ms`` of sound."""
    words, position, spans = text.split(), 0, []
    for index, word in enumerate(words):
        position = text.index(word, position)
        end_sample = RATE * ms * (index + 1) // (1000 * len(words))
        spans.append(WordSpan(text_start=position, text_end=position + len(word), end_sample=end_sample))
        position += len(word)
    return spans
