"""A model that is fetched and loaded when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class LazyModel(Generic[M]):
    """Loads at the first :meth:`wait`, on a thread of its own: a download takes as long as it takes, and whoever waits
    may give up meanwhile. After a failure the next one to ask begins anew. Safe to use from any thread."""

    def __init__(self, load: Callable[[], M]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._done: threading.Event | None = None
        self._error: Exception | None = None
        self._model: M | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether the model is there, now or within ``timeout_s``. Raises what loading it raised."""
        with self._lock:
            if self._model is not None:
                return True
            if self._done is None:
                self._done, self._error = threading.Event(), None
                threading.Thread(target=self._run, args=(self._done,), name="lazy-model", daemon=True).start()
            done = self._done
        if not done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def model(self) -> M:
        """The model, once :meth:`wait` has said that it is there."""
        assert self._model is not None
        return self._model

    def _run(self, done: threading.Event) -> None:
        try:
            self._model = self._load()
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            self._error = error
            with self._lock:
                self._done = None
        done.set()
