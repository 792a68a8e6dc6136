"""How soon one is answered, and how soon it is silent when one interrupts: a call beside a WebSocket of one server.

The server is that of ``duologue bench gateway``: real sessions and voice activity, an engine that answers at once with
a tone. So the silence window is in both figures, models in none, and the difference is the transport's: coding,
packets, jitter buffers, clocks. Both callers talk at the same time, in turns of their own.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from aiortc import RTCRtpTransceiver

from duologue.codecs.opus import OpusEncoder
from duologue.codecs.pcm import PCM16, float_to_pcm16
from duologue.realtime.bench.clock import MonotonicClock, PacedSender
from duologue.realtime.bench.gateway_run import SERVER as GATEWAY
from duologue.realtime.bench.gateway_signal import CHUNK_BYTES, SAMPLE_RATE, voice
from duologue.realtime.bench.server_process import own_server
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.webrtc_peer import LeanPeer, post_offer
from duologue.realtime.client import AUDIO_DELTA, RealtimeClient
from duologue.realtime.webrtc.media import IncomingAudio
from duologue.realtime.webrtc.media_clock import FRAME_S

CLIP_S: Final = 1.0
LISTEN_S: Final = 0.8
"""So much of an answer is heard before it is interrupted."""
SILENT_S: Final = 0.3
PATIENCE_S: Final = 10.0
_AUDIBLE: Final = 300
_FRAME: Final = SAMPLE_RATE // 100


class Voice(msgspec.Struct, frozen=True):
    """One transport's figures."""

    transport: str
    answered: Metric
    silent: Metric
    missed: int
    """Turns without an answer, or interruptions that it outlived."""


class VoiceReport(msgspec.Struct, frozen=True):
    """Both transports."""

    websocket: Voice
    webrtc: Voice
    added_p50_ms: float | None
    """Median of the call less that of the WebSocket."""


class Microphone:
    """An endless source at 24 kHz: says the clip when told to, is silent in between."""

    def __init__(self) -> None:
        self._clip = float_to_pcm16(voice(CLIP_S))
        self._left = b""
        self.position = 0

    def say(self) -> tuple[int, int]:
        """Begin with the next sample; the positions of the first sample and of the one after the last."""
        self._left = self._clip
        return self.position, self.position + len(self._clip) // 2

    def take(self, samples: int) -> bytes | None:
        """The next ``samples`` samples (of :class:`~duologue.realtime.bench.clock.AudioSource`)."""
        piece, self._left = self._left[: 2 * samples], self._left[2 * samples :]
        self.position += samples
        return piece.ljust(2 * samples, b"\0")


class Ear:
    """When something was heard; a caller is silent for :data:`SILENT_S` before anything else is believed."""

    def __init__(self) -> None:
        self.audible: list[float] = []

    def hear(self, pcm: bytes, at: float) -> None:
        """PCM16 at 24 kHz whose first sample sounds ``at``."""
        frames = np.frombuffer(pcm, PCM16)[: len(pcm) // 2 // _FRAME * _FRAME].reshape(-1, _FRAME)
        loud = np.flatnonzero(np.abs(frames.astype(np.int32)).max(axis=1) > _AUDIBLE)
        self.audible += [at + 0.01 * n for n in loud.tolist()]

    def first_after(self, at: float) -> float | None:
        """The first sound later than ``at``."""
        return next((heard for heard in self.audible if heard > at), None)

    def end_of_sound(self, at: float) -> float | None:
        """End of the sound that goes on at ``at``, if there has been silence after it."""
        end = at
        for heard in [*self.audible, time.monotonic() + 0.01]:
            if heard > end + SILENT_S:
                return end
            if heard > at:
                end = heard + 0.01
        return None


class Line(Protocol):
    """A connected caller."""

    microphone: Microphone
    ear: Ear

    def time_of(self, position: int) -> float:
        """When the microphone's sample ``position`` was spoken."""


class CallLine(LeanPeer):
    """A caller over WebRTC with our own decoder."""

    def __init__(self) -> None:
        super().__init__([], ({"type": "session.update", "session": {"type": "realtime"}},))
        self.microphone, self.ear = Microphone(), Ear()
        self._encoder = OpusEncoder(SAMPLE_RATE, complexity=3, silence_gaps=False)
        self.hearing: asyncio.Task[None] | None = None

    def time_of(self, position: int) -> float:
        # A frame leaves when it has been spoken: frame 0 is what came before the first departure.
        return self._began - FRAME_S + position / SAMPLE_RATE

    def _packet(self, number: int) -> bytes:
        return self._encoder.encode(self.microphone.take(CHUNK_BYTES // 2) or b"")

    def _listen(self, transceiver: RTCRtpTransceiver) -> None:
        incoming = IncomingAudio(transceiver, self._hear_pcm)
        self.hearing = asyncio.create_task(incoming.run())

    def _hear_pcm(self, pcm: bytes, rate: int) -> None:
        # What stands before the last packet's sound is the time since the one before it, which has gone by.
        self.ear.hear(pcm, time.monotonic() - max(0.0, len(pcm) / 2 / rate - FRAME_S))

    async def hang_up(self) -> None:
        await super().hang_up()
        if self.hearing is not None:
            self.hearing.cancel()


class SocketLine:
    """A caller over a WebSocket, who stops playing when the server says that it hears speech."""

    def __init__(self, client: RealtimeClient) -> None:
        self.microphone, self.ear = Microphone(), Ear()
        self._client = client
        self._sender = PacedSender(client.append, MonotonicClock())

    def time_of(self, position: int) -> float:
        return (self._sender.t0 or 0.0) + position / SAMPLE_RATE

    async def run(self) -> None:
        """Speak and listen; to be cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sender.run(self.microphone))
            tasks.create_task(self._read())

    async def _read(self) -> None:
        playing_until = 0.0
        async for received in self._client:
            if received.message.type == AUDIO_DELTA:
                starts = max(received.at, playing_until)
                playing_until = starts + received.audio_bytes / 2 / SAMPLE_RATE
                self.ear.hear(received.audio, starts)
            elif received.message.type == "input_audio_buffer.speech_started":
                playing_until = 0.0
                self.ear.audible = [at for at in self.ear.audible if at < received.at]


async def run_voice_lines(turns: int) -> VoiceReport:
    """``turns`` answers and as many interruptions on each transport. Raises ``ServerUnreachable``."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        async with own_server(None, Path(folder) / "server.log", program=GATEWAY.format(8)) as server:
            url = server.url.replace("ws://", "http://") + "/calls"
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                client = await stack.enter_async_context(await RealtimeClient.connect(server.url))
                await client.configure({})
                socket, call = SocketLine(client), CallLine()
                reading = tasks.create_task(socket.run())
                stack.push_async_callback(call.hang_up)
                await call.call(partial(post_offer, url))
                websocket, webrtc = await asyncio.gather(
                    _converse("websocket", socket, turns), _converse("webrtc", call, turns)
                )
                reading.cancel()
    added = None
    if websocket.answered.p50 is not None and webrtc.answered.p50 is not None:
        added = round(webrtc.answered.p50 - websocket.answered.p50, 1)
    return VoiceReport(websocket, webrtc, added)


async def _converse(transport: str, line: Line, turns: int) -> Voice:
    """Speak, be answered, interrupt; the interruption is the next turn."""
    answered: list[float] = []
    silent: list[float] = []
    missed = 0
    await asyncio.sleep(1.0)
    sounding = False
    for _ in range(turns + 1):
        onset, stop = line.microphone.say()
        if sounding:
            began = line.time_of(onset)
            end = await _until(lambda began=began: line.ear.end_of_sound(began))
            missed += end is None
            silent += [1000 * (end - began)] if end is not None else []
        await asyncio.sleep(max(0.0, line.time_of(stop) - time.monotonic()))
        stopped = line.time_of(stop)
        first = await _until(lambda stopped=stopped: line.ear.first_after(stopped + 0.1))
        missed += first is None
        answered += [1000 * (first - stopped)] if first is not None else []
        sounding = first is not None
        await asyncio.sleep(LISTEN_S)
    return Voice(
        transport,
        metric(answered, "ms", "first audible sample - end of the user's speech"),
        metric(silent, "ms", "last audible sample - onset of the interruption"),
        missed,
    )


async def _until(look: Any) -> float | None:
    """What ``look`` finds, or None after :data:`PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: float | None = look()
        if found is not None:
            return found
        await asyncio.sleep(0.02)
    return None
