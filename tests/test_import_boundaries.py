"""Imports go one way, codecs <- engine <- sessions <- realtime, and the session core is pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("codecs", "engine", "sessions", "realtime")
REPOSITORY = Path(__file__).resolve().parent.parent
MODULES = sorted(
    path.relative_to(REPOSITORY).as_posix() for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")
)
SHELLS = {"sessions/actor.py", "sessions/manager.py"}
IMPURE = {
    *("asyncio", "anyio", "trio", "uvloop", "concurrent", "threading", "multiprocessing", "subprocess", "time"),
    *("socket", "selectors", "select", "ssl", "http", "urllib", "websockets", "starlette", "uvicorn"),
    *("numpy", "soxr", "onnxruntime", "torch", "transformers", "ctranslate2", "faster_whisper", "xllamacpp", "hibari"),
    "livekit",
}
PURE = "urllib.parse"
"""The one module of an impure package that does nothing but compute."""


def imported(source: str, path: str) -> Iterator[str]:
    """Full names of the modules that a module imports anywhere in it, those for type checking included."""
    package = ["duologue", *Path(path).parent.parts]
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def violations(source: str, path: str) -> list[str]:
    """One line for each import that the module at ``path`` (from the repository's root) must not have."""
    room = path.split("/")[0]
    found = []
    for name in imported(source, path):
        first, *rest = name.split(".")
        if first == "duologue" and rest and (rest[0] not in ROOMS or ROOMS.index(rest[0]) > ROOMS.index(room)):
            found.append(f"{path} imports {name}: imports go {' <- '.join(ROOMS)}")
        elif first in ROOMS[1:]:
            found.append(f"{path} imports {name}: say duologue.{name}")
        elif room == "sessions" and path not in SHELLS and first in IMPURE and not name.startswith(PURE):
            found.append(f"{path} imports {name}: only {' and '.join(sorted(SHELLS))} may")
    return found


@pytest.mark.parametrize("path", MODULES)
def test_boundaries_hold(path: str) -> None:
    assert violations((REPOSITORY / path).read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("codecs/pcm.py", "import duologue.engine.requests", 1),
        ("engine/engine.py", "def f():\n    from duologue.sessions import items", 2),
        ("engine/engine.py", "from duologue import realtime", 1),
        ("engine/stages/talker.py", "from ...sessions import items", 2),
        ("sessions/machine.py", "import asyncio, socket", 2),
        ("sessions/turns/policy.py", "from threading import Lock", 2),
        ("sessions/machine.py", "from sessions import items", 2),
        ("sessions/machine.py", "import urllib.request\nfrom urllib.parse import urlsplit", 1),
        ("sessions/actor.py", "import asyncio", 0),
        ("realtime/app.py", "import asyncio\nfrom duologue.sessions import items\nimport codecs", 0),
        ("engine/engine.py", "from duologue.codecs import pcm\nfrom .requests import Delta", 0),
    ],
)
def test_the_test_sees_what_it_should(path: str, source: str, count: int) -> None:
    assert len(violations(source, path)) == count
