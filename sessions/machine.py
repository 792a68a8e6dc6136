"""The session core: a conversation as a sans-I/O state machine.

``handle(event, now)`` takes what a client, the engine or the clock has to say and returns the effects that follow, in
order. No await, no clock, no I/O: everything about ordering, cancellation, truncation and timers can be replayed. How
the parts fit together:

* :mod:`listening` turns input bytes and voice activity into turns of the user;
* :mod:`answering` decides which turn is answered, when, and from what was prepared in secret;
* :mod:`transcribing` turns sound into words, :mod:`responses` runs the responses in progress;
* :mod:`response` is the life of one response, from ``response.created`` to ``response.done``;
* :mod:`conversation` holds the items, :mod:`playout` what was generated, sent and played of each;
* :mod:`updating` changes the settings;
* this module dispatches, and owns what belongs to none of them: item commands, expiry, shutdown.
"""

from __future__ import annotations

import math
from typing import get_args

from msgspec import UNSET

from duologue.codecs.wire_audio import WireEncoder
from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.answering import Answering, idle_timeout_s
from duologue.sessions.config import AnySession, RealtimeSession, encoding, response_overrides, shown
from duologue.sessions.conversation import Conversation, Entry
from duologue.sessions.core import SessionContext, SessionCore
from duologue.sessions.effects import (
    AudioSent,
    CloseSession,
    Dialled,
    Effect,
    EngineOutput,
    HangUp,
    Input,
    MediaAudio,
    MediaPicture,
    MoreAudio,
    PlayoutCleared,
    PlayoutStarted,
    PlayoutStopped,
    Send,
    Shutdown,
    Tick,
    ToolAnswered,
    ToolsListed,
    TurnJudged,
    VoiceActivity,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import FunctionCallItem, FunctionCallOutputItem, Item, McpApprovalResponseItem, MessageItem
from duologue.sessions.lifetime import Lifetime
from duologue.sessions.listening import Listening
from duologue.sessions.response import Outcome
from duologue.sessions.updating import Bound, SettingsUpdates

HUNG_UP = "The session was ended."
NO_APPEND_IN_CALL = "'input_audio_buffer.append' is for WebSocket; in a call the sound comes over the audio track."
NORMAL, GOING_AWAY = 1000, 1001
FROM_CLIENT = frozenset((*get_args(client.AnyClientEvent), client.InvalidEvent))
HANDSHAKE_BOUND = Bound(type=True, model=True)


class ConversationMachine:
    """One session. Times are seconds of one monotonic clock that the caller reads."""

    def __init__(
        self, session: AnySession, context: SessionContext, now: float, bound: Bound = HANDSHAKE_BOUND
    ) -> None:
        self._core = SessionCore(session, context)
        self._answering = Answering(self._core)
        self._listening = Listening(self._core, self._answering)
        self._updates = SettingsUpdates(self._core, self._answering, self._listening, bound)
        self._lifetime = Lifetime(context.limits, now)
        self._waiting: client.ResponseCreate | None = None
        """A response that waits until the user has finished (``Limits.wait_for_silence_s``)."""
        self._waiting_until = math.inf
        self._shutting_down = False
        self._closed = False
        self._core.emit(events.SessionCreated, session=shown(session))
        if isinstance(session, RealtimeSession):
            self._answering.responses.remote.offered(session.tools)
        self._answering.get_ready()

    @property
    def session(self) -> AnySession:
        return self._core.session

    @property
    def conversation(self) -> Conversation:
        return self._core.conversation

    @property
    def speculations_wasted(self) -> int:
        return self._answering.speculations_wasted

    @property
    def deadline(self) -> float:
        """When a :class:`Tick` is due at the latest."""
        # Asked for after every event; min() of as many would take three times as long.
        deadline, responses = self._listening.deadline, self._answering.responses
        if self._lifetime.deadline < deadline:
            deadline = self._lifetime.deadline
        if self._waiting_until < deadline:
            deadline = self._waiting_until
        if responses.due < deadline:
            deadline = responses.due
        return deadline if responses.idle_since is None else min(deadline, self._idle_at)

    @property
    def held_bytes(self) -> int:
        """Sound of the engine that is held back here until it is due."""
        return self._answering.responses.pacer.held_bytes

    def start(self) -> list[Effect]:
        """The effects of the session's birth: ``session.created``."""
        return self._core.take_effects()

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Take one event. Client faults become one ``error`` event and change nothing."""
        responses = self._answering.responses
        if type(event) is AudioSent:  # as often as sound leaves, and nothing follows from it but more of it
            begins_at = self._core.ledger.sent(event.item_id, event.samples, now)
            if self._core.echo is not None:
                self._core.echo.sent(event.item_id, event.samples, begins_at)
            if responses.pacer.held:
                responses.flow(now)
        elif not self._closed:
            if type(event) in FROM_CLIENT:
                self._lifetime.heard_at = now
            try:
                self._dispatch(event, now)
            except ProtocolError as error:
                self._core.emit_error(error, getattr(event, "event_id", None))
            while self._core.postponed and not self._closed:
                self._dispatch(self._core.postponed.pop(0), now)
            if responses.pacer.held:
                responses.flow(now)
            if responses.remote.answer_owed:
                self._answer_decisions(now)
            if self._waiting is not None and not self._closed:
                self._stop_waiting(self._waiting, now)
            if self._shutting_down:
                self._close_when_drained(now)
        effects, self._core.effects = self._core.effects, []
        return effects

    def _dispatch(self, event: Input, now: float) -> None:
        match event:  # the most frequent first: a class that does not match costs more than one that does
            case EngineOutput():
                of_response = self._answering.responses.engine_output(event, now)
                if not (of_response or self._listening.overlap_output(event, now)):
                    if (full_stop := self._answering.full_stop(event)) is not None:
                        self._listening.turn_worded(full_stop)
                    self._answering.engine_output(event, now)
            case client.InputAudioAppend(audio=audio):
                if self._core.context.media_clock:
                    raise ProtocolError("invalid_event", NO_APPEND_IN_CALL, "type")
                self._listening.append(audio, now)
            case VoiceActivity():
                self._listening.voice_activity(event, now)
            case MediaAudio(pcm=pcm):
                self._lifetime.heard_at = now
                self._listening.hear(pcm, now)
            case MediaPicture(picture=picture):
                self._core.see(picture)
            case MoreAudio(audio=audio, offset=offset):
                self._listening.append_from(audio, offset, now)
            case TurnJudged(question=question, probability=probability):
                self._listening.turn_judged(question, probability, now)
            case Dialled(digit=digit, received_at=received_at):
                self._lifetime.heard_at = now
                self._core.effects.append(Send(events.DtmfReceived(event=digit, received_at=int(received_at))))
            case PlayoutStarted() | PlayoutStopped() | PlayoutCleared():
                self._answering.responses.media.report(event)
            case ToolAnswered():
                self._answering.responses.tool_answered(event, now)
            case ToolsListed():
                self._answering.responses.remote.listed(event)
            case client.SessionUpdate(session=patch):
                self._updates.apply(patch, now)
            case client.InputAudioCommit():
                self._commit(now)
            case client.InputAudioClear():
                self._listening.clear(now)
            case client.ItemCreate(item=item, previous_item_id=previous_item_id):
                self._create_item(item, previous_item_id)
            case client.ItemRetrieve(item_id=item_id):
                item = self._core.conversation.retrieve(item_id, self._encode_recording)
                self._core.emit(events.ItemRetrieved, item=item)
            case client.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end_ms):
                self._answering.truncate(item_id, index, end_ms, now)
            case client.ItemDelete(item_id=item_id):
                self._core.conversation.delete(item_id)
                self._answering.deleted(item_id, now)
                self._core.emit(events.ItemDeleted, item_id=item_id)
            case client.ResponseCreate():
                self._create_response(event, now)
            case client.ResponseCancel(response_id=response_id):
                self._answering.responses.cancel(response_id, now)
            case client.OutputAudioClear():
                self._clear_output()
            case client.PlaybackAck():
                self._answering.playback_reported(event, now)
            case client.InvalidEvent(error=error):
                raise error
            case Tick():
                self._tick(now)
            case Shutdown():
                self._shutting_down = True
            case HangUp():
                self._answering.responses.end_all(Outcome("cancelled", "client_cancelled"), now)
                self._close(HUNG_UP, NORMAL)

    def _clear_output(self) -> None:
        if not self._core.context.media_clock:
            message = "'output_audio_buffer.clear' is for WebRTC and SIP; over WebSocket the client owns the player."
            raise ProtocolError("invalid_event", message, "type")
        self._answering.responses.media.stop()

    # -- items ---------------------------------------------------------------------------------------------------------

    def _commit(self, now: float) -> None:
        entry = self._listening.commit(now)
        if self._core.session.audio.input.transcription is not None:
            self._answering.transcribe(entry)

    def _create_item(self, item: Item, previous_item_id: str | None) -> None:
        core, conversation = self._core, self._core.conversation
        core.check_room("item")
        entry = core.entry_of(item)
        if isinstance(item, FunctionCallOutputItem) and not _has_call(conversation, item.call_id):
            message = f"No function call with call_id '{item.call_id}' in the conversation."
            raise ProtocolError("invalid_value", message, "item.call_id")
        if isinstance(item, McpApprovalResponseItem):
            self._answering.responses.remote.check_decision(item)
        if isinstance(item, MessageItem) and item.role == "user":
            entry.seen = core.take_view()
        conversation.insert(entry, previous_item_id)
        previous = conversation.previous_id(entry.id)
        shown = entry.shown
        core.emit(events.ItemAdded, previous_item_id=previous, item=shown)
        core.emit(events.ItemDone, previous_item_id=previous, item=shown)
        if isinstance(item, McpApprovalResponseItem):
            self._answering.responses.remote.decided(item)
        if entry.has_input_audio and core.session.audio.input.transcription is not None:
            self._answering.transcribe(entry)

    def _answer_decisions(self, now: float) -> None:
        """What came of a call that the client had to decide on is answered, unless the client has asked for it."""
        remote = self._answering.responses.remote
        if not (self._closed or self._answering.busy or remote.calling):
            remote.answer_owed = False
            try:
                self._answering.create(response_overrides(UNSET), now)
            except ProtocolError as error:
                self._core.emit_error(error)

    def _create_response(self, event: client.ResponseCreate, now: float) -> None:
        overrides, patience_s = response_overrides(event.response), self._core.context.limits.wait_for_silence_s
        if overrides.conversation == "none" or not patience_s or not self._listening.speaking:
            self._answering.create(overrides, now)
        elif self._waiting is not None:
            message = "A response is waiting for the user to finish already."
            raise ProtocolError("conversation_already_has_active_response", message)
        else:
            self._waiting, self._waiting_until = event, now + patience_s

    def _stop_waiting(self, event: client.ResponseCreate, now: float) -> None:
        """Begin the response that waits, once the user has finished or taken too long."""
        if self._listening.speaking and now < self._waiting_until:
            return
        self._waiting, self._waiting_until = None, math.inf
        try:
            self._answering.create(response_overrides(event.response), now)
        except ProtocolError as error:
            self._core.emit_error(error, event.event_id)

    def _encode_recording(self, entry: Entry) -> bytes:
        """An item's sound in the format of the session's input or output, as it belongs to."""
        session = self._core.session
        by_assistant = isinstance(entry.item, MessageItem) and entry.item.role == "assistant"
        audio_format = session.audio.input.format
        if by_assistant and isinstance(session, RealtimeSession):
            audio_format = session.audio.output.format
        encoder = WireEncoder(encoding(audio_format))
        assert entry.recording is not None
        return encoder.encode(entry.recording.at_rate(OUTPUT_SAMPLE_RATE)) + encoder.flush()

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def _idle_at(self) -> float:
        timeout = idle_timeout_s(self._core)
        since = self._answering.responses.idle_since
        if timeout is None or since is None or self._answering.busy or self._listening.speaking:
            return math.inf
        return since + timeout

    def _tick(self, now: float) -> None:
        self._listening.tick(now)
        if self._answering.working:
            self._lifetime.heard_at = now
        if (over := self._lifetime.over(now)) is not None:
            self._answering.responses.end_all(Outcome("failed", error=over.message, error_code=over.code), now)
            self._core.emit_error(over)
            self._close(over.message)
        elif now >= self._idle_at:
            silent_s = now - (self._answering.responses.idle_since or now)
            self._answering.responses.disarm_idle_timeout()  # also if the answer is refused
            self._listening.commit_silence(silent_s)
            self._answering.create(response_overrides(UNSET), now)

    def _close_when_drained(self, now: float) -> None:
        if self._closed:
            return
        drained = not self._answering.working and self._waiting is None
        if drained and not self._answering.responses.media.plays(now):
            self._close("The server is shutting down.")

    def _close(self, reason: str, code: int = GOING_AWAY) -> None:
        self._closed = True
        self._core.effects.append(CloseSession(code, reason))


def _has_call(conversation: Conversation, call_id: str) -> bool:
    calls = (entry.item for entry in conversation if isinstance(entry.item, FunctionCallItem))
    return any(call.call_id == call_id for call in calls)
