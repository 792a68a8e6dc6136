"""What a test does when something that it needs is not on this machine."""

from __future__ import annotations

import importlib.util
import os

import pytest


def missing(what: str) -> None:
    """Something that a test, or a module of tests, needs is not there: a failure under CI, else a visible skip."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


def need_package(name: str) -> None:
    """Skip (under CI: fail) unless the package can be imported."""
    if importlib.util.find_spec(name) is None:
        missing(f"The package {name} is not installed: pip install 'duologue[test]'.")


def need_libopus() -> None:
    """Skip (under CI: fail) unless the system has libopus."""
    from duologue.codecs.opus import OpusMissingError, libopus_version

    try:
        libopus_version()
    except OpusMissingError as error:
        missing(str(error))
