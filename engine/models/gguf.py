"""GGUF weights for the libraries that read checkpoints in the hub's format: dequantised once, kept in the cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from duologue.engine.models.store import ModelUnavailable, cache_root, require


def checkpoint(model: str) -> str:
    """What ``from_pretrained`` takes for ``model``: a logical name, a path, or a hub id, which is passed on.

    A ``.gguf`` file becomes a folder of half-precision weights in the cache, made on first use. Raises
    :class:`ModelUnavailable`.
    """
    from duologue.engine.models.registry import MODELS

    path = Path(model).expanduser()
    if model not in MODELS and not path.exists():
        if path.is_absolute() or model.startswith(("~", ".")):
            raise ModelUnavailable(f"Model path '{model}' does not exist.")
        return model
    found = require(model) if model in MODELS else path
    return str(dequantised(found) if found.suffix == ".gguf" else found)


def dequantised(file: Path) -> Path:
    """The folder made of a ``.gguf`` file. Raises :class:`ModelUnavailable`."""
    folder = cache_root() / "dequantised" / f"{file.stem}-{file.stat().st_size:x}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        made = Path(work) / "checkpoint"
        _convert(file, made)
        try:
            made.rename(folder)
        except OSError:  # another process was first
            if not folder.exists():
                raise
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _convert(file: Path, folder: Path) -> None:
    try:
        import gguf  # noqa: F401 - transformers reads the file with it
        import torch
        import tqdm
        import transformers
    except ImportError as error:
        raise ModelUnavailable("Reading GGUF weights needs: pip install 'duologue[omni]'") from error
    where: dict[str, Any] = {"gguf_file": file.name}
    transformers.utils.logging.disable_progress_bar()
    tqdm.tqdm.monitor_interval = 0  # transformers draws one bar all the same, whose monitor is a thread that stays
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **where)
    config = transformers.GgufConfig(dequantize=True) if hasattr(transformers, "GgufConfig") else None
    if config is not None:
        where["quantization_config"] = config
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.bfloat16, **where)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
