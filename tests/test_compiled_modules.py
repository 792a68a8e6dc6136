"""What setup.py would compile: it is there, no class of it has heirs that stay behind, and whoever asks is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from duologue.realtime import compiled
from duologue.realtime.doctor import examine
from duologue.sessions import machine

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ("codecs", "engine", "sessions", "realtime")


def constant(name: str) -> tuple[str, ...]:
    """A tuple that setup.py assigns; running it would set something up."""
    for node in ast.parse((REPOSITORY / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            found: tuple[str, ...] = ast.literal_eval(node.value)
            return found
    raise AssertionError(f"setup.py has no {name}")


COMPILED = constant("COMPILED")


def classes(path: str) -> Iterator[tuple[str, set[str]]]:
    """Full names of a module's classes, and of their bases as far as the module imports or defines them."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    module = f"duologue.{path.removesuffix('.py').replace('/', '.')}"
    known = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = (ast.unparse(base).partition("[")[0] for base in node.bases)
            yield f"{module}.{node.name}", {known.get(name, name) for name in names}


def test_the_modules_are_there_in_order_and_once() -> None:
    assert list(COMPILED) == sorted(set(COMPILED))
    assert [path for path in COMPILED if not (REPOSITORY / path).is_file()] == []


def test_classes_are_compiled_with_all_that_inherits_from_them() -> None:
    compiled_classes = {name for path in COMPILED for name, _ in classes(path)}
    assert "duologue.sessions.turns.silence.SilencePolicy" in compiled_classes
    everything = {
        path.relative_to(REPOSITORY).as_posix() for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")
    }
    heirs = [
        name for path in sorted(everything - {*COMPILED}) for name, bases in classes(path) if bases & compiled_classes
    ]
    assert heirs == []


def test_structs_among_them_have_no_fields_that_mypyc_annotates_otherwise() -> None:
    fields = [
        f"{path}: {ast.unparse(field)}"
        for path in COMPILED
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and "msgspec.Struct" in map(ast.unparse, node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and not isinstance(field.annotation, ast.Name)
    ]
    assert fields == []


@pytest.mark.parametrize(
    ("file", "said"),
    [("machine.py", "plain Python, not compiled"), ("machine.cpython-311-x86_64-linux-gnu.so", "compiled")],
)
def test_the_doctor_says_whether_sessions_are_compiled(file: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "__file__", f"/somewhere/{file}")
    assert compiled.is_compiled() == (said == "compiled")
    assert {finding.name: finding.detail for finding in islice(examine(), 2)}["sessions"] == said
