"""The calls of a server: sessions in progress, and calls that ring, each under the id that others know it by.

A session over WebSocket is filed under its own id (``sess_...``), so that it can be joined and hung up as well; a media
transport files its calls under ``rtc_...`` ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from duologue.realtime.sideband import SharedTransport
from duologue.sessions.errors import ProtocolError
from duologue.sessions.interfaces import SessionHandle
from duologue.sessions.manager import Opening


class Incoming(Protocol):
    """A call that rings: nobody has taken it yet."""

    async def accept(self, opening: Opening) -> None:
        """Begin the session. The call is then filed anew, as one in progress."""

    async def reject(self, status_code: int) -> None:
        """Turn the call down with a SIP status."""


@dataclass(frozen=True)
class LiveSession:
    """A session in progress."""

    transport: SharedTransport
    handle: SessionHandle
    refer: Callable[[str], Awaitable[bool]] | None = None
    """Passes the call on to a ``tel:`` or ``sip:`` address and says whether that was done; None: nobody can."""


class Calls:
    """Every call by its id. Whoever files one takes it out again."""

    def __init__(self) -> None:
        self._calls: dict[str, LiveSession | Incoming] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def file(self, call_id: str, call: LiveSession | Incoming) -> None:
        """File a call, in the place of what had its id before."""
        self._calls[call_id] = call

    def remove(self, call_id: str) -> None:
        """The call is over; harmless if it is not there."""
        self._calls.pop(call_id, None)

    def find(self, call_id: str) -> LiveSession | Incoming:
        """Raises ``ProtocolError`` for an id that no call has."""
        call = self._calls.get(call_id)
        if call is None:
            raise ProtocolError("call_id_not_found", f"There is no call with the id '{call_id[:64]}'.", "call_id")
        return call
