"""One recording spoken to a server: the driving and the measuring behind ``duologue talk``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.clock import SAMPLE_BYTES, SAMPLE_RATE, MonotonicClock, PacedSender
from duologue.realtime.bench.conversation import Conversation, SeenResponse, Turn
from duologue.realtime.bench.levels import SpeechBounds, user_speech
from duologue.realtime.bench.playback import ClientPlayback
from duologue.realtime.bench.voice_to_voice import VoiceSplit, first_heard_s, response_audio, voice_split
from duologue.realtime.client import ClientError, RealtimeClient, Received
from duologue.realtime.event_log import EventLog
from duologue.sessions.client_events import ItemTruncate

LEAST_TRAILING_S = 1.5
QUIET_S = 2.0
"""So long without an event of input or response, nothing more is to come (``benchmarks`` section 1.4)."""
COMPLETION_TIMEOUT_S = 60.0


class TurnReport(msgspec.Struct, frozen=True):
    """One turn: what was heard, what was answered, and the times in milliseconds."""

    heard: str | None
    answered: str
    status: str | None
    """Of the response; ``None`` if there was none."""
    user_stop_s: float | None
    """Last audible sample of the turn, in seconds of the recording."""
    answer_s: float
    split: VoiceSplit | None


class TalkSummary(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

    url: str
    recording: str
    recording_s: float
    complete: bool
    turns: list[TurnReport]
    server_errors: list[str]
    pacing_lag_max_ms: float


@dataclass(frozen=True)
class TalkReport:
    """Everything that came out of one talk."""

    url: str
    recording: Path
    recording_s: float
    complete: bool
    """False if the server was still busy when patience ended."""
    turns: list[TurnReport]
    audio: bytes
    """All answers one after the other, PCM16 at 24 kHz."""
    server_errors: list[str]
    pacing_lag_max_ms: float

    def summary(self) -> TalkSummary:
        """The report without its audio."""
        return TalkSummary(
            self.url,
            str(self.recording),
            self.recording_s,
            self.complete,
            self.turns,
            self.server_errors,
            self.pacing_lag_max_ms,
        )


class RecordingThenSilence:
    """An audio source: the recording, then silence for as long as it is asked."""

    def __init__(self, pcm: bytes) -> None:
        self._pcm = pcm
        self._at = 0
        self.closed = False

    @property
    def position_s(self) -> float:
        return self._at / (SAMPLE_RATE * SAMPLE_BYTES)

    def take(self, samples: int) -> bytes | None:
        if self.closed:
            return None
        size = samples * SAMPLE_BYTES
        chunk = self._pcm[self._at : self._at + size]
        self._at += size
        return chunk + bytes(size - len(chunk))


@dataclass(frozen=True)
class Progress:
    """The state of a running talk, for a display."""

    position_s: float
    recording_s: float
    conversation: Conversation


async def talk_recording(
    recording: Path,
    url: str,
    settings: CallerSettings,
    *,
    model: str | None = None,
    api_key: str | None = None,
    log_folder: Path | None = None,
    watch: Callable[[Progress], Any] | None = None,
) -> TalkReport:
    """Speak ``recording`` in real time, wait for all answers, and report.

    Raises :class:`~duologue.realtime.client.ClientError`, ``OSError`` or ``WavError``.
    """
    audio, rate = read_wav(recording)
    speech = resample(audio, rate, SAMPLE_RATE) if rate != SAMPLE_RATE else audio
    log = EventLog()
    client = await RealtimeClient.connect(url, model=model, api_key=api_key, log=log)
    try:
        async with client:
            session = await client.configure(settings.session())
            talk = _Talk(client, speech, settings, watch)
            talk.playback.interrupt_response = session.interrupt_response
            complete = await talk.run()
    finally:
        if log_folder is not None:
            await asyncio.to_thread(log.save, log_folder)
    return talk.report(url, recording, complete)


class _Talk:
    def __init__(
        self,
        client: RealtimeClient,
        speech: NDArray[np.float32],
        settings: CallerSettings,
        watch: Callable[[Progress], Any] | None,
    ) -> None:
        self._client = client
        self._speech = speech
        self._settings = settings
        self._watch = watch
        self._clock = MonotonicClock()
        self._source = RecordingThenSilence(float_to_pcm16(speech))
        self._sender = PacedSender(
            self._speak, self._clock, chunk_ms=settings.chunk_ms, on_start=client.log.start_input_clock
        )
        self._changed = asyncio.Event()
        self.conversation = Conversation()
        self.playback = ClientPlayback()

    @property
    def recording_s(self) -> float:
        return len(self._speech) / SAMPLE_RATE

    async def run(self) -> bool:
        """Speak and wait; whether the conversation came to rest."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(), name="talk-reader")
                tasks.create_task(self._sender.run(self._source), name="talk-sender")
                completion = tasks.create_task(self._come_to_rest(), name="talk-completion")
                await asyncio.wait((reader, completion), return_when=asyncio.FIRST_COMPLETED)
                self._source.closed = True
                completion.cancel()
                await self._client.close()
        except BaseExceptionGroup as group:
            lost, other = group.split(ClientError)
            if lost is None or other is not None:
                raise
            raise lost.exceptions[0] from None
        return completion.done() and not completion.cancelled() and completion.result()

    async def _speak(self, pcm: bytes, due: float) -> None:
        await self._client.append(pcm, due)
        self._tell()

    def _tell(self) -> None:
        if self._watch:
            self._watch(Progress(self._source.position_s, self.recording_s, self.conversation))

    async def _read(self) -> None:
        async for received in self._client:
            self._handle(received)
            for cut in self.playback.handle(received):
                await self._client.send(ItemTruncate(item_id=cut.item_id, content_index=0, audio_end_ms=cut.heard_ms))

    def _handle(self, received: Received) -> None:
        self.conversation.handle(received)
        self._changed.set()
        self._tell()

    async def _come_to_rest(self) -> bool:
        """Wait until the recording and the silence after it are spoken and nothing more is to come."""
        trailing = max(LEAST_TRAILING_S, self._settings.silence_ms / 1000 + 1.0)
        spoken = self._clock.now() + self.recording_s + trailing
        await self._clock.sleep_until(spoken)
        deadline = spoken + COMPLETION_TIMEOUT_S
        while (now := self._clock.now()) < deadline:
            open_ = self.conversation.speech_open or self.conversation.response_open
            last = self.conversation.last_activity_s
            rest = spoken if last is None else max(spoken, last + QUIET_S)
            if not open_ and now >= rest:
                return True
            self._changed.clear()
            try:
                async with asyncio.timeout_at(_loop_time(deadline if open_ else rest, self._clock)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return False

    def report(self, url: str, recording: Path, complete: bool) -> TalkReport:
        origin = self._client.log.origin_s or 0.0
        audio = pcm16_to_float(bytes(self._client.log.audio))
        bounds = user_speech(self._speech, SAMPLE_RATE)
        turns = [self._turn(turn, origin, bounds, audio) for turn in self.conversation.turns.values()]
        return TalkReport(
            url=url,
            recording=recording,
            recording_s=round(self.recording_s, 3),
            complete=complete,
            turns=turns,
            audio=bytes(self._client.log.audio),
            server_errors=self.conversation.errors,
            pacing_lag_max_ms=round(max(self._sender.lags, default=0.0) * 1000, 3),
        )

    def _turn(self, turn: Turn, origin: float, bounds: SpeechBounds | None, audio: NDArray[np.float32]) -> TurnReport:
        responses = self.conversation.responses_to(turn.item_id)
        response: SeenResponse | None = responses[0] if responses else None
        stop = None
        if bounds is not None and turn.audio_end_ms is not None:
            end = bounds.last_end_before(turn.audio_end_ms * SAMPLE_RATE // 1000)
            stop = None if end is None else end / SAMPLE_RATE
        split = None
        if response is not None and stop is not None:
            audible = first_heard_s(self.playback.player, response, audio)
            split = voice_split(origin + stop, turn, response, audible)
        return TurnReport(
            heard=turn.transcript,
            answered=" ".join(r.text for r in responses),
            status=response.status if response else None,
            user_stop_s=None if stop is None else round(stop, 3),
            answer_s=round(sum(len(response_audio(r, audio)) for r in responses) / SAMPLE_RATE, 3),
            split=split,
        )


def _loop_time(at: float, clock: MonotonicClock) -> float:
    """``at`` on the clock of the event loop."""
    return asyncio.get_running_loop().time() + max(0.0, at - clock.now())
