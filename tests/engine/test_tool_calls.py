"""Calls of tools between a conversation, chat completions and the stage's deltas."""

from __future__ import annotations

from typing import Any

from duologue.engine.requests import ChatMessage, Converse, NamedTool, TextDelta, Tool, ToolCall, ToolCallDelta, Usage
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.language.llamacpp import LlamaCppLanguageModel, _Reports, _Writing
from duologue.engine.text.context import estimated_tokens, fit
from duologue.engine.text.tool_calls import in_words

CALL = ToolCall(call_id="call_1", name="look_up", arguments='{"city":"Paris"}')
CONVERSATION = (
    ChatMessage(role="user", text="Weather?"),
    ChatMessage(role="assistant", text="One moment.", tool_calls=(CALL,)),
    ChatMessage(role="tool", text="sunny", tool_call_id="call_1"),
)


class Context:
    aborted = outranked = False

    def __init__(self) -> None:
        self.emitted: list[Any] = []

    def emit(self, piece: Any) -> bool:
        self.emitted.append(piece)
        return True

    def made(self, seconds: float) -> None: ...


def test_a_model_that_knows_no_tools_is_told_of_calls_in_words() -> None:
    assert [(message.role, message.text) for message in in_words(CONVERSATION)] == [
        ("user", "Weather?"),
        ("assistant", 'One moment. [call look_up({"city":"Paris"})]'),
        ("user", "[result: sunny]"),
    ]


def test_arguments_count_and_survive_a_cut() -> None:
    without = ChatMessage(role="assistant", text="One moment.")
    assert estimated_tokens(CONVERSATION[1]) > estimated_tokens(without)
    (cut,) = fit([ChatMessage(role="assistant", text="word " * 500, tool_calls=(CALL,))], 50)
    assert cut.tool_calls == (CALL,)
    assert len(cut.text) < 500


def test_a_request_with_tools_has_the_shape_of_chat_completions() -> None:
    tool = Tool(name="look_up", description="Weather.", parameters={"type": "object"})
    piece = Converse(
        messages=CONVERSATION, tools=(tool,), tool_choice=NamedTool(name="look_up"), parallel_tool_calls=False
    )
    request = LlamaCppLanguageModel(tools=True)._request(0, piece, piece.messages, 60)
    assert request["messages"][1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"city":"Paris"}'}}
    ]
    assert request["messages"][2] == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
    assert request["tools"][0]["function"] == {
        "name": "look_up",
        "description": "Weather.",
        "parameters": {"type": "object"},
    }
    assert request["tool_choice"] == {"type": "function", "function": {"name": "look_up"}}
    assert request["parallel_tool_calls"] is False
    assert "tools" not in LlamaCppLanguageModel()._request(0, piece, piece.messages, 60)


def test_streamed_calls_become_deltas_that_keep_their_name() -> None:
    context = Context()
    answer = Answer(Converse(messages=CONVERSATION), context, None)  # type: ignore[arg-type]
    reports = _Reports(_Writing(answer, context, may_pause=False))

    def report(delta: dict[str, Any]) -> bool:
        return reports({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    assert not report({"role": "assistant", "content": None})
    report({"content": "Let me see."})
    report({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "look_up", "arguments": '{"a'}}]})
    report({"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]})
    report({"tool_calls": [{"index": 1, "id": "y", "function": {"name": "other", "arguments": "{}"}}]})
    answer.close()
    assert [piece for piece in context.emitted if not isinstance(piece, Usage)] == [
        TextDelta(text="Let me see."),
        ToolCallDelta(call_id="0", name="look_up", arguments='{"a'),
        ToolCallDelta(call_id="0", name="look_up", arguments='":1}'),
        ToolCallDelta(call_id="1", name="other", arguments="{}"),
    ]
    assert sum(piece.output_tokens for piece in context.emitted if isinstance(piece, Usage)) == 4
