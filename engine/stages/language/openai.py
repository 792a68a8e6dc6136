"""Any endpoint that speaks OpenAI's chat completions: hosted ones, vLLM, llama.cpp, SGLang, Ollama, TGI."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from duologue.engine.models import ModelUnavailable
from duologue.engine.requests import ChatMessage, Converse
from duologue.engine.stage import Ability, StageContext, take_no_pictures
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.language.event_loop import AsyncBackend, Call
from duologue.engine.stages.language.sampling import read_sampling
from duologue.engine.text.context import estimated_tokens, fit
from duologue.engine.text.tool_calls import (
    chat_completions_choice,
    chat_completions_message,
    chat_completions_tool,
    in_words,
)

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionChunk

logger = logging.getLogger(__name__)

ErrorKind = Literal[
    "unauthorized", "not_found", "refused", "rate_limited", "server_error", "unreachable", "timed_out", "broken_off",
    "malformed",
]  # fmt: skip

_FIRST_PAUSE_S: Final = 0.25
"""Before the first retry; doubled for each next one."""
_LONGEST_PAUSE_S: Final = 2.0
"""A caller is waiting: who asks for more (``Retry-After``) is not tried again."""
_STANDARD: Final = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"})
"""What every endpoint knows; other sampling values go along as extra fields."""


class EndpointError(RuntimeError):
    """The endpoint did not answer as it should; the message is a sentence for people, without keys."""

    def __init__(self, kind: ErrorKind, message: str, *, again: bool = False, after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.again = again
        """Whether trying again may help."""
        self.after_s = after_s
        """How long to wait before, where the endpoint says so."""


class OpenAILanguageModel(AsyncBackend):
    """The backend ``openai``; see :mod:`duologue.engine.stages.language`.

    An abort closes the HTTP stream at once, whatever it is waiting for; how soon the server stops then is its own
    affair. What is cached of a conversation is the server's affair, too, and reported if it says so.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        tools: bool = True,
        images: bool = False,
        context_tokens: int | None = None,
        answer_tokens: int | None = None,
        connect_timeout_s: float = 5.0,
        timeout_s: float = 30.0,
        retries: int = 2,
        extra_body: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """``model`` is the endpoint's name for it; ``base_url`` ends in ``/v1`` (None: OpenAI's own). The key is read
        from the environment variable ``api_key_env``, which the stage's ``env`` may set; not every endpoint needs one.

        ``tools`` and ``images``: whether the model takes them. ``context_tokens``: longer conversations are cut to fit
        (None: only once the endpoint says that one is too long). ``answer_tokens``: after so many an answer ends with
        its sentence, unless the request sets a limit (None: the model decides). ``timeout_s``: longest silence of the
        endpoint. ``retries`` happen before the first token only. ``extra_body``: further fields of each request.
        Raises ``ValueError`` for an unknown sampling value.
        """
        self._model = model
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._tools = tools
        self._images = images
        self._context_tokens = context_tokens
        self._answer_tokens = answer_tokens
        self._timeouts = (connect_timeout_s, timeout_s)
        self._retries = retries
        self._extra_body = dict(extra_body or {})
        self._sampling = read_sampling(sampling)

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """As the arguments say: an endpoint cannot be asked."""
        able: set[Ability] = {"tools"} if arguments.get("tools", True) else set()
        return frozenset(able | {"image_in"} if arguments.get("images") else able)

    def load(self) -> None:
        """Make the client. Raises ``ModelUnavailable`` without the package."""
        try:
            import openai
        except ImportError as error:
            raise ModelUnavailable(
                "The backend 'openai' needs a package that is not installed: pip install 'duologue[openai]'"
            ) from error
        super().load()
        connect_s, silence_s = self._timeouts
        key = os.environ.get(self._api_key_env)

        async def make() -> openai.AsyncOpenAI:
            timeout = openai.Timeout(silence_s, connect=connect_s)
            # The client insists on a key; an endpoint that needs none does not look.
            return openai.AsyncOpenAI(api_key=key or "none", base_url=self._base_url, timeout=timeout, max_retries=0)

        self._client = self.run(make())

    def warm_up(self) -> None:
        """Look whether the endpoint is there, takes the key and knows the model. Raises ``ModelUnavailable``."""
        import openai

        async def served() -> list[str]:
            return [model.id async for model in self._client.models.list()]

        try:
            names = self.run(served())
        except openai.NotFoundError:
            return  # it does not list its models, which is its right
        except openai.OpenAIError as error:
            raise ModelUnavailable(str(_as_endpoint_error(error, self._where))) from error
        if names and self._model not in names:
            logger.warning(
                "%s does not list a model '%s'; it lists %s", self._where, self._model, ", ".join(names[:10])
            )

    def process(self, state: Call, piece: Converse, context: StageContext) -> None:
        """Write one answer. Raises :class:`EndpointError`."""
        if piece.prepare:
            return
        if not self._images:
            take_no_pictures(piece.messages, f"model '{self._model}'")
        messages = piece.messages if self._tools else tuple(in_words(piece.messages))
        answer = Answer(piece, context, self._answer_tokens)
        budget = self._context_tokens and self._context_tokens - min(answer.max_tokens, self._context_tokens // 2)
        for attempt in range(4):
            fitting = fit(messages, budget) if budget else messages
            chunks = _Chunks(answer, self._where)
            try:
                for chunk in self.pieces(self._stream(piece, fitting, answer.max_tokens), state, context):
                    if not chunks.take(chunk):
                        break
                chunks.check_end()
            except _ContextExceeded as error:
                if attempt == 3 or answer.started:
                    raise EndpointError("refused", str(error)) from error
                budget = sum(map(estimated_tokens, fitting)) * 2 // 3
                continue
            break
        answer.close()

    def close(self) -> None:
        """Close the connections."""
        if self._loop is not None:
            self.run(self._client.close())
        super().close()

    @property
    def _where(self) -> str:
        return f"The endpoint {self._base_url or 'api.openai.com'}"

    async def _stream(
        self, piece: Converse, messages: tuple[ChatMessage, ...], max_tokens: int
    ) -> AsyncGenerator[ChatCompletionChunk, None]:
        """The chunks of one answer; tries again while there is none and the error may pass."""
        import httpx2  # what the client is made of; it translates errors of the request, not those of the stream
        import openai
        from openai.types.chat import ChatCompletionChunk

        body = self._body(piece, messages, max_tokens)
        begun = False
        for attempt in range(self._retries + 1):
            try:
                async with await self._client.chat.completions.create(**body) as stream:
                    async for chunk in stream:
                        if not isinstance(chunk, ChatCompletionChunk) or not isinstance(chunk.choices, list):
                            raise ValueError("no chunk of a chat completion")
                        begun = True
                        yield chunk
                return
            except (openai.OpenAIError, httpx2.HTTPError, ValueError, AttributeError) as error:
                failure = _as_endpoint_error(error, self._where)
                if begun and failure.kind == "unreachable":
                    failure = EndpointError("broken_off", f"{self._where} broke off in the middle of its answer.")
                pause = failure.after_s if failure.after_s is not None else _FIRST_PAUSE_S * 2**attempt
                if begun or not failure.again or attempt == self._retries or pause > _LONGEST_PAUSE_S:
                    raise failure from error
                logger.info("%s; trying again in %.2f s", failure, pause)
            await asyncio.sleep(pause)

    def _body(self, piece: Converse, messages: tuple[ChatMessage, ...], max_tokens: int) -> dict[str, Any]:
        values = self._sampling.given(piece)
        extra = {name: value for name, value in values.items() if name not in _STANDARD} | self._extra_body
        body: dict[str, Any] = {
            **{name: value for name, value in values.items() if name in _STANDARD},
            "model": self._model,
            "messages": [chat_completions_message(message) for message in messages],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if extra:
            body["extra_body"] = extra
        if piece.reasoning_effort is not None:
            body["reasoning_effort"] = piece.reasoning_effort
        if self._tools and piece.tools:
            body["tools"] = [chat_completions_tool(tool) for tool in piece.tools]
            body["tool_choice"] = chat_completions_choice(piece.tool_choice)
            if piece.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = piece.parallel_tool_calls
        return body


class _Chunks:
    """Makes deltas of the chunks of one answer."""

    def __init__(self, answer: Answer, where: str) -> None:
        self._answer = answer
        self._where = where
        self._names: dict[str, str] = {}
        self._finished = False

    def take(self, chunk: ChatCompletionChunk) -> bool:
        """Hand on what is in a chunk. False: enough."""
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached, pictures = (details.cached_tokens, details.image_tokens) if details else (0, 0)
            self._answer.read(chunk.usage.prompt_tokens, cached or 0, pictures or 0)
            self._answer.counted(chunk.usage.completion_tokens)
        for choice in chunk.choices:
            if choice.delta is None:
                continue
            if choice.finish_reason is not None:
                self._finished = True
            if choice.finish_reason == "length":
                self._answer.reached_limit()
            if choice.delta.content and not self._answer.text(choice.delta.content):
                return False
            for position, call in enumerate(choice.delta.tool_calls or ()):
                if not self._take_call(call, position):
                    return False
        return not self._answer.over

    def _take_call(self, call: Any, position: int) -> bool:
        index = call.index if call.index is not None else position
        function = call.function
        name = self._names.setdefault(str(index), (function and function.name) or "")
        return self._answer.call(str(index), name, (function and function.arguments) or "")

    def check_end(self) -> None:
        """Raises :class:`EndpointError` when the stream ended before its answer did."""
        if not self._finished and not self._answer.over:
            raise EndpointError("broken_off", f"{self._where} broke off in the middle of its answer.")


class _ContextExceeded(EndpointError):
    """The conversation is too long for the endpoint's model."""


def _as_endpoint_error(error: BaseException, where: str) -> EndpointError:
    """A client's exception as one of ours."""
    import httpx2
    import openai

    match error:
        case EndpointError():
            return error
        case openai.APITimeoutError():
            return EndpointError("timed_out", f"{where} did not answer in time.", again=True)
        case openai.APIConnectionError():
            return EndpointError("unreachable", f"{where} cannot be reached.", again=True)
        case openai.APIStatusError():
            return _status_error(error, where)
        case openai.APIError():  # an error inside the stream
            return EndpointError("server_error", f"{where} failed: {_said(error)}")
        case httpx2.TimeoutException():
            return EndpointError("timed_out", f"{where} fell silent in the middle of its answer.", again=True)
        case httpx2.HTTPError():
            return EndpointError("broken_off", f"{where} broke off in the middle of its answer.", again=True)
    return EndpointError("malformed", f"{where} sent something that is no chat completion.")


def _status_error(error: openai.APIStatusError, where: str) -> EndpointError:
    status, code = error.status_code, str(getattr(error, "code", "") or getattr(error, "type", "") or "")
    said = _said(error)
    if status in (401, 403):
        return EndpointError("unauthorized", f"{where} refused the key ({status}).")
    if status == 404:
        return EndpointError("not_found", f"{where} knows no such model or path (404): {said}")
    if status == 429:
        return EndpointError(
            "rate_limited", f"{where} is at its limit (429): {said}", again=True, after_s=_pause(error)
        )
    if status >= 500:
        return EndpointError("server_error", f"{where} failed ({status}): {said}", again=True, after_s=_pause(error))
    if status in (400, 413) and ("context" in code or "context" in said.lower() or "too long" in said.lower()):
        return _ContextExceeded("refused", f"{where} finds the conversation too long: {said}")
    return EndpointError("refused", f"{where} refused the request ({status}): {said}")


def _said(error: openai.APIError) -> str:
    body = error.body
    text = body.get("message") if isinstance(body, dict) else None
    return str(text or error.message)[:300]


def _pause(error: openai.APIStatusError) -> float | None:
    try:
        return float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
