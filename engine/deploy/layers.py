"""Which file or option set a value of the effective configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Layer = tuple[str, Mapping[str, Any]]
"""A name for people and the keys that it sets, as in a deploy file."""


def set_by(layers: Sequence[Layer]) -> dict[str, str]:
    """Path of each value that is set -> name of the layer that set it last; ``layers`` go from low to high.

    A stage's values are under ``stages.<its id>``. What no layer sets comes from the pipeline or the machine.
    """
    return {path: name for name, content in layers for path in _paths(content)}


def _paths(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in content.items():
        path = f"{above}{key}"
        if value is None or value == {}:
            continue
        if path == "stages":
            for stage in value:
                values = {name: v for name, v in stage.items() if name != "stage_id"}
                yield from _paths(values, f"stages.{stage['stage_id']}.")
        elif isinstance(value, Mapping) and not above.startswith("aliases."):  # an alias table replaces that below
            yield from _paths(value, f"{path}.")
        else:
            yield path
