"""All sessions of a server: admission, what a new session starts from, and the orderly end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from duologue.codecs.noise_suppression import MakeSuppressor, no_suppressor
from duologue.engine.cores import usable_cores
from duologue.engine.deploy import DeployConfig
from duologue.engine.engine import Engine, ServedNames
from duologue.engine.languages import WHISPER
from duologue.engine.pipeline import Capabilities
from duologue.engine.requests import Converse, EngineRequest, Transcribe
from duologue.sessions import metrics
from duologue.sessions.actor import SessionActor
from duologue.sessions.config import (
    AnySession,
    Audio,
    AudioOutput,
    Limits,
    Names,
    RealtimeSession,
    TranscriptionSession,
    merged,
)
from duologue.sessions.core import SessionContext
from duologue.sessions.errors import from_validation_error
from duologue.sessions.interfaces import Machine, SessionHandle, ToolServers, Transport
from duologue.sessions.machine import ConversationMachine
from duologue.sessions.mcp.policy import McpPolicy, McpRules
from duologue.sessions.media import Media
from duologue.sessions.speculation import affordable
from duologue.sessions.stored_prompts import PromptTemplate
from duologue.sessions.translation import INSTRUCTIONS, TranslationMachine, TranslationSettings, configured
from duologue.sessions.translation_events import TranslationSession
from duologue.sessions.updating import Bound, check_settings, with_prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What is known of a session before its first event, from the URL or from a client secret."""

    type: Literal["realtime", "transcription", "translation"] | None = None
    """None: the first ``session.update`` decides."""
    config: dict[str, Any] = field(default_factory=dict)
    """A partial session in the GA dialect."""


class CapacityError(Exception):
    """The server holds as many sessions as it may."""


@dataclass(frozen=True)
class ManagerSettings:
    """What every session of a server starts from."""

    names: Names
    model: str
    voice: str
    instructions: str
    limits: Limits
    max_sessions: int = 64
    output_buffer_bytes: int = 2 * 1024 * 1024
    input_buffer_s: float = 30.0
    speculate: bool = True
    reads_ahead: bool = False
    """Whether the language model keeps what it reads before an answer is wanted."""
    can_call_tools: bool = False
    translation_instructions: str = INSTRUCTIONS
    takes_images: bool = False
    gives_logprobs: bool = False
    languages: frozenset[str] | None = None
    voice_languages: frozenset[str] = frozenset()
    judges_turns: bool = False
    prompts: Mapping[str, PromptTemplate] = field(default_factory=dict)
    make_suppressor: MakeSuppressor = no_suppressor
    mcp: McpRules = field(default_factory=McpRules)


def settings_from_deploy(deploy: DeployConfig, served: ServedNames, capabilities: Capabilities) -> ManagerSettings:
    """Settings from the deploy file and what the pipeline serves and can do.

    Raises ``ProtocolError`` that names the entry of the file.
    """
    try:
        limits = msgspec.convert(deploy.limits, Limits)
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "limits") from error
    try:
        prompts = msgspec.convert(deploy.prompts, dict[str, PromptTemplate])
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "prompts") from error
    try:
        mcp = msgspec.convert(deploy.mcp, McpRules)
    except msgspec.ValidationError as error:
        raise from_validation_error(error, "mcp") from error
    aliases = deploy.aliases
    names = Names(
        models=served.table("models", aliases.models),
        voices=served.table("voices", aliases.voices),
        transcription_models=served.table("transcription_models", aliases.transcription_models),
    )
    return ManagerSettings(
        names=names,
        model=served.models[0],
        voice=served.voices[0] if served.voices else "default",
        instructions=deploy.instructions,
        limits=limits,
        max_sessions=deploy.duplex_session.max_sessions,
        output_buffer_bytes=deploy.duplex_session.output_buffer_bytes,
        input_buffer_s=deploy.duplex_session.input_buffer_s,
        speculate=deploy.duplex_session.speculate,
        reads_ahead=capabilities.reads_ahead,
        can_call_tools=capabilities.tools,
        translation_instructions=deploy.translation_instructions or INSTRUCTIONS,
        takes_images=capabilities.image_in,
        gives_logprobs=capabilities.transcript_logprobs,
        languages=WHISPER if capabilities.multilingual else frozenset({"en"}),
        voice_languages=frozenset(capabilities.voice_languages),
        judges_turns=capabilities.turn_model,
        prompts=prompts,
        mcp=mcp,
    )


def id_factory() -> Callable[[str], str]:
    """Ids like ``item_3f9c2a7b00001d``: unique in the process, and across restarts by their random part."""
    process, numbers = secrets.token_hex(4), itertools.count()
    return lambda prefix: f"{prefix}_{process}{next(numbers):06x}"


class SessionManager:
    """Admits sessions, runs each to its end, and ends all of them when the server stops."""

    def __init__(
        self,
        engine: Engine,
        settings: ManagerSettings,
        clock: Callable[[], float] = time.monotonic,
        tool_servers: Callable[[McpRules], ToolServers] | None = None,
    ) -> None:
        """``tool_servers`` makes what a session reaches its MCP servers by; None: it can reach none."""
        self._tool_servers = tool_servers
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._ids = id_factory()
        self._actors: dict[SessionActor, asyncio.Task[None]] = {}
        self._draining = False
        self._requests_open = 0
        self._partials_open = 0
        """Of turns that go on; not among the others."""
        self._cores = usable_cores()

    @property
    def settings(self) -> ManagerSettings:
        return self._settings

    @property
    def open_sessions(self) -> int:
        return len(self._actors)

    def has_room(self) -> bool:
        """Whether another session would be admitted now."""
        return not self._draining and len(self._actors) < self._settings.max_sessions

    async def serve(
        self,
        transport: Transport,
        model: str | None,
        opening: Opening = Opening(),
        on_begin: Callable[[SessionHandle], None] = lambda handle: None,
        media: Media | None = None,
    ) -> None:
        """Run one session until it is over. ``model`` is what the URL names, if anything; ``on_begin`` gets the
        session's handle once it is admitted; ``media``: by what sound comes and goes, if not inside events.

        Raises ``CapacityError``, or ``ProtocolError`` for an unknown model or a configuration that does not hold.
        """
        self._admit()
        machine = self._new_machine(model, opening, media_clock=media is not None)
        await self._run(machine, transport, on_begin, media)

    async def translate(self, transport: Transport, model: str | None, opening: Opening = Opening()) -> None:
        """Run one translation session until it is over. Raises as :meth:`serve` does."""
        self._admit()
        session = self.configure_translation(model, opening)
        settings = TranslationSettings(self._settings.voice, self._settings.translation_instructions)
        await self._run(TranslationMachine(session, self._context(), settings, self._clock()), transport)

    def _admit(self) -> None:
        if not self.has_room():
            metrics.sessions_refused.inc()
            raise CapacityError(f"The server is at its capacity of {self._settings.max_sessions} sessions.")

    async def _run(
        self,
        machine: Machine,
        transport: Transport,
        on_begin: Callable[[SessionHandle], None] = lambda handle: None,
        media: Media | None = None,
    ) -> None:
        actor = SessionActor(
            machine,
            self._engine,
            transport,
            clock=self._clock,
            output_buffer_bytes=self._settings.output_buffer_bytes,
            input_buffer_s=self._settings.input_buffer_s,
            on_requests_changed=self._count_requests,
            tool_servers=self._tool_servers(self._settings.mcp) if self._tool_servers is not None else None,
            media=media,
        )
        task = asyncio.current_task()
        assert task is not None
        self._actors[actor] = task
        metrics.sessions_open.inc()
        logger.info("session %s begins", machine.session.id)
        try:
            on_begin(actor)
            await actor.run()
        finally:
            logger.info("session %s is over", machine.session.id)
            del self._actors[actor]
            metrics.sessions_open.dec()
            self._engine.end_session(machine.session.id)

    async def drain(self, timeout_s: float) -> None:
        """Admit nobody; let answers in progress finish and sessions close; cancel what is left at the time-out."""
        self._draining = True
        tasks = list(self._actors.values())
        for actor in self._actors:
            actor.shut_down()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    def configure(self, model: str | None, opening: Opening) -> AnySession:
        """What a session begins with. Raises ``ProtocolError`` that names the field."""
        settings, names = self._settings, self._settings.names
        conversing = RealtimeSession(
            id=self._ids("sess"),
            model=model or settings.model,
            expires_at=int(time.time() + settings.limits.max_duration_s),
            instructions=settings.instructions,
            audio=Audio(output=AudioOutput(voice=settings.voice)),
        )
        recogniser = model or next(iter(names.transcription_models), "default")
        transcribes = opening.type == "transcription"
        session: AnySession = TranscriptionSession.of(conversing, recogniser) if transcribes else conversing
        context = self._context()
        session = with_prompt(context, merged(session, opening.config), opening.config)
        check_settings(context, session)
        return session

    def configure_translation(self, model: str | None, opening: Opening) -> TranslationSession:
        """What a translation session begins with. Raises ``ProtocolError`` that names the field."""
        session = TranslationSession(
            id=self._ids("sess"),
            model=model or opening.config.get("model", self._settings.model),
            expires_at=int(time.time() + self._settings.limits.max_duration_s),
        )
        return configured(session, opening.config, self._context())

    def _new_machine(self, model: str | None, opening: Opening, *, media_clock: bool = False) -> ConversationMachine:
        session = self.configure(model, opening)
        bound = Bound(type=opening.type is not None, model=model is not None or "model" in opening.config)
        return ConversationMachine(session, self._context(media_clock), self._clock(), bound)

    def _context(self, media_clock: bool = False) -> SessionContext:
        settings = self._settings
        return SessionContext(
            names=settings.names,
            ids=self._ids,
            limits=settings.limits,
            can_call_tools=settings.can_call_tools,
            takes_images=settings.takes_images,
            gives_logprobs=settings.gives_logprobs,
            languages=settings.languages,
            voice_languages=settings.voice_languages,
            judges_turns=settings.judges_turns,
            prompts=settings.prompts,
            make_suppressor=settings.make_suppressor,
            mcp=McpPolicy(settings.mcp, installed=self._tool_servers is not None),
            prepares=settings.speculate and settings.reads_ahead,
            media_clock=media_clock,
            may_speculate=self._may_speculate,
            may_read_along=self._may_read_along,
        )

    def _may_speculate(self) -> bool:
        """Load is no reason against it: stages work first for whoever has finished, and most of it is of use."""
        if not self._settings.speculate:
            return False
        work = self._engine.work
        if affordable(work.useful_s, work.wasted_s):
            metrics.speculations.inc()
            return True
        metrics.speculations_refused.inc()
        return False

    def _may_read_along(self) -> bool:
        """Only while a core is free, and for a few at a time: words that nobody waits for come last."""
        return self._requests_open < self._cores and self._partials_open < max(1, self._cores // 2)

    def _count_requests(self, change: int, request: EngineRequest) -> None:
        if isinstance(request.payload, Transcribe) and not request.payload.audio:
            return  # a model is being fetched or loaded, and that is not for long what keeps the cores busy
        if isinstance(request.payload, Converse) and request.payload.prepare:
            return  # it is read while nobody waits for anything
        if isinstance(request.payload, Transcribe) and request.payload.urgency == "partial":
            self._partials_open += change
        else:
            self._requests_open += change
