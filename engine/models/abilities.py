"""What a checkpoint says about itself in its small files; reads no weights, imports no model library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duologue.engine.models.registry import MODELS


def sees_pictures(model: str) -> bool:
    """Whether the checkpoint at a path, or a hub id in the local cache, has a part for pictures."""
    return "vision_config" in _config(model)


def chat_template(model: str) -> str:
    """Its chat template; empty when there is none or the checkpoint is not here."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        file = _file(model, name)
        if file is None:
            continue
        text = file.read_text(encoding="utf-8")
        if name.endswith(".jinja"):
            return text
        template = json.loads(text).get("chat_template")
        if template:
            return template if isinstance(template, str) else json.dumps(template)
    return ""


def _config(model: str) -> dict[str, Any]:
    file = _file(model, "config.json")
    found = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    return found if isinstance(found, dict) else {}


def _file(model: str, name: str) -> Path | None:
    if model in MODELS:
        return None  # none of the packaged ones sees, or knows tools
    path = Path(model).expanduser()
    if path.exists():
        return path / name if (path / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, name)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
