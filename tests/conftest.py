"""Fixtures of the whole suite: where the real recordings and the packaged models are."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
from missing import missing

hypothesis.settings.register_profile("duologue", deadline=None)  # a busy machine is no error
hypothesis.settings.load_profile("duologue")

EXTRA = ("soak", "gpu", "vllm")
"""Marks of tests that need time, a machine or an environment of their own: they run only when ``-m`` names them."""

REPOSITORY = Path(__file__).resolve().parent.parent


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
    return _cached("silero-vad")


@pytest.fixture(scope="session")
def smart_turn_path() -> Path:
    """The packaged turn model."""
    return _cached("smart-turn-v3.2")


def _cached(name: str) -> Path:
    from duologue.engine.models import locate

    path = locate(name)
    if path is None:
        missing(f"The model {name} is not in the cache: run 'duologue models pull {name}'.")
    assert path is not None
    return path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [
        item
        for item in items
        if any(item.get_closest_marker(mark) and mark not in config.option.markexpr for mark in EXTRA)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    _set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    try:
        yield
    finally:
        if nextitem is not None and nextitem.path != item.path:
            _set_aside()


def _set_aside() -> None:
    """Spare the garbage collector what the suite has loaded, as ``duologue serve`` does.

    A search through all of it stops the process for a second: a peer that falls silent in the middle of what it says.
    """
    gc.collect()
    gc.freeze()
