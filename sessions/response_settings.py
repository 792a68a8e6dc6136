"""The effective settings of one response: the session's, with what ``response.create`` says put in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from duologue.engine.requests import NamedTool, Tool, ToolChoice
from duologue.sessions.config import (
    FunctionTool,
    ResponseOverrides,
    StoredPrompt,
    ToolChoiceFunction,
    ToolChoiceSetting,
)
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionContext, SessionCore
from duologue.sessions.errors import ProtocolError
from duologue.sessions.response import ResponseSettings
from duologue.sessions.stored_prompts import rendered


def effective_settings(
    core: SessionCore, overrides: ResponseOverrides, context: tuple[Entry, ...] | None = None
) -> ResponseSettings:
    """Raises ``ProtocolError`` that names the field of ``response``."""
    session, output, names = core.conversing, overrides.audio.output, core.context.names
    modalities = session.output_modalities if overrides.output_modalities is UNSET else overrides.output_modalities
    voice = session.audio.output.voice if output.voice is UNSET else output.voice
    tools = session.tools if overrides.tools is UNSET else overrides.tools
    choice = session.tool_choice if overrides.tool_choice is UNSET else overrides.tool_choice
    if not tools and overrides.tool_choice is UNSET:
        choice = "auto"
    parallel = session.parallel_tool_calls if overrides.parallel_tool_calls is UNSET else overrides.parallel_tool_calls
    reasoning = session.reasoning if overrides.reasoning is UNSET else overrides.reasoning
    check_tools(core.context, tools, choice, "response")
    if choice == "required" and not tools:
        raise ProtocolError("invalid_value", "There is no tool that could be called.", "response.tool_choice")
    return ResponseSettings(
        modality=modalities[0],
        audio_format=session.audio.output.format if output.format is UNSET else output.format,
        voice=voice,
        served_voice=names.resolve("voices", voice, "response.audio.output.voice") if names.voices else voice,
        speed=session.audio.output.speed,
        max_output_tokens=(
            session.max_output_tokens if overrides.max_output_tokens is UNSET else overrides.max_output_tokens
        ),
        instructions=_instructions(core, overrides),
        conversation_id=None if overrides.conversation == "none" else core.conversation_id,
        metadata=overrides.metadata,
        context=context,
        truncation=session.truncation,
        tools=() if choice == "none" else tuple(_tool(tool) for tool in tools),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=None if parallel is UNSET else parallel,
        reasoning_effort=None if reasoning is UNSET else reasoning.effort,
    )


def _instructions(core: SessionCore, overrides: ResponseOverrides) -> str:
    """What the response names, itself or by a prompt, else the session's."""
    prompt = overrides.prompt
    of_prompt = rendered(core.context.prompts, prompt, "response.prompt") if isinstance(prompt, StoredPrompt) else None
    if overrides.instructions is not UNSET:
        return overrides.instructions
    return core.conversing.instructions if of_prompt is None else of_prompt


def check_tools(context: SessionContext, tools: Sequence[FunctionTool], choice: ToolChoiceSetting, where: str) -> None:
    """Raises ``ProtocolError`` for tools that cannot be used, and for the choice of one that does not exist."""
    if tools and not context.can_call_tools:
        raise ProtocolError("invalid_value", "The model that is served here cannot call tools.", f"{where}.tools")
    limits = context.limits
    if len(tools) > limits.max_tools:
        raise ProtocolError("invalid_value", f"At most {limits.max_tools} tools are accepted.", f"{where}.tools")
    try:
        msgspec.msgpack.encode(tools)  # as they travel to a language model in another process
    except OverflowError as error:
        message = "A number in the tools does not fit into 64 bits."
        raise ProtocolError("invalid_value", message, f"{where}.tools") from error
    if tools and len(msgspec.json.encode(tools)) > limits.max_tools_bytes:
        message = f"The tools are more than {limits.max_tools_bytes} bytes of JSON."
        raise ProtocolError("invalid_value", message, f"{where}.tools")
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"There is another tool with the name '{name}'."
            raise ProtocolError("invalid_value", message, f"{where}.tools[{index}].name")
    if isinstance(choice, ToolChoiceFunction) and choice.name not in names:
        message = f"There is no tool with the name '{choice.name}'."
        raise ProtocolError("invalid_value", message, f"{where}.tool_choice.name")


def _tool(tool: FunctionTool) -> Tool:
    return Tool(name=tool.name, description=tool.description, parameters=tool.parameters)


def _tool_choice(choice: ToolChoiceSetting) -> ToolChoice:
    return NamedTool(name=choice.name) if isinstance(choice, ToolChoiceFunction) else choice
