"""The floor under every figure: a server that knows when one stops speaking and answers at once with a tone.

It speaks the GA dialect over a real WebSocket, but has no models: turns end by level (``benchmarks`` section 0.3),
nothing is recognised. What a benchmark measures against it is the cost of the transport and of the benchmark itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from duologue.codecs.levels import AUDIBLE_DBFS, dbfs
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.realtime import wire
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.sessions import server_events as out
from duologue.sessions.client_events import (
    AnyClientEvent,
    InputAudioAppend,
    InvalidEvent,
    ItemTruncate,
    ResponseCancel,
    SessionUpdate,
)
from duologue.sessions.config import Audio, AudioInput, AudioOutput, RealtimeSession, ServerVad, merged
from duologue.sessions.items import MessageItem, OutputAudio

FRAME = SAMPLE_RATE // 100
RUN = 3


def tone(seconds: float, frequency: float = 440.0) -> bytes:
    """A sine at -12 dBFS, PCM16 at 24 kHz."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return float_to_pcm16((0.25 * np.sqrt(2) * np.sin(2 * np.pi * frequency * time)).astype(np.float32))


@dataclass(frozen=True)
class Answer:
    """What is said to have been heard, and the reply to it."""

    heard: str = ""
    reply: str = "Tone."
    pcm: bytes = field(default_factory=lambda: tone(1.0))
    delta_ms: int = 200


class LevelTurns:
    """Turn ends by level: yields ``(started, position)`` in samples, for audio cut up in any way."""

    def __init__(self) -> None:
        self.silence_samples = SAMPLE_RATE // 2
        self._pending: NDArray[np.float32] = np.zeros(0, np.float32)
        self._position = 0
        self._loud = 0
        self._quiet = 0
        self._speaking = False

    def push(self, samples: NDArray[np.float32]) -> Iterator[tuple[bool, int]]:
        self._pending = np.concatenate([self._pending, samples])
        while len(self._pending) >= FRAME:
            frame, self._pending = self._pending[:FRAME], self._pending[FRAME:]
            self._position += FRAME
            audible = dbfs(frame) >= AUDIBLE_DBFS
            self._loud = self._loud + 1 if audible else 0
            self._quiet = 0 if audible else self._quiet + FRAME
            if not self._speaking and self._loud == RUN:
                self._speaking = True
                yield True, self._position - RUN * FRAME
            elif self._speaking and self._quiet >= self.silence_samples:
                self._speaking = False
                yield False, self._position


class LoopbackServer:
    """``async with LoopbackServer() as server: ... server.url``. ``answer`` is asked once per turn, by its number."""

    def __init__(self, answer: Callable[[int], Answer] = lambda turn: Answer()) -> None:
        self._answer = answer
        self._turns = itertools.count()
        self._server: Server | None = None
        self.truncations: list[ItemTruncate] = []

    @property
    def url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/v1/realtime"

    async def __aenter__(self) -> Self:
        self._server = await serve(self._session, "127.0.0.1", 0, compression=None, max_size=wire.MAX_FRAME_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _session(self, connection: ServerConnection) -> None:
        session = _LoopbackSession(lambda: self._answer(next(self._turns)))
        try:
            for event in session.open():
                await connection.send(wire.encode(event))
            async for frame in connection:
                event = wire.decode(frame)
                if isinstance(event, ItemTruncate):
                    self.truncations.append(event)
                for reply in session.handle(event):
                    await connection.send(wire.encode(reply))
        except ConnectionClosed:
            return


class _LoopbackSession:
    """One connection's events in, events out."""

    def __init__(self, answer: Callable[[], Answer]) -> None:
        self._answer = answer
        self._ids = itertools.count(1)
        self._turns = LevelTurns()
        self._item_id = ""
        self._last_item_id: str | None = None
        self._session = RealtimeSession(
            id="sess_loopback",
            model="loopback",
            expires_at=2**31 - 1,
            instructions="",
            audio=Audio(output=AudioOutput(voice="tone"), input=AudioInput(turn_detection=ServerVad())),
        )

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self._ids):06d}"

    def open(self) -> Iterator[out.ServerEvent]:
        yield out.SessionCreated(event_id=self._id("event"), session=self._session)

    def handle(self, event: AnyClientEvent | InvalidEvent) -> Iterator[out.ServerEvent]:
        match event:
            case SessionUpdate(session=patch):
                self._session = merged(self._session, patch)
                detection = self._session.audio.input.turn_detection
                if isinstance(detection, ServerVad):
                    self._turns.silence_samples = detection.silence_duration_ms * SAMPLE_RATE // 1000
                yield out.SessionUpdated(event_id=self._id("event"), session=self._session)
            case InputAudioAppend(audio=audio):
                for started, position in self._turns.push(pcm16_to_float(audio)):
                    yield from self._started(position) if started else self._stopped(position)
            case ItemTruncate(item_id=item_id, audio_end_ms=end):
                yield out.ItemTruncated(event_id=self._id("event"), item_id=item_id, content_index=0, audio_end_ms=end)
            case ResponseCancel():
                yield self._error("response_cancel_not_active", "Every answer is complete as soon as it is begun.")
            case _:
                yield self._error("invalid_event", "The loopback server only takes session.update, append, truncate.")

    def _error(self, code: str, message: str) -> out.ErrorEvent:
        body = out.ErrorBody(type="invalid_request_error", code=code, message=message)
        return out.ErrorEvent(event_id=self._id("event"), error=body)

    def _started(self, position: int) -> Iterator[out.ServerEvent]:
        self._item_id = self._id("item")
        start = position * 1000 // SAMPLE_RATE
        yield out.SpeechStarted(event_id=self._id("event"), audio_start_ms=start, item_id=self._item_id)

    def _stopped(self, position: int) -> Iterator[out.ServerEvent]:
        answer, item_id = self._answer(), self._item_id
        end = position * 1000 // SAMPLE_RATE
        yield out.SpeechStopped(event_id=self._id("event"), audio_end_ms=end, item_id=item_id)
        yield out.InputAudioCommitted(event_id=self._id("event"), item_id=item_id, previous_item_id=self._last_item_id)
        self._last_item_id = item_id
        yield out.TranscriptionCompleted(
            event_id=self._id("event"),
            item_id=item_id,
            content_index=0,
            transcript=answer.heard,
            usage=out.TranscriptionUsage(seconds=position / SAMPLE_RATE),
        )
        yield from self._respond(answer)

    def _respond(self, answer: Answer) -> Iterator[out.ServerEvent]:
        response_id, item_id = self._id("resp"), self._id("item")
        response = out.Response(
            id=response_id,
            status="in_progress",
            conversation_id="conv_loopback",
            output_modalities=("audio",),
            max_output_tokens="inf",
            audio=out.ResponseAudio(
                output=out.ResponseAudioOutput(format=self._session.audio.output.format, voice="tone")
            ),
        )
        yield out.ResponseCreated(event_id=self._id("event"), response=response)

        def where(event_id: str) -> dict[str, object]:
            place = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
            return {"event_id": event_id, **place}

        yield out.OutputAudioTranscriptDelta(**where(self._id("event")), delta=answer.reply)
        step = answer.delta_ms * SAMPLE_RATE // 1000 * 2
        for first in range(0, len(answer.pcm), step):
            yield out.OutputAudioDelta(**where(self._id("event")), delta=answer.pcm[first : first + step])
        yield out.OutputAudioDone(**where(self._id("event")))
        yield out.OutputAudioTranscriptDone(**where(self._id("event")), transcript=answer.reply)
        item = MessageItem(
            id=item_id, status="completed", role="assistant", content=(OutputAudio(transcript=answer.reply),)
        )
        self._last_item_id = item_id
        yield out.ResponseDone(
            event_id=self._id("event"),
            response=out.Response(
                id=response_id,
                status="completed",
                output=(item,),
                conversation_id=response.conversation_id,
                output_modalities=response.output_modalities,
                max_output_tokens="inf",
                audio=response.audio,
                usage=out.ResponseUsage(),
            ),
        )
