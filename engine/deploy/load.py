"""Reading a deploy file: overlays, the platform's section, validation.

Order, low to high: the base file (``base_config``, else the file packaged for the pipeline), its platform section, the
file itself, its platform section, what the command line lays over them (:class:`~duologue.engine.deploy.Overrides`:
the checkpoint's model, then stage overrides). Stages merge by id; mappings merge key by key; an alias table and any
other value replace the one below.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from duologue.engine.checkpoints import Checkpoint, engine_args_for, identify, pipeline_of
from duologue.engine.connectors.options import OPTIONS as CONNECTORS
from duologue.engine.deploy.config import NOT_IN_FILES, DeployConfig, DeployError, StageDeploy
from duologue.engine.deploy.layers import Layer, set_by
from duologue.engine.deploy.overrides import OPTION, Overrides
from duologue.engine.pipeline import PipelineConfig, PipelineError, StageConfig, get_pipeline

T = TypeVar("T")

FOLDER = Path(__file__).parent
DEFAULT_FILE = FOLDER / "assistant.yaml"
PLATFORMS = ("cpu", "cuda", "rocm", "metal")
EXECUTORS = ("inline", "process", "ray")
OVERLAY_KEYS = ("base_config", "platforms")


def current_platform() -> str:
    """The key of ``platforms`` that applies to this machine."""
    if sys.platform == "darwin":
        return "metal"
    if Path("/dev/nvidiactl").exists():
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


def load_deploy(
    path: Path | None = None, platform: str | None = None, overrides: Overrides | None = None
) -> DeployConfig:
    """Read, merge and validate a deploy file; None is the one packaged for the pipeline.

    Raises :class:`DeployError`, and ``ModelUnavailable`` for an ``overrides.model`` that cannot be found.
    """
    over = overrides or Overrides()
    checkpoint = identify(over.model) if over.model is not None else None
    base, merged = _packaged(checkpoint)
    layers: list[Layer] = []
    file = base if path is None else Path(path)
    if file is not None:
        merged |= _read_with_bases(file, platform or current_platform(), (), base, layers)
    pipeline = _pipeline(merged, file)
    arguments = engine_args_for(checkpoint, pipeline) if checkpoint else {}
    given = {str(stage_id): {"engine_args": args} for stage_id, args in arguments.items()}
    for option, stages in ((f"model '{over.model}'", given), (OPTION, over.stages)):
        entries = _override_entries(stages, pipeline)
        merged["stages"] = _merge_stages(merged.get("stages", []), entries)
        layers.append((option, {"stages": entries}))
    if over.async_chunk is not None:
        merged["async_chunk"] = over.async_chunk
        layers.append(("--async-chunk" if over.async_chunk else "--no-async-chunk", {"async_chunk": over.async_chunk}))
    if over.speculate is not None:
        speculate = {"speculate": over.speculate}
        merged["duplex_session"] = (merged.get("duplex_session") or {}) | speculate
        layers.append((f"--speculation {'on' if over.speculate else 'off'}", {"duplex_session": speculate}))
    source = " with ".join(filter(None, (str(file or ""), over.describe())))
    config = _convert(merged, DeployConfig, source)
    _check(config, pipeline, source)
    of_pipeline = checkpoint.location if checkpoint and not arguments else None
    return msgspec.structs.replace(config, file=file, source=source, checkpoint=of_pipeline, set_by=set_by(layers))


def _packaged(checkpoint: Checkpoint | None) -> tuple[Path | None, dict[str, Any]]:
    """The file below the user's, and where there is none the keys that it would have."""
    if checkpoint is None:
        return DEFAULT_FILE, {}
    try:
        pipeline = pipeline_of(checkpoint)
    except PipelineError as error:
        raise DeployError(str(error)) from error
    return (FOLDER / pipeline.default_deploy, {}) if pipeline.default_deploy else (None, {"pipeline": pipeline.name})


def _pipeline(merged: dict[str, Any], file: Path | None) -> PipelineConfig:
    try:
        return get_pipeline(str(merged["pipeline"]))
    except PipelineError as error:
        raise DeployError(f"{file}: pipeline: {error}") from error


def _override_entries(stages: Mapping[str, Mapping[str, Any]], pipeline: PipelineConfig) -> list[dict[str, Any]]:
    """Entries of ``stages`` by id or name as the list of a file. Errors name the option and the path in it."""
    ids = {key: s.stage_id for s in pipeline.stages for key in (s.name, str(s.stage_id))}
    entries: dict[int, dict[str, Any]] = {}
    for key, values in stages.items():
        if key not in ids:
            known = ", ".join(f"{s.stage_id} ({s.name})" for s in pipeline.stages)
            raise DeployError(f"{OPTION}: {key}: pipeline '{pipeline.name}' has no such stage; it has {known}")
        if ids[key] in entries:
            raise DeployError(f"{OPTION}: {key}: stage {ids[key]} is given by id and by name; it is given once")
        entries[ids[key]] = {"stage_id": ids[key], **values}
        _convert(entries[ids[key]], StageDeploy, OPTION, key)
    return list(entries.values())


# -- reading and merging -----------------------------------------------------------------------------------------------


def _read_with_bases(
    file: Path, platform: str, above: tuple[Path, ...], default: Path | None, layers: list[Layer]
) -> dict[str, Any]:
    """The file over what lies below it; ``default`` lies below one that names neither base nor pipeline.

    Adds to ``layers`` what was read, from low to high.
    """
    if file.resolve() in above:
        chain = " -> ".join(str(p) for p in (*above, file.resolve()))
        raise DeployError(f"{file}: base_config: the files lead in a circle ({chain})")
    content = _read(file)
    base = _base_of(content, file, default)
    merged = _read_with_bases(base, platform, (*above, file.resolve()), default, layers) if base else {}
    own = {k: v for k, v in content.items() if k not in OVERLAY_KEYS}
    merged = _overlay(merged, own, file, "")
    sections = content.get("platforms") or {}
    if not isinstance(sections, dict) or not set(sections) <= set(PLATFORMS):
        raise DeployError(f"{file}: platforms: expected a mapping with keys among {', '.join(PLATFORMS)}")
    section = sections.get(platform) or {}
    if not isinstance(section, dict) or not set(section) <= {"stages"}:
        raise DeployError(f"{file}: platforms.{platform}: the only key is 'stages'")
    for name, value in sections.items():
        _stage_list(value.get("stages") if isinstance(value, dict) else value, file, f"platforms.{name}.stages")
    layers += [(str(file), own), (f"{file}: platforms.{platform}", section)]
    return _overlay(merged, section, file, f"platforms.{platform}.")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeployError(f"{file}: the file cannot be read ({reason})") from error
    except yaml.YAMLError as error:
        # The error's own text quotes what it found, which may be a secret of ``env``; place and kind suffice.
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = re.sub(r"'.{2,}'", "'...'", getattr(error, "problem", None) or "unreadable")
        raise DeployError(f"{file}: {where}not valid YAML ({problem})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise DeployError(f"{file}: expected a mapping at the top level, found a {type(content).__name__}")
    for key in content:
        if key not in KEYS:
            raise DeployError(f"{file}: unknown key '{key}'{_hint(key)}. Known: {', '.join(KEYS)}")
    return content


def _base_of(content: dict[str, Any], file: Path, default: Path | None) -> Path | None:
    """The file below: ``base_config``, else the one packaged for the pipeline unless this is that file."""
    named = content.get("base_config")
    if named is not None:
        if not isinstance(named, str):
            raise DeployError(f"{file}: base_config: expected a file name")
        return file.parent / named
    pipeline = content.get("pipeline")
    if file.parent.resolve() == FOLDER.resolve():
        return None  # packaged files stay flat
    if pipeline is None:
        return default
    packaged = _pipeline(content, file).default_deploy
    return FOLDER / packaged if packaged else None


def _stage_list(value: Any, file: Path, where: str) -> list[StageDeploy]:
    """Validate a list of stage entries on its own, so that an error names the file and place it stands in."""
    stages = _convert(value or [], list[StageDeploy], file, where)
    seen: set[int] = set()
    for index, stage in enumerate(stages):
        if stage.stage_id in seen:
            raise DeployError(f"{file}: {where}[{index}].stage_id: stage {stage.stage_id} has two entries; it has one")
        seen.add(stage.stage_id)
    return stages


def _overlay(below: dict[str, Any], above: dict[str, Any], file: Path, where: str) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            continue
        if key == "stages":
            _stage_list(value, file, f"{where}stages")
            merged[key] = _merge_stages(merged.get(key, []), value)
        elif key == "aliases" and isinstance(value, dict):
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _merge_stages(below: list[dict[str, Any]], above: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = {stage["stage_id"]: stage for stage in below}
    for stage in above:
        by_id[stage["stage_id"]] = _merge(by_id.get(stage["stage_id"]), stage)
    return list(by_id.values())


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{k: _merge(below.get(k), v) for k, v in above.items() if v is not None}}
    return above


# -- validation --------------------------------------------------------------------------------------------------------

KEYS = (
    *OVERLAY_KEYS,
    *(name for name in DeployConfig.__struct_fields__ if name not in NOT_IN_FILES),
)
_ELSEWHERE = {
    "stage_args": "stages",
    "num_replicas": "replicas",
    "lb_policy": "replica_policy",
    "default_sampling_params": "sampling",
    "engine_extras": "engine_args",
    "max_batch_size": "max_num_seqs",
    "runtime": "devices, env and max_num_seqs of the stage",
    "input_connectors": "output_connectors of the stage before",
    "stage_connector_config": "output_connectors",
    "distributed_executor_backend": "executor of a stage",
}
"""What keys of other engines' deploy files are called here."""


def _hint(key: str) -> str:
    return f" (here: {_ELSEWHERE[key]})" if key in _ELSEWHERE else ""


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")


def _convert(value: Any, shape: type[T], file: Path | str, where: str = "") -> T:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$")
        path = (where + path.rstrip("`")).lstrip(".")
        if unknown := _UNKNOWN.search(rule):
            rule = f"unknown key '{unknown[1]}'{_hint(unknown[1])}"
        raise DeployError(f"{file}: {path + ': ' if path else ''}{rule}") from None


def _check(config: DeployConfig, pipeline: PipelineConfig, file: str) -> None:
    """Rules that need the pipeline beside the file."""
    known = {stage.stage_id: stage for stage in pipeline.stages}
    for index, stage in enumerate(config.stages):
        where = f"{file}: stages[{index}]"
        if stage.stage_id not in known:
            ids = ", ".join(f"{i} ({s.name})" for i, s in known.items())
            raise DeployError(
                f"{where}.stage_id: pipeline '{pipeline.name}' has no stage {stage.stage_id}; it has {ids}"
            )
        _check_stage(stage, known[stage.stage_id], config, where)
        _check_edges(stage, pipeline, config, where)
    for name, connector in config.connectors.items():
        if connector.name not in CONNECTORS:
            raise DeployError(
                f"{file}: connectors.{name}.name: unknown connector '{connector.name}'. Known: {', '.join(CONNECTORS)}"
            )
        _convert(connector.extra, CONNECTORS[connector.name], file, f"connectors.{name}.extra")
    if config.session_mode == "duplex" and not pipeline.capabilities.native_duplex:
        raise DeployError(f"{file}: session_mode: pipeline '{pipeline.name}' is not natively duplex; use 'turn'")
    if config.session_mode == "duplex" and not config.async_chunk:
        raise DeployError(f"{file}: async_chunk: session_mode 'duplex' answers while it listens; it needs true")


def _check_stage(stage: StageDeploy, declared: StageConfig, config: DeployConfig, where: str) -> None:
    if stage.executor is not None and stage.executor not in EXECUTORS:
        raise DeployError(
            f"{where}.executor: stage '{declared.name}' cannot run in executor '{stage.executor}'. "
            f"Available: {', '.join(EXECUTORS)}"
        )
    _check_ray(stage, declared, where)
    _check_scale(stage, declared, where)
    if stage.devices and (stage.executor or "inline") == "inline":
        raise DeployError(
            f"{where}.devices: stage '{declared.name}' runs inline, where every stage sees all devices; "
            "use 'executor: process'"
        )
    if stage.devices is not None:
        parallel = (stage.tensor_parallel_size, stage.data_parallel_size, stage.pipeline_parallel_size)
        sizes = (*parallel, stage.most_replicas)
        needed = 1
        for size in sizes:
            needed *= size or 1
        if len(stage.devices) != needed:
            raise DeployError(
                f"{where}.devices: stage '{declared.name}' names {len(stage.devices)} devices, but "
                f"tensor x data x pipeline parallel size x replicas is {needed}; the two are equal"
            )


def _check_ray(stage: StageDeploy, declared: StageConfig, where: str) -> None:
    if stage.executor == "ray" and importlib.util.find_spec("ray") is None:
        raise DeployError(
            f"{where}.executor: stage '{declared.name}' runs in executor 'ray', which needs Ray: "
            "pip install 'duologue[ray]'"
        )
    if stage.resources is not None and stage.executor != "ray":
        raise DeployError(
            f"{where}.resources: stage '{declared.name}' does not run in executor 'ray', which they are for"
        )


def _check_scale(stage: StageDeploy, declared: StageConfig, where: str) -> None:
    if scale := stage.autoscale:
        if stage.replicas is not None:
            raise DeployError(f"{where}.replicas: stage '{declared.name}' has 'autoscale', which sets their number")
        if scale.min_replicas > scale.max_replicas:
            raise DeployError(
                f"{where}.autoscale: min_replicas is {scale.min_replicas}, max_replicas {scale.max_replicas}; "
                "the first is at most the second"
            )


def _check_edges(stage: StageDeploy, pipeline: PipelineConfig, config: DeployConfig, where: str) -> None:
    targets = {f"to_stage_{s.stage_id}": s.stage_id for s in pipeline.stages if stage.stage_id in s.input_sources}
    for edge, connector in stage.output_connectors.items():
        path = f"{where}.output_connectors.{edge}"
        if edge not in targets:
            raise DeployError(f"{path}: no such edge. Known: {', '.join(targets) or 'none'}")
        if connector not in config.connectors:
            raise DeployError(f"{path}: no connector '{connector}'. Known: {', '.join(config.connectors) or 'none'}")
        _check_ends(stage, config.stage(targets[edge]), config.connectors[connector].name, pipeline, path)
    if len(set(stage.output_connectors.values())) > 1:
        raise DeployError(f"{where}.output_connectors: the edges of one stage share one connector")


def _check_ends(source: StageDeploy, target: StageDeploy, connector: str, pipeline: PipelineConfig, path: str) -> None:
    """Whether that connector leads from the one executor to the other."""
    ends = (source.executor, target.executor)
    if ("ray" in ends) == (connector == "RayConnector"):
        if connector == "LocalConnector" and "process" in ends:
            raise DeployError(f"{path}: a LocalConnector cannot leave a process; use a SharedMemoryConnector")
        return
    named = " and ".join(
        f"'{pipeline.stage(s.stage_id).name}' (executor {s.executor or 'inline'})" for s in (source, target)
    )
    raise DeployError(
        f"{path}: a RayConnector is for edges with a stage in executor 'ray', and no other is; "
        f"{connector} between {named}"
    )
