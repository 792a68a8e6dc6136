"""The packaged voice, without a server around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from duologue.engine.requests import AudioDelta, EngineRequest, Speak
from duologue.engine.stages.codec import HarmonicNoiseCodec
from duologue.engine.stages.talker import HibariTalker


class _Kept:
    """A stage context that keeps what is emitted, and hands it on."""

    def __init__(self, request: EngineRequest, then: Callable[[Any], None] = lambda piece: None) -> None:
        self.request, self.then, self.pieces, self.aborted = request, then, [], False
        self.outranked = False
        self.left_s = math.inf

    def emit(self, piece: Any) -> bool:
        self.pieces.append(piece)
        self.then(piece)
        return True

    def made(self, seconds: float) -> None:
        """How urgent it is does not matter here."""


def synthesised(text: str, seed: int = 1) -> list[AudioDelta]:
    """``text`` as talker and codec speak it, with the map of its words."""
    talker, codec, payload = HibariTalker(), HarmonicNoiseCodec(), Speak(text=text, seed=seed)
    talker.load()
    sound = _Kept(EngineRequest(request_id="r", session_id="s", payload=payload))
    reply = codec.start(sound.request)
    clauses = _Kept(sound.request, lambda piece: codec.process(reply, piece, sound))
    talk = talker.start(clauses.request)
    talker.process(talk, payload, clauses)
    talker.finish(talk, clauses)
    codec.finish(reply, sound)
    talker.close()
    return [piece for piece in sound.pieces if isinstance(piece, AudioDelta)]
