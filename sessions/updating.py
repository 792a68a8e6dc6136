"""``session.update``: what may change, when, and what has been fixed for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from duologue.engine.languages import primary
from duologue.sessions import server_events as events
from duologue.sessions.answering import Answering
from duologue.sessions.config import (
    AnySession,
    RealtimeSession,
    Transcription,
    TranscriptionSession,
    merged,
    shown,
)
from duologue.sessions.core import SessionContext, SessionCore
from duologue.sessions.errors import ProtocolError
from duologue.sessions.listening import Listening
from duologue.sessions.response_settings import check_tools
from duologue.sessions.stored_prompts import rendered


@dataclass(frozen=True)
class Bound:
    """What the handshake has fixed; the rest is fixed by the first ``session.update`` that names it."""

    type: bool
    model: bool


class SettingsUpdates:
    """Owns what of a session can no longer change."""

    def __init__(self, core: SessionCore, answering: Answering, listening: Listening, bound: Bound) -> None:
        self._core = core
        self._answering = answering
        self._listening = listening
        self._type_bound = bound.type
        self._model_bound = bound.model

    def apply(self, patch: dict[str, Any], now: float) -> None:
        """Merge ``patch`` in. Raises ``ProtocolError``, and then nothing has changed (O2)."""
        core, before = self._core, self._core.session
        present = self._of_type(before, patch.get("type"))
        after = with_prompt(core.context, merged(present, patch), patch)
        self._check(before, after)
        core.session = after
        core.settings_version += 1
        self._type_bound = True
        self._model_bound = self._model_bound or "model" in patch
        core.emit(events.SessionUpdated, session=shown(after))
        if isinstance(after, RealtimeSession):
            self._answering.responses.remote.offered(after.tools)
        detection_changed = after.audio.input.turn_detection != before.audio.input.turn_detection
        self._listening.settings_changed(detection_changed=detection_changed, now=now)
        self._answering.get_ready()

    def _of_type(self, session: AnySession, kind: object) -> AnySession:
        """The session as one for transcription where its first update says so."""
        untouched = not self._type_bound and not len(self._core.conversation) and not self._answering.working
        if kind == "transcription" and untouched and isinstance(session, RealtimeSession):
            return TranscriptionSession.of(session)
        return session

    def _check(self, before: AnySession, after: AnySession) -> None:
        check_settings(self._core.context, after)
        if not (isinstance(before, RealtimeSession) and isinstance(after, RealtimeSession)):
            return
        names = self._core.context.names
        was, is_now = (names.resolve("models", session.model, "session.model") for session in (before, after))
        if self._model_bound and was != is_now:
            raise ProtocolError("invalid_value", "The model of a session cannot be changed.", "session.model")
        if after.audio.output.voice != before.audio.output.voice and self._answering.responses.voice_used:
            message = "The voice cannot be changed once the session has produced audio."
            raise ProtocolError("cannot_update_voice", message, "session.audio.output.voice")
        if after.audio.output.speed != before.audio.output.speed and self._answering.responding:
            message = "The speed can only be changed between turns."
            raise ProtocolError("invalid_value", message, "session.audio.output.speed")
        if before.tracing is not None and after.tracing != before.tracing:
            raise ProtocolError("invalid_value", "Tracing cannot be changed once it is on.", "session.tracing")


def with_prompt(context: SessionContext, session: AnySession, patch: dict[str, Any]) -> AnySession:
    """``session`` with the text of a prompt that ``patch`` names as its instructions, unless it has instructions too.

    Raises ``ProtocolError`` that names the field.
    """
    if not isinstance(session, RealtimeSession) or session.prompt is None or "prompt" not in patch:
        return session
    text = rendered(context.prompts, session.prompt, "session.prompt")
    return session if "instructions" in patch else replace(session, instructions=text)


def check_settings(context: SessionContext, session: AnySession) -> None:
    """Raises ``ProtocolError`` for what is well-formed but cannot be served, naming the field."""
    names = context.names
    if (transcription := session.audio.input.transcription) is not None:
        param = "session.audio.input.transcription.model"
        names.resolve("transcription_models", transcription.model, param)
        check_languages(context, transcription)
    if session.include and not context.gives_logprobs:
        message = "The recogniser that is served here gives no log probabilities."
        raise ProtocolError("invalid_value", message, "session.include")
    if isinstance(session, RealtimeSession):
        names.resolve("models", session.model, "session.model")
        if names.voices:  # a pipeline without a voice answers in writing
            names.resolve("voices", session.audio.output.voice, "session.audio.output.voice")
        check_tools(context, session.tools, session.tool_choice, "session")


def check_languages(context: SessionContext, transcription: Transcription) -> None:
    """Raises ``ProtocolError`` for a language that the recogniser does not know."""
    known, where = context.languages, "session.audio.input.transcription"
    named = [("language", transcription.language)] if transcription.language is not UNSET else []
    several = () if transcription.languages is UNSET else transcription.languages
    named += [(f"languages[{index}]", language) for index, language in enumerate(several)]
    for field, language in named:
        if known is not None and primary(language) not in known:
            others = "English only" if known == {"en"} else ", ".join(sorted(known))
            message = f"The recogniser does not know the language '{language}'. It knows: {others}."
            raise ProtocolError("invalid_value", message, f"{where}.{field}")
