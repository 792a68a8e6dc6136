"""Whose sound is worked on next: the decodes of all sessions, in the order of their deadlines.

A decode in a hurry goes before one that can wait, in the middle of a recording too: each recording is worked on in
steps (:class:`~duologue.engine.stages.whisper.Recognition`), and after each step the most urgent one is next. Those
that wait for the same kind of step share it: four decodes together take the processor 1.6 times what one takes.

A request that was aborted is let go at once; a step in hand runs on to its end, and what comes of it is dropped.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Final

from duologue.engine.requests import Urgency
from duologue.engine.stages.whisper import Hypothesis, Recognition

SLACK_S: Final[dict[Urgency, float]] = {"final": 0.0, "speculative": 0.25, "partial": 1.0}
"""How long after it was asked for a transcript is due where the request does not say so. A speculation that has waited
for so long is likely to have become what somebody waits for; a partial has been overtaken by the next one, and is
dropped."""

LARGEST_BATCH: Final = 4


class Ticket:
    """A place in the queue."""

    def __init__(self, recognition: Recognition, urgency: Urgency, deadline: float) -> None:
        self.recognition = recognition
        self.urgency = urgency
        self.deadline = deadline
        self.over = threading.Event()
        self.cancelled = False
        self.error: Exception | None = None
        self.in_hand = False
        self.begun = False


class DecodeQueue:
    """Runs recordings through their models on ``workers`` threads of its own. Safe to use from any thread."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers = workers
        self._waiting: dict[int, Ticket] = {}
        """By number of arrival."""
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"decode-{index}", daemon=True) for index in range(workers)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, recognition: Recognition, urgency: Urgency = "final", due_in_s: float = 0.0) -> Ticket:
        """Queue a recording; :meth:`wait` for it next. ``due_in_s``: where it is known, instead of ``SLACK_S``."""
        ticket = Ticket(recognition, urgency, self._clock() + (due_in_s or SLACK_S[urgency]))
        with self._changed:
            if self._closed:
                ticket.cancelled = True
                ticket.over.set()
            else:
                self._waiting[next(self._numbers)] = ticket
                self._changed.notify()
        return ticket

    def wait(self, ticket: Ticket) -> Hypothesis | None:
        """What a recording was taken for; None if it was cancelled, or a partial that came too late.

        Raises what the model raised.
        """
        ticket.over.wait()
        if ticket.error is not None:
            raise ticket.error
        return None if ticket.cancelled else ticket.recognition.result

    def cancel(self, ticket: Ticket) -> None:
        """Let whoever waits go at once. Returns at once, and may be called at any time, from any thread."""
        ticket.cancelled = True
        ticket.over.set()

    def close(self) -> None:
        """Cancel what waits, and return when the steps in hand have ended."""
        with self._changed:
            self._closed = True
            for ticket in self._waiting.values():
                self.cancel(ticket)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # -- on the threads of the queue -----------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._next():
            error: Exception | None = None
            try:
                if batch[0].recognition.encoded is None:
                    batch[0].recognition.encode()
                else:
                    batch[0].recognition.whisper.decode([ticket.recognition for ticket in batch])
            except Exception as raised:  # noqa: BLE001 - it belongs to whoever waits
                error = raised
            with self._changed:
                for ticket in batch:
                    ticket.in_hand = False
                    ticket.error = error
                    if error is not None or ticket.recognition.result is not None:
                        ticket.over.set()
                self._forget_what_is_over()
                self._changed.notify_all()

    def _next(self) -> list[Ticket]:
        """Wait for work: one recording to encode, or some to decode together. Empty: the queue is closed."""
        with self._changed:
            while True:
                self._drop_late_ones()
                self._forget_what_is_over()
                if self._closed:
                    return []
                if batch := self._most_urgent():
                    for ticket in batch:
                        ticket.in_hand = ticket.begun = True
                    return batch
                self._changed.wait()

    def _most_urgent(self) -> list[Ticket]:
        free = [ticket for ticket in self._waiting.values() if not ticket.in_hand]
        if not free:
            return []
        first = min(free, key=lambda ticket: ticket.deadline)
        if first.recognition.encoded is None:
            return [first]
        # Each free thread takes its share: together is cheaper than one after the other, but not than side by side.
        alike = [ticket for ticket in free if ticket is not first and _alike(ticket, first)]
        share = min(LARGEST_BATCH, -(-(len(alike) + 1) // self._workers))
        unready = [ticket for ticket in alike if ticket.recognition.encoded is None]
        ready = [ticket for ticket in alike if ticket.recognition.encoded is not None]
        if unready and len(ready) + 1 < share:
            return [min(unready, key=lambda ticket: ticket.deadline)]
        return [first, *sorted(ready, key=lambda ticket: ticket.deadline)[: share - 1]]

    def _drop_late_ones(self) -> None:
        now = self._clock()
        for ticket in self._waiting.values():
            if ticket.urgency == "partial" and not ticket.begun and now > ticket.deadline:
                self.cancel(ticket)

    def _forget_what_is_over(self) -> None:
        for number in [number for number, ticket in self._waiting.items() if ticket.over.is_set()]:
            del self._waiting[number]


def _alike(one: Ticket, other: Ticket) -> bool:
    """Whether two may share a decode, and neither makes the other wait for what is less urgent."""
    return one.urgency == other.urgency and one.recognition.key == other.recognition.key
