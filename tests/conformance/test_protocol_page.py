"""docs/protocol.md names tests that exist, and the versions that are pinned and installed."""

from __future__ import annotations

import ast
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
CLIENTS = dict(re.findall(r"^\| `([@\w/-]+)`(?: \(\w+\))? \| ([\d.]+) \|", PAGE, re.MULTILINE))
MATRIX = [line for line in PAGE.splitlines() if line.startswith("|") and "test_" in line]


def defined() -> set[str]:
    """The name of every test function of the suite."""
    return {
        node.name
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_test_of_the_matrix_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    assert named - defined() == set()


def test_every_cell_of_the_matrix_names_a_test_or_says_why_not() -> None:
    assert len(MATRIX) > 25
    for line in MATRIX:
        for cell in line.strip("|").split("|")[1:]:
            assert re.fullmatch(r"`test_\w+`(, `test_\w+`)*|-|not yet", cell.strip()), line


def test_the_clients_tests_are_all_in_the_matrix() -> None:
    ours = re.compile(r"test_(agents_py|agents_js|livekit|pipecat|openai)_\w+")
    tests = {name for name in defined() if ours.fullmatch(name)}
    assert tests - set(re.findall(r"`(test_\w+)`", PAGE)) == set()


@pytest.mark.parametrize("name", ["openai", "openai-agents", "livekit-plugins-openai", "pipecat-ai"])
def test_the_python_clients_are_pinned_and_installed_as_the_page_says(name: str) -> None:
    pins = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{name}=={CLIENTS[name]}"' in pins
    assert version(name) == CLIENTS[name]


def test_the_javascript_client_is_locked_as_the_page_says() -> None:
    folder = REPOSITORY / "tests" / "conformance" / "agents_js"
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    for name, pinned in wanted.items():
        assert locked[f"node_modules/{name}"]["version"] == pinned
    assert wanted["@openai/agents"] == CLIENTS["@openai/agents"]
    assert not [entry for entry in locked.values() if "resolved" in entry], "a registry is named in the lock file"
