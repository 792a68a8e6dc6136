"""The real gateway and session core in this process, on a free port, with an engine that follows a script.

For what the packaged models cannot show: a model that calls tools, an answer that lasts until it is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted_engine import ScriptedEngine
from session_driver import speech

from duologue.engine.engine import EngineHealth
from duologue.engine.pipeline import Capabilities, ExecutionType, PipelineConfig, StageConfig
from duologue.engine.requests import (
    AudioDelta,
    Converse,
    Delta,
    EngineRequest,
    Finished,
    TextDelta,
    ToolCallDelta,
    Transcribe,
    TranscriptDelta,
    Usage,
)
from duologue.realtime.app import create_app
from duologue.realtime.auth import ApiKeys
from duologue.realtime.gateway import EdgeSettings, Gateway
from duologue.realtime.http_server import http_server
from duologue.realtime.mcp_client import McpServers
from duologue.realtime.serve import listen
from duologue.sessions.config import Limits, Names
from duologue.sessions.manager import ManagerSettings, SessionManager
from duologue.sessions.mcp.policy import McpRules

KEY = "sekrit"
MODELS = ("tiny", "gpt-realtime", "gpt-realtime-2.1", "gpt-4o-realtime-preview")
VOICES = ("heart", "alloy", "ash", "marin")
RECOGNISERS = ("whisper-1", "gpt-4o-mini-transcribe", "gpt-realtime-whisper")
NAMES = Names(
    models=dict.fromkeys(MODELS, "tiny"),
    voices=dict.fromkeys(VOICES, "heart"),
    transcription_models=dict.fromkeys(RECOGNISERS, "whisper-1"),
)
DONE = Finished(reason="completed", usage=Usage(input_tokens=9, output_tokens=3))

Script = Callable[[EngineRequest], list[Delta]]


def answer(request: EngineRequest) -> list[Delta]:
    """Calls the weather tool when asked about the weather, repeats what a tool has said, and never ends a story."""
    payload = request.payload
    if isinstance(payload, Transcribe):
        return [TranscriptDelta(text="Hello there."), DONE]
    assert isinstance(payload, Converse)
    last = payload.messages[-1]
    sound = [AudioDelta(pcm=speech(200))] if "audio" in payload.modalities else []
    if last.role == "tool":
        return [TextDelta(text=f"It is {last.text}."), *sound, DONE]
    if payload.tools and "weather" in last.text:
        words = [TextDelta(text="Let me see."), *sound] if "words" in last.text else []
        call = [ToolCallDelta(call_id="0", name="weather", arguments=piece) for piece in ('{"city"', ':"Paris"', "}")]
        return [*words, *call, DONE]
    if "story" in last.text:  # no end: it goes on until it is cut off
        return [TextDelta(text="Once upon a time"), *(AudioDelta(pcm=speech(1000)) for _ in sound * 4)]
    return [TextDelta(text=f"You said: {last.text}"), *sound, DONE]


class FollowingEngine(ScriptedEngine):
    """Answers every request by a function."""

    pipeline = PipelineConfig(
        name="scripted",
        stages=(
            StageConfig(
                0,
                "language_model",
                "none",
                ExecutionType.LLM_AR,
                accepts=(Converse,),
                final_output=True,
                final_output_type="text",
            ),
        ),
        capabilities=Capabilities(audio_in=True, audio_out=True, tools=True),
    )

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def health(self) -> EngineHealth:
        return EngineHealth(True, {"language_model": "ready"})

    def open(self, what: Any, sample_rate: int = 16_000) -> Any:
        stream = super().open(what, sample_rate)
        if isinstance(what, EngineRequest):
            stream.give(*self._script(what))
        return stream


@dataclass(frozen=True)
class ScriptedServer:
    """A running server. Its key is ``KEY``."""

    address: str
    engine: FollowingEngine

    @property
    def http(self) -> str:
        return f"http://{self.address}/v1"

    @property
    def ws(self) -> str:
        return f"ws://{self.address}/v1/realtime"

    def asked(self) -> list[tuple[str, str]]:
        """Role and text of every message that the language model was shown last."""
        payloads = [stream.request.payload for stream in self.engine.streams]
        last = next(payload for payload in reversed(payloads) if isinstance(payload, Converse))
        return [(message.role, message.text) for message in last.messages]


@asynccontextmanager
async def scripted_server(
    script: Script = answer,
    mcp: McpRules | None = None,
    edge: EdgeSettings | None = None,
    certificate: Path | None = None,
    **limits: Any,
) -> AsyncIterator[ScriptedServer]:
    """Serve with ``script`` in the place of the models and the given limits of a session; https by a certificate."""
    engine = FollowingEngine(script)
    settings = ManagerSettings(
        names=NAMES,
        model="tiny",
        voice="heart",
        instructions="Be brief.",
        limits=Limits(**{"requests_per_minute": 1000, "tokens_per_minute": 100_000, **limits}),
        can_call_tools=True,
        speculate=False,
        mcp=mcp or McpRules(),
    )
    gateway = Gateway(engine, NAMES, edge or EdgeSettings())
    gateway.open(SessionManager(engine, settings, tool_servers=McpServers))  # type: ignore[arg-type]
    listener = listen("127.0.0.1", 0)
    server = http_server(create_app(gateway, ApiKeys([KEY])), certificate=certificate)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()
    try:
        yield ScriptedServer(f"{host}:{port}", engine)
    finally:
        await gateway.close()
        server.should_exit = True
        await running
        listener.close()
