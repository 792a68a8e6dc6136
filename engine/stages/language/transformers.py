"""Any checkpoint that transformers loads and that writes by attention alone, with or without pictures."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from duologue.engine.models import ModelUnavailable
from duologue.engine.models.abilities import chat_template, sees_pictures
from duologue.engine.models.gguf import checkpoint
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, ImagePart
from duologue.engine.stage import Ability, Stage, StageContext, take_no_pictures
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.language.pictures import opened
from duologue.engine.stages.language.sampling import read_sampling
from duologue.engine.stages.slots import SlotTable
from duologue.engine.stages.threads import let_waiting_threads_sleep
from duologue.engine.text.context import fit
from duologue.engine.text.tool_calls import (
    CALL_OPENS,
    CallReader,
    WrittenCall,
    call_opening,
    chat_completions_tool,
    in_words,
    template_message,
)

if TYPE_CHECKING:
    import torch

    from duologue.engine.stages.language.batching import Batch, Job, Prompt

_PICTURES_KEPT: Final = 32
"""Pictures whose features stay, so that those of earlier turns are not looked at again."""
_LEAST_BUDGET: Final = 32


class Turn:
    """What belongs to one request."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.job: Job | None = None


class TransformersLanguageModel(Stage):
    """The backend ``transformers``; see :mod:`duologue.engine.stages.language`.

    All sessions write in one batch; each has a slot while there are enough, in which what the model has read stays
    cached, and a new session takes what it shares with another (its instructions) from that one's slot. Stops at a
    token; while a prompt is read, after a slice of 64 tokens (512 on an accelerator); a picture is looked at in one go.
    Calls of tools are known by the form ``<tool_call>{...}</tool_call>``.
    """

    def __init__(
        self,
        model: str,
        max_num_seqs: int = 8,
        context_tokens: int = 4096,
        device: str = "auto",
        dtype: str | None = None,
        answer_tokens: int | None = None,
        tools: bool | None = None,
        images: bool | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """``model`` is a path, a hub id or a logical name (GGUF is dequantised once). ``context_tokens`` are those of
        one session. ``device``: ``auto`` is an accelerator where there is one. ``dtype``: None is that of the
        checkpoint, on a CPU float32. ``answer_tokens``: after so many an answer ends with its sentence, unless the
        request sets a limit (None: the model decides). ``tools``, ``images``: None is what the checkpoint says.
        Raises ``ValueError`` for an unknown sampling value.
        """
        self._name = model
        self._slots = SlotTable(max_num_seqs)
        self._max_num_seqs = max_num_seqs
        self._context_tokens = context_tokens
        self._device = device
        self._dtype = dtype
        self._answer_tokens = answer_tokens
        self._tools = tools
        self._images = images
        self._sampling = read_sampling(sampling)
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(self._sampling, name) is not None:
                raise ValueError(f"sampling: the backend 'transformers' has no {name}")

    @classmethod
    def abilities(cls, arguments: Mapping[str, Any]) -> frozenset[Ability]:
        """As the arguments say, else as the checkpoint says if it is here."""
        able: set[Ability] = set()
        template = chat_template(arguments["model"])
        if arguments.get("tools", "tools" in template and CALL_OPENS in template):
            able.add("tools")
        if arguments.get("images", sees_pictures(arguments["model"])):
            able.add("image_in")
        return frozenset(able)

    def load(self) -> None:
        """Raises ``ModelUnavailable``."""
        let_waiting_threads_sleep()
        try:
            import torch
            import transformers

            from duologue.engine.stages.language.batching import Batch
        except ImportError as error:
            raise ModelUnavailable(
                "The backend 'transformers' needs packages that are not installed: pip install 'duologue[omni]'"
            ) from error
        transformers.utils.logging.disable_progress_bar()
        place = checkpoint(self._name)
        given = {"model": self._name} | {
            name: value for name, value in (("tools", self._tools), ("images", self._images)) if value is not None
        }
        able = self.abilities(given)
        self._tools, self._images = "tools" in able, "image_in" in able
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = torch.device(self._device if self._device != "auto" else accelerator or "cpu")
        dtype = self._dtype or ("float32" if device.type == "cpu" else "auto")
        if device.type == "cuda":  # cuDNN plans each new length of a conversation anew: 40 ms more a token on an H200
            torch.backends.cuda.enable_cudnn_sdp(False)
        loader = transformers.AutoModelForImageTextToText if self._images else transformers.AutoModelForCausalLM
        try:
            self._model = _load_model(loader, place, dtype).to(device).eval()
            reader = transformers.AutoProcessor if self._images else transformers.AutoTokenizer
            self._reader: Any = reader.from_pretrained(place)
        except OSError as error:
            first_line = str(error).strip().splitlines()[0]
            raise ModelUnavailable(f"Model '{self._name}' cannot be loaded: {first_line}") from error
        self._tokenizer = self._reader.tokenizer if self._images else self._reader
        if self._images:
            self._pictures = _Pictures(self._model, self._reader)
        self._defaults = self._model.generation_config
        longest = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context_tokens = min(self._context_tokens, longest or self._context_tokens)
        try:
            self._batch: Batch = Batch(self._model, self._max_num_seqs, self._end_tokens())
        except ValueError as error:
            raise ModelUnavailable(f"Model '{self._name}': {error}; try the backend 'vllm'.") from error
        self._batch.start(self._pictures.axes if self._images else 1)

    def warm_up(self) -> None:
        """One short answer."""
        job = self._job(0, self._prompt((ChatMessage(role="user", text="Hello."),), ""), Converse(messages=()), 4)
        self._batch.submit(job)
        for _ in _tokens(job):
            pass

    def start(self, request: EngineRequest) -> Turn:
        """Take the session's slot."""
        return Turn(self._slots.acquire(request.session_id))

    def interrupt(self, state: Turn) -> None:
        """Take the request out of the batch."""
        if state.job is not None:
            self._batch.cancel(state.job)

    def process(self, state: Turn, piece: Converse, context: StageContext) -> None:
        """Write one answer."""
        if piece.prepare:
            return
        if not self._images:
            take_no_pictures(piece.messages, f"model '{self._name}'")
        answer = Answer(piece, context, self._answer_tokens)
        room = min(answer.max_tokens, self._context_tokens // 2)
        prompt, opening = self._fitting(piece, self._context_tokens - room)
        most = min(answer.max_tokens, self._context_tokens - len(prompt.tokens))
        state.job = job = self._job(state.slot, prompt, piece, most)
        if context.aborted:  # perhaps before there was a job to cancel
            return
        self._batch.submit(job)
        try:
            self._hand_on(job, answer, CallReader() if self._uses_tools(piece) else None, opening)
        finally:
            self._batch.cancel(job)
        if job.reached_limit:
            answer.reached_limit()
        answer.read(len(job.prompt.tokens), job.cached, job.prompt.picture_tokens)
        answer.counted(len(job.tokens))
        answer.close()

    def release(self, state: Turn) -> None:
        """The slot may be given to another session, if need be."""
        self._slots.release(state.slot)

    def end_session(self, session_id: str) -> None:
        """Its slot is the next one that a new session gets."""
        self._slots.end_session(session_id)

    def close(self) -> None:
        """End the batch and free the weights."""
        self._batch.close()
        del self._model, self._batch

    # -- reading -------------------------------------------------------------------------------------------------------

    def _uses_tools(self, piece: Converse) -> bool:
        return bool(self._tools and piece.tools and piece.tool_choice != "none")

    def _fitting(self, piece: Converse, budget: int) -> tuple[Prompt, str]:
        """The prompt of as much of the conversation as fits, and how a call that has to be made begins."""
        uses_tools = self._uses_tools(piece)
        messages = piece.messages if self._tools else tuple(in_words(piece.messages))
        opening = call_opening(piece.tool_choice) if uses_tools else ""
        tools = [chat_completions_tool(tool) for tool in piece.tools] if uses_tools else None
        estimate = budget
        while True:
            prompt = self._prompt(fit(messages, estimate), opening, tools)
            if len(prompt.tokens) <= budget:
                return prompt, opening
            if estimate < _LEAST_BUDGET:
                raise ValueError(f"The conversation's last message does not fit into {budget} tokens.")
            estimate = estimate * 2 // 3

    def _prompt(
        self, messages: tuple[ChatMessage, ...], opening: str, tools: list[dict[str, Any]] | None = None
    ) -> Prompt:
        from duologue.engine.stages.language.batching import Prompt

        text = self._reader.apply_chat_template(
            [template_message(message) for message in messages],
            tools=tools,
            add_generation_prompt=True,
            tokenize=False,
        )
        pictures = [part for message in messages for part in message.images]
        if pictures:
            return self._pictures.prompt(text + opening, pictures)
        tokens = list(self._tokenizer(text + opening, add_special_tokens=False)["input_ids"])
        return Prompt(tokens, tokens)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _hand_on(self, job: Job, answer: Answer, reader: CallReader | None, opening: str) -> None:
        """Turn tokens into deltas until the answer is over."""
        calls = 0

        def emit(found: Iterator[str | WrittenCall]) -> bool:
            nonlocal calls
            for part in found:
                if isinstance(part, str):
                    if not answer.text(part):
                        return False
                else:
                    calls += 1
                    if not answer.call(str(calls - 1), part.name, part.arguments):
                        return False
            return not answer.over

        if reader is not None and opening and not emit(reader.push(opening)):
            return
        for text in self._decoded(_tokens(job)):
            answer.read(len(job.prompt.tokens), job.cached, job.prompt.picture_tokens)
            if not (emit(reader.push(text)) if reader is not None else answer.text(text)):
                return
        if reader is not None:
            emit(reader.finish())

    def _decoded(self, tokens: Iterator[int]) -> Iterator[str]:
        """Text as soon as its characters are complete."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        for token in tokens:
            text = stream.step(self._tokenizer.backend_tokenizer, token)
            if text:
                yield text

    def _end_tokens(self) -> frozenset[int]:
        named = self._defaults.eos_token_id
        ends = named if isinstance(named, list) else [named]
        return frozenset(token for token in (*ends, self._tokenizer.eos_token_id) if token is not None)

    def _job(self, slot: int, prompt: Prompt, piece: Converse, max_tokens: int) -> Job:
        import torch
        from transformers import LogitsProcessorList
        from transformers.generation import logits_process as bending

        from duologue.engine.stages.language.batching import Job

        samples = bool(self._defaults.do_sample)
        values = {
            "temperature": (self._defaults.temperature or 1.0) if samples else 0.0,
            "top_k": self._defaults.top_k if samples else None,
            "top_p": self._defaults.top_p if samples else None,
            "min_p": self._defaults.min_p if samples else None,
            "repetition_penalty": self._defaults.repetition_penalty,
        } | self._sampling.given(piece)
        processors = LogitsProcessorList()
        generator = None
        if values["repetition_penalty"] not in (None, 1.0):
            processors.append(bending.RepetitionPenaltyLogitsProcessor(float(values["repetition_penalty"])))
        if values["temperature"] > 0:
            generator = torch.Generator(self._model.device)
            generator.manual_seed(values["seed"]) if "seed" in values else generator.seed()
            processors.append(bending.TemperatureLogitsWarper(float(values["temperature"])))
            if values["top_k"]:
                processors.append(bending.TopKLogitsWarper(int(values["top_k"])))
            if values["top_p"] is not None and values["top_p"] < 1:
                processors.append(bending.TopPLogitsWarper(float(values["top_p"])))
            if values["min_p"]:
                processors.append(bending.MinPLogitsWarper(float(values["min_p"])))
        return Job(slot, prompt, max_tokens, processors, generator)


class _Pictures:
    """Turns pictures into what the language part of the model reads in their place."""

    def __init__(self, model: Any, processor: Any) -> None:
        """Raises ``ModelUnavailable`` for a model that needs more of a picture than what stands in its place."""
        vision = model.config.vision_config
        if getattr(vision, "deepstack_visual_indexes", None) or "token_type_ids" in processor.model_input_names:
            raise ModelUnavailable(
                f"Pictures of a '{model.config.model_type}' are not supported by the backend 'transformers'; "
                "try 'vllm', or images: false."
            )
        self._model = model
        self._processor = processor
        self._token = model.config.image_token_id
        self._positions = getattr(model.model, "get_rope_index", None)
        self.axes = 3 if self._positions is not None else 1
        """Numbers in the position of a token."""
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()

    def prompt(self, text: str, parts: list[ImagePart]) -> Prompt:
        """A prompt in whose text a placeholder stands for each picture. Raises ``ValueError`` for one that cannot be
        read."""
        import torch

        from duologue.engine.stages.language.batching import Prompt

        images = [opened(part) for part in parts]
        read = self._processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False)
        tokens = read["input_ids"][0].tolist()
        names = [hashlib.sha256(part.data).hexdigest() for part in parts]
        seen = [self._features(name, image) for name, image in zip(names, images, strict=True)]
        spans = iter([(name, n) for name, features in zip(names, seen, strict=True) for n in range(len(features))])
        if tokens.count(self._token) != sum(map(len, seen)):
            raise RuntimeError("the model's processor and its vision part disagree on the size of a picture")
        keys = [next(spans) if token == self._token else token for token in tokens]
        positions, shift = None, 0
        if self._positions is not None:
            placed = {name: value for name, value in read.items() if name in ("mm_token_type_ids", "image_grid_thw")}
            axes, shifts = self._positions(read["input_ids"], **placed)
            positions, shift = axes[:, 0].to(self._model.device), int(shifts.reshape(-1)[0])
        return Prompt(tokens, keys, torch.cat(seen), self._token, positions, shift)

    def _features(self, name: str, image: Any) -> torch.Tensor:
        """``[tokens, hidden]`` of one picture; that of a known one is kept."""
        import torch

        if name not in self._kept:
            inputs = self._processor.image_processor(images=[image], return_tensors="pt")
            arguments = {
                key: value.to(self._model.device)
                for key, value in inputs.items()
                if key.startswith(("pixel_", "image_")) and hasattr(value, "to")
            }
            with torch.inference_mode():
                found = self._model.get_image_features(**arguments).pooler_output
            self._kept[name] = torch.cat([part.reshape(-1, part.shape[-1]) for part in found])
            if len(self._kept) > _PICTURES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]


def _load_model(loader: Any, place: str, dtype: str) -> Any:
    """With the attention that takes masks of any shape and is fast; for a model that has only the plain one, that."""
    try:
        return loader.from_pretrained(place, dtype=dtype, attn_implementation="sdpa")
    except ValueError:
        return loader.from_pretrained(place, dtype=dtype, attn_implementation="eager")


def _tokens(job: Job) -> Iterator[int]:
    """What is written, until the end. Raises what went wrong."""
    while (token := job.written.get()) is not None:
        if isinstance(token, BaseException):
            raise token
        yield token
