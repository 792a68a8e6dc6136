"""Whether a replay went as the protocol says (``benchmarks`` section 1.4): a pure check of its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from duologue.realtime.bench.conversation import TEXT_DELTAS
from duologue.realtime.client import AUDIO_DELTA, HUNG_UP
from duologue.realtime.event_log import LogEntry

TOLERATED = (
    "playback_ack_too_late",
    "playback_item_not_found",
    "response_cancel_not_active",
    "input_audio_buffer_commit_empty",
)
"""Errors that a client which talks over a server may cause; warnings."""


class Verdict(msgspec.Struct, frozen=True):
    """Why a replay does not count, and what was odd about one that does."""

    failures: list[str]
    warnings: list[str]


def check(entries: Iterable[LogEntry]) -> Verdict:
    """Every failure and warning of a log, each text once, in order."""
    ledger = _Ledger()
    for entry in entries:
        kind = entry.event.get("type", "")
        if entry.dir == "note":
            ledger.note(kind, entry.event)
        elif entry.dir == "s2c":
            ledger.server(kind, entry.event)
        elif kind == "conversation.item.truncate":
            ledger.truncates.add(entry.event.get("event_id"))
    ledger.close()
    return Verdict(list(dict.fromkeys(ledger.failures)), list(dict.fromkeys(ledger.warnings)))


class _Ledger:
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.warnings: list[str] = []
        self.truncates: set[str | None] = set()
        self._open: set[str] = set()
        self._done: set[str] = set()
        self._hung_up = False
        self._begun_too_late: set[str] = set()

    def note(self, kind: str, event: dict[str, Any]) -> None:
        if kind in ("connection.lost", "timeout"):
            self.failures.append(event.get("message") or "timeout")
        elif kind == "warning":
            self.warnings.append(event.get("message") or "warning")
        elif kind == HUNG_UP:
            self._hung_up = True

    def server(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "error":
            self._error(event.get("error") or {})
        elif kind == "response.created":
            self._created((event.get("response") or {}).get("id") or "")
        elif kind == "response.done":
            self._finished(event.get("response") or {})
        elif kind == AUDIO_DELTA or kind in TEXT_DELTAS:
            if event.get("response_id") not in self._open:
                self.failures.append(f"{kind} without an open response")
            if kind == AUDIO_DELTA and (not event.get("bytes") or event["bytes"] % 2):
                self.failures.append(f"{kind} of {event.get('bytes', 0)} bytes")

    def _error(self, error: dict[str, Any]) -> None:
        text = f"error {error.get('code')}: {error.get('message')}"
        cause = error.get("event_id")
        harmless = error.get("code") in TOLERATED or (cause is not None and cause in self.truncates)
        (self.warnings if harmless else self.failures).append(text)

    def _created(self, response_id: str) -> None:
        if response_id in self._open | self._done:
            self.failures.append(f"response {response_id} was created twice")
        self._open.add(response_id)
        if self._hung_up:
            self._begun_too_late.add(response_id)

    def _finished(self, response: dict[str, Any]) -> None:
        response_id = response.get("id") or ""
        if response_id in self._done:
            self.failures.append(f"response {response_id} was done twice")
        elif response_id not in self._open:
            self.failures.append(f"response {response_id} was done before it was created")
        if response.get("status") == "failed":
            reason = ((response.get("status_details") or {}).get("error") or {}).get("message")
            self.failures.append(f"a response failed: {reason or 'no reason given'}")
        self._open.discard(response_id)
        self._done.add(response_id)

    def close(self) -> None:
        # One that crossed the hanging up on its way could not end in time.
        if self._open - self._begun_too_late:
            self.failures.append("a response was never done")
