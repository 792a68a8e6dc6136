"""The server of ``duologue bench gateway``: the real gateway and sessions, real voice activity, a scripted engine.

The engine costs next to nothing, so that what is measured is the gateway: one timer on the event loop puts 20 ms of
sound into the stream of every session whose turn it is. What stages, executors and connectors cost is measured by
``duologue bench engine``.
"""

from __future__ import annotations

import asyncio
import heapq
import signal
import time
from typing import Any, Final

import numpy as np

from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.deploy.config import WebRtcDeploy
from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.engine import EngineHealth
from duologue.engine.models import require
from duologue.engine.pipeline import PipelineConfig
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AbortReason,
    AudioDelta,
    Converse,
    EngineRequest,
    Finished,
    TextDelta,
    TranscriptDelta,
    Usage,
)
from duologue.engine.silero import SileroModel
from duologue.engine.stream import Stream
from duologue.engine.voice_activity import VoiceActivityService
from duologue.realtime.app import create_app
from duologue.realtime.auth import ApiKeys
from duologue.realtime.bench.gateway_stages import CHUNK_BYTES, CHUNK_S, PIPELINE, STAMP_BYTES
from duologue.realtime.bench.server_process import READY
from duologue.realtime.gateway import EdgeSettings, Gateway
from duologue.realtime.http_server import http_server
from duologue.realtime.serve import listen, settle, share_interpreter
from duologue.sessions.config import Limits, Names
from duologue.sessions.manager import ManagerSettings, SessionManager

NAMES: Final = Names(
    models={"scripted": "scripted"},
    voices={"scripted": "scripted"},
    transcription_models={"scripted-recogniser": "scripted-recogniser"},
)
SPOKEN_S: Final = 10.0
"""How long the answer to a spoken turn lasts."""
TICK_S: Final = 0.002
"""The script's timer goes off no more often: what it costs is not what is measured."""
STREAM_BYTES: Final = 2 * 1024 * 1024


class Voice:
    """One answer: 20 ms of sound every 20 ms. Owns the stream that it is read from."""

    def __init__(self, request_id: str, seconds: float) -> None:
        self.edge = EdgeTrace(source="script", target="client")
        self.stream = Stream(request_id, self, STREAM_BYTES, (self.edge,))
        self.left = round(seconds / CHUNK_S)

    def abort(self, reason: AbortReason) -> None:
        self.left = 0

    def read_out(self) -> None:
        """Nothing waits for that."""

    def room(self) -> None:
        """Nothing waits for that."""

    async def push(self, piece: Any) -> None:
        raise NotImplementedError("the script takes no more input")

    def end_input(self) -> None:
        """There is none."""


class ScriptedEngine:
    """What the session manager and the gateway ask of an engine."""

    pipeline: PipelineConfig = PIPELINE

    def __init__(self, sessions: int) -> None:
        self.voice_activity = VoiceActivityService(lambda: SileroModel(require("silero-vad")), sessions)
        position = np.arange(CHUNK_BYTES // 2) / OUTPUT_SAMPLE_RATE
        self._sound = float_to_pcm16((0.1 * np.sin(2 * np.pi * 200 * position)).astype(np.float32))[STAMP_BYTES:]
        self._voices: list[tuple[float, int, Voice]] = []
        """A heap by the time at which each speaks next."""
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def health(self) -> EngineHealth:
        return EngineHealth(True, {})

    def open(self, request: EngineRequest, more_input: bool = False) -> Stream:
        """Answer with sound for as many seconds as the last message says; every utterance has the same words."""
        payload = request.payload
        seconds = _seconds(payload.messages[-1].text) if isinstance(payload, Converse) else 0.0
        voice = Voice(request.request_id, seconds)
        text = TextDelta(text="A tone.") if isinstance(payload, Converse) else TranscriptDelta(text="and so on")
        voice.stream.count(Usage(input_tokens=2, output_tokens=2))
        voice.stream.put(text, voice.edge)
        self._number += 1
        # Spread over the 20 ms, as answers that begin at different times are.
        heapq.heappush(self._voices, (time.monotonic() + CHUNK_S * (self._number * 0.618 % 1), self._number, voice))
        self._wind()
        return voice.stream

    def end_session(self, session_id: str) -> None:
        """Nothing is kept for one."""

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._voices:
            delay = max(0.0, self._voices[0][0] - time.monotonic(), TICK_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self._speak)

    def _speak(self) -> None:
        voices, now = self._voices, time.monotonic()
        while voices and voices[0][0] <= now:
            due, number, voice = voices[0]
            if voice.left <= 0:
                voice.stream.finish(Finished(reason="completed"))
                heapq.heappop(voices)
                continue
            voice.left -= 1
            stamp = int(now * 1e6).to_bytes(STAMP_BYTES, "little")
            voice.stream.put(AudioDelta(pcm=stamp + self._sound), voice.edge)
            heapq.heapreplace(voices, (due + CHUNK_S, number, voice))
        self._wind()


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return SPOKEN_S


async def serve(sessions: int, media_workers: int) -> None:
    """Serve on a free port until interrupted."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = ScriptedEngine(sessions)
    await engine.voice_activity.start()
    settings = ManagerSettings(
        names=NAMES,
        model="scripted",
        voice="scripted",
        instructions="",
        # The clients rest in between. What counts as silence then would move the frames that they have reckoned with.
        limits=Limits(input_gap_ms=0),
        max_sessions=sessions,
        speculate=False,
    )
    webrtc = WebRtcDeploy(addresses=["127.0.0.1"], media_workers=media_workers)
    gateway = Gateway(engine, NAMES, EdgeSettings(webrtc=webrtc))
    manager = SessionManager(engine, settings)  # type: ignore[arg-type]
    await gateway.start_media()
    gateway.open(manager)
    with listen("127.0.0.1", 0) as listener:
        server = http_server(create_app(gateway, ApiKeys([])))
        running = asyncio.create_task(server.serve([listener]), name="http server")
        settle()
        print(f"{READY}ws://127.0.0.1:{listener.getsockname()[1]}/v1/realtime", flush=True)
        await stop.wait()
        await manager.drain(0)
        await gateway.close()
        server.should_exit = True
        await running
    await engine.voice_activity.close()


def main(sessions: int, media_workers: int = 0) -> None:
    """Run on uvloop, with room for so many sessions."""
    import uvloop

    share_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sessions, media_workers))
