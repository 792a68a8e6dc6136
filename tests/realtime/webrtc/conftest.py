"""The server of ``tests/realtime`` is served here as well."""

from __future__ import annotations
