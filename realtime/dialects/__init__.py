"""The vocabularies that clients speak, each a pair of pure functions over one session core (D6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duologue.realtime import wire
from duologue.realtime.dialects import beta
from duologue.sessions.client_events import AnyClientEvent, InvalidEvent
from duologue.sessions.server_events import ServerEvent


@dataclass(frozen=True)
class Dialect:
    """One connection speaks one dialect, chosen at its handshake."""

    decode: Callable[[str | bytes], AnyClientEvent | InvalidEvent]
    """The client event in a text frame; never raises."""
    encode: Callable[[ServerEvent], Sequence[str]]
    """The text frames that say a server event: one, or none, or two where the dialect divides it otherwise."""


GA = Dialect(decode=wire.decode, encode=lambda event: (wire.encode(event),))
BETA = Dialect(decode=beta.decode, encode=beta.encode)
