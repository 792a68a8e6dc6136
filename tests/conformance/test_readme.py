"""What the README promises is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from served import Served

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.models
def test_the_program_in_the_readme_runs_as_it_stands(served: Served) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    here = program.replace("http://127.0.0.1:8000", served.url)
    assert here != program
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert re.search(r"^\d+\.\d s of speech$", done.stdout, re.MULTILINE)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    test_command = commands[1].strip().removeprefix("python3 -m venv .venv && . .venv/bin/activate && ")
    script = (Path(__file__).resolve().parents[2] / ".ci" / "run").read_text(encoding="utf-8")
    assert test_command == "pip install -e '.[dev]' && pytest"
    assert test_command in script.replace("pip install -qq -e", "pip install -e")
