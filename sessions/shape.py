"""The base of what clients and the server's configuration set."""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings: they are replaced, never changed, and have no unknown fields."""
