"""The language model: llama.cpp in this process, all sessions in one batch."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duologue.engine.models import require
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, TextDelta, ToolCallDelta, Usage
from duologue.engine.stage import Stage, StageContext, StageFinish
from duologue.engine.stages.slots import SlotTable
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.text.context import fit
from duologue.engine.text.tool_calls import (
    chat_completions_choice,
    chat_completions_message,
    chat_completions_tool,
    in_words,
)

LONGEST_ANSWER: Final = 200
"""Tokens after which an answer ends with its sentence, unless the request sets a limit of its own."""
_LONGEST_SENTENCE: Final = 60
"""Tokens that the last sentence may take beyond that."""
_SENTENCE_END: Final = re.compile(r"[.!?…][\"'”’)*_]*\s*$")
_SLICE: Final = 64
"""Prompt tokens read in one go: the longest that other sessions, and an abort, have to wait."""
_REPORT_EVERY: Final = 8
"""Tokens from one report of usage to the next."""
_REUSE: Final = 32
"""Least run of tokens that is moved within the cache, rather than read again, when older turns are left out."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are chosen. Defaults for a small model that is to give short spoken answers and not to ramble."""

    temperature: float = 0.2
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.05
    repeat_penalty: float = 1.03
    """Hardly any: at 1.1 the packaged model leaves English after a few turns."""
    repeat_last_n: int = 128


class LlamaCppLanguageModel(Stage):
    """Takes :class:`Converse`, emits :class:`TextDelta`, :class:`ToolCallDelta`, now and then :class:`Usage`, and, cut
    short, :class:`StageFinish`.

    Each session has a slot of its own while there are enough, in which what the model has read stays cached.
    A conversation of any length is answered: see :func:`duologue.engine.text.context.fit`.
    """

    def __init__(
        self,
        model: str = "smollm2-135m-instruct",
        max_num_seqs: int = 8,
        context_tokens: int = 2048,
        threads: int | None = None,
        prompt_threads: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        tools: bool = False,
    ) -> None:
        """``context_tokens`` are those of one session; ``tools``: the model's chat template knows tools, without it
        calls are told in words. Raises ``ValueError`` for an unknown sampling value."""
        self._name = model
        self._n_slots = max_num_seqs
        self._context_tokens = context_tokens
        self._tools = tools
        cores = min(8, os.cpu_count() or 1)
        self._threads = threads or max(1, cores // 2)
        self._prompt_threads = prompt_threads or max(self._threads, cores)
        try:
            self._sampling = msgspec.convert(dict(sampling or {}), Sampling)
        except msgspec.ValidationError as error:
            raise ValueError(f"sampling: {error}") from error

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        let_waiting_threads_sleep()
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(require(self._name))
        params.n_parallel = self._n_slots
        params.n_ctx = self._context_tokens * self._n_slots
        params.n_batch = params.n_ubatch = _SLICE
        params.n_cache_reuse = _REUSE
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = self._threads, self._prompt_threads
        params.fit_params = False
        params.cache_ram_mib = 0
        params.n_ctx_checkpoints = 0
        params.verbosity = -1
        # The library also listens on a port of the loopback interface; nobody is to use it.
        params.api_keys = [secrets.token_urlsafe(32)]
        params.endpoint_slots = params.endpoint_props = params.ui = False
        self._server = xllamacpp.Server(params)
        self._slots = SlotTable(self._n_slots)
        # The library's batch loop may not have begun yet, and one that is told to end before it begins never ends:
        # whoever gives up the start now would wait in ``close`` for ever. After an answer it has begun.
        self.warm_up()

    def warm_up(self) -> None:
        """One short answer."""
        request = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "id_slot": self._n_slots - 1}
        self._server.handle_chat_completions(request, lambda _: False)

    def start(self, request: EngineRequest) -> int:
        """Take the session's slot."""
        return self._slots.acquire(request.session_id)

    def process(self, state: int, piece: Converse, context: StageContext) -> None:
        """Write one answer."""
        room_for_answer = min(piece.max_output_tokens or LONGEST_ANSWER + _LONGEST_SENTENCE, self._context_tokens // 2)
        budget = self._context_tokens - room_for_answer
        messages = piece.messages if self._tools else tuple(in_words(piece.messages))
        while True:
            answer = _Answer(piece, context)
            self._server.handle_chat_completions(self._request(state, piece, fit(messages, budget)), answer)
            if answer.error is None:
                break
            if not answer.too_long or budget < _SLICE:
                raise RuntimeError(answer.error)
            budget = budget * 2 // 3  # far from prose: fewer bytes a token than estimated
        if not context.aborted:
            answer.close()

    def release(self, state: int) -> None:
        """The slot may be given to another session, if need be."""
        self._slots.release(state)

    def close(self) -> None:
        """Stop the batch loop and free the weights."""
        del self._server

    def _request(self, slot: int, piece: Converse, messages: tuple[ChatMessage, ...]) -> dict[str, Any]:
        request: dict[str, Any] = {
            **msgspec.structs.asdict(self._sampling),
            "messages": [chat_completions_message(message) for message in messages],
            "max_tokens": piece.max_output_tokens or LONGEST_ANSWER + _LONGEST_SENTENCE,
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,  # a report after each slice of the prompt: the chance to abort there
        }
        if self._tools and piece.tools:
            request["tools"] = [chat_completions_tool(tool) for tool in piece.tools]
            request["tool_choice"] = chat_completions_choice(piece.tool_choice)
            if piece.parallel_tool_calls is not None:
                request["parallel_tool_calls"] = piece.parallel_tool_calls
        if piece.temperature is not None:
            request["temperature"] = piece.temperature
        if piece.seed is not None:
            request["seed"] = piece.seed % 2**32
        return request


class _Answer:
    """Receives llama.cpp's reports for one request, on the worker's thread. Returning True stops generation."""

    def __init__(self, piece: Converse, context: StageContext) -> None:
        self.error: str | None = None
        self.too_long = False
        self._context = context
        self._own_limit = piece.max_output_tokens is None
        self._tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._written = ""
        self._call_names: dict[int, str] = {}
        self._cut_short = False
        self._reported = Usage()

    def __call__(self, report: Any) -> bool:
        if isinstance(report, list):
            return any([self(part) for part in report])
        if "error" in report:
            self.error = report["error"].get("message", "the language model failed")
            self.too_long = report["error"].get("type") == "exceed_context_size_error"
            return True
        if (progress := report.get("prompt_progress")) is not None:
            self._prompt_tokens, self._cached_tokens = progress["total"], progress["cache"]
        if (usage := report.get("usage")) is not None:
            self._prompt_tokens, self._tokens = usage["prompt_tokens"], usage["completion_tokens"]
            self._cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        for choice in report.get("choices", ()):
            if choice.get("finish_reason") == "length":
                self._cut_short = not self._own_limit
            delta = choice.get("delta", {})
            if self._take(delta.get("content")) or not all(map(self._take_call, delta.get("tool_calls") or ())):
                return True
        return self._context.aborted

    def _take_call(self, piece: dict[str, Any]) -> bool:
        """Hand on a piece of a call. Its name comes with the first piece only. False: enough."""
        index, function = piece.get("index", 0), piece.get("function", {})
        name = self._call_names.setdefault(index, function.get("name") or "")
        self._count()
        delta = ToolCallDelta(call_id=str(index), name=name, arguments=function.get("arguments") or "")
        return self._context.emit(delta)

    def _count(self) -> None:
        """Another token. What an answer has used is reported as it goes: it may be broken off."""
        self._tokens += 1
        if self._tokens % _REPORT_EVERY == 1:
            self._report()

    def _report(self) -> None:
        now = Usage(input_tokens=self._prompt_tokens, cached_tokens=self._cached_tokens, output_tokens=self._tokens)
        self._context.emit(now.since(self._reported))
        self._reported = now

    def close(self) -> None:
        """Report usage, and that the request's own limit was hit."""
        self._report()
        if self._cut_short:
            self._context.emit(StageFinish(reason="length"))

    def _take(self, text: str | None) -> bool:
        """Hand on what was written. True: enough."""
        if not text:
            return False
        self._count()
        if not self._written:
            text = text.lstrip()
        self._written = (self._written + text)[-16:]
        if text and not self._context.emit(TextDelta(text=text)):
            return True
        return self._own_limit and self._tokens >= LONGEST_ANSWER and bool(_SENTENCE_END.search(self._written))
