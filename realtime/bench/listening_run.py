"""A session that only listens, on a simulated clock: the real session core, detector and recogniser, no waiting.

Sound comes in as a client sends it; what the recogniser says arrives as much later as the processor worked for it, or
at once. One request is worked on at a time, as with one core to spare: so a run does not depend on what else the
machine does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from duologue.engine.requests import OUTPUT_SAMPLE_RATE, Delta, EngineRequest, Finished, Transcribe
from duologue.engine.stage import Taker
from duologue.engine.stages.recogniser import WhisperRecogniser
from duologue.engine.voice_activity import FrameModel
from duologue.realtime.bench.offline_voice_activity import OfflineVoiceActivity
from duologue.sessions import server_events as events
from duologue.sessions.client_events import InputAudioAppend, InputAudioCommit
from duologue.sessions.config import (
    AudioInput,
    Limits,
    Names,
    ServerVad,
    Transcription,
    TranscriptionAudio,
    TranscriptionSession,
)
from duologue.sessions.core import SessionContext
from duologue.sessions.effects import (
    AbortRequest,
    Effect,
    EngineOutput,
    FeedVoiceActivity,
    Input,
    OpenRequest,
    Send,
    VoiceActivity,
)
from duologue.sessions.machine import ConversationMachine

SERVER_VAD: Final = ServerVad()
ENGLISH: Final = Transcription(model="whisper", language="en")


class _Context:
    """A stage's context that keeps what is emitted."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.deltas: list[Delta] = []
        self.aborted = False

    def emit(self, piece: Delta, to: Taker = "all") -> bool:
        self.deltas.append(piece)
        return True

    def working(self) -> None:
        """Nobody waits."""


@dataclass(frozen=True)
class Work:
    """One request that the recogniser has worked on."""

    payload: Transcribe
    at: float
    """When it was asked for, in seconds of the sound."""
    cpu_s: float
    """Of the whole process, which does nothing else."""


class ListeningRun:
    """Feeds a session and keeps what it says, with the time of each event in seconds of the sound."""

    def __init__(
        self,
        recogniser: WhisperRecogniser,
        detector: FrameModel,
        *,
        read_along: bool = True,
        speculate: bool = True,
        turn_detection: ServerVad | None = SERVER_VAD,
        instant: bool = False,
        limits: Limits | None = None,
        transcription: Transcription = ENGLISH,
    ) -> None:
        """``instant``: the recogniser takes no time, so that a run depends on the sound alone."""
        self._recogniser = recogniser
        self._detector = OfflineVoiceActivity(detector, OUTPUT_SAMPLE_RATE)
        self._instant = instant
        self.now = 0.0
        self.sent: list[tuple[float, events.ServerEvent]] = []
        self.work: list[Work] = []
        self._due: list[tuple[float, EngineOutput]] = []
        self._free_at = 0.0
        numbers = itertools.count()
        context = SessionContext(
            names=Names(models={}, voices={}, transcription_models={"whisper": "whisper"}),
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            limits=limits or Limits(),
            may_speculate=lambda: speculate,
            may_read_along=lambda: read_along,
        )
        audio = AudioInput(transcription=transcription, turn_detection=turn_detection)
        session = TranscriptionSession(id="sess_bench", expires_at=0, audio=TranscriptionAudio(input=audio))
        self._machine = ConversationMachine(session, context, self.now)
        self._perform(self._machine.start())

    # -- the client ----------------------------------------------------------------------------------------------------

    def append(self, pcm: bytes) -> None:
        """PCM16 at 24 kHz, in real time."""
        self.now += len(pcm) / 2 / OUTPUT_SAMPLE_RATE
        self._deliver()
        self._handle(InputAudioAppend(audio=pcm))

    def commit(self) -> None:
        """End the turn by hand."""
        self._handle(InputAudioCommit())

    def play(self, pcm: bytes, chunk_samples: int = 480, on_chunk: Callable[[], None] = lambda: None) -> None:
        """All of ``pcm``, in chunks."""
        for first in range(0, len(pcm), chunk_samples * 2):
            self.append(pcm[first : first + chunk_samples * 2])
            on_chunk()

    def finish(self) -> None:
        """Wait for what the recogniser still has to say."""
        while self._due:
            self.now = max(self.now, min(at for at, _ in self._due))
            self._deliver()

    # -- what came of it -----------------------------------------------------------------------------------------------

    def deltas(self) -> list[tuple[float, str]]:
        """Pieces of transcripts and when they were sent."""
        return [(at, text) for at, _, text in self.deltas_by_item()]

    def deltas_by_item(self) -> list[tuple[float, str, str]]:
        """When each piece was sent, of which item it is, and the piece."""
        return [(at, e.item_id, str(e.delta)) for at, e in self.sent if isinstance(e, events.TranscriptionDelta)]

    def transcripts(self) -> list[str]:
        """Of the turns, in order."""
        return [event.transcript for _, event in self.sent if isinstance(event, events.TranscriptionCompleted)]

    # -- carrying out effects ------------------------------------------------------------------------------------------

    def _handle(self, event: Input) -> None:
        self._perform(self._machine.handle(event, self.now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event=event):
                    self.sent.append((self.now, event))
                case OpenRequest(request=request):
                    self._recognise(request)
                case AbortRequest(request_id=request_id):
                    self._due = [due for due in self._due if due[1].request_id != request_id]
                case FeedVoiceActivity(stream=stream, pcm=pcm):
                    for frame in self._detector.feed(pcm):
                        self._handle(VoiceActivity(stream, frame.probability, frame.quiet_ms, frame.heard_from))

    def _recognise(self, request: EngineRequest) -> None:
        assert isinstance(request.payload, Transcribe)
        context = _Context(request)
        cpu = time.process_time()
        state = self._recogniser.start(request)
        self._recogniser.process(state, request.payload, context)
        self._recogniser.release(state)
        cpu = time.process_time() - cpu
        self.work.append(Work(request.payload, self.now, cpu))
        self._free_at = max(self.now, self._free_at) + (0.0 if self._instant else cpu)
        for delta in (*context.deltas, Finished(reason="completed")):
            self._due.append((self._free_at, EngineOutput(request.request_id, delta)))
        if self._instant:
            self._deliver()

    def _deliver(self) -> None:
        while ready := [due for due in self._due if due[0] <= self.now]:
            self._due.remove(ready[0])
            self._handle(ready[0][1])
