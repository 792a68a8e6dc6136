"""What a telephone caller has heard, known by marks: pure bookkeeping, driven by ``(event, now)``.

A provider buffers all sound that it is sent, plays it in its own time, and says when a *mark* between two pieces has
been reached. So sound goes out in pieces of 100 ms, each with a mark behind it; a mark that comes back means that its
piece has been played, and from there on the clock counts until the next one comes. When the provider is told to clear
its buffer, marks of what it drops come back too: they are void.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from duologue.codecs.wire_audio import WireEncoder
from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.sessions.effects import AudioSent, PlayoutCleared, PlayoutReport, PlayoutStarted, PlayoutStopped

PIECE_SAMPLES: Final = OUTPUT_SAMPLE_RATE // 10
"""Sound between two marks: 100 ms."""
PATIENCE_S: Final = 2.0
"""A mark that is so much later than the clock says has been lost: its piece counts as played."""

_PCM: Final = 2


@dataclass(frozen=True)
class Message:
    """What is to be sent: sound (G.711 mu-law), or a mark, or with neither the order to clear."""

    ulaw: bytes = b""
    mark: str = ""


@dataclass
class _Piece:
    mark: str
    response_id: str
    item_id: str
    samples: int
    """At 24 kHz. 0: no sound, only the mark behind the last of a response."""
    due: float
    """When it will have been played, by the clock."""
    last: bool = False
    told: int = 0
    """Samples that were reported as played."""


@dataclass
class MarkedPlayout:
    """Sound on its way to one caller. Samples are counted at 24 kHz, as the session does."""

    reports: deque[PlayoutReport] = field(default_factory=deque)
    """What has happened since the last look; whoever calls takes it out."""

    def __post_init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._encoder = WireEncoder("pcmu")
        self._number = 0
        self._playing: str | None = None
        """The response whose sound is being played."""
        self._reached_at = 0.0
        """When the piece at the head began to play."""

    @property
    def queued_bytes(self) -> int:
        """PCM16 bytes that have not been played."""
        return sum(piece.samples - piece.told for piece in self._pieces) * _PCM

    def play(self, response_id: str, item_id: str, pcm: bytes, now: float) -> list[Message]:
        """PCM16 at 24 kHz of an item, as messages to be sent in order."""
        messages = []
        for first in range(0, len(pcm), PIECE_SAMPLES * _PCM):
            part = pcm[first : first + PIECE_SAMPLES * _PCM]
            messages += self._add(response_id, item_id, self._encoder.encode(part), len(part) // _PCM, now)
        return messages

    def finish(self, response_id: str, now: float) -> list[Message]:
        """Nothing more of a response follows."""
        held = self._encoder.flush()
        if not any(piece.response_id == response_id for piece in self._pieces) and self._playing != response_id:
            return []
        messages = self._add(response_id, "", held, 0, now)
        self._pieces[-1].last = True
        return messages

    def clear(self, now: float) -> list[Message]:
        """Be silent now. What has been heard of the piece that was being played is reported before."""
        self._encoder.flush()
        dropped = dict.fromkeys(piece.response_id for piece in self._pieces)
        self._advance(now)
        if self._playing is not None:
            dropped = {self._playing: None, **dropped}
        self._pieces.clear()
        self.reports.extend(PlayoutCleared(response_id) for response_id in dropped if response_id == self._playing)
        self._playing = None
        return [Message()] if dropped else []

    def reached(self, mark: str, now: float) -> None:
        """A mark has come back. One that is unknown, void, or a second time here, says nothing."""
        if any(piece.mark == mark for piece in self._pieces):
            while self._pieces:
                done = self._pieces[0].mark == mark
                self._pop(now)
                if done:
                    break

    def settle(self, now: float) -> None:
        """Report what has been played by the clock, and give marks up that are long overdue. To be called often."""
        self._advance(now)
        while self._pieces and now > self._pieces[0].due + PATIENCE_S:
            self._pop(now)

    def _add(self, response_id: str, item_id: str, ulaw: bytes, samples: int, now: float) -> list[Message]:
        if not self._pieces:
            self._reached_at = now
        begins = max(now, self._pieces[-1].due) if self._pieces else now
        self._number += 1
        piece = _Piece(str(self._number), response_id, item_id, samples, begins + samples / OUTPUT_SAMPLE_RATE)
        self._pieces.append(piece)
        if len(self._pieces) == 1 and samples:
            self._begin(response_id)
        return [*([Message(ulaw=ulaw)] if ulaw else []), Message(mark=piece.mark)]

    def _pop(self, now: float) -> None:
        piece = self._pieces.popleft()
        self._reached_at = now
        self._tell(piece, piece.samples)
        if piece.last and self._playing == piece.response_id:
            self.reports.append(PlayoutStopped(piece.response_id))
            self._playing = None
        if self._pieces and self._pieces[0].samples:
            self._begin(self._pieces[0].response_id)

    def _advance(self, now: float) -> None:
        """Marks of what was played may still be on their way: until they come the clock counts."""
        left = round(max(0.0, now - self._reached_at) * OUTPUT_SAMPLE_RATE)
        for piece in self._pieces:
            if left <= 0:
                break
            self._tell(piece, min(piece.samples, left))
            left -= piece.samples

    def _tell(self, piece: _Piece, played: int) -> None:
        """So much of a piece has been played in all."""
        if played > piece.told:
            self._begin(piece.response_id)
            self.reports.append(AudioSent(piece.item_id, played - piece.told))
            piece.told = played

    def _begin(self, response_id: str) -> None:
        if self._playing == response_id:
            return
        if self._playing is not None:  # two at once: what was not finished is over when the next is heard
            self.reports.append(PlayoutStopped(self._playing))
        self._playing = response_id
        self.reports.append(PlayoutStarted(response_id))
