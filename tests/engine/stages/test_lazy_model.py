"""A model that is loaded when it is first asked for."""

from __future__ import annotations

import threading

import pytest

from duologue.engine.stages.lazy_model import LazyModel


def test_it_is_loaded_once_and_whoever_waits_may_give_up() -> None:
    go_on, loads = threading.Event(), []

    def load() -> str:
        loads.append(1)
        go_on.wait(5)
        return "model"

    lazy = LazyModel(load)
    assert loads == []
    assert not lazy.wait(0.01)
    assert not lazy.wait(0.01)
    go_on.set()
    assert lazy.wait(5)
    assert lazy.model == "model"
    assert lazy.wait(0)
    assert loads == [1]


def test_a_failure_is_for_those_who_wait_and_the_next_one_tries_again() -> None:
    results: list[object] = [OSError("no network"), "model"]

    def load() -> object:
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    lazy = LazyModel(load)
    with pytest.raises(OSError, match="no network"):
        lazy.wait(5)
    assert lazy.wait(5)
    assert lazy.model == "model"
