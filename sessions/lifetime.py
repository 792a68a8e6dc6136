"""How long a session may last: until it expires, or until its client has been silent for too long."""

from __future__ import annotations

import math

from duologue.sessions.config import Limits
from duologue.sessions.errors import ProtocolError

EXPIRED = "Your session hit the maximum duration of {minutes:.0f} minutes."
IDLE = "Nothing has come from you for {seconds:.0f} seconds."


class Lifetime:
    """Watches the clock for a session. An event of the client costs one assignment: what it moves is looked at only
    when the time that was due before has come."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._minutes = limits.max_duration_s / 60
        self._expires_at = now + limits.max_duration_s
        self._max_idle_s = math.inf if limits.max_idle_s is None else limits.max_idle_s
        self.heard_at = now
        """When the client has said something last, or was being served."""
        self._look_at = now + self._max_idle_s
        self.deadline = min(self._expires_at, self._look_at)
        """When :meth:`over` is to be asked."""

    def over(self, now: float) -> ProtocolError | None:
        """Why the session has to end now, or None if it does not."""
        if now >= self._expires_at:
            return ProtocolError("session_expired", EXPIRED.format(minutes=self._minutes))
        if now < self._look_at:
            return None
        self._look_at = self.heard_at + self._max_idle_s
        self.deadline = min(self._expires_at, self._look_at)
        if now < self._look_at:
            return None
        return ProtocolError("duologue.session_idle", IDLE.format(seconds=self._max_idle_s))
