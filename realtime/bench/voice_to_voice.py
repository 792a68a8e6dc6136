"""The measure that people feel: from the last sound of the user to the first sound of the answer, and its parts.

All parts are differences of what the client itself saw, so they add up to the whole. A part may be negative (a server
may send the answer's text before the transcript of the question) and is kept as it is.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.levels import first_audible_sample, last_audible_sample
from duologue.realtime.bench.conversation import SeenResponse, Turn
from duologue.realtime.bench.playback import Player


class VoiceSplit(msgspec.Struct, frozen=True):
    """Voice-to-voice time and its parts in milliseconds; ``None`` where an end point was not seen."""

    v2v_ms: float | None
    silence_window_ms: float | None
    recogniser_tail_ms: float | None
    first_clause_ms: float | None
    first_audio_ms: float | None
    leading_silence_ms: float | None


def voice_split(user_stop_s: float, turn: Turn, response: SeenResponse, audible_s: float | None) -> VoiceSplit:
    """The split of one answered turn. ``audible_s`` is when its first audible sample is heard."""
    marks = (
        user_stop_s,
        turn.stopped_s,
        turn.transcribed_s,
        response.first_text_s,
        response.first_audio_s,
        audible_s,
    )
    parts = [_ms(later, earlier) for earlier, later in pairwise(marks)]
    return VoiceSplit(_ms(audible_s, user_stop_s), *parts)


def response_audio(response: SeenResponse, audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """All audio received for a response, out of the audio of its connection."""
    if not response.audio:
        return np.zeros(0, np.float32)
    return np.concatenate([audio[chunk.offset : chunk.offset + chunk.samples] for chunk in response.audio])


def first_heard_s(player: Player, response: SeenResponse, audio: NDArray[np.float32]) -> float | None:
    """When the first audible sample of the response sounds; ``None`` if it never does."""
    first = first_audible_sample(_heard(player, response, audio), player.rate)
    return None if first is None else player.time_of(response.response_id, first)


def last_heard_s(player: Player, response: SeenResponse, audio: NDArray[np.float32]) -> float | None:
    """When the last audible sample of the response that was heard ends; ``None`` if nothing was."""
    last = last_audible_sample(_heard(player, response, audio), player.rate)
    if last is None:
        return None
    start = player.time_of(response.response_id, last - 1)
    return None if start is None else start + 1 / player.rate


def _heard(player: Player, response: SeenResponse, audio: NDArray[np.float32]) -> NDArray[np.float32]:
    return response_audio(response, audio)[: player.heard_samples(response.response_id)]


def _ms(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else round((later - earlier) * 1000, 3)
