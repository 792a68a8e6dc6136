"""Stages for ``duologue bench engine``; a worker process imports them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duologue.engine.requests import AudioDelta, Converse, EngineRequest, TextDelta
from duologue.engine.stage import Stage, StageContext

STEP_S: Final = 0.005
"""One step of :class:`Stepper`."""
TOKEN_S: Final = 0.002
"""One step of :class:`Writer`, :class:`Speaker` and :class:`Voice`."""
CLAUSE: Final = 4
WORDS: Final = 8
"""Of an answer."""


@dataclass(frozen=True, eq=False)
class Stamped:
    """A payload and when it was emitted, in seconds of ``time.monotonic`` (one clock for all processes of a host)."""

    at: float
    payload: NDArray[np.uint8]


class Pacer(Stage):
    """Takes a ``Converse`` whose text is ``COUNT BYTES PER_SECOND``, emits that many :class:`Stamped` at that pace."""

    def process(self, state: Any, piece: Converse, context: StageContext) -> None:
        """One request."""
        count, size, rate = map(int, piece.messages[0].text.split())
        payload = np.zeros(size, np.uint8)
        began = time.monotonic()
        for n in range(count):
            time.sleep(max(0.0, began + n / rate - time.monotonic()))  # the pace is what is asked for
            if not context.emit(Stamped(time.monotonic(), payload)):
                return


class Taker(Stage):
    """Takes :class:`Stamped`, emits how many microseconds it was under way, as text."""

    def process(self, state: Any, piece: Stamped, context: StageContext) -> None:
        """One piece."""
        context.emit(TextDelta(text=f"{(time.monotonic() - piece.at) * 1e6:.0f} "))


class Talkative(Stage):
    """Takes a ``Converse`` whose text is a number, emits that many short texts as fast as it can."""

    def process(self, state: Any, piece: Converse, context: StageContext) -> None:
        """One request."""
        for _ in range(int(piece.messages[0].text)):
            if not context.emit(TextDelta(text="word ")):
                return


class Relay(Stage):
    """Passes on what it gets."""

    def process(self, state: Any, piece: Any, context: StageContext) -> None:
        """One piece."""
        context.emit(piece)


class Stepper(Stage):
    """Takes anything, computes in steps of ``STEP_S`` until the request is dead; emits once, to say that it began."""

    def process(self, state: Any, piece: Any, context: StageContext) -> None:
        """One request."""
        context.emit(TextDelta(text="on"))
        while not context.aborted:
            time.sleep(STEP_S)  # stands for a step of a model, which an abort cannot break off either


class Writer(Stage):
    """Takes a ``Converse`` whose text is a number, emits that many words, one each ``TOKEN_S``."""

    def process(self, state: Any, piece: Converse, context: StageContext) -> None:
        """One request."""
        for _ in range(int(piece.messages[0].text)):
            time.sleep(TOKEN_S)  # stands for the step of a language model
            if not context.emit(TextDelta(text="word ")):
                return


class Speaker(Stage):
    """Takes words, emits one text for every ``CLAUSE`` of them."""

    def start(self, request: EngineRequest) -> list[str]:
        """The words of the clause so far."""
        return []

    def process(self, state: list[str], piece: TextDelta, context: StageContext) -> None:
        """One word."""
        state.append(piece.text)
        if len(state) == CLAUSE:
            time.sleep(TOKEN_S)  # stands for an acoustic model
            context.emit(TextDelta(text="".join(state)))
            state.clear()


class Voice(Stage):
    """Takes clauses, emits two chunks of silence for each."""

    def process(self, state: Any, piece: TextDelta, context: StageContext) -> None:
        """One clause."""
        for _ in range(2):
            time.sleep(TOKEN_S)  # stands for a codec
            context.emit(AudioDelta(pcm=bytes(4800)))
