"""Which items a model is still shown when the conversation has grown longer than its context (``session.truncation``).

Tokens are estimated by :func:`duologue.engine.text.context.estimated_tokens` (5 a message, one for each 3 bytes of
UTF-8, 300 a picture), for tools by the same rule over their JSON. Items are left out from the oldest on and stay left
out: that keeps the beginning of the prompt the same from turn to turn. They remain in the conversation and can be
retrieved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET

from duologue.engine.requests import ChatMessage, Tool
from duologue.engine.text.context import estimated_tokens
from duologue.sessions.config import RetentionRatio, Truncation
from duologue.sessions.conversation import Entry
from duologue.sessions.items import FunctionCallItem, FunctionCallOutputItem
from duologue.sessions.prompting import ReadCut, chat_messages


class ContextTooLong(Exception):
    """The conversation does not fit, and the session's truncation is ``"disabled"``."""


class ContextWindow:
    """Remembers which items of the conversation have been left out."""

    def __init__(self, limit: int | None) -> None:
        """``limit``: tokens that a prompt may have, instructions and tools included; None: the engine decides."""
        self._limit = limit
        self._left_out: set[str] = set()

    def of_conversation(
        self, entries: Iterable[Entry], fixed_tokens: int, truncation: Truncation, cut: ReadCut
    ) -> Sequence[Entry]:
        """What is shown of the conversation. Raises :class:`ContextTooLong`."""
        present = [entry for entry in entries if entry.id not in self._left_out]
        kept = self.of_input(present, fixed_tokens, truncation, cut)
        self._left_out.update(entry.id for entry in present[: len(present) - len(kept)])
        return kept

    def of_input(
        self, entries: Sequence[Entry], fixed_tokens: int, truncation: Truncation, cut: ReadCut
    ) -> Sequence[Entry]:
        """What is shown of a context that a client has spelled out. Raises :class:`ContextTooLong`."""
        room = _room(self._limit, fixed_tokens, truncation)
        if room is None:
            return entries
        costs = [sum(map(estimated_tokens, chat_messages([entry], "", cut))) for entry in entries]
        total = sum(costs)
        if total <= room:
            return entries
        if truncation == "disabled":
            raise ContextTooLong(f"The conversation has about {total} tokens; the model takes {room}.")
        target = room * (truncation.retention_ratio if isinstance(truncation, RetentionRatio) else 1.0)
        first = 0
        while first < len(entries) - 1 and total > target:
            total -= costs[first]
            first += 1
        while first < len(entries) - 1 and _answers_one_of(entries[first], entries[:first]):
            first += 1
        return entries[first:]


def fixed_tokens(instructions: str, tools: Sequence[Tool]) -> int:
    """Tokens of a prompt that are there whatever has been said."""
    text = instructions + (msgspec.json.encode(tools).decode() if tools else "")
    return estimated_tokens(ChatMessage(role="system", text=text)) if text else 0


def _room(limit: int | None, fixed: int, truncation: Truncation) -> int | None:
    rooms = [] if limit is None else [max(0, limit - fixed)]
    if isinstance(truncation, RetentionRatio) and truncation.token_limits is not UNSET:
        after_instructions = truncation.token_limits.post_instructions
        rooms += [] if after_instructions is UNSET else [after_instructions]
    return min(rooms, default=None)


def _answers_one_of(entry: Entry, left_out: Sequence[Entry]) -> bool:
    """Whether an item is the result of a call that is left out."""
    if not isinstance(entry.item, FunctionCallOutputItem):
        return False
    calls = (other.item for other in left_out if isinstance(other.item, FunctionCallItem))
    return any(call.call_id == entry.item.call_id for call in calls)
