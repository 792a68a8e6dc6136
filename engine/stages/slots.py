"""Which session uses which of a language model's slots, so that its prefix stays cached there."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque


class SlotTable:
    """Pins sessions to slots. Thread-safe.

    A session comes back to the slot it had. A new one gets a slot nobody has, the one that was given up last first:
    what sessions begin with is read there already. If there is none, it gets that of the session that was idle for
    longest; only when every slot is busy does it share one, and waits there for its turn.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError("slots must be at least 1")
        self._free = deque(range(slots))
        """The next one to be given is the first."""
        self._slot_of: OrderedDict[str, int] = OrderedDict()
        self._busy = [0] * slots
        self._lock = threading.Lock()

    def acquire(self, session_id: str) -> int:
        """The session's slot, busy until :meth:`release`."""
        with self._lock:
            slot = self._slot_of.pop(session_id, None)
            if slot is None:
                slot = self._free.popleft() if self._free else self._take_over()
            self._slot_of[session_id] = slot
            self._busy[slot] += 1
            return slot

    def release(self, slot: int) -> None:
        """One request on ``slot`` is over; its session keeps the slot until another one needs it."""
        with self._lock:
            self._busy[slot] -= 1
            if not self._busy[slot] and slot not in self._slot_of.values():
                self._free.appendleft(slot)

    def end_session(self, session_id: str) -> None:
        """The session gives its slot up; while a request of it is open there, when that is released."""
        with self._lock:
            slot = self._slot_of.pop(session_id, None)
            if slot is not None and not self._busy[slot]:
                self._free.appendleft(slot)

    def _take_over(self) -> int:
        """Forget the session that has not come back for longest, idle ones first."""
        idle = next((session for session, slot in self._slot_of.items() if not self._busy[slot]), None)
        session = idle if idle is not None else next(iter(self._slot_of))
        return self._slot_of.pop(session)
