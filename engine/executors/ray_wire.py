"""What the gateway and a Ray actor say to each other: numbered frames of the messages of ``wire``.

Ray keeps no order between the calls of an asynchronous actor, so both sides number their frames and put them in order.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from duologue.engine.executors.base import Consumed, Done, Failed, Released, Working
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.wire import Abort, EndInput, EndSession, Grant, Log, NotReady, Open, Push, Sent, Wire

T = TypeVar("T")

Frame = tuple[int, bytes, list[Any]]
"""Its number, its messages, and the references of the pieces that are not in them."""


class RayLaunch(Wire):
    """What an actor runs."""

    stage: str
    build: StageBuild
    slots: int
    threshold_bytes: int
    final: bool
    """Its deltas go to the client, and so travel inside the messages."""
    types: list[str]
    log_level: int
    beat_s: float
    """While requests are open, the longest time without a report."""


class Beat(Wire):
    """Nothing to report, but alive."""


Down = Open | Push | EndInput | Grant | Abort | EndSession
Up = Sent | Log | Beat | Consumed | Working | Done | Failed | Released

down_decoder: Final[msgspec.msgpack.Decoder[list[Down]]] = msgspec.msgpack.Decoder(list[Down])
up_decoder: Final[msgspec.msgpack.Decoder[list[Up]]] = msgspec.msgpack.Decoder(list[Up])
launch_decoder: Final = msgspec.msgpack.Decoder(RayLaunch)
started_decoder: Final[msgspec.msgpack.Decoder[NotReady | None]] = msgspec.msgpack.Decoder(NotReady | None)
encoder: Final = msgspec.msgpack.Encoder()


class InOrder(Generic[T]):
    """Gives numbered items back in the order of their numbers, from 0."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> list[T]:
        """The items whose turn it is now."""
        self._early[number] = item
        due = []
        while self._next in self._early:
            due.append(self._early.pop(self._next))
            self._next += 1
        return due
