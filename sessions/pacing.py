"""Pacing: what the engine makes of an answer is held back until its sound is due at the client.

Without pacing a whole answer is handed to the client as fast as it is made, and only the client can stop it. With a
*lead* no more than so many seconds of sound are ever ahead of what is heard, so that a client that cannot clear its
queue falls silent within the lead, and so that an answer can pause and go on at the very next sample. Everything keeps
its order: words and calls that the engine made after a sound wait behind it.
"""

from __future__ import annotations

import math
from collections import deque

from msgspec.structs import replace

from duologue.codecs.fade import fade_samples, faded_in, faded_out
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, AudioDelta, Finished
from duologue.sessions.effects import EngineOutput
from duologue.sessions.playout import PlayoutLedger

PIECE_S = 0.04
"""Sound goes out in pieces of this length: 25 events a second, and no pause is late by more."""
PIECE = round(PIECE_S * OUTPUT_SAMPLE_RATE)
FADE = fade_samples(OUTPUT_SAMPLE_RATE)
_ROUNDING_S = 1e-6


class Pacer:
    """The held rest of the one answer that is being spoken."""

    def __init__(self, ledger: PlayoutLedger) -> None:
        self._ledger = ledger
        self.held: deque[EngineOutput] = deque()
        """For others to see whether there is anything."""
        self._at = 0
        """Bytes of the sound at the front that have gone out."""
        self._faded = False
        self.paused = False
        self.held_bytes = 0
        """Sound that is held, PCM16."""

    @property
    def holds_end(self) -> bool:
        """Whether the engine has made the answer to its end, and that is held."""
        return bool(self.held) and isinstance(self.held[-1].delta, Finished)

    def put(self, output: EngineOutput) -> None:
        self.held.append(output)
        if isinstance(output.delta, AudioDelta):
            self.held_bytes += len(output.delta.pcm)

    def clear(self) -> None:
        """The answer is over: forget what is held."""
        self.held.clear()
        self._at = self.held_bytes = 0
        self.paused = self._faded = False

    def pause(self) -> EngineOutput | None:
        """Hold everything back. Returns a last piece that fades away, unless there is no sound at hand."""
        self.paused = True
        if not self.held or not isinstance(self.held[0].delta, AudioDelta):
            return None
        piece = self._cut(self.held[0], self.held[0].delta, FADE)
        assert isinstance(piece.delta, AudioDelta)
        self._faded = True
        return replace(piece, delta=replace(piece.delta, pcm=faded_out(piece.delta.pcm, FADE)))

    def resume(self) -> None:
        """Go on with the sample after the last that went out."""
        self.paused = False

    def next(self, item_id: str, lead_s: float, now: float) -> EngineOutput | None:
        """What may go out now of the answer whose sound belongs to ``item_id``."""
        if self.paused or not self.held:
            return None
        output = self.held[0]
        if not isinstance(output.delta, AudioDelta):
            return self.held.popleft()
        if self._ledger.ahead_s(item_id, now) >= lead_s - _ROUNDING_S:
            return None
        piece = self._cut(output, output.delta, PIECE)
        if self._faded:
            self._faded = False
            assert isinstance(piece.delta, AudioDelta)
            piece = replace(piece, delta=replace(piece.delta, pcm=faded_in(piece.delta.pcm, FADE)))
        return piece

    def due(self, item_id: str, lead_s: float, now: float) -> float:
        """When :meth:`next` is worth asking again."""
        if self.paused or not self.held:
            return math.inf
        return now + max(0.0, self._ledger.ahead_s(item_id, now) - (lead_s - PIECE_S))

    def _cut(self, output: EngineOutput, sound: AudioDelta, samples: int) -> EngineOutput:
        """The next piece of the sound at the front; the words of the whole go with its first."""
        pcm = sound.pcm[self._at : self._at + samples * 2]
        words = sound.words if not self._at else ()
        self._at += len(pcm)
        self.held_bytes -= len(pcm)
        if self._at >= len(sound.pcm):
            self.held.popleft()
            self._at = 0
        return replace(output, delta=AudioDelta(pcm=pcm, words=words))
