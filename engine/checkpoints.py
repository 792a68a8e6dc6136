"""What a checkpoint is, from its own files, and which pipeline runs it: ``duologue serve MODEL``."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from duologue.engine.models import MODELS, ModelUnavailable
from duologue.engine.models.sources import SourceError, fetch_hub_file
from duologue.engine.pipeline import PipelineConfig, PipelineError, get_pipeline, pipeline_for_checkpoint
from duologue.engine.requests import Converse

CONFIG: Final = "config.json"
LANGUAGE_MODEL_PIPELINE: Final = "assistant"
"""Serves checkpoints that only read and write text, with the checkpoint as its language model."""
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_GGUF: Final = b"GGUF"


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was found, and what its configuration says of itself."""

    name: str
    """As it was asked for."""
    location: str
    """Path of the file or folder, logical name, or hub id."""
    gguf: bool = False
    """True: weights for llama.cpp, with no ``config.json``."""
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    writes_text: bool = False
    """A language model by its architecture; it may see images too."""


def identify(name: str) -> Checkpoint:
    """Find a checkpoint: a path, a logical name of ``duologue models list``, or a hub id (``owner/name``).

    Of a hub repository only ``config.json`` is read, from the hub's cache if it is there. Raises
    :class:`~duologue.engine.models.ModelUnavailable` with one line that says what to do.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return _gguf_file(name, path)
    if path.is_dir():
        return _folder(name, path)
    if name in MODELS:
        return _known(name)
    if name.startswith(("/", "./", "../", "~")) or name.endswith(".gguf"):
        raise ModelUnavailable(f"Model path '{name}' does not exist.")
    if not _HUB_ID.fullmatch(name):
        raise ModelUnavailable(
            f"Model '{name}' is neither a path that exists, nor one of 'duologue models list', nor a hub id "
            "(owner/name)."
        )
    try:
        return _configured(name, name, fetch_hub_file(name, CONFIG))
    except SourceError as error:
        raise ModelUnavailable(
            f"Model '{name}': {error}. Download the checkpoint and give the path of its folder or .gguf file."
        ) from error


def pipeline_of(checkpoint: Checkpoint) -> PipelineConfig:
    """The pipeline that runs it: one that names its architecture or model type, else for a plain language model
    :data:`LANGUAGE_MODEL_PIPELINE`. Raises :class:`~duologue.engine.pipeline.PipelineError`."""
    try:
        return pipeline_for_checkpoint(checkpoint.model_type, checkpoint.architectures)
    except PipelineError as error:
        if not checkpoint.writes_text:
            raise PipelineError(f"Model '{checkpoint.name}': {error}") from error
    return get_pipeline(LANGUAGE_MODEL_PIPELINE)


def engine_args_for(checkpoint: Checkpoint, pipeline: PipelineConfig) -> dict[int, dict[str, Any]]:
    """By stage id, what makes ``pipeline`` use the checkpoint where it has a model of its own.

    That is the stage that answers conversations; stages that name no model are offered the checkpoint anyway.
    """
    stage = pipeline.entry_for(Converse)
    if stage is None or stage.model is None or not checkpoint.writes_text:
        return {}
    if checkpoint.gguf:
        return {stage.stage_id: {"model": checkpoint.location}}
    backend = "vllm" if find_spec("vllm") else "transformers"
    return {stage.stage_id: {"backend": backend, "model": checkpoint.location}}


def served_name(model: str) -> str:
    """What clients call a model: the name of its file or folder if it is a path, else the name as it is."""
    path = Path(model).expanduser()
    if not (path.is_absolute() or path.exists()):
        return model
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _gguf_file(name: str, path: Path) -> Checkpoint:
    try:
        with path.open("rb") as opened:
            magic = opened.read(len(_GGUF))
    except OSError as error:
        raise ModelUnavailable(f"Model path '{name}' cannot be read ({error.strerror}).") from error
    if magic != _GGUF:
        raise ModelUnavailable(f"Model path '{name}' is no GGUF file; of other checkpoints give the folder.")
    return Checkpoint(name, str(path.absolute()), gguf=True, writes_text=True)


def _folder(name: str, path: Path) -> Checkpoint:
    if (path / CONFIG).is_file():
        return _configured(name, str(path.absolute()), path / CONFIG)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _gguf_file(name, files[0])
    found = f"{len(files)} .gguf files; name one of them" if files else "no .gguf file"
    raise ModelUnavailable(f"Model path '{name}' has no {CONFIG} and {found}.")


def _known(name: str) -> Checkpoint:
    if not MODELS[name].files[0].name.endswith(".gguf"):
        raise ModelUnavailable(
            f"Model '{name}' writes no text, so it cannot be served by itself; a deploy file may name it for a stage."
        )
    return Checkpoint(name, name, gguf=True, writes_text=True)


def _configured(name: str, location: str, config: Path) -> Checkpoint:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"Model '{name}': its {CONFIG} cannot be read ({type(error).__name__}).") from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"Model '{name}': its {CONFIG} is not an object.")
    model_type, architectures = content.get("model_type"), content.get("architectures") or []
    if not (model_type is None or isinstance(model_type, str)):
        raise ModelUnavailable(f"Model '{name}': model_type in its {CONFIG} is not a string.")
    if not (isinstance(architectures, list) and all(isinstance(one, str) for one in architectures)):
        raise ModelUnavailable(f"Model '{name}': architectures in its {CONFIG} is not a list of strings.")
    sees_and_writes = "vision_config" in content and "audio_config" not in content
    writes_text = any(
        one.endswith("ForCausalLM") or (one.endswith("ForConditionalGeneration") and sees_and_writes)
        for one in architectures
    )
    return Checkpoint(
        name, location, model_type=model_type, architectures=tuple(architectures), writes_text=writes_text
    )
