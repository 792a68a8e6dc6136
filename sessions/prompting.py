"""The view of a conversation that a text model gets: items as chat messages, of spoken answers only what was heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from duologue.engine.requests import ChatMessage, ImagePart, ToolCall
from duologue.sessions.conversation import Entry
from duologue.sessions.items import (
    Content,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    MessageItem,
    OutputAudio,
    OutputText,
)

ReadCut = Callable[[str], int | None]
"""Samples of an item that were heard, None if all of it was (or will be)."""

NO_RESULT_YET: Final = "(The result has not arrived yet.)"
"""Stands for the output that a client has not given: chat models take no call without a result."""
NOT_DECIDED_YET: Final = "(The user has not been asked about this call yet.)"
REFUSED: Final = "The user does not allow this call."


def chat_messages(entries: Iterable[Entry], instructions: str, cut: ReadCut) -> tuple[ChatMessage, ...]:
    """The items in order, after the instructions.

    Calls that follow each other, and the words before them, are one message; their results follow it, wherever in the
    conversation the client has put them. A call that was broken off is left out. A result whose call is not among the
    items is shown as the user's words.
    """
    entries = list(entries)
    items = [entry.item for entry in entries]
    results = {item.call_id: item.output for item in items if isinstance(item, FunctionCallOutputItem)}
    results |= _remote_results(items)
    called = {item.call_id for item in items if isinstance(item, FunctionCallItem)}
    messages = [ChatMessage(role="system", text=instructions)] if instructions else []
    open_calls: list[ToolCall] = []

    def answer_calls() -> None:
        for call in open_calls:
            text = results.get(call.call_id, NO_RESULT_YET)
            messages.append(ChatMessage(role="tool", text=text, tool_call_id=call.call_id))
        open_calls.clear()

    for entry in entries:
        match entry.item:
            case MessageItem(role=role, content=content):
                answer_calls()
                message = ChatMessage.of_parts(role, _parts_of(entry, content, cut))
                if message.content:
                    messages.append(message)
            case FunctionCallItem() | McpCallItem() | McpApprovalRequestItem() as item:
                call = _call_of(item, results)
                if call is None:
                    continue
                if not open_calls and not (messages and messages[-1].role == "assistant"):
                    messages.append(ChatMessage(role="assistant", text=""))
                open_calls.append(call)
                messages[-1] = replace(messages[-1], tool_calls=tuple(open_calls))
            case FunctionCallOutputItem(call_id=call_id, output=output):
                answer_calls()
                if call_id not in called:
                    messages.append(ChatMessage(role="user", text=f"[result: {output}]"))
    answer_calls()
    return tuple(messages)


def _call_of(
    item: FunctionCallItem | McpCallItem | McpApprovalRequestItem, results: Mapping[str, str]
) -> ToolCall | None:
    """A call as a model is shown it; None for one that was broken off, or that became another."""
    if isinstance(item, FunctionCallItem):
        call_id = "" if item.call_id is UNSET else item.call_id
        return (
            ToolCall(call_id=call_id, name=item.name, arguments=item.arguments) if item.status == "completed" else None
        )
    if str(item.id) not in results or not _is_object(item.arguments):
        return None
    return ToolCall(call_id=str(item.id), name=item.name, arguments=item.arguments)


def _remote_results(items: Iterable[Item]) -> dict[str, str]:
    """What came of calls to MCP servers, by item. A request that was approved is shown as the call that followed."""
    results: dict[str, str] = {}
    decisions: dict[str, McpApprovalResponseItem] = {}
    for item in items:
        match item:
            case McpCallItem(output=output, error=error):
                failure = "" if error is UNSET else f"The call failed: {error.message}"
                results[str(item.id)] = output if output is not None else failure or NO_RESULT_YET
            case McpApprovalRequestItem():
                results[str(item.id)] = NOT_DECIDED_YET
            case McpApprovalResponseItem():
                decisions[item.approval_request_id] = item
    for request, decision in decisions.items():
        results.pop(request, None)
        if not decision.approve:
            results[request] = f"{REFUSED} {'' if decision.reason is UNSET else decision.reason or ''}".strip()
    return results


def _is_object(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments or "{}", type=dict)
    except msgspec.DecodeError:
        return False
    return True


def _parts_of(entry: Entry, content: tuple[Content, ...], cut: ReadCut) -> Iterator[str | ImagePart]:
    """What a model is shown of a message: words, and pictures as far as they are kept."""
    if entry.silence_s is not None:
        yield f"[The user has been silent for {entry.silence_s:.0f} seconds.]"
        return
    yield from (picture for picture in entry.seen if picture is not None)
    pictures = iter(entry.pictures)
    for part in content:
        match part:
            case InputText(text=text) | OutputText(text=text):
                yield text.strip()
            case InputAudio():
                yield (entry.transcript or "").strip()
            case OutputAudio():
                yield entry.heard_text(cut(entry.id)).strip()
            case InputImage():
                if (picture := next(pictures)) is not None:
                    yield picture
