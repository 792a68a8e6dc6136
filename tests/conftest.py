"""Fixtures of the whole suite: where the real recordings and the packaged models are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from missing import missing

APART = ("soak", "vllm", "gpu")
"""Marks of tests that run only when they are asked for: ``pytest -m soak``."""

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need much time, a machine or an environment of their own run only where ``-m`` names their mark."""
    asked = config.getoption("markexpr") or ""
    apart = [item for item in items for mark in APART if item.get_closest_marker(mark) and mark not in asked]
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item not in apart]


@pytest.fixture(scope="session")
def speech_dir() -> Path:
    """Folder of the real recordings (16 kHz, mono, 16-bit): ``DUOLOGUE_TEST_SPEECH``, else beside the repository."""
    folder = Path(os.environ.get("DUOLOGUE_TEST_SPEECH") or REPOSITORY.parent / "shared" / "data" / "speech")
    if not any(folder.glob("*.wav")):
        missing(f"No recordings in {folder}; set DUOLOGUE_TEST_SPEECH to their folder.")
    return folder


@pytest.fixture(scope="session")
def silero_path() -> Path:
    """The packaged voice-activity model."""
    from duologue.engine.models import locate

    path = locate("silero-vad")
    if path is None:
        missing("The model silero-vad is not in the cache: run 'duologue models pull silero-vad'.")
    assert path is not None
    return path
