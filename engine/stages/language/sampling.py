"""How tokens are chosen, for backends whose models bring good defaults of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from duologue.engine.requests import Converse


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The deploy file's ``sampling``; None: as the model or its server likes."""

    temperature: float | None = None
    """0: always the likeliest token."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def given(self, piece: Converse) -> dict[str, Any]:
        """The values that are set, those of the request above those of the file, ``seed`` with them."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if piece.temperature is not None:
            values["temperature"] = piece.temperature
        if piece.seed is not None:
            values["seed"] = piece.seed % 2**32
        return values


def read_sampling(values: Mapping[str, Any] | None) -> Sampling:
    """Raises ``ValueError`` for a value that is unknown or of the wrong type."""
    try:
        return msgspec.convert(dict(values or {}), Sampling)
    except msgspec.ValidationError as error:
        raise ValueError(f"sampling: {error}") from error
