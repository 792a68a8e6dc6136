"""Stages that a worker process can import. What they do is said by the text of the request."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duologue.engine.chunking import Made
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import AudioDelta, ChatMessage, Converse, Speak, TextDelta, Usage
from duologue.engine.stage import Stage, StageFinish

HERE = "scripted_stages"


@dataclass(frozen=True, eq=False)
class Block:
    """A piece of any size."""

    number: int
    values: NDArray[np.float32]
    turned: NDArray[np.int16]
    """Any memory layout."""


@dataclass(frozen=True)
class Undeclared:
    number: int


def words_of(request: Any) -> list[str]:
    payload = request.payload
    return (payload.messages[-1].text if isinstance(payload, Converse) else payload.text).split()


class Source(Stage):
    """Takes a request, emits text, or blocks of ``size`` values.

    ``numbers N``, ``blocks N SIZE``, ``endless``, ``endless-blocks``, ``outside`` (waits to be interrupted), ``usage``,
    ``fail TEXT``, ``die``, ``undeclared``, ``hold FIFO``, ``environment NAME``, ``counts`` (starts and releases before
    this one), ``ended`` (sessions that have), ``pid``.
    """

    def __init__(self, broken: str = "", greeting: str = "") -> None:
        self._broken = broken
        self._greeting = greeting
        self._lock = threading.Lock()
        self._started = self._released = 0
        self._ended: list[str] = []

    def load(self) -> None:
        if self._broken == "load":
            raise FileNotFoundError("weights.bin is missing")
        if self._broken == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._broken.endswith("fifo"):
            os.close(os.open(self._broken, os.O_RDONLY))

    def start(self, request: Any) -> tuple[int, int, threading.Event]:
        with self._lock:
            counts = self._started, self._released
            self._started += 1
        return (*counts, threading.Event())

    def interrupt(self, state: Any) -> None:
        state[2].set()

    def release(self, state: Any) -> None:
        with self._lock:
            self._released += 1

    def end_session(self, session_id: str) -> None:
        self._ended.append(session_id)

    def process(self, state: Any, piece: Any, context: Any) -> None:
        if isinstance(piece, str):  # streamed input
            context.emit(TextDelta(text=piece))
            return
        match words_of(context.request):
            case ["numbers", count]:
                for n in range(int(count)):
                    if not context.emit(TextDelta(text=f"{n} ")):
                        return
            case ["blocks", count, size]:
                for n in range(int(count)):
                    if not context.emit(block(n, int(size))):
                        return
            case ["endless"]:
                while context.emit(TextDelta(text="x")):
                    pass
            case ["endless-blocks"]:
                while context.emit(block(0, 50_000)):
                    pass
            case ["outside"]:
                context.emit(TextDelta(text="waiting"))
                if not state[2].wait(600):
                    raise TimeoutError("nobody interrupted")
            case ["usage"]:
                context.emit(Usage(input_tokens=3, output_tokens=2))
                context.emit(StageFinish())
                context.emit(TextDelta(text="short"))
            case ["environment", name]:
                context.emit(TextDelta(text=os.environ.get(name, "unset")))
            case ["counts"]:
                context.emit(TextDelta(text=f"{state[0]} {state[1]}"))
            case ["ended"]:
                context.emit(TextDelta(text=" ".join(self._ended)))
            case ["pid"]:
                context.emit(TextDelta(text=str(os.getpid())))
            case ["greeting"]:
                context.emit(TextDelta(text=self._greeting))
            case ["undeclared"]:
                context.emit(Undeclared(1))
            case ["hold", path]:
                os.close(os.open(path, os.O_RDONLY))  # until somebody opens the other end
                context.emit(TextDelta(text="held"))
            case ["fail", text]:
                raise RuntimeError(text)
            case ["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case other:
                raise ValueError(f"no such script: {other}")


class Sum(Stage):
    """Takes text and passes it on; takes a block and emits ``number:sum:sum``."""

    def process(self, state: Any, piece: Any, context: Any) -> None:
        if isinstance(piece, Block):
            text = f"{piece.number}:{piece.values.sum():g}:{piece.turned.sum()} "
            context.emit(TextDelta(text=text))
        elif isinstance(piece, TextDelta):
            context.emit(piece)


class Hum(Stage):
    """Takes anything, emits two samples."""

    def process(self, state: Any, piece: Any, context: Any) -> None:
        context.emit(AudioDelta(pcm=b"\0\1"))


def block(number: int, size: int) -> Block:
    turned = np.arange(6, dtype=np.int16).reshape(2, 3).T
    return Block(number, np.full(size, 0.5, np.float32), turned)


def ask(script: str, modalities: tuple[Any, ...] = ("text",)) -> Converse:
    return Converse(messages=(ChatMessage(role="user", text=script),), modalities=modalities)


SOURCE = StageConfig(
    0, "source", "scripted_source", accepts=(Converse, Speak), emits=(f"{HERE}:Block",), max_num_seqs=4
)
PIPELINE = PipelineConfig(
    "scripted",
    (
        SOURCE,
        StageConfig(
            1,
            "sum",
            "scripted_sum",
            input_sources=(0,),
            max_num_seqs=4,
            final_output=True,
            final_output_type="text",
        ),
        StageConfig(2, "hum", "scripted_hum", input_sources=(0,), final_output=True, final_output_type="audio"),
    ),
)
TARGETS = {0: f"{HERE}:Source", 1: f"{HERE}:Sum", 2: f"{HERE}:Hum"}


def five_with_two_before(made: Made, finished: bool) -> TextDelta | None:
    """A chunk processor: five pieces, after the last two of the chunk before in brackets."""
    if not made.waiting or (len(made.waiting) < 5 and not finished):
        return None
    taken, made.waiting[:] = made.waiting[:5] if not finished else list(made.waiting), made.waiting[5:]
    text = "".join(piece.text for piece in taken)
    before, made.context = made.context or "", text[-2:]
    return TextDelta(text=f"[{before}]{text}")


def broken(pieces: Any) -> Any:
    """A full processor that does not work."""
    raise RuntimeError("no")
