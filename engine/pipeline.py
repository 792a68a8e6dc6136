"""A pipeline: the fixed graph of stages of one model family.

Topology is declared here, in Python and frozen; placement and sizes belong to the deploy file
(:mod:`duologue.engine.deploy`). Nothing in this module imports a model library: a stage's class is named by
``model_arch`` and imported only when an executor loads it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from duologue.engine.requests import Converse, EngineRequest, Speak, Transcribe
from duologue.engine.stage import Stage

OutputType = Literal["text", "audio", "video"]


class ExecutionType(Enum):
    """How a stage computes, and so how it is scheduled."""

    LLM_AR = "llm_ar"
    """One token or frame a step (thinker, talker)."""
    LLM_GENERATION = "llm_generation"
    """One shot a chunk (vocoder, recogniser)."""
    DIFFUSION = "diffusion"
    """Denoising steps over latents, frames out."""


class PipelineError(ValueError):
    """A pipeline breaks a rule; the message names pipeline, stage and rule."""


@dataclass(frozen=True)
class Capabilities:
    """What a session may ask of a pipeline. Code asks these, never a model's name."""

    audio_in: bool = False
    video_in: bool = False
    audio_out: bool = False
    video_out: bool = False
    tools: bool = False
    image_in: bool = False
    """Pictures in a user's message (:class:`~duologue.engine.requests.ImagePart`)."""
    transcript_logprobs: bool = False
    """The recogniser gives the log-probabilities of its tokens."""
    multilingual: bool = False
    """The recogniser knows the languages of :data:`duologue.engine.languages.WHISPER`, and not English only."""
    voice_languages: tuple[str, ...] = ()
    """ISO 639-1 codes of the languages that the voices speak; empty: any."""
    native_duplex: bool = False
    reads_ahead: bool = False
    """The language model keeps what it is given to read before an answer is wanted (``Converse.prepare``)."""
    turn_model: bool = False
    """``semantic_vad`` is judged by a model; without one it waits for a longer silence."""


@dataclass(frozen=True)
class StageConfig:
    """One node of the graph."""

    stage_id: int
    name: str
    model_arch: str
    """Name under which the stage's class is registered (:func:`register_stage`)."""
    backends: dict[str, str] = field(default_factory=dict)
    """Classes that the deploy file may choose instead, by ``engine_args: {backend: NAME}``: their registered names.
    ``model`` is that of ``model_arch``; with another backend the file names a model itself."""
    execution_type: ExecutionType = ExecutionType.LLM_GENERATION
    input_sources: tuple[int, ...] = ()
    """Ids of the stages whose pieces this one takes."""
    accepts: tuple[type, ...] = ()
    """Payload types of :mod:`duologue.engine.requests` for which this stage is the entry."""
    model: str | None = None
    """Logical name of the model served unless the deploy file's ``engine_args`` name another."""
    voices: tuple[str, ...] = ()
    """Voices this stage can speak with, the default one first."""
    max_num_seqs: int = 1
    """Requests worked on at the same time unless the deploy file says otherwise."""
    owns_tokenizer: bool = False
    emits: tuple[str, ...] = ()
    """Types of its pieces as ``module:Class``, beside requests and deltas; what another process may be sent."""
    final_output: bool = False
    """True: deltas that this stage emits go to the client (as well as to the next stage)."""
    final_output_type: OutputType | None = None
    chunk_processor: str | None = None
    """``module:function`` that decides when this stage has made enough to hand on; None: every piece is handed on."""
    full_processor: str | None = None
    """``module:function`` for all of this stage's pieces when async chunk is off; None: as they are, one by one.
    Both kinds of function are described in :mod:`duologue.engine.chunking`."""
    sampling_constraints: dict[str, Any] = field(default_factory=dict)
    """Sampling values that win over the deploy file's and the request's."""

    def arch_of(self, backend: str | None) -> str:
        """Registered name of the class behind a ``backend`` of the deploy file; None: the stage's own.

        Raises :class:`PipelineError` that lists the known ones.
        """
        if backend is None:
            return self.model_arch
        if backend not in self.backends:
            known = ", ".join(sorted(self.backends)) or "none"
            raise PipelineError(f"backend: unknown backend '{backend}'. Known: {known}")
        return self.backends[backend]


@dataclass(frozen=True)
class Route:
    """The part of a pipeline that one request uses: a graph of its own."""

    entry: int
    stages: tuple[int, ...]
    """Ids in an order in which every stage comes after its sources."""
    targets: dict[int, tuple[int, ...]]
    """For each stage the ids that take its pieces."""
    sources: dict[int, tuple[int, ...]]
    final: frozenset[int]
    """Stages whose deltas go to the client."""


@dataclass(frozen=True)
class PipelineConfig:
    """A validated graph. Raises :class:`PipelineError` when it breaks a rule."""

    name: str
    stages: tuple[StageConfig, ...]
    capabilities: Capabilities = Capabilities()
    model_types: tuple[str, ...] = ()
    """``model_type`` values of checkpoints' configurations that this pipeline runs."""
    architectures: tuple[str, ...] = ()
    """``architectures`` values that it runs; they go before model types, which several architectures may share."""
    default_deploy: str | None = None
    """File name inside ``duologue/engine/deploy``."""

    def __post_init__(self) -> None:
        _validate(self)

    def stage(self, stage_id: int) -> StageConfig:
        """The stage with that id. Raises ``KeyError``."""
        for stage in self.stages:
            if stage.stage_id == stage_id:
                return stage
        raise KeyError(stage_id)

    def entry_for(self, payload_type: type) -> StageConfig | None:
        """The stage at which payloads of that type enter, or None."""
        return next((stage for stage in self.stages if payload_type in stage.accepts), None)

    def route(self, request: EngineRequest) -> Route:
        """The stages that take part in ``request``: those between its entry and the outputs it wants.

        For each wanted kind of output the nearest final stage is taken. Raises :class:`PipelineError` when nothing
        accepts the payload or an output cannot be reached.
        """
        payload = request.payload
        entry = self.entry_for(type(payload))
        if entry is None:
            raise PipelineError(
                f"Pipeline '{self.name}' has no stage that accepts a '{type(payload).__name__}' request."
            )
        targets = _targets(self.stages)
        reached = _reachable([entry.stage_id], targets)
        ends: set[int] = set()
        for kind in wanted_outputs(payload):
            final = [i for i in reached if self.stage(i).final_output and self.stage(i).final_output_type == kind]
            if not final:
                raise PipelineError(
                    f"Pipeline '{self.name}' makes no {kind} from a '{type(payload).__name__}' request "
                    f"(no final stage of that kind after stage '{entry.name}')."
                )
            ends.add(final[0])
        leading = set(_reachable(sorted(ends), {s.stage_id: s.input_sources for s in self.stages}))
        used = [i for i in _topological(self) if i in leading and i in set(reached)]
        return Route(
            entry=entry.stage_id,
            stages=tuple(used),
            targets={i: tuple(t for t in targets[i] if t in used) for i in used},
            sources={i: tuple(s for s in self.stage(i).input_sources if s in used) for i in used},
            final=frozenset(i for i in used if self.stage(i).final_output),
        )


def wanted_outputs(payload: Transcribe | Converse | Speak) -> tuple[OutputType, ...]:
    """The kinds of output a payload asks for."""
    match payload:
        case Transcribe():
            return ("text",)
        case Speak():
            return ("audio",)
        case Converse():
            return payload.modalities


# -- graph -------------------------------------------------------------------------------------------------------------


def _targets(stages: Iterable[StageConfig]) -> dict[int, tuple[int, ...]]:
    stages = tuple(stages)
    return {s.stage_id: tuple(t.stage_id for t in stages if s.stage_id in t.input_sources) for s in stages}


def _reachable(start: Sequence[int], edges: dict[int, tuple[int, ...]]) -> list[int]:
    """Everything reachable from ``start``, itself included, nearest first."""
    found = list(start)
    for stage_id in found:
        found.extend(t for t in edges[stage_id] if t not in found)
    return found


def _topological(pipeline: PipelineConfig) -> list[int]:
    """Stage ids, sources first. Raises :class:`PipelineError` for a cycle, naming its stages."""
    waiting = {s.stage_id: set(s.input_sources) for s in pipeline.stages}
    order: list[int] = []
    while waiting:
        free = [stage_id for stage_id, sources in waiting.items() if not sources]
        if not free:
            names = ", ".join(f"'{pipeline.stage(i).name}'" for i in waiting)
            raise PipelineError(f"Pipeline '{pipeline.name}': stages {names} form a cycle; a pipeline has none.")
        order += free
        for stage_id in free:
            del waiting[stage_id]
        for sources in waiting.values():
            sources.difference_update(free)
    return order


def _validate(pipeline: PipelineConfig) -> None:
    def refuse(stage: StageConfig, rule: str) -> None:
        raise PipelineError(f"Pipeline '{pipeline.name}', stage '{stage.name}' ({stage.stage_id}): {rule}")

    if not pipeline.stages:
        raise PipelineError(f"Pipeline '{pipeline.name}' has no stages.")
    ids: set[int] = set()
    names: set[str] = set()
    accepted: dict[type, str] = {}
    for stage in pipeline.stages:
        if stage.stage_id in ids:
            refuse(stage, "another stage has the same id; ids are unique.")
        if stage.name in names:
            refuse(stage, "another stage has the same name; names are unique.")
        ids.add(stage.stage_id)
        names.add(stage.name)
        if stage.final_output != (stage.final_output_type is not None):
            refuse(stage, "final_output and final_output_type go together.")
        if stage.max_num_seqs < 1:
            refuse(stage, f"max_num_seqs is {stage.max_num_seqs}; it is at least 1.")
        for payload_type in stage.accepts:
            if payload_type in accepted:
                refuse(stage, f"'{payload_type.__name__}' already enters at stage '{accepted[payload_type]}'.")
            accepted[payload_type] = stage.name
    for stage in pipeline.stages:
        for source in stage.input_sources:
            if source not in ids:
                refuse(stage, f"input source {source} is no stage of this pipeline.")
        if not stage.input_sources and not stage.accepts:
            refuse(stage, "it has neither input_sources nor accepts, so nothing can ever reach it.")
    _topological(pipeline)
    if not accepted:
        raise PipelineError(f"Pipeline '{pipeline.name}' has no entry: no stage accepts a payload type.")
    if not any(stage.final_output for stage in pipeline.stages):
        raise PipelineError(f"Pipeline '{pipeline.name}' has no final stage, so no request could be answered.")


# -- registries --------------------------------------------------------------------------------------------------------

_pipelines: dict[str, PipelineConfig] = {}
_stage_classes: dict[str, str] = {}

PACKAGED_PIPELINES = {"assistant": "duologue.engine.pipelines.assistant"}
"""Pipelines that come with the package, and the module that registers each; imported on first use."""


def register_pipeline(pipeline: PipelineConfig) -> PipelineConfig:
    """Make ``pipeline`` known by its name and model types. Raises :class:`PipelineError` if one is taken."""
    if _pipelines.get(pipeline.name, pipeline) != pipeline:
        raise PipelineError(f"Pipeline '{pipeline.name}' is already registered with another shape.")
    for other in _pipelines.values():
        if other.name == pipeline.name:
            continue
        for kind, ours, theirs in (
            ("model type", pipeline.model_types, other.model_types),
            ("architecture", pipeline.architectures, other.architectures),
        ):
            for taken in set(ours) & set(theirs):
                raise PipelineError(f"Pipeline '{pipeline.name}': {kind} '{taken}' already belongs to '{other.name}'.")
    _pipelines[pipeline.name] = pipeline
    return pipeline


def get_pipeline(name: str) -> PipelineConfig:
    """The pipeline with that name, or at ``module:NAME``. Raises :class:`PipelineError` that lists the known ones."""
    if ":" in name:
        return _imported_pipeline(name)
    if name not in _pipelines and name in PACKAGED_PIPELINES:
        importlib.import_module(PACKAGED_PIPELINES[name])
    if name not in _pipelines:
        known = ", ".join(sorted({*_pipelines, *PACKAGED_PIPELINES}))
        raise PipelineError(f"Unknown pipeline '{name}'. Known: {known}.")
    return _pipelines[name]


def _imported_pipeline(name: str) -> PipelineConfig:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise PipelineError(f"Pipeline '{name}' cannot be imported: {error}.") from error
    if not isinstance(found, PipelineConfig):
        raise PipelineError(f"Pipeline '{name}': '{attribute}' of module '{module}' is no PipelineConfig.")
    return found


def pipeline_for_checkpoint(model_type: str | None, architectures: Sequence[str] = ()) -> PipelineConfig:
    """The pipeline that runs a checkpoint with this configuration.

    Raises :class:`PipelineError` that lists the known architectures and types.
    """
    for name in PACKAGED_PIPELINES:
        get_pipeline(name)
    for pipeline in _pipelines.values():
        if set(architectures) & set(pipeline.architectures):
            return pipeline
    for pipeline in _pipelines.values():
        if model_type in pipeline.model_types:
            return pipeline
    asked = ", ".join(f"'{name}'" for name in (*architectures, *((model_type,) if model_type else ()))) or "none named"
    known = ", ".join(sorted({t for p in _pipelines.values() for t in (*p.architectures, *p.model_types)})) or "none"
    raise PipelineError(f"no pipeline runs its architecture or model type ({asked}). Known: {known}.")


def register_stage(model_arch: str, target: str) -> None:
    """Name a stage class as ``"module:Class"`` without importing it."""
    if _stage_classes.get(model_arch, target) != target:
        raise PipelineError(f"Stage class '{model_arch}' is already registered as '{_stage_classes[model_arch]}'.")
    _stage_classes[model_arch] = target


def stage_class(model_arch: str) -> type[Stage]:
    """Import and return the class behind ``model_arch``. Raises :class:`PipelineError`."""
    return import_stage(stage_target(model_arch), model_arch)


def stage_target(model_arch: str) -> str:
    """The ``"module:Class"`` behind ``model_arch``. Raises :class:`PipelineError` that lists the known ones."""
    if model_arch not in _stage_classes:
        known = ", ".join(sorted(_stage_classes)) or "none"
        raise PipelineError(f"Unknown stage class '{model_arch}'. Known: {known}.")
    return _stage_classes[model_arch]


def import_stage(target: str, model_arch: str = "") -> type[Stage]:
    """Import and return the class ``"module:Class"``. Raises :class:`PipelineError` if it is no stage."""
    module, _, name = target.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Stage)):
        raise PipelineError(f"Stage class '{model_arch}': '{target}' is not a Stage.")
    return found
