"""The vocabularies that clients speak, each a pair of pure functions over one session core (D6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from duologue.realtime import wire
from duologue.realtime.dialects import beta
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.server_events import ServerEvent
from duologue.sessions.translation_events import AnyTranslationEvent


@dataclass(frozen=True)
class Dialect:
    """One connection speaks one dialect, chosen at its handshake."""

    decode: Callable[[str | bytes], ClientEvent | InvalidEvent]
    """The client event in a text frame; never raises."""
    encode: Callable[[ServerEvent], Sequence[bytes]]
    """The text frames, in UTF-8, that say a server event: one, or none, or two where the dialect divides it."""


GA = Dialect(decode=partial(wire.decode_as, wire.GA), encode=wire.frames)
BETA = Dialect(decode=beta.decode, encode=beta.encode)

_TRANSLATION_HINTS = {
    "input_audio_buffer.append": "A translation session takes 'session.input_audio_buffer.append'.",
    "response.create": "A translation session answers nothing; it translates as it is spoken to.",
}
TRANSLATION = Dialect(
    decode=partial(wire.decode_as, wire.Vocabulary.of(AnyTranslationEvent, _TRANSLATION_HINTS)), encode=GA.encode
)
