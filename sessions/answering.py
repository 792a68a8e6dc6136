"""Which turns of the user are answered, when, and from what was prepared.

A turn that the detector ended is answered once its words are known; one without words is not answered. While a pause
of the user might be the end, the answer is prepared in secret (:class:`Speculation`): recogniser, language model,
talker and codec run, their output is held back. When the end is confirmed it is released in the same step; when the
user goes on it is aborted, and nothing of it was sent, entered the conversation or is counted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from duologue.engine.requests import OUTPUT_SAMPLE_RATE, ChatMessage, Delta, Finished, TranscriptDelta
from duologue.sessions import server_events as events
from duologue.sessions.client_events import PlaybackAck
from duologue.sessions.config import ResponseOverrides, ServerVad, extends
from duologue.sessions.context_window import ContextTooLong
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbortRequest, EngineOutput
from duologue.sessions.errors import ProtocolError
from duologue.sessions.listening import TurnSound, Utterance
from duologue.sessions.response import ResponseSettings
from duologue.sessions.response_settings import effective_settings
from duologue.sessions.responses import Responses, already_active
from duologue.sessions.transcribing import Spoken, Transcribing, Transcription
from duologue.sessions.turns.silence import pause_ms

SEMANTIC_WINDOW_MS = 500
"""About the silence in which a model decides that a turn is over."""
TRUNCATE_TOLERANCE_MS = 20
"""A truncation may name up to one frame more than was made: clients round."""


@dataclass
class Speculation:
    """An answer in preparation for a turn that has not been confirmed to be over."""

    transcribe_id: str
    seconds: float
    words: Spoken
    transcript: str | None = None
    converse_id: str | None = None
    premise: tuple[int, int] | None = None
    """Versions of conversation and settings that the answer rests on."""
    settings: ResponseSettings | None = None
    due: float = 0.0
    """When the turn will be over if the user stays silent."""
    held: list[EngineOutput] = field(default_factory=list)


class Answering:
    """Owns the speculation and the turn that waits for its answer."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._transcribing = Transcribing(core)
        self.responses = Responses(core, self._transcribing)
        self._speculation: Speculation | None = None
        self._preparation: str | None = None
        """The request by which the history is read while the user speaks."""
        self._unanswered: str | None = None
        self.speculations_wasted = 0

    @property
    def busy(self) -> bool:
        """True while an answer in the conversation is being made or is about to be."""
        return self.responses.active is not None or self._unanswered is not None

    @property
    def responding(self) -> bool:
        return self.responses.active is not None

    @property
    def working(self) -> bool:
        """True while anything is still to be said, out of band too."""
        return self.busy or self.responses.any_in_progress

    @property
    def _answers_turns(self) -> bool:
        detection = self._core.session.audio.input.turn_detection
        return self._core.responds and detection is not None and detection.create_response

    @property
    def _only_transcribes(self) -> bool:
        return not self._core.responds and self._core.session.audio.input.transcription is not None

    # -- turns of the user (TurnListener) ------------------------------------------------------------------------------

    def turn_started(self, now: float) -> None:
        self.responses.disarm_idle_timeout()
        detection = self._core.session.audio.input.turn_detection
        if detection is not None and detection.interrupt_response:
            self._unanswered = None
            self.responses.interrupt(now)
        else:
            self.responses.resume(now)
        self._prepare()

    def turn_heard(self, turn: TurnSound) -> None:
        self._transcribing.heard(turn, ahead=self._prepares_words)

    def turn_paused(self, utterance: Utterance, now: float) -> None:
        if not (self._answers_turns or self._only_transcribes) or self.busy or self._speculation is not None:
            return
        if self._core.context.may_speculate():
            wait_s = self._confirmed_in_s
            request_id, words = self._transcribing.open(utterance, "speculative", due_in_s=wait_s)
            self._speculation = Speculation(request_id, utterance.seconds, words, due=now + wait_s)

    def turn_resumed(self) -> None:
        speculation, self._speculation = self._speculation, None
        if speculation is None:
            return
        self.speculations_wasted += 1
        for request_id in (speculation.transcribe_id, speculation.converse_id):
            if request_id is not None:
                self._core.effects.append(AbortRequest(request_id, "superseded"))

    @property
    def _confirmed_in_s(self) -> float:
        """How long after a pause was noticed the turn is over, if nothing more is said."""
        detection = self._core.session.audio.input.turn_detection
        window_ms = detection.silence_duration_ms if isinstance(detection, ServerVad) else SEMANTIC_WINDOW_MS
        return (window_ms - pause_ms(window_ms)) / 1000

    @property
    def _prepares(self) -> bool:
        return self._answers_turns and not self.busy and self._core.context.prepares

    @property
    def _prepares_words(self) -> bool:
        """Also the turn's first words; with pictures in view the user's message begins with these."""
        return self._prepares and not self._core.view

    def _prepare(self) -> None:
        """What has been said so far is read while the user speaks: it is not waited for at the end of the turn."""
        if not self._prepares:
            return
        self._stop_preparing()
        begun = self._transcribing.begun if self._prepares_words else ""
        with suppress(ContextTooLong, ProtocolError):  # said when the answer is really wanted
            settings = effective_settings(self._core, ResponseOverrides())
            self._preparation = self.responses.requests.prepare(settings, begun)

    def _stop_preparing(self) -> None:
        """The answer itself is asked for. A preparation that came after it would spoil the cache for the next turn."""
        if self._preparation is not None:
            self._core.effects.append(AbortRequest(self._preparation, "superseded"))
            self._preparation = None

    def turn_dropped(self) -> None:
        self.turn_resumed()
        self._transcribing.drop()

    def turn_committed(self, entry: Entry, now: float) -> None:
        if not self._core.responds and self._core.session.audio.input.transcription is None:
            return
        speculation, self._speculation = self._speculation, None
        if speculation is not None and not self._still_holds(speculation):
            self._abandon(speculation)
            speculation.converse_id = None
        if speculation is None:
            self.transcribe(entry)
        elif speculation.transcript is None:
            transcription = Transcription(entry, speculation.seconds, speculation.words)
            self._transcribing.adopt(speculation.transcribe_id, transcription)
        else:
            self._transcribing.complete(entry, speculation.words, speculation.seconds)
        if not self._answers_turns:
            return
        self._unanswered = entry.id
        if entry.transcript is not None:
            self._answer(entry, now, speculation)

    # -- speech over an answer (Speaker) -------------------------------------------------------------------------------

    def left_s(self, now: float) -> float:
        return self.responses.left_s(now)

    def pause(self, now: float) -> None:
        self.responses.pause(now)

    def resume(self, now: float) -> None:
        self.responses.resume(now)

    def recognise(self, utterance: Utterance) -> str:
        return self._transcribing.aside(utterance)

    @property
    def spoken(self) -> tuple[str, str] | None:
        response = self.responses.active
        return None if response is None or response.message is None else (response.id, response.message.id)

    # -- what the client asks for --------------------------------------------------------------------------------------

    def create(self, overrides: ResponseOverrides, now: float) -> None:
        """Begin a response. One in the conversation takes the place of the automatic one that is about to come."""
        self.responses.create(overrides, now)
        if overrides.conversation != "none":
            self._unanswered = None

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int, now: float) -> None:
        """The client has played ``audio_end_ms`` of an item and no more."""
        core = self._core
        generated = core.ledger.item(item_id).generated if item_id in core.ledger else 0
        generated_ms = generated * 1000 // OUTPUT_SAMPLE_RATE
        if core.conversation.find(item_id) is not None and audio_end_ms > generated_ms + TRUNCATE_TOLERANCE_MS:
            message = f"Audio content of {generated_ms}ms is already shorter than {audio_end_ms}ms"
            raise ProtocolError("invalid_value", message, "audio_end_ms")
        entry = core.conversation.truncate(item_id, content_index)
        # A client names whole milliseconds: the last of them is the end.
        samples = generated if audio_end_ms >= generated_ms else audio_end_ms * OUTPUT_SAMPLE_RATE // 1000
        heard = core.ledger.truncate(item_id, samples, now)
        if entry.recording is not None:
            entry.recording.cut(heard * 2)
        core.emit(events.ItemTruncated, item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms)
        if core.ledger.unsent(item_id):
            self.responses.media.stop()

    def playback_reported(self, report: PlaybackAck, now: float) -> None:
        """The client says how much of an item it has played. Raises ``ProtocolError``."""
        ledger, item_id = self._core.ledger, report.item_id
        if not extends(self._core.session, "playback"):
            message = "'playback.ack' is an extension: ask for it with session.extensions = ['playback']."
            raise ProtocolError("invalid_event", message, "type")
        if report.committed_ms > report.played_ms:
            raise ProtocolError("invalid_value", "'committed_ms' is more than 'played_ms'.", "committed_ms")
        if item_id not in ledger or ledger.item(item_id).response_id != report.response_id:
            message = f"No sound of item '{item_id}' in response '{report.response_id}'."
            raise ProtocolError("playback_item_not_found", message, "item_id")
        if ledger.item(item_id).settled:
            message = f"What was heard of item '{item_id}' has been settled."
            raise ProtocolError("playback_ack_too_late", message, "item_id")
        generated = ledger.item(item_id).generated
        played, committed = (
            generated if ms >= generated * 1000 // OUTPUT_SAMPLE_RATE else ms * OUTPUT_SAMPLE_RATE // 1000
            for ms in (report.played_ms, report.committed_ms)
        )
        if ledger.report(item_id, played, committed, now):
            self._core.conversation.version += 1

    def deleted(self, item_id: str, now: float) -> None:
        """An item has left the conversation."""
        if self._unanswered == item_id:
            self._unanswered = None
        self.responses.deleted(item_id)
        self.responses.pursue(now)

    def get_ready(self) -> None:
        """The settings have changed."""
        self._transcribing.get_ready()

    def transcribe(self, entry: Entry) -> None:
        """Have an item's sound turned into words."""
        self._transcribing.begin(entry)

    # -- what the engine says ------------------------------------------------------------------------------------------

    def full_stop(self, output: EngineOutput) -> float | None:
        """What the recogniser says of the words up to a pause of the user, where it does so in ``output``."""
        speculation, delta = self._speculation, output.delta
        if speculation is None or output.request_id != speculation.transcribe_id:
            return None
        return delta.full_stop if isinstance(delta, TranscriptDelta) else None

    def engine_output(self, output: EngineOutput, now: float) -> None:
        """Take what is of no response in progress (:meth:`Responses.engine_output`); what is stale is dropped."""
        speculation, request_id, delta = self._speculation, output.request_id, output.delta
        if request_id == self._preparation:
            if isinstance(delta, Finished):
                self._preparation = None
            return
        if self._transcribing.owns(request_id):
            begun = self._transcribing.begun
            entry = self._transcribing.output(request_id, delta)
            if self._prepares_words and self._transcribing.begun not in ("", begun):
                self._prepare()
            if entry is not None:
                if self._unanswered == entry.id and self._core.conversation.find(entry.id) is entry:
                    self._answer(entry, now)
                self.responses.pursue(now)
        elif speculation is not None and request_id == speculation.transcribe_id:
            self._speculative_words(speculation, delta, now)
        elif speculation is not None and request_id == speculation.converse_id:
            speculation.held.append(output)

    # -- answering and preparing to ------------------------------------------------------------------------------------

    def _answer(self, entry: Entry, now: float, speculation: Speculation | None = None) -> None:
        """Create the response that a detected turn calls for, from what was prepared if that still holds."""
        self._unanswered = None
        self._stop_preparing()
        if not entry.transcript:
            self._abandon(speculation)
            self.responses.rearm_idle_timeout(now)
            return
        try:
            if self.responses.active is not None:
                raise already_active(self.responses.active)
            if speculation is None or speculation.converse_id is None or speculation.settings is None:
                self.responses.create(ResponseOverrides(), now)
            else:
                self.responses.release(speculation.settings, speculation.converse_id, speculation.held, now)
        except ProtocolError as error:
            self._abandon(speculation)
            self._core.emit_error(error)

    def _still_holds(self, speculation: Speculation) -> bool:
        """Whether nothing but the turn itself has changed since the answer was begun."""
        present = (self._core.conversation.version - 1, self._core.settings_version)
        return speculation.premise is None or speculation.premise == present

    def _abandon(self, speculation: Speculation | None) -> None:
        if speculation is not None and speculation.converse_id is not None:
            self.speculations_wasted += 1
            self._core.effects.append(AbortRequest(speculation.converse_id, "superseded"))

    def _speculative_words(self, speculation: Speculation, delta: Delta, now: float) -> None:
        if isinstance(delta, TranscriptDelta):
            speculation.words.add(delta)
        if not isinstance(delta, Finished):
            return
        if delta.reason == "failed":
            self.turn_resumed()
            return
        speculation.transcript = speculation.words.text
        if not speculation.transcript or self.busy or not self._answers_turns:
            return
        speculation.settings = effective_settings(self._core, ResponseOverrides())
        speculation.premise = (self._core.conversation.version, self._core.settings_version)
        user = ChatMessage.of_parts("user", (*self._core.view, speculation.transcript))
        with suppress(ContextTooLong):  # said when the answer is really wanted
            self._stop_preparing()
            wait_s = max(0.0, speculation.due - now)
            speculation.converse_id = self.responses.requests.open(speculation.settings, (user,), wait_s)


def idle_timeout_s(core: SessionCore) -> float | None:
    """The session's idle timeout in seconds; None where there is none."""
    detection = core.session.audio.input.turn_detection
    if not isinstance(detection, ServerVad) or detection.idle_timeout_ms is None:
        return None
    return detection.idle_timeout_ms / 1000
