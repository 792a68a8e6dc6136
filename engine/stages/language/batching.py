"""Continuous batching of a transformers model: requests of any length join and leave between two steps.

The library has a continuous batching of its own, for text on a paged cache. It is not used here because it takes no
pictures, does not say how many tokens it found cached, knows no seed per request, and wakes up ten times a second when
there is nothing to do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from duologue.engine.stages.language.slot_cache import SlotCache

SLICE: Final = 64
"""Prompt tokens read in one go; then every other request writes a token, and an abort is noticed."""
SLICE_ACCELERATOR: Final = 512
"""The same on an accelerator, which takes about as long for these as for one."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """What is to be read."""

    tokens: list[int]
    keys: Sequence[object]
    """What tells each token apart for the cache: the token, and for one of a picture also which picture."""
    pictures: torch.Tensor | None = None
    """``[tokens of pictures, hidden]``: what the model sees at ``picture_token``, in order."""
    picture_token: int = -1
    positions: torch.Tensor | None = None
    """``[axes, tokens]`` for models whose positions are more than a number; None: 0, 1, 2 ..."""
    shift: int = 0
    """Added to the positions of what is written."""

    @property
    def picture_tokens(self) -> int:
        return 0 if self.pictures is None else len(self.pictures)


@dataclass(eq=False)
class Job:
    """One request. Everything but ``cancelled`` belongs to the batch's thread once it is submitted."""

    slot: int
    prompt: Prompt
    max_tokens: int
    processors: LogitsProcessorList
    """How scores are bent before a token is chosen."""
    generator: torch.Generator | None
    """To draw with; None: the likeliest token is taken."""
    written: SimpleQueue[int | BaseException | None] = field(default_factory=SimpleQueue)
    """Tokens, then None at the end; or what went wrong."""
    cancelled: bool = False
    cached: int = 0
    """Prompt tokens that had been read before."""
    read: int = 0
    """Prompt tokens that are read by now."""
    tokens: list[int] = field(default_factory=list)
    """Written so far."""
    reached_limit: bool = False

    @property
    def reading(self) -> bool:
        return self.read < len(self.prompt.tokens)


class Batch:
    """Runs the model on a thread of its own. ``submit`` and ``cancel`` may be called from any other.

    A cancelled request costs at most the step that runs: a slice of a prompt and one token of each other request.
    """

    def __init__(self, model: PreTrainedModel, slots: int, end_tokens: frozenset[int]) -> None:
        """Raises ``ValueError`` for a model that cannot be batched here."""
        config = model.config.get_text_config()
        self._model = model
        self._end_tokens = end_tokens
        self._axes = 1
        self._slice = SLICE if model.device.type == "cpu" else SLICE_ACCELERATOR
        self._cache = SlotCache(config, slots, model.device, model.dtype)
        self._kept: list[list[object]] = [[] for _ in range(slots)]
        """Keys of the tokens that each slot holds."""
        self._submitted: deque[Job] = deque()
        self._jobs: list[Job] = []
        self._turn = 0
        self._changed = threading.Condition()
        self._closed = False
        self.slices_read = 0
        """Counts forward passes over prompts."""
        self.steps = 0
        """Counts forward passes that write."""
        self._thread = threading.Thread(target=self._run, name="transformers batch", daemon=True)

    def start(self, axes: int = 1) -> None:
        """``axes``: numbers in a position."""
        self._axes = axes
        self._thread.start()

    def submit(self, job: Job) -> None:
        """A slot that another job is using is waited for."""
        with self._changed:
            self._submitted.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Leaves what was read cached. Idempotent."""
        job.cancelled = True
        job.written.put(None)
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """End what runs, and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # -- on the thread -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        while self._take_jobs():
            reading = [job for job in self._jobs if job.reading]
            writing = [job for job in self._jobs if not job.reading]
            if writing:
                self._guarded(writing, self._write)
            if reading:
                self._turn += 1
                self._guarded([reading[self._turn % len(reading)]], self._read)
        for job in (*self._jobs, *self._submitted):
            job.written.put(None)

    def _take_jobs(self) -> bool:
        """Wait until there is something to do. False: closed."""
        with self._changed:
            while True:
                if self._closed:
                    return False
                self._jobs = [job for job in self._jobs if not job.cancelled]
                waiting, busy = deque[Job](), {job.slot for job in self._jobs}
                for job in self._submitted:
                    if job.cancelled:
                        continue
                    if job.slot in busy:
                        waiting.append(job)
                    else:
                        busy.add(job.slot)
                        self._begin(job)
                self._submitted = waiting
                if self._jobs:
                    return True
                self._changed.wait()

    def _begin(self, job: Job) -> None:
        """Find how much of the prompt is cached: in the job's slot, else in another one."""
        keys, most = job.prompt.keys, len(job.prompt.tokens) - 1
        own = _common(keys, self._kept[job.slot], most)
        source = max(range(len(self._kept)), key=lambda slot: _common(keys, self._kept[slot], most))
        shared = _common(keys, self._kept[source], most)
        if shared > own:
            self._cache.copy(source, job.slot, shared)
        job.cached = job.read = max(own, shared)
        self._kept[job.slot] = list(keys[: job.read])
        self._jobs.append(job)

    def _guarded(self, jobs: list[Job], step: Callable[[list[Job]], None]) -> None:
        try:
            step(jobs)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for these requests
            for job in jobs:
                self._kept[job.slot] = []
                self._end(job, error)

    def _read(self, jobs: list[Job]) -> None:
        """The next slice of one prompt; with the last one, its first token."""
        (job,) = jobs
        prompt, start = job.prompt, job.read
        end = min(start + self._slice, len(prompt.tokens))
        ids = torch.tensor([prompt.tokens[start:end]], device=self._model.device)
        inputs: dict[str, Any] = {"input_ids": ids}
        seen = ids[0] == prompt.picture_token
        if prompt.pictures is not None and bool(seen.any()):
            first = sum(token == prompt.picture_token for token in prompt.tokens[:start])
            embedded = self._model.get_input_embeddings()(ids)
            embedded[0, seen] = prompt.pictures[first : first + int(seen.sum())].to(embedded)
            inputs = {"inputs_embeds": embedded}
        places = None if prompt.positions is None else prompt.positions[:, None, start:end]
        scores = self._forward([job], [start], end - start, inputs, places)
        self.slices_read += 1
        job.read = end
        self._kept[job.slot] += prompt.keys[start:end]
        if not job.reading:
            self._choose(job, scores[0], int(scores[0].argmax()))

    def _write(self, jobs: list[Job]) -> None:
        """One more token of each. What is likeliest is fetched for all at once: each fetch waits for the device."""
        jobs = sorted(jobs, key=lambda job: job.slot)
        starts = [len(job.prompt.tokens) + len(job.tokens) - 1 for job in jobs]
        ids = torch.tensor([[job.tokens[-1]] for job in jobs], device=self._model.device)
        shifts = torch.tensor([job.prompt.shift for job in jobs], device=self._model.device)
        places = (torch.tensor(starts, device=self._model.device) + shifts)[None, :, None].expand(self._axes, -1, -1)
        scores = self._forward(jobs, starts, 1, {"input_ids": ids}, places)
        self.steps += 1
        for job, row, likeliest in zip(jobs, scores, scores.argmax(-1).tolist(), strict=True):
            self._kept[job.slot].append(job.tokens[-1])
            self._choose(job, row, likeliest)

    def _forward(
        self, jobs: list[Job], starts: list[int], queries: int, inputs: dict[str, Any], places: torch.Tensor | None
    ) -> torch.Tensor:
        """Scores ``[batch, vocabulary]`` of the last token of each row."""
        positions, mask = self._cache.prepare([job.slot for job in jobs], starts, queries)
        if places is None:
            places = positions[None].expand(self._axes, -1, -1)
        result = self._model(
            **inputs,
            attention_mask=mask,
            position_ids=places[0] if self._axes == 1 else places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return result.logits[:, -1].float()

    def _choose(self, job: Job, scores: torch.Tensor, likeliest: int) -> None:
        """Draw the next token and hand it on."""
        if job.cancelled:
            return
        token = likeliest
        if job.processors:
            so_far = torch.tensor([job.prompt.tokens + job.tokens], device=scores.device)
            scores = job.processors(so_far, scores[None])[0]
        if job.generator is not None:
            token = int(torch.multinomial(scores.softmax(-1), 1, generator=job.generator))
        elif job.processors:
            token = int(scores.argmax())
        job.tokens.append(token)
        if token in self._end_tokens:
            self._end(job, None)
            return
        job.written.put(token)
        if len(job.tokens) >= job.max_tokens:
            job.reached_limit = True
            self._end(job, None)

    def _end(self, job: Job, error: Exception | None) -> None:
        job.written.put(error)
        with self._changed:
            job.cancelled = True


def _common(keys: Sequence[object], kept: Sequence[object], most: int) -> int:
    """Tokens at the head of both, ``most`` at most."""
    length = 0
    for wanted, held in zip(keys[:most], kept, strict=False):
        if wanted != held:
            break
        length += 1
    return length
