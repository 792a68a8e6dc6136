"""One replay: a recording is spoken into one connection in real time, the answers are played and logged.

It only drives and logs; ``artifacts`` makes the outputs from the log afterwards.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES, float_to_pcm16
from duologue.realtime.bench.clock import SAMPLE_RATE, Clock, PacedSender, Pacing
from duologue.realtime.bench.conversation import Conversation
from duologue.realtime.bench.fdb.dataset import Echo
from duologue.realtime.bench.heard import ReceivedSound
from duologue.realtime.bench.playback import ClientPlayback, Cut, Player, Policy
from duologue.realtime.bench.waiting import Changes
from duologue.realtime.client import ClientError, RealtimeClient
from duologue.sessions.client_events import InputAudioCommit, ItemTruncate, ResponseCancel

TurnMode = Literal["none", "server_vad", "semantic_vad"]
TAIL_S = 1.5
"""Least silence after the recording."""
UNDECIDED_S = 10.0
"""Without turn detection, a server that does nothing for so long after the commit has decided to."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """How recordings are replayed; part of the conditions of a run."""

    turn_mode: TurnMode = "server_vad"
    silence_ms: int | None = None
    eagerness: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    transcription_model: str | None = "default"
    session: dict[str, Any] = {}
    """Laid over the body of ``session.update``, for settings that have no option of their own."""
    client_policy: Policy = "obey"
    player_buffer_ms: int = 0
    pacing: Pacing = "mic"
    chunk_ms: int = 20
    timeout_s: float = 60.0
    """Longest wait for the server to come to rest after the recording."""
    settle_s: float = 2.0
    """So long without an event of speech or response is rest."""

    def body(self) -> dict[str, Any]:
        """The body of the ``session.update`` that opens the session."""
        pcm = {"type": "audio/pcm", "rate": SAMPLE_RATE}
        detection: dict[str, Any] | None = None if self.turn_mode == "none" else {"type": self.turn_mode}
        if detection and self.silence_ms is not None and self.turn_mode == "server_vad":
            detection["silence_duration_ms"] = self.silence_ms
        if detection and self.eagerness is not None and self.turn_mode == "semantic_vad":
            detection["eagerness"] = self.eagerness
        audio_in: dict[str, Any] = {"format": pcm, "turn_detection": detection}
        if self.transcription_model:
            audio_in["transcription"] = {"model": self.transcription_model}
        body: dict[str, Any] = {
            "output_modalities": ["audio"],
            "audio": {"input": audio_in, "output": {"format": pcm}},
        }
        if self.instructions is not None:
            body["instructions"] = self.instructions
        if self.max_output_tokens is not None:
            body["max_output_tokens"] = self.max_output_tokens
        return overlaid(body, self.session)

    @property
    def tail_s(self) -> float:
        return max(TAIL_S, (self.silence_ms or 0) / 1000 + 1.0)


def overlaid(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``patch`` laid over it, object by object."""
    merged = dict(base)
    for key, value in patch.items():
        below = merged.get(key)
        merged[key] = overlaid(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


class Recording:
    """The recording as a microphone hears it: then silence without end, and on top what the loudspeaker sends back.

    An audio source (:class:`~duologue.realtime.bench.clock.AudioSource`) at 24 kHz.
    """

    def __init__(self, samples: NDArray[np.float32], tail: int = 0, room: Room | None = None) -> None:
        self.position = 0
        self.sent = bytearray()
        """PCM16 of what was sent, as far as the recording goes; kept only with a room."""
        self.over = asyncio.Event()
        """Set once the recording and ``tail`` samples of silence have been taken."""
        self._samples = samples
        self._end = len(samples) + tail
        self._room = room
        self._closed = False

    def close(self) -> None:
        """End the source at the next chunk."""
        self._closed = True

    def take(self, samples: int) -> bytes | None:
        if self._closed:
            return None
        chunk = np.zeros(samples, np.float32)
        piece = self._samples[self.position : self.position + samples]
        chunk[: len(piece)] = piece
        if self._room is not None:
            chunk += self._room.echo(self.position, samples)
        self.position += samples
        pcm = float_to_pcm16(chunk)
        if self._room is not None:
            self.sent += pcm[: len(piece) * SAMPLE_BYTES]
        if self.position >= self._end:
            self.over.set()
        return pcm


class Room:
    """The way from the loudspeaker back to the microphone: one reflection, attenuated and late."""

    def __init__(self, echo: Echo, player: Player, sound: ReceivedSound) -> None:
        self.origin_s = 0.0
        self._gain = np.float32(10 ** (echo.gain_db / 20))
        self._delay = echo.delay_ms * SAMPLE_RATE // 1000
        self._player = player
        self._sound = sound

    def echo(self, position: int, samples: int) -> NDArray[np.float32]:
        """What arrives at the microphone from input sample ``position`` on; what will be cut off is not yet in it."""
        first = position - self._delay
        segments = self._player.segments
        # In order of time, and far more than have been played when the server sends faster than they sound.
        low = bisect_left(segments, self.origin_s + first / SAMPLE_RATE, key=lambda segment: segment.end_s)
        high = bisect_left(segments, self.origin_s + (first + samples) / SAMPLE_RATE, key=lambda s: s.start_s)
        heard = self._sound.render(segments[max(0, low - 1) : high + 1], SAMPLE_RATE, self.origin_s, first, samples)
        return np.frombuffer(heard, PCM16).astype(np.float32) * (self._gain / 32768)


class Replay:
    """One connection. ``run`` speaks the recording, waits until the server has come to rest, and hangs up."""

    def __init__(
        self,
        client: RealtimeClient,
        samples: NDArray[np.float32],
        clock: Clock,
        settings: ReplaySettings,
        echo: Echo | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._conversation = Conversation()
        player = Player(buffer_s=settings.player_buffer_ms / 1000)
        self._playback = ClientPlayback(settings.client_policy, player)
        self._sound = ReceivedSound() if echo else None
        self._room = Room(echo, player, self._sound) if echo and self._sound else None
        self._detects = settings.turn_mode != "none"
        tail = round(settings.tail_s * SAMPLE_RATE) if self._detects else 0
        self.recording = Recording(samples, tail, self._room)
        self._seconds = len(samples) / SAMPLE_RATE
        self._sender = PacedSender(
            client.append, clock, chunk_ms=settings.chunk_ms, pacing=settings.pacing, on_start=self._begin
        )
        self._changes = Changes(clock)
        self._truncations = 0
        self._cancelled: set[str] = set()

    async def run(self) -> None:
        """Make the call. A broken connection ends it and is noted in the log; nothing is raised for it."""
        log = self._client.log
        try:
            session = await self._client.configure(self._settings.body())
            self._playback.interrupt_response = session.interrupt_response
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(), name="replay-reader")
                tasks.create_task(self._sender.run(self.recording), name="replay-microphone")
                await self._until_rest()
                self.recording.close()
                await self._client.close()
        except* ClientError as group:
            log.note({"type": "connection.lost", "message": str(group.exceptions[0])}, self._clock.now())

    def _begin(self, t0: float) -> None:
        self._client.log.start_input_clock(t0)
        if self._room is not None:
            self._room.origin_s = t0

    async def _read(self) -> None:
        async for received in self._client:
            self._conversation.handle(received)
            if self._sound is not None and received.audio:
                self._sound.receive(received.message.response_id or "", received.audio)
            await self._truncate(self._playback.handle(received))
            self._changes.notify()

    async def _truncate(self, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            self._truncations += 1
            event = ItemTruncate(
                event_id=f"truncate_{self._truncations}",
                item_id=cut.item_id,
                content_index=0,
                audio_end_ms=cut.heard_ms,
            )
            await self._client.send(event)

    async def _until_rest(self) -> None:
        """Wait for the end of the recording, then until the server has nothing more to say or to hear."""
        try:
            async with asyncio.timeout(self._seconds + self._settings.timeout_s):
                await self.recording.over.wait()
        except TimeoutError:
            self._client.log.note({"type": "timeout", "message": "the recording could not be sent"}, self._clock.now())
            return
        if not self._detects:
            await self._client.send(InputAudioCommit())
        quiet_s = self._settings.settle_s if self._detects else UNDECIDED_S
        rests_from = self._clock.now()
        deadline = rests_from + self._settings.timeout_s
        while (now := self._clock.now()) < deadline:
            await self._cancel_open()
            busy = self._conversation.speech_open or self._conversation.response_open
            quiet_at = max(rests_from, self._conversation.last_activity_s or rests_from) + quiet_s
            if not busy and now >= quiet_at:
                return
            await self._changes.until(self._activity(), deadline if busy else min(deadline, quiet_at))
        self._client.log.note({"type": "timeout", "message": self._unrest()}, self._clock.now())

    async def _cancel_open(self) -> None:
        """End answers that would only sound after the recording: nobody will hear them, and they cost the others."""
        for response in list(self._conversation.responses.values()):
            if response.done_s is None and response.response_id not in self._cancelled:
                self._cancelled.add(response.response_id)
                await self._client.send(ResponseCancel(response_id=response.response_id))

    def _activity(self) -> Callable[[], bool]:
        """Whether anything of speech or response has happened since now."""
        seen = self._conversation.last_activity_s
        return lambda: self._conversation.last_activity_s != seen

    def _unrest(self) -> str:
        what = "a response was open" if self._conversation.response_open else "the user's turn was open"
        return f"{what} {self._settings.timeout_s:g} s after the recording"
