"""llama.cpp in this process, all sessions in one batch."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from duologue.engine.cores import usable_cores
from duologue.engine.models import ModelUnavailable, require
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, speaking_rate
from duologue.engine.stage import Ability, Stage, StageContext, take_no_pictures
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.slots import SlotTable
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.text.clauses import ClauseSplitter
from duologue.engine.text.context import fit
from duologue.engine.text.tool_calls import (
    chat_completions_choice,
    chat_completions_message,
    chat_completions_tool,
    in_words,
)

LONGEST_ANSWER: Final = 200
"""Tokens after which an answer ends with its sentence, unless the request sets a limit of its own."""
_SLICE: Final = 64
"""Prompt tokens read in one go: the longest that other sessions, and an abort, have to wait."""
_SLICE_BOTH_WAYS: Final = 512
"""For projectors whose pictures are read both ways, and so in one slice: Gemma's have 256 tokens."""
_HEAD_BYTES: Final = 64 * 1024
_CHARACTERS_PER_SECOND: Final = 20.0
"""Of speech at normal speed, at the most: the packaged voice says 18, and more than this in one of ten answers. An
answer that is taken to be further ahead than it is rests until nothing is heard; the other way round it rests less."""
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
    """The backend ``llamacpp``, the default; see :mod:`duologue.engine.stages.language`.

    Stops at a token; while it reads a prompt, after a slice of 64 tokens (all sessions read in one batch, so no one
    waits longer than that behind a long prompt); within a picture, which is read in one go, after the picture.
    Each session has a slot of its own while there are enough, in which what the model has read stays cached.
    After an abort no more than the token in hand, or the slice of 64 tokens of the prompt, is computed.

    On a CPU a token for each of four answers costs about as much as four tokens of one, on all cores instead of one:
    two answers for each core are written at the same time (:attr:`concurrency`), the most urgent ones. One that is
    outranked stops at its token, or slice, and is taken up where it stopped, from the slot's cache: so an answer that
    is far ahead of its listener costs others nothing.
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
        chat_template: str | None = None,
        mmproj: str | None = None,
        gpu_layers: int | None = None,
        at_once: int | None = None,
    ) -> None:
        """``context_tokens`` are those of one session. ``tools``: the model's chat template knows tools, and llama.cpp
        keeps a call to the tool's schema by a grammar made from it; without, calls are told in words.
        ``chat_template``: path of a Jinja file that takes the place of the model's own. ``mmproj``: path of the
        projector with which the model sees pictures. ``gpu_layers``: how many layers an accelerator takes (None: as
        llama.cpp likes). ``at_once``: answers that are written at the same time (None: two for each core; with
        ``gpu_layers`` all). Raises ``ValueError`` for an unknown sampling value.
        """
        self._name = model
        self._n_slots = max_num_seqs
        self._slots = SlotTable(max_num_seqs)
        self._context_tokens = context_tokens
        self._tools = tools
        self._chat_template = chat_template
        self._mmproj = mmproj
        self._gpu_layers = gpu_layers
        cores = min(8, usable_cores())
        self._threads = threads or max(min(2, cores), cores // 2)
        self._prompt_threads = prompt_threads or max(self._threads, cores)
        self.concurrency = at_once or (max_num_seqs if gpu_layers else 2 * cores)
        try:
            self._sampling = msgspec.convert(dict(sampling or {}), Sampling)
        except msgspec.ValidationError as error:
            raise ValueError(f"sampling: {error}") from error

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """As the arguments say: nothing is read."""
        able: set[Ability] = {"reads_ahead"}
        if arguments.get("tools"):
            able.add("tools")
        if arguments.get("mmproj"):
            able.add("image_in")
        return frozenset(able)

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        let_waiting_threads_sleep()
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(require(self._name))
        if self._chat_template is not None:
            params.chat_template = _own_file(self._chat_template).read_text(encoding="utf-8")
        slice_tokens = _SLICE
        if self._mmproj is not None:
            projector = _own_file(self._mmproj)
            params.mmproj.path = str(projector)
            if _reads_both_ways(projector):
                slice_tokens = _SLICE_BOTH_WAYS
        if self._gpu_layers is not None:
            params.n_gpu_layers = self._gpu_layers
        params.n_parallel = self._n_slots
        params.n_ctx = self._context_tokens * self._n_slots
        params.n_batch = params.n_ubatch = slice_tokens
        params.n_cache_reuse = _REUSE
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = self._threads, self._prompt_threads
        params.fit_params = False
        params.cache_ram_mib = 0
        params.n_ctx_checkpoints = 0
        params.verbosity = -1
        # The library also listens on a port of the loopback interface; nobody is to use it.
        params.api_keys = [secrets.token_urlsafe(32)]
        params.endpoint_slots = params.endpoint_props = params.ui = False
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelUnavailable(self._not_loaded()) from error
        # The library's batch loop may not have begun yet, and one that is told to end before it begins never ends:
        # whoever gives up the start now would wait in ``close`` for ever. After an answer it has begun.
        self.warm_up()

    def _not_loaded(self) -> str:
        if self._mmproj is None:
            return f"llama.cpp cannot load model '{self._name}': it is no whole GGUF file, or there is no room for it."
        return (
            f"llama.cpp cannot load model '{self._name}' with the projector '{self._mmproj}': mmproj has to be a GGUF "
            "file made for this very model."
        )

    def warm_up(self) -> None:
        """One short answer."""
        request = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "id_slot": self._n_slots - 1}
        self._server.handle_chat_completions(request, lambda _: False)

    def start(self, request: EngineRequest) -> int:
        """Take the session's slot."""
        return self._slots.acquire(request.session_id)

    def process(self, state: int, piece: Converse, context: StageContext) -> None:
        """Write one answer."""
        if self._mmproj is None:
            take_no_pictures(piece.messages, f"model '{self._name}'")
        answer = Answer(piece, context, LONGEST_ANSWER)
        budget = self._context_tokens - min(answer.max_tokens, self._context_tokens // 2)
        messages = piece.messages if self._tools else tuple(in_words(piece.messages))
        if piece.prepare:
            # How the user's next turn begins is read as well; after what is known of its words the next prompt differs.
            begun = (*fit(messages, budget), ChatMessage(role="user", text=piece.begun))
            self._prepare(self._request(state, piece, begun, 0), context)
            return
        writing = _Writing(answer, context, may_pause=not (self._tools and piece.tools), rate=speaking_rate(piece))
        while True:
            shown = (*fit(messages, budget), *writing.so_far)
            request = self._request(state, piece, shown, max(1, answer.max_tokens - answer.tokens))
            self._server.handle_chat_completions(request, reports := _Reports(writing))
            if reports.paused:
                if not context.give_way():
                    return
            elif reports.error is None:
                break
            elif not reports.too_long or budget < _SLICE:
                raise (ValueError if reports.refused else RuntimeError)(reports.error)
            else:
                budget = budget * 2 // 3  # far from prose: fewer bytes a token than estimated
        answer.close()

    def _prepare(self, request: dict[str, Any], context: StageContext) -> None:
        """Read what the next prompt begins with; a report after each slice is the chance to let others go first."""
        request["add_generation_prompt"] = False
        outranked = False

        def report(_: Any) -> bool:
            nonlocal outranked
            outranked = context.outranked
            return outranked or context.aborted

        while True:
            outranked = False
            self._server.handle_chat_completions(request, report)
            if not outranked or not context.give_way():
                return

    def release(self, state: int) -> None:
        """The slot may be given to another session, if need be."""
        self._slots.release(state)

    def end_session(self, session_id: str) -> None:
        """Its slot is the next one that a new session gets."""
        self._slots.end_session(session_id)

    def close(self) -> None:
        """Stop the batch loop and free the weights."""
        del self._server

    def _request(
        self, slot: int, piece: Converse, messages: tuple[ChatMessage, ...], max_tokens: int
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            **msgspec.structs.asdict(self._sampling),
            "messages": [chat_completions_message(message) for message in messages],
            "max_tokens": max_tokens,
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


def _own_file(path: str) -> Path:
    """Raises ``ModelUnavailable`` if there is none."""
    return require(str(Path(path).expanduser().absolute()))


def _reads_both_ways(projector: Path) -> bool:
    """Whether each token of a picture is read with those after it, as Gemma does.

    The type of the projector is one of the strings at the file's head: its key, the kind of value (4 bytes), the length
    of the name (8 bytes), the name.
    """
    with projector.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return any(head[found.end() + 12 :].startswith(b"gemma") for found in re.finditer(b"projector_type", head))


class _Writing:
    """An answer over its pauses."""

    def __init__(self, answer: Answer, context: StageContext, may_pause: bool, rate: float = 1.0) -> None:
        self.answer = answer
        self.begun = 0
        """Tokens that had been written when the present run began."""
        self._context = context
        self._may_pause = may_pause
        self._pace = _CHARACTERS_PER_SECOND * rate
        self._cached: int | None = None
        self._text = ""
        self._clauses = ClauseSplitter()

    @property
    def outranked(self) -> bool:
        return self._may_pause and self._context.outranked

    @property
    def so_far(self) -> tuple[ChatMessage, ...]:
        """What the model is to go on from."""
        self.begun = self.answer.tokens
        return (ChatMessage(role="assistant", text=self._text),) if self._text else ()

    def read(self, tokens: int, cached: int) -> None:
        """Of the prompt. What later runs find cached is what earlier ones have read and written."""
        if self._cached is None:
            self._cached = cached
        if not self.begun:
            self.answer.read(tokens, self._cached)

    def text(self, text: str) -> bool:
        """Hand on text; only what can be spoken, whole clauses, counts as made. False: enough."""
        self._text += text
        for clause in self._clauses.push(text):
            self._context.made(len(clause.text) / self._pace)
        return self.answer.text(text)


class _Reports:
    """Receives llama.cpp's reports for one run, on the worker's thread. Returning True stops generation."""

    def __init__(self, writing: _Writing) -> None:
        self.error: str | None = None
        self.refused = False
        """The request, not the model, was at fault: a picture that cannot be read."""
        self.too_long = False
        self.paused = False
        self._writing = writing
        self._answer = writing.answer
        self._call_names: dict[int, str] = {}

    def __call__(self, report: Any) -> bool:
        if isinstance(report, list):
            return any([self(part) for part in report])
        if "error" in report:
            self.error = report["error"].get("message", "the language model failed")
            self.refused = report["error"].get("code") == 400
            self.too_long = report["error"].get("type") == "exceed_context_size_error"
            return True
        if (progress := report.get("prompt_progress")) is not None:
            self._writing.read(progress["total"], progress["cache"])
        ended = False
        if (usage := report.get("usage")) is not None:
            cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            self._writing.read(usage["prompt_tokens"], cached)
            self._answer.counted(self._writing.begun + usage["completion_tokens"])
            ended = True
        for choice in report.get("choices", ()):
            ended = ended or choice.get("finish_reason") is not None
            if choice.get("finish_reason") == "length":
                self._answer.reached_limit()
            delta = choice.get("delta", {})
            text = delta.get("content")
            if text and not self._writing.text(text):
                return True
            if not all(map(self._take_call, delta.get("tool_calls") or ())):
                return True
        if self._answer.over:
            return True
        self.paused = not ended and self._writing.outranked
        return self.paused

    def _take_call(self, piece: dict[str, Any]) -> bool:
        """Hand on a piece of a call. Its name comes with the first piece only. False: enough."""
        index, function = piece.get("index", 0), piece.get("function", {})
        name = self._call_names.setdefault(index, function.get("name") or "")
        return self._answer.call(str(index), name, function.get("arguments") or "")
