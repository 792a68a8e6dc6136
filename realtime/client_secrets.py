"""Short-lived keys that a browser may hold: ``ek_`` keys, each bound to the configuration of the sessions it opens.

A key opens any number of sessions until it expires; a session that is running outlives it. Only digests are kept.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import Opening

PREFIX = "ek_"
DEFAULT_LIFETIME_S = 600
MAX_SECRETS = 10_000
"""Keys alive at the same time."""


@dataclass(frozen=True)
class ClientSecret:
    """What a key stands for."""

    opening: Opening
    expires_at: float
    """Unix seconds."""


class ClientSecrets:
    """The keys that are alive."""

    def __init__(self, clock: Callable[[], float] = time.time, limit: int = MAX_SECRETS) -> None:
        self._clock = clock
        self._limit = limit
        self._secrets: dict[bytes, ClientSecret] = {}

    def mint(self, opening: Opening, lifetime_s: int = DEFAULT_LIFETIME_S) -> tuple[str, ClientSecret]:
        """A new key and what it stands for. Raises ``ProtocolError`` when too many are alive."""
        self._forget_expired()
        if len(self._secrets) >= self._limit:
            raise ProtocolError("rate_limit_exceeded", f"{self._limit} client secrets are alive; try again later.")
        value = PREFIX + secrets.token_hex(16)
        secret = ClientSecret(opening, self._clock() + lifetime_s)
        self._secrets[_digest(value)] = secret
        return value, secret

    def find(self, offered: Iterable[str]) -> ClientSecret | None:
        """What the first living key among those offered stands for."""
        now = self._clock()
        for value in offered:
            secret = self._secrets.get(_digest(value)) if value.startswith(PREFIX) else None
            if secret is not None and now < secret.expires_at:
                return secret
        return None

    def _forget_expired(self) -> None:
        now = self._clock()
        self._secrets = {digest: secret for digest, secret in self._secrets.items() if now < secret.expires_at}


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()
