"""The real HTTP server in this process, with a scripted session manager and engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import websockets

from duologue.engine.engine import EngineHealth
from duologue.engine.pipeline import Capabilities, ExecutionType, PipelineConfig, StageConfig
from duologue.engine.requests import Converse
from duologue.realtime.app import create_app
from duologue.realtime.auth import ApiKeys
from duologue.realtime.gateway import EdgeSettings, Gateway
from duologue.realtime.http_server import http_server
from duologue.realtime.serve import listen
from duologue.realtime.websocket import WebSocketTransport
from duologue.sessions.config import Limits, Names
from duologue.sessions.manager import ManagerSettings, Opening, SessionManager

Script = Callable[[WebSocketTransport, str | None], Awaitable[None]]


@dataclass
class ScriptedSessions:
    """Runs a given coroutine in the place of each session."""

    script: Script
    room: bool = True
    served: list[str | None] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)

    def has_room(self) -> bool:
        return self.room

    def configure(self, model: str | None, opening: Opening) -> Any:
        settings = ManagerSettings(NAMES, model="tiny", voice="heart", instructions="Be kind.", limits=Limits())
        return SessionManager(None, settings).configure(model, opening)  # type: ignore[arg-type]

    async def serve(self, transport: Any, model: str | None, opening: Opening, on_begin: Any) -> None:
        self.served.append(model)
        self.openings.append(opening)
        await self.script(transport, model)


NAMES = Names(
    models={"tiny": "tiny", "default": "tiny", "gpt-realtime": "tiny"},
    voices={"heart": "heart", "default": "heart"},
    transcription_models={"whisper": "whisper"},
)

PIPELINE = PipelineConfig(
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
    capabilities=Capabilities(audio_in=True, audio_out=True),
)


class ScriptedEngine:
    pipeline = PIPELINE

    def __init__(self) -> None:
        self.ready = True

    def health(self) -> EngineHealth:
        return EngineHealth(self.ready, {"language_model": "ready" if self.ready else "loading"})


@dataclass
class Edge:
    """A running server."""

    gateway: Gateway
    engine: ScriptedEngine
    sessions: Any
    """:class:`ScriptedSessions`, or the session manager that the test brought."""
    address: str

    @property
    def ws(self) -> str:
        return f"ws://{self.address}/v1/realtime"

    def connect(self, query: str = "", **options: Any) -> Any:
        return websockets.connect(self.ws + query, **{"compression": None, "max_size": None, **options})

    def http(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://{self.address}", **options)


Serve = Callable[..., Any]


@pytest.fixture
def serve() -> Serve:
    """``async with serve(script, keys=()) as edge``: a server on a free port whose sessions run ``script``, or those of
    a real session manager."""

    @asynccontextmanager
    async def serving(
        script: Script | SessionManager,
        keys: Sequence[str] = (),
        opened: bool = True,
        settings: EdgeSettings | None = None,
    ) -> AsyncIterator[Edge]:
        engine = ScriptedEngine()
        names = script.settings.names if isinstance(script, SessionManager) else NAMES
        gateway = Gateway(engine, names, settings or EdgeSettings())
        sessions: Any = script if isinstance(script, SessionManager) else ScriptedSessions(script)
        if opened:
            gateway.open(sessions)
        if gateway.settings.webrtc.media_workers != "auto":
            await gateway.start_media()
        listener = listen("127.0.0.1", 0)
        server = http_server(create_app(gateway, ApiKeys(keys)))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            host, port = listener.getsockname()
            yield Edge(gateway, engine, sessions, f"{host}:{port}")
        finally:
            await gateway.close()
            server.should_exit = True
            await running
            listener.close()

    return serving
