"""Calls of tools in a conversation: in the chat completions shape, and in words for models that know no tools."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from duologue.engine.requests import ChatMessage, ImagePart, NamedTool, Tool, ToolChoice


def in_words(messages: Iterable[ChatMessage]) -> Iterator[ChatMessage]:
    """The conversation with calls told in the assistant's words, and their results in the user's."""
    for message in messages:
        if message.role == "tool":
            yield ChatMessage(role="user", text=f"[result: {message.text}]")
        elif message.tool_calls:
            calls = [f"[call {call.name}({call.arguments})]" for call in message.tool_calls]
            yield ChatMessage(role=message.role, text=" ".join([message.text, *calls]).strip())
        else:
            yield message


def chat_completions_message(message: ChatMessage) -> dict[str, Any]:
    """``message`` as an OpenAI-compatible chat completions API takes it; pictures become data URLs."""
    content: Any = [_part(part) for part in message.content] if message.parts else message.text
    shaped: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        shaped["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = message.tool_call_id
    return shaped


def _part(part: str | ImagePart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:{part.media_type};base64,{b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": part.detail}}


def chat_completions_tool(tool: Tool) -> dict[str, Any]:
    """``tool`` as a chat completions API takes it; one without a schema takes an empty object."""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def chat_completions_choice(choice: ToolChoice) -> str | dict[str, Any]:
    """``choice`` as a chat completions API takes it."""
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


CALL_OPENS: Final = "<tool_call>"
CALL_CLOSES: Final = "</tool_call>"


class WrittenCall(msgspec.Struct, frozen=True):
    """A call as a model wrote it."""

    name: str
    arguments: str
    """JSON."""


class CallReader:
    """Tells words from calls in what a model writes in the widespread form ``<tool_call>{"name": ..., "arguments":
    ...}</tool_call>`` (Hermes, Qwen, SmolLM3 and others). The text may come in pieces of any size."""

    def __init__(self) -> None:
        self._kept = ""
        self._in_call = False

    def push(self, text: str) -> Iterator[str | WrittenCall]:
        """Words that are certainly none of a call's, and calls that are complete."""
        self._kept += text
        while True:
            mark = CALL_CLOSES if self._in_call else CALL_OPENS
            before, found, after = self._kept.partition(mark)
            if not found:
                break
            self._kept = after
            if self._in_call:
                yield _written_call(before)
                self._kept = self._kept.lstrip("\n")
            elif before.strip():
                yield before
            self._in_call = not self._in_call
        if not self._in_call:
            may_open = next((n for n in range(len(CALL_OPENS) - 1, 0, -1) if self._kept.endswith(CALL_OPENS[:n])), 0)
            words, self._kept = self._kept[: len(self._kept) - may_open], self._kept[len(self._kept) - may_open :]
            if words:
                yield words

    def finish(self) -> Iterator[str | WrittenCall]:
        """What is left when the model has stopped; a call that is complete but for its mark counts."""
        kept, self._kept = self._kept, ""
        if self._in_call:
            yield _written_call(kept)
        elif kept:
            yield kept


def _written_call(text: str) -> str | WrittenCall:
    """Words again, if it is no call."""
    try:
        call = json.loads(text)
        arguments = call.get("arguments", call.get("parameters", {}))
        name = call["name"]
    except (ValueError, KeyError, AttributeError):
        return text
    return WrittenCall(str(name), arguments if isinstance(arguments, str) else json.dumps(arguments))


def call_opening(choice: ToolChoice) -> str:
    """How an answer begins that has to be a call, in the form of :class:`CallReader`; empty if it need not."""
    if isinstance(choice, NamedTool):
        return f'{CALL_OPENS}\n{{"name": {json.dumps(choice.name)}, "arguments": '
    return f'{CALL_OPENS}\n{{"name": "' if choice == "required" else ""


def template_message(message: ChatMessage) -> dict[str, Any]:
    """``message`` as a checkpoint's chat template takes it: arguments as objects, pictures as placeholders."""
    shaped = chat_completions_message(message)
    if message.parts:
        parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in message.parts]
        shaped["content"] = parts
    for call in shaped.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            call["function"]["arguments"] = {"text": call["function"]["arguments"]}
    return shaped
