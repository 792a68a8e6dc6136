"""Whether the modules that every chunk of sound passes through were compiled when this was installed (``setup.py``)."""

from __future__ import annotations

from duologue.sessions import machine


def is_compiled() -> bool:
    """False too where compiled modules are there, but not for this Python."""
    return not str(machine.__file__).endswith(".py")
