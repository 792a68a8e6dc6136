"""What an actor and a media track say to each other. The track has a clock of its own and plays in its own time."""

from __future__ import annotations

from typing import Protocol

from duologue.engine.requests import ImagePart
from duologue.sessions.effects import PlayoutReport


class MediaListener(Protocol):
    """Who is told what comes over the track, and what left over it. Never waits."""

    def hear(self, pcm: bytes) -> None:
        """Sound of the user: mono PCM16 at 24 kHz."""

    def see(self, picture: ImagePart | None) -> None:
        """A frame of the user's camera or screen; None once nothing is shown any more."""

    def dialled(self, digit: str, received_at: float) -> None:
        """The user has pressed a key of the telephone: one of ``0-9 * # A-D``, at that time (seconds since 1970)."""

    def playout(self, report: PlayoutReport) -> None:
        """What has been played, or will not be."""


class Media(Protocol):
    """The media track of a session."""

    @property
    def queued_bytes(self) -> int:
        """PCM16 bytes that have not been played."""

    def attach(self, listener: MediaListener | None) -> None:
        """Report to ``listener`` from now on; None: to nobody."""

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Queue sound of an item: mono PCM16 at 24 kHz."""

    def finish(self, response_id: str) -> None:
        """Nothing more of a response follows."""

    def clear(self) -> None:
        """Drop what is queued, now."""
