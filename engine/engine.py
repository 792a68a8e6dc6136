"""The engine: loads the stages of a pipeline, takes requests, and says how it is."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec

from duologue.engine.autoscale import Autoscaler
from duologue.engine.checkpoints import served_name
from duologue.engine.chunking import HandOver
from duologue.engine.connectors.options import OPTIONS, RayOptions, SharedMemoryOptions
from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments, sweep_dead_runs
from duologue.engine.connectors.shared_memory import SharedMemoryConnector
from duologue.engine.deploy import DeployConfig, DeployError, Resources, StageDeploy, current_platform
from duologue.engine.deploy.devices import visible_devices
from duologue.engine.executors.base import Replica
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.process import ProcessReplica, WorkerSpec
from duologue.engine.executors.ray_cluster import RayCluster
from duologue.engine.executors.ray_replica import RayReplica, RaySpec
from duologue.engine.executors.remote import RemoteReplica
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.metering import Work
from duologue.engine.models import ModelUnavailable, require
from duologue.engine.orchestrator import Orchestrator, RequestRefused
from duologue.engine.pipeline import (
    PipelineConfig,
    PipelineError,
    StageConfig,
    get_pipeline,
    import_stage,
    stage_target,
)
from duologue.engine.requests import Converse, Delta, EngineRequest, Speak, Transcribe
from duologue.engine.silero import SileroModel
from duologue.engine.stage import Ability
from duologue.engine.stream import Stream
from duologue.engine.turn_model import SmartTurnModel, TurnModel, TurnModelService
from duologue.engine.voice_activity import FrameModel, VoiceActivityService

logger = logging.getLogger(__name__)

StageState = Literal["waiting", "loading", "warming_up", "ready", "stalled", "restarting", "failed"]
T = TypeVar("T")
VOICE_ACTIVITY = "voice_activity"

__all__ = ["Engine", "EngineHealth", "RequestRefused", "ServedNames", "StageProgress", "StageState"]


class StageProgress(msgspec.Struct, frozen=True):
    """A stage has reached a state while the engine starts."""

    stage: str
    state: StageState
    seconds: float
    """Since the engine began to start."""


class EngineHealth(msgspec.Struct, frozen=True):
    """``ready``: every stage is loaded, warm and answering."""

    ready: bool
    stages: dict[str, StageState]


class ServedNames(msgspec.Struct, frozen=True):
    """Names of what is served; the first of each kind is its default."""

    models: tuple[str, ...]
    voices: tuple[str, ...]
    transcription_models: tuple[str, ...]

    def table(
        self, kind: Literal["models", "voices", "transcription_models"], aliases: Mapping[str, str]
    ) -> dict[str, str]:
        """Every accepted name of a kind -> the served name: served ones, ``default``, and ``aliases``.

        Raises ``ValueError`` for an alias whose target is not served.
        """
        served: tuple[str, ...] = getattr(self, kind)
        names = {name: name for name in served}
        if served:
            names.setdefault("default", served[0])
            for alias, target in aliases.items():
                if target not in names:
                    raise ValueError(
                        f"'{alias}' stands for '{target}', which is not served. Served: {', '.join(served)}"
                    )
                names.setdefault(alias, names[target])
        return names


class Engine:
    """One pipeline with its replicas, and the shared services for voice activity and the ends of turns."""

    def __init__(
        self,
        deploy: DeployConfig,
        voice_activity_model: Callable[[], FrameModel] | None = None,
        turn_model: Callable[[], TurnModel] | None = None,
    ) -> None:
        """Check what can be checked without loading. Raises :class:`DeployError`.

        ``voice_activity_model`` and ``turn_model`` replace the packaged models.
        """
        self.deploy = deploy
        self.pipeline: PipelineConfig = get_pipeline(deploy.pipeline)
        """Its capabilities grow by those of the chosen models: see :meth:`check_arguments`."""
        self.voice_activity = VoiceActivityService(
            voice_activity_model or _packaged_voice_activity, deploy.duplex_session.max_sessions
        )
        self.turn_model = TurnModelService(turn_model or (lambda: _turn_model(deploy)))
        self._states: dict[str, StageState] = {stage.name: "waiting" for stage in self.pipeline.stages}
        self._states[VOICE_ACTIVITY] = "waiting"
        self._replicas: dict[int, list[Replica]] = {}
        self._segments = Segments()
        self._types = PieceTypes()
        self._ray = RayCluster(deploy.ray, self._source)
        self._orchestrator: Orchestrator | None = None
        self._scalers: list[Autoscaler] = []
        for kind in ("models", "voices", "transcription_models"):
            try:
                self.served_names().table(kind, getattr(deploy.aliases, kind))
            except ValueError as error:
                raise DeployError(f"{self._source}: aliases.{kind}: {error}") from error

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, on_progress: Callable[[StageProgress], None] | None = None) -> None:
        """Load every stage, each on a thread of its own, and warm it up. Raises the first error that a stage raises.

        ``on_progress`` is called on the event loop. After an error everything that was started is closed again.
        """
        began = time.monotonic()

        def report(stage: str, state: StageState) -> None:
            self._states[stage] = state
            if on_progress is not None:
                on_progress(StageProgress(stage, state, time.monotonic() - began))

        try:
            self._place()
            await self._load_all(report)
            self.check_arguments()
            await self._start_turn_model()
        except BaseException:
            await self.close()
            raise
        self._orchestrator = Orchestrator(
            self.pipeline,
            self._replicas,
            self.deploy.duplex_session.output_buffer_bytes,
            {s.stage_id: s.replica_policy for s in self.deploy.stages if s.replica_policy},
        )
        self._orchestrator.start()
        self._scale(self._orchestrator)

    async def close(self) -> None:
        """Abort what runs, stop the workers, free the models. Idempotent."""
        orchestrator, self._orchestrator = self._orchestrator, None
        scalers, self._scalers = self._scalers, []
        for scaler in scalers:
            await scaler.close()
        replicas, self._replicas = self._all_replicas(), {}
        self._states = dict.fromkeys(self._states, "waiting")
        if orchestrator is not None:
            await orchestrator.close()
        services = (self.voice_activity, self.turn_model)
        await asyncio.gather(*(replica.close() for replica in replicas), *(service.close() for service in services))
        await self._ray.close()
        self._segments.sweep_run()

    # -- work ----------------------------------------------------------------------------------------------------------

    def open(self, request: EngineRequest, more_input: bool = False) -> Stream:
        """Start a request; does not wait. Raises :class:`RequestRefused` when it cannot be accepted.

        With ``more_input`` the payload is the first piece only (``Stream.push``, ``Stream.end_input``).
        """
        if self._orchestrator is None:
            raise RequestRefused("The engine is not running.")
        return self._orchestrator.open(request, more_input)

    def end_session(self, session_id: str) -> None:
        """No request of this session will come any more: what the stages keep for it may go."""
        if self._orchestrator is not None:
            self._orchestrator.end_session(session_id)

    async def collect(self, request: EngineRequest) -> list[Delta]:
        """Run a request to its end and return all of its deltas, merged as they were read."""
        async with self.open(request) as stream:
            return [delta async for delta in stream]

    def generate(self, request: EngineRequest) -> list[Delta]:
        """Blocking convenience for scripts: start the engine on a loop of its own, run one request, close it."""

        async def run() -> list[Delta]:
            await self.start()
            try:
                return await self.collect(request)
            finally:
                await self.close()

        return asyncio.run(run())

    # -- what it is ----------------------------------------------------------------------------------------------------

    def health(self) -> EngineHealth:
        """The state of every stage, and whether requests can be answered."""
        states = dict(self._states)
        for config in self.pipeline.stages:
            replicas = self._replicas.get(config.stage_id, [])
            if states[config.name] == "ready" and not any(replica.live for replica in replicas):
                restarting = any(isinstance(r, RemoteReplica) and r.state == "restarting" for r in replicas)
                states[config.name] = "restarting" if restarting else "failed"
        if self._orchestrator is not None:
            states |= dict.fromkeys(self._orchestrator.stalled_stages(), "stalled")
        if self.voice_activity.failure is not None:
            states[VOICE_ACTIVITY] = "failed"
        running = self._orchestrator is not None and self._orchestrator.healthy
        return EngineHealth(running and all(state == "ready" for state in states.values()), states)

    @property
    def work(self) -> Work:
        """How long the stages have worked, and how much of it in vain."""
        return self._orchestrator.work if self._orchestrator is not None else Work()

    @property
    def live_requests(self) -> int:
        """Requests whose stages have not all released yet."""
        return self._orchestrator.live if self._orchestrator is not None else 0

    def served_names(self) -> ServedNames:
        """Model, voice and transcription-model names, taken from the stages that such requests enter."""
        return ServedNames(
            models=self._model_names(Converse),
            voices=next((s.voices for s in self.pipeline.stages if Speak in s.accepts), ()),
            transcription_models=self._model_names(Transcribe),
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _source(self) -> str:
        return self.deploy.source or str(self.deploy.file or "deploy configuration")

    def _all_replicas(self) -> list[Replica]:
        return [replica for replicas in self._replicas.values() for replica in replicas]

    def _model_names(self, payload: type) -> tuple[str, ...]:
        stage = self.pipeline.entry_for(payload)
        name = stage and self.deploy.stage(stage.stage_id).engine_args.get(
            "model", stage.model or self.deploy.checkpoint
        )
        return (served_name(str(name)),) if name else ()

    async def _load_all(self, report: Callable[[str, StageState], None]) -> None:
        async def bring_up(name: str, steps: list[tuple[StageState, Callable[[], Awaitable[None]]]]) -> None:
            try:
                for state, step in steps:
                    report(name, state)
                    await step()
            except WorkerError as error:
                report(name, "failed")
                raise _KINDS.get(error.kind, WorkerError)(str(error)) from error
            except Exception:
                report(name, "failed")
                raise
            report(name, "ready")

        def inline_env(config: StageConfig) -> Mapping[str, str | int | float]:
            placed = self.deploy.stage(config.stage_id)
            return placed.env if placed.executor in (None, "inline") else {}

        async def bring_up_stage(config: StageConfig) -> None:
            replicas = self._replicas[config.stage_id]
            with _environment(inline_env(config)):
                for replica in replicas:
                    await bring_up(config.name, [("loading", replica.load), ("warming_up", replica.warm_up)])

        # An inline stage with an environment of its own goes alone: the environment belongs to the process.
        alone = [s for s in self.pipeline.stages if inline_env(s)]
        for config in alone:
            await bring_up_stage(config)
        try:
            async with asyncio.TaskGroup() as group:
                for config in self.pipeline.stages:
                    if config not in alone:
                        group.create_task(bring_up_stage(config), name=f"load {config.name}")
                group.create_task(bring_up(VOICE_ACTIVITY, [("loading", self.voice_activity.start)]))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _start_turn_model(self) -> None:
        """The one model that may be missing: without it silence alone ends turns, and ``/v1/models`` says so."""
        if self.deploy.duplex_session.turn_model is None or not self.pipeline.capabilities.audio_in:
            return
        try:
            await self.turn_model.start()
        except Exception as error:  # noqa: BLE001 - whatever the loader raises for a file that it cannot use
            logger.warning("semantic_vad goes by silence alone: the turn model cannot be loaded: %s", error)
            return
        able = dataclasses.replace(self.pipeline.capabilities, turn_model=True)
        self.pipeline = dataclasses.replace(self.pipeline, capabilities=able)

    def _scale(self, orchestrator: Orchestrator) -> None:
        """Let the stages grow and shrink that the deploy file says it of."""
        for config in self.pipeline.stages:
            if bounds := self.deploy.stage(config.stage_id).autoscale:
                replicas = self._replicas[config.stage_id]
                start, end = self._start_one_more(config), self._end_one
                self._scalers.append(Autoscaler(config.stage_id, bounds, replicas, orchestrator, start, end))
        if self._scalers:
            orchestrator.on_load = self._look_at_load

    def _look_at_load(self) -> None:
        for scaler in self._scalers:
            scaler.look()

    def _start_one_more(self, config: StageConfig) -> Callable[[int], Awaitable[Replica]]:
        async def start(index: int) -> Replica:
            replica = self._new_replica(config, index)
            self._replicas[config.stage_id].append(replica)
            try:
                await replica.load()
                await replica.warm_up()
            except BaseException:
                await self._end_one(replica)
                raise
            return replica

        return start

    async def _end_one(self, replica: Replica) -> None:
        await replica.close()  # cut short, it is closed again with the rest
        for replicas in self._replicas.values():
            if replica in replicas:
                replicas.remove(replica)

    def check_arguments(self) -> None:
        """Compare ``engine_args`` with what the stages' classes take; loads nothing. Raises :class:`DeployError`.

        From here on ``pipeline.capabilities`` holds what the chosen models add, too, as far as small files of their
        checkpoints and the deploy file tell; :meth:`start` looks again, when the checkpoints are there.
        """
        added: set[Ability] = set()
        for config in self.pipeline.stages:
            build = self._build(config, self.deploy.stage(config.stage_id))
            added |= import_stage(build.target).abilities(build.arguments())
            try:
                _ = build.hand_over and build.hand_over.function()
            except ImportError as error:
                where = f"pipeline '{self.pipeline.name}', stage '{config.name}'"
                raise DeployError(f"{where}: the processor of its output cannot be imported: {error}") from error
        able = dataclasses.replace(self.pipeline.capabilities, **dict.fromkeys(added, True))  # type: ignore[arg-type]
        self.pipeline = dataclasses.replace(self.pipeline, capabilities=able)

    def _place(self) -> None:
        """Make every replica in the executor that the deploy file names."""
        self._types = PieceTypes(dict.fromkeys(name for s in self.pipeline.stages for name in s.emits))
        self._segments = Segments()
        if swept := sweep_dead_runs(self._segments.folder):
            logger.info("Freed %d segments of shared memory that a gateway before had left", swept)
        for config in self.pipeline.stages:
            count = self.deploy.stage(config.stage_id).first_replicas
            self._replicas[config.stage_id] = [self._new_replica(config, index) for index in range(count)]

    def _new_replica(self, config: StageConfig, index: int) -> Replica:
        placed = self.deploy.stage(config.stage_id)
        build, slots, timeout_s = self._build(config, placed), self._size(config), self.deploy.stage_init_timeout_s
        match placed.executor:
            case "process":
                self._segments.check_room(self._shared_memory(placed).min_free_bytes)
                devices = visible_devices(placed, index, current_platform(), build.where)
                spec = WorkerSpec(build, slots, placed.env | devices, timeout_s)
                return ProcessReplica(config.name, spec, self._local(placed), index)
            case "ray":
                ray_spec = RaySpec(
                    build=build,
                    types=self._types,
                    threshold_bytes=self._options(placed, RayOptions).threshold_bytes,
                    slots=slots,
                    final=config.final_output,
                    resources=placed.resources or Resources(),
                    num_gpus=len(placed.devices or ()) / placed.most_replicas,
                    env=placed.env,
                    start_timeout_s=timeout_s,
                )
                takers = [s.stage_id for s in self.pipeline.stages if config.stage_id in s.input_sources]
                by_process = any(self.deploy.stage(i).executor == "process" for i in takers)
                return RayReplica(config.name, ray_spec, self._ray, index, self._local(placed) if by_process else None)
        return InlineReplica(config.name, build, slots, index)

    def _local(self, placed: StageDeploy) -> SharedMemoryConnector:
        return SharedMemoryConnector(self._types, self._segments, self._shared_memory(placed).threshold_bytes)

    def _shared_memory(self, placed: StageDeploy) -> SharedMemoryOptions:
        return self._options(placed, SharedMemoryOptions)

    def _options(self, placed: StageDeploy, kind: type[T]) -> T:
        """The options of the connector that the stage's output is sent over, if it is of that kind, else defaults."""
        for name in placed.output_connectors.values():
            connector = self.deploy.connectors[name]
            if OPTIONS[connector.name] is kind:
                return msgspec.convert(connector.extra, kind)
        return kind()

    def _build(self, config: StageConfig, placed: StageDeploy) -> StageBuild:
        """The stage's class with ``engine_args`` and ``sampling``, and its model and size if it asks."""
        given = dict(placed.engine_args)
        where = f"{self._source}: stage '{config.name}' ({config.stage_id})"
        try:
            arch = config.arch_of(given.pop("backend", None))
        except PipelineError as error:
            raise DeployError(f"{where}: engine_args.{error}") from error
        if sampling := placed.sampling | config.sampling_constraints:
            given["sampling"] = sampling
        offered: dict[str, Any] = {"max_num_seqs": self._size(config)}
        if model := (config.model if arch == config.model_arch else None) or self.deploy.checkpoint:
            offered["model"] = model
        for source in config.input_sources:
            offered |= self._codec_options(source, config.stage_id)
        return StageBuild(stage_target(arch), given, offered, where, self._hand_over(config))

    def _codec_options(self, source: int, target: int) -> dict[str, Any]:
        """Options of the connector between two stages that are for the one behind it."""
        name = self.deploy.stage(source).output_connectors.get(f"to_stage_{target}")
        options = self.deploy.connectors[name].extra if name else {}
        return {key: value for key, value in options.items() if "codec_" in key and value is not None}

    def _hand_over(self, config: StageConfig) -> HandOver | None:
        """How the stage's pieces reach the next one, unless each is handed on at once."""
        whole = not self.deploy.async_chunk
        processor = config.full_processor if whole else config.chunk_processor
        has_targets = any(config.stage_id in stage.input_sources for stage in self.pipeline.stages)
        if not has_targets or not (whole or processor):
            return None
        return HandOver(whole, processor, config.final_output)

    def _size(self, config: StageConfig) -> int:
        return self.deploy.stage(config.stage_id).max_num_seqs or config.max_num_seqs


_KINDS: dict[str, type[Exception]] = {"DeployError": DeployError, "ModelUnavailable": ModelUnavailable}
"""Errors of a worker's start that mean the same here."""


def _packaged_voice_activity() -> FrameModel:
    return SileroModel(require("silero-vad"))


def _turn_model(deploy: DeployConfig) -> TurnModel:
    assert deploy.duplex_session.turn_model is not None
    return SmartTurnModel(require(deploy.duplex_session.turn_model))


@contextmanager
def _environment(variables: Mapping[str, str | int | float]) -> Iterator[None]:
    """Environment variables for the time of a ``with`` block. Their names may be logged, their values never."""
    if variables:
        logger.info("Environment of the launch: %s", ", ".join(variables))
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
