"""Cutting streams into pieces, for the tests of "any chunking gives the same"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

Stream = TypeVar("Stream", bytes, NDArray[np.float32])


@pytest.fixture(scope="session")
def cut() -> Callable[[Stream, Sequence[int]], Iterator[Stream]]:
    """``cut(stream, sizes)``: consecutive pieces of these sizes, repeated until the stream ends."""

    def cut(stream: Stream, sizes: Sequence[int]) -> Iterator[Stream]:
        assert sum(sizes) > 0
        position = 0
        for size in cycle(sizes):
            if position >= len(stream):
                return
            yield stream[position : position + size]
            position += size

    return cut
