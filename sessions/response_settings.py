"""The effective settings of one response: the session's, with what ``response.create`` says put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from duologue.engine.languages import described
from duologue.engine.requests import NamedTool, Tool, ToolChoice
from duologue.sessions.config import MAX_METADATA, ResponseOverrides, StoredPrompt
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionContext, SessionCore
from duologue.sessions.errors import ProtocolError
from duologue.sessions.mcp.catalogue import RemoteTool
from duologue.sessions.response import ResponseSettings
from duologue.sessions.stored_prompts import rendered
from duologue.sessions.tool_settings import McpServer, ToolChoiceFunction, ToolChoiceMcp, ToolChoiceSetting, ToolSetting
from duologue.sessions.transcribing import session_language


def effective_settings(
    core: SessionCore, overrides: ResponseOverrides, context: tuple[Entry, ...] | None = None
) -> ResponseSettings:
    """Raises ``ProtocolError`` that names the field of ``response``."""
    session, output, names = core.conversing, overrides.audio.output, core.context.names
    modalities = session.output_modalities if overrides.output_modalities is UNSET else overrides.output_modalities
    note = _missing_voice(core) if modalities[0] == "audio" else None
    voice = session.audio.output.voice if output.voice is UNSET else output.voice
    tools = session.tools if overrides.tools is UNSET else _of_session(overrides.tools, session.tools)
    choice = session.tool_choice if overrides.tool_choice is UNSET else overrides.tool_choice
    if not tools and overrides.tool_choice is UNSET:
        choice = "auto"
    parallel = session.parallel_tool_calls if overrides.parallel_tool_calls is UNSET else overrides.parallel_tool_calls
    first_chunk = session.audio.output.first_chunk_ms if output.first_chunk_ms is UNSET else output.first_chunk_ms
    reasoning = session.reasoning if overrides.reasoning is UNSET else overrides.reasoning
    check_tools(core.context, tools, choice, "response")
    visible, remote = core.catalogue.visible(tools)
    if isinstance(choice, ToolChoiceMcp):
        visible, engine_choice = _of_server(choice, visible, remote)
    else:
        engine_choice = _tool_choice(choice)
    if choice == "required" and not visible:
        raise ProtocolError("invalid_value", "There is no tool that could be called.", "response.tool_choice")
    return ResponseSettings(
        modality="text" if note else modalities[0],
        audio_format=session.audio.output.format if output.format is UNSET else output.format,
        voice=voice,
        served_voice=names.resolve("voices", voice, "response.audio.output.voice") if names.voices else voice,
        speed=session.audio.output.speed,
        max_output_tokens=(
            session.max_output_tokens if overrides.max_output_tokens is UNSET else overrides.max_output_tokens
        ),
        instructions=_instructions(core, overrides),
        conversation_id=None if overrides.conversation == "none" else core.conversation_id,
        metadata=_noted(overrides.metadata, note),
        context=context,
        truncation=session.truncation,
        tools=() if choice == "none" else visible,
        tool_choice=engine_choice,
        remote=remote,
        parallel_tool_calls=None if parallel is UNSET else parallel,
        reasoning_effort=None if reasoning is UNSET else reasoning.effort,
        first_chunk_s=None if first_chunk is UNSET else first_chunk / 1000,
    )


NOTE: Final = "duologue.capability"
"""Key of a response's ``metadata`` under which it says why it is not what was asked for."""


def _missing_voice(core: SessionCore) -> str | None:
    """Why a response cannot be spoken; None: it can."""
    spoken, language = core.context.voice_languages, session_language(core)
    if not spoken or language in spoken:
        return None
    return f"No voice here speaks {described(language)}: the answer is in text."


def _noted(metadata: Mapping[str, str] | None, note: str | None) -> dict[str, str] | None:
    if note is None or (metadata is not None and len(metadata) >= MAX_METADATA):
        return None if metadata is None else dict(metadata)
    return {**(metadata or {}), NOTE: note}


def _instructions(core: SessionCore, overrides: ResponseOverrides) -> str:
    """What the response names, itself or by a prompt, else the session's."""
    prompt = overrides.prompt
    of_prompt = rendered(core.context.prompts, prompt, "response.prompt") if isinstance(prompt, StoredPrompt) else None
    if overrides.instructions is not UNSET:
        return overrides.instructions
    return core.conversing.instructions if of_prompt is None else of_prompt


def check_tools(context: SessionContext, tools: Sequence[ToolSetting], choice: ToolChoiceSetting, where: str) -> None:
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
    names: set[str] = set()
    labels: set[str] = set()
    for index, tool in enumerate(tools):
        param = f"{where}.tools[{index}]"
        if isinstance(tool, McpServer):
            _add(tool.server_label, labels, "MCP server", f"{param}.server_label")
            context.mcp.endpoint(tool, param)
        else:
            _add(tool.name, names, "tool", f"{param}.name")
    if isinstance(choice, ToolChoiceFunction) and choice.name not in names:
        message = f"There is no tool with the name '{choice.name}'."
        raise ProtocolError("invalid_value", message, f"{where}.tool_choice.name")
    if isinstance(choice, ToolChoiceMcp) and choice.server_label not in labels:
        message = f"There is no MCP server with the name '{choice.server_label}'."
        raise ProtocolError("invalid_value", message, f"{where}.tool_choice.server_label")


def _add(name: str, taken: set[str], kind: str, param: str) -> None:
    if name in taken:
        raise ProtocolError("invalid_value", f"There is another {kind} with the name '{name}'.", param)
    taken.add(name)


def _of_session(tools: Sequence[ToolSetting], known: Sequence[ToolSetting]) -> tuple[ToolSetting, ...]:
    """A response's tools. It may use the session's MCP servers in its own way, and no others: a new one has to be
    asked for its tools first. Raises ``ProtocolError`` that names the field."""
    servers = {tool.server_label: tool for tool in known if isinstance(tool, McpServer)}
    settings: list[ToolSetting] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, McpServer):
            settings.append(tool)
            continue
        server = servers.get(tool.server_label)
        if server is None:
            message = f"The session has no MCP server '{tool.server_label}'; 'session.update' adds one."
            raise ProtocolError("invalid_value", message, f"response.tools[{index}].server_label")
        own = {key: getattr(tool, key) for key in ("allowed_tools", "require_approval")}
        settings.append(replace(server, **{key: value for key, value in own.items() if value is not UNSET}))
    return tuple(settings)


def _of_server(
    choice: ToolChoiceMcp, visible: Sequence[Tool], remote: Mapping[str, RemoteTool]
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that a choice leaves, one of which has to be called. Raises ``ProtocolError`` if there is none."""
    left = tuple(
        tool
        for tool in visible
        if (found := remote.get(tool.name)) is not None
        and found.server.server_label == choice.server_label
        and choice.name in (UNSET, None, found.tool.name)
    )
    if not left:
        message = f"The MCP server '{choice.server_label}' is not known to offer such a tool."
        raise ProtocolError("invalid_value", message, "response.tool_choice")
    return left, NamedTool(name=left[0].name) if len(left) == 1 else "required"


def _tool_choice(choice: Literal["auto", "none", "required"] | ToolChoiceFunction) -> ToolChoice:
    return NamedTool(name=choice.name) if isinstance(choice, ToolChoiceFunction) else choice
