"""The server of ``tests/realtime`` is served here as well, with the media of calls in its process or in workers."""

from __future__ import annotations
