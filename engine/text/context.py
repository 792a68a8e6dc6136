"""Fitting a conversation into a language model's context.

Old turns are left out in blocks, not one by one: as long as the same ones are left out, the prompt of a turn begins
with that of the turn before, and the model need not read it again. What is left out depends only on the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from duologue.engine.requests import ChatMessage, ImagePart

_BYTES_PER_TOKEN: Final = 3.0
"""Fewer than in English prose (about 4.5), so that the estimate errs on the safe side."""
_TOKENS_PER_MESSAGE: Final = 5
_TOKENS_PER_PICTURE: Final = 300
"""About what models take for one of ordinary size."""
_LEFT_OUT: Final = "... "


def estimated_tokens(message: ChatMessage) -> int:
    """Tokens that ``message`` takes at most, unless it is far from prose."""
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in message.tool_calls)
    pictures = _TOKENS_PER_PICTURE * len(message.images)
    return _TOKENS_PER_MESSAGE + pictures + int((len(message.text.encode()) + calls) / _BYTES_PER_TOKEN)


def fit(messages: Sequence[ChatMessage], budget: int) -> tuple[ChatMessage, ...]:
    """``messages`` without the oldest turns where all of them are more than ``budget`` tokens.

    System messages at the head and the last message always stay; where they alone are too long, the head is cut at its
    end and the last message at its beginning, and of its pictures only the newest stay: half of the room, if they need
    it, is for the words. The first message after the head is one of the user's where there is one.
    """
    head = _head(messages)
    system, rest = messages[:head], messages[head:]
    if not rest:
        return tuple(_cut(system, budget, keep_end=False))
    system = _cut(system, budget // 2, keep_end=False)
    room = budget - sum(map(estimated_tokens, system))
    costs = [estimated_tokens(message) for message in rest]
    block = max(1, room // 2)
    excess = sum(costs) - room
    to_drop = -(-excess // block) * block if excess > 0 else 0
    first = dropped = 0
    while first < len(rest) - 1 and (dropped < to_drop or (first and rest[first].role != "user")):
        dropped += costs[first]
        first += 1
    kept = _with_fewer_pictures(rest[first:], sum(costs[first:]) - room)
    return (*system, *_cut(kept, room, keep_end=True))


def _head(messages: Sequence[ChatMessage]) -> int:
    """Number of system messages before the first other one."""
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))


def _with_fewer_pictures(messages: Sequence[ChatMessage], excess: int) -> Sequence[ChatMessage]:
    """``messages`` without as many of the oldest pictures as cost ``excess`` tokens; the newest one stays."""
    pictures = sum(len(message.images) for message in messages)
    too_many = min(-(-excess // _TOKENS_PER_PICTURE), pictures - 1)
    if too_many <= 0:
        return messages
    kept = []
    for message in messages:
        here = min(too_many, len(message.images))
        too_many -= here
        kept.append(_without_first_pictures(message, here) if here else message)
    return kept


def _without_first_pictures(message: ChatMessage, count: int) -> ChatMessage:
    parts: list[str | ImagePart] = []
    for part in message.parts:
        if isinstance(part, str) or not count:
            parts.append(part)
        else:
            count -= 1
    return ChatMessage.of_parts(message.role, parts)


def _cut(messages: Sequence[ChatMessage], budget: int, *, keep_end: bool) -> Sequence[ChatMessage]:
    """Shorten the texts evenly when the messages together are more than ``budget`` tokens; pictures stay, and half of
    the budget is for the words whatever they cost."""
    total = sum(map(estimated_tokens, messages))
    if total <= budget:
        return messages
    overhead = sum(_TOKENS_PER_MESSAGE + _TOKENS_PER_PICTURE * len(message.images) for message in messages)
    share = max(budget - overhead, budget // 2) / max(1, total - overhead)
    if share >= 1:
        return messages
    return [_shorter(message, share, keep_end) for message in messages]


def _shorter(message: ChatMessage, share: float, keep_end: bool) -> ChatMessage:
    def cut(text: str) -> str:
        return _shortened(text, int(len(text) * share), keep_end)

    if message.parts:
        return ChatMessage.of_parts(message.role, [cut(p) if isinstance(p, str) else p for p in message.parts])
    return replace(message, text=cut(message.text))


def _shortened(text: str, length: int, keep_end: bool) -> str:
    length = max(0, length - len(_LEFT_OUT))
    return _LEFT_OUT + text[len(text) - length :] if keep_end else text[:length]
