"""What the command line lays over the deploy file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from duologue.engine.deploy.config import DeployError

OPTION = "--stage-overrides"


class Overrides(msgspec.Struct, frozen=True):
    """Values that win over the deploy file, its bases and platform section. None and empty: nothing is changed."""

    model: str | None = None
    """The checkpoint to serve, see :func:`duologue.engine.checkpoints.identify`."""
    async_chunk: bool | None = None
    speculate: bool | None = None
    stages: Mapping[str, Mapping[str, Any]] = {}
    """By id or name of a stage: keys as in an entry of ``stages``."""

    def describe(self) -> str:
        """The options that were used, for messages; empty if none was."""
        chunk = {None: None, True: "--async-chunk", False: "--no-async-chunk"}[self.async_chunk]
        speculation = {None: None, True: "--speculation on", False: "--speculation off"}[self.speculate]
        used = [f"model '{self.model}'" if self.model else None, chunk, speculation, OPTION if self.stages else None]
        return ", ".join(filter(None, used))


def parse_stage_overrides(text: str) -> dict[str, dict[str, Any]]:
    """The value of ``--stage-overrides``: a JSON object, or the name of a file that holds one.

    ``{"1": {"max_num_seqs": 4}, "talker": {"executor": "process"}}``. Raises :class:`DeployError`.
    """
    source = OPTION
    if not text.lstrip().startswith(("{", "[")):
        source = f"{OPTION} {text}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise DeployError(f"{source}: neither a JSON object nor a file that can be read ({reason})") from error
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:  # its text quotes nothing of what it read, which may be a secret of ``env``
        where = f"line {error.lineno}, column {error.colno}"
        raise DeployError(f"{source}: not valid JSON ({error.msg} at {where})") from None
    except DeployError as error:
        raise DeployError(f"{source}: {error}") from None
    if not isinstance(value, dict):
        raise DeployError(f"{source}: expected an object of stages by id or name")
    for stage, keys in value.items():
        if not isinstance(keys, dict):
            raise DeployError(f"{source}: {stage}: expected an object of keys as in an entry of 'stages'")
        if "stage_id" in keys:
            raise DeployError(f"{source}: {stage}.stage_id: the stage is named by its key; leave 'stage_id' out")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DeployError(f"key '{key}' is given twice")
        found[key] = value
    return found
