"""The worked example of docs/engine.md, pasted and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from duologue.engine.deploy import load_deploy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.models
def test_the_worked_example_does_what_the_page_says(tmp_path: Path) -> None:
    (example,) = fenced("python")
    (tmp_path / "spelling.py").write_text(example, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "spelling.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    *sounds, last = result.stdout.splitlines()
    assert last == "completed"
    assert sum(int(re.fullmatch(r"(\d+) bytes of sound", line)[1]) for line in sounds) == 28800  # type: ignore[index]


def test_the_deploy_file_of_the_page_loads(tmp_path: Path) -> None:
    (text,) = fenced("yaml")
    assert yaml.safe_load(text)
    (tmp_path / "base.yaml").write_text("pipeline: assistant\n")
    (tmp_path / "mine.yaml").write_text(text)
    config = load_deploy(tmp_path / "mine.yaml")
    assert (config.stage(3).executor, config.stage(3).replicas) == ("process", 2)


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 200
