"""Prompts that the server keeps, and what a session's ``prompt`` makes of one.

A prompt becomes the instructions of the session, or of the response, that names it; instructions given beside it win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from duologue.sessions.config import StoredPrompt
from duologue.sessions.errors import ProtocolError
from duologue.sessions.shape import Shape

_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class PromptTemplate(Shape, frozen=True):
    """The versions of one prompt. ``{{name}}`` in a text stands for a variable."""

    versions: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    default: str | None = None
    """The version of a client that names none; None: the last one listed."""

    def __post_init__(self) -> None:
        if self.default is not None and self.default not in self.versions:
            raise ValueError(f"there is no version '{self.default}'")

    @property
    def default_version(self) -> str:
        return self.default if self.default is not None else list(self.versions)[-1]


def rendered(prompts: Mapping[str, PromptTemplate], prompt: StoredPrompt, where: str) -> str:
    """The text of ``prompt``, which stands in the field ``where``.

    Raises ``ProtocolError`` for an id, a version or a variable that does not exist, and for a variable that is missing.
    """
    template = prompts.get(prompt.id)
    if template is None:
        known = f" Known: {', '.join(sorted(prompts))}." if prompts else " No prompts are stored on this server."
        raise ProtocolError("invalid_value", f"There is no prompt with the id '{prompt.id}'.{known}", f"{where}.id")
    version = prompt.version if isinstance(prompt.version, str) else template.default_version
    text = template.versions.get(version)
    if text is None:
        message = f"The prompt '{prompt.id}' has no version '{version}'. Known: {', '.join(template.versions)}."
        raise ProtocolError("invalid_value", message, f"{where}.version")
    given = prompt.variables if isinstance(prompt.variables, dict) else {}
    wanted = set(_VARIABLE.findall(text))
    for name in sorted(given.keys() - wanted):
        message = f"The prompt '{prompt.id}' has no variable '{name}'."
        raise ProtocolError("unknown_parameter", message, f"{where}.variables.{name}")
    for name in sorted(wanted - given.keys()):
        message = f"The prompt '{prompt.id}' needs the variable '{name}'."
        raise ProtocolError("missing_required_parameter", message, f"{where}.variables.{name}")
    values = {name: value if isinstance(value, str) else value.text for name, value in given.items()}
    return _VARIABLE.sub(lambda match: values[match[1]], text)
