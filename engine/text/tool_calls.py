"""Calls of tools in a conversation: in the chat completions shape, and in words for models that know no tools."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

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
