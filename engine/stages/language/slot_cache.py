"""The keys and values of all sessions of a transformers model, in fixed slots, each as long as its session needs.

A forward pass works on some slots (``rows``) at positions of their own, so sessions of any length share one batch. What
a slot holds beyond the positions that a row may look at is never read: the mask hides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_LENGTH: Final = 256
"""Tokens that the slots have room for at first; doubled as needed."""
ATTENTION: Final = frozenset({"full_attention", "sliding_attention"})


class Plan:
    """Which rows a forward pass works on; shared by all layers and set before each pass."""

    def __init__(self) -> None:
        self.rows: torch.Tensor = torch.zeros(0, dtype=torch.long)
        """``[batch]``: the slot of each row."""
        self.span: slice | None = None
        """The same slots if they follow each other: a view of them is no copy, and needs no word from the device."""
        self.positions: torch.Tensor = torch.zeros(0, 0, dtype=torch.long)
        """``[batch, queries]``: where in its slot each token goes."""
        self.length = 0
        """Tokens that the longest row looks at."""


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values: ``[slots, heads, tokens, dimension]``."""

    is_sliding = False

    def __init__(self, slots: int, plan: Plan) -> None:
        super().__init__()
        self._slots = slots
        self._plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Room for the first tokens, in the shape of what comes."""
        self.keys = _room(key_states, self._slots, _FIRST_LENGTH)
        self.values = _room(value_states, self._slots, _FIRST_LENGTH)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[batch, heads, queries, dimension]``; all that the rows may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self._plan
        while plan.length > self.keys.shape[2]:
            self.keys, self.values = _doubled(self.keys), _doubled(self.values)
        where = (plan.rows[:, None], slice(None), plan.positions)
        self.keys[where] = key_states.transpose(1, 2)
        self.values[where] = value_states.transpose(1, 2)
        rows = plan.rows if plan.span is None else plan.span
        return self.keys[rows, :, : plan.length], self.values[rows, :, : plan.length]

    def copy(self, source: int, target: int, length: int) -> None:
        """The first tokens of one slot become those of another."""
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset; not used, since masks are made here."""
        return self._plan.length, 0

    def get_seq_length(self) -> int:
        """Tokens before those of this pass, of the longest row."""
        return self._plan.length - self._plan.positions.shape[1]

    def get_max_length(self) -> int:
        """No maximum."""
        return -1


class SlotCache(Cache):
    """The cache of a model with ``slots`` slots."""

    def __init__(self, config: PreTrainedConfig, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``ValueError`` for a model with layers that are not attention: their state cannot be cut back."""
        kinds = set(getattr(config, "layer_types", None) or ())
        if kinds - ATTENTION:
            raise ValueError(f"layers of type {', '.join(sorted(kinds - ATTENTION))} are not supported by this backend")
        self.plan = Plan()
        super().__init__(layers=[SlotLayer(slots, self.plan) for _ in range(config.num_hidden_layers)])
        self._device, self._dtype = device, dtype
        self._by_kind = "sliding_attention" in kinds
        all_slide = not kinds and getattr(config, "use_sliding_window", True)
        window = getattr(config, "sliding_window", None)
        self._window = window if self._by_kind or all_slide else None

    def prepare(self, rows: Sequence[int], starts: Sequence[int], queries: int) -> tuple[torch.Tensor, Any]:
        """Set the plan for a pass over ``queries`` tokens in each of ``rows``, from position ``starts`` on.

        Returns the positions ``[batch, queries]`` and the attention mask ``[batch, 1, queries, tokens]``, added to the
        scores; for models with two kinds of layers one mask for each.
        """
        starts_tensor = torch.tensor(starts, device=self._device)
        positions = starts_tensor[:, None] + torch.arange(queries, device=self._device)
        plan = self.plan
        plan.rows = torch.tensor(rows, device=self._device)
        last = rows[0] + len(rows)
        plan.span = slice(rows[0], last) if list(rows) == list(range(rows[0], last)) else None
        plan.positions = positions
        plan.length = max(starts) + queries
        distance = positions[:, :, None] - torch.arange(plan.length, device=self._device)
        seen = distance >= 0
        if self._window is None:
            return positions, self._mask(seen)
        near = seen & (distance < self._window)
        if not self._by_kind:
            return positions, self._mask(near)
        return positions, {"full_attention": self._mask(seen), "sliding_attention": self._mask(near)}

    def copy(self, source: int, target: int, length: int) -> None:
        """The first ``length`` tokens of one slot become those of another."""
        for layer in self.layers:
            assert isinstance(layer, SlotLayer)
            layer.copy(source, target, length)

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~seen, torch.finfo(self._dtype).min)[:, None]


def _room(like: torch.Tensor, slots: int, length: int) -> torch.Tensor:
    _, heads, _, dimension = like.shape
    return torch.zeros(slots, heads, length, dimension, dtype=like.dtype, device=like.device)


def _doubled(old: torch.Tensor) -> torch.Tensor:
    new = _room(old, old.shape[0], 2 * old.shape[2])
    new[:, :, : old.shape[2]] = old
    return new
