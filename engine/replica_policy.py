"""Which of a stage's replicas a new request is bound to. Chosen once; the request stays there.

Replicas that are not live are left out while one is: a request that is bound to a dead one fails at once, and by name.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Final, Literal

from duologue.engine.executors.base import Replica

PolicyName = Literal["least_in_flight", "round_robin", "session_hash"]

Policy = Callable[[Sequence[Replica], str], Replica]
"""Of these replicas (at least one), the one for a request of that session."""


def least_in_flight(replicas: Sequence[Replica], session_id: str) -> Replica:
    """The replica with the fewest open requests; of several, the first."""
    return min(replicas, key=lambda replica: replica.depth()[0])


def round_robin() -> Policy:
    """Each in turn. The turn is this policy's own, one for each stage."""
    turns = itertools.count()
    return lambda replicas, session_id: replicas[next(turns) % len(replicas)]


def session_hash(replicas: Sequence[Replica], session_id: str) -> Replica:
    """All requests of a session at one replica, so that what it has read before is still cached there.

    By rendezvous hashing (Thaler and Ravishankar, 1998): a replica that comes or goes moves only the sessions that it
    gets or had.
    """
    return max(replicas, key=lambda replica: _weight(session_id, replica.index))


def _weight(session_id: str, index: int) -> bytes:
    return hashlib.blake2b(f"{index}:{session_id}".encode(), digest_size=8).digest()


DEFAULT: Final[PolicyName] = "least_in_flight"
_POLICIES: Final[dict[PolicyName, Callable[[], Policy]]] = {
    "least_in_flight": lambda: least_in_flight,
    "round_robin": round_robin,
    "session_hash": lambda: session_hash,
}


class ReplicaPool:
    """A stage's replicas and the policy that binds requests to them. Replicas may come and go between requests."""

    def __init__(self, replicas: Sequence[Replica], policy: PolicyName = DEFAULT) -> None:
        self.replicas = list(replicas)
        self._choose = _POLICIES[policy]()

    def bind(self, session_id: str) -> Replica:
        """The replica for a new request."""
        live = [replica for replica in self.replicas if replica.live]
        return self._choose(live or self.replicas, session_id)
