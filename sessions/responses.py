"""Responses in progress: at most one that writes into the conversation, and any number beside it that do not.

What comes back under an engine request that no response here has is stale and dropped: that is the fence behind which
an interrupted answer cannot reach the client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    Finished,
    TextDelta,
    ToolCallDelta,
    ToolChoice,
)
from duologue.sessions import server_events as events
from duologue.sessions.config import AnySession, ResponseOverrides, lead_s
from duologue.sessions.context_window import ContextTooLong
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbortRequest, DropAudio, EngineOutput, ToolAnswered
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import MessageItem, OutputAudio
from duologue.sessions.mcp.calls import RemoteTools
from duologue.sessions.mcp.outputs import McpCallOutput
from duologue.sessions.media_output import MediaOutput
from duologue.sessions.output_items import CallOutput, MessageOutput
from duologue.sessions.pacing import Pacer
from duologue.sessions.rate_limits import RateLimits
from duologue.sessions.response import (
    AnyCall,
    CancelReason,
    Outcome,
    OutputItem,
    ResponseLifecycle,
    ResponseSettings,
)
from duologue.sessions.response_requests import ResponseRequests
from duologue.sessions.response_settings import effective_settings
from duologue.sessions.transcribing import Transcribing

TOO_LONG = "context_length_exceeded"


class Responses:
    """Owns the responses in progress and what they add to the conversation."""

    def __init__(self, core: SessionCore, transcribing: Transcribing) -> None:
        self._core = core
        self.requests = ResponseRequests(core, transcribing)
        self._beside: dict[str, ResponseLifecycle] = {}
        self._rates = RateLimits(core.context.limits)
        self.pacer = Pacer(core.ledger)
        """What is held back of the active one; :meth:`flow` is for when there is something."""
        self._led: AnySession | None = None
        """The settings that :attr:`_lead` is of."""
        self._lead: float | None = None
        self.due = math.inf
        """When more of what is held back may go out."""
        self.remote = RemoteTools(core)
        self.media = MediaOutput(core)
        self.active: ResponseLifecycle | None = None
        """The one that writes into the conversation."""
        self.voice_used = False
        """True once sound has been sent: the voice is fixed from then on."""
        self.idle_since: float | None = None
        """When the last answer's sound has been (or will have been) played; None while something goes on."""
        self._was_idle = False

    @property
    def any_in_progress(self) -> bool:
        return self.active is not None or bool(self._beside)

    def disarm_idle_timeout(self) -> None:
        """Somebody speaks, or is about to."""
        self._was_idle, self.idle_since = self.idle_since is not None, None

    def rearm_idle_timeout(self, now: float) -> None:
        """Nobody had spoken after all."""
        if self._was_idle and self.active is None:
            self.idle_since = max(now, self._core.ledger.queue_ends_at)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def create(self, overrides: ResponseOverrides, now: float) -> None:
        """Begin what a client, or a turn, asks for. Raises ``ProtocolError`` and begins nothing."""
        out_of_band = overrides.conversation == "none"
        if not out_of_band and self.active is not None:
            raise already_active(self.active)
        limit = self._core.context.limits.max_parallel_responses
        if out_of_band and len(self._beside) >= limit:
            raise ProtocolError("invalid_value", f"{limit} out-of-band responses are in progress already.", "response")
        context = None if not isinstance(overrides.input, tuple) else self.requests.resolved(overrides.input)
        settings = effective_settings(self._core, overrides, context)
        self._begin(settings, now)
        self.pursue(now)

    def release(self, settings: ResponseSettings, request_id: str, held: Sequence[EngineOutput], now: float) -> None:
        """Begin a response of which the engine has made ``held`` already. Raises ``ProtocolError``."""
        response = self._begin(settings, now)
        response.request_id = request_id
        for output in held:
            if self.active is response:
                self._arrived(response, output, now)

    def pursue(self, now: float) -> None:
        """Open the requests of responses as soon as every utterance in their context has its words."""
        for response in self._in_progress():
            if response.request_id is None and not self._waits(response):
                try:
                    response.request_id = self.requests.open(response.settings)
                except ContextTooLong as error:
                    self._core.emit_error(ProtocolError(TOO_LONG, str(error)))
                    self._finish(response, Outcome("failed", error=str(error), error_code=TOO_LONG), now)

    def _begin(self, settings: ResponseSettings, now: float) -> ResponseLifecycle:
        if settings.conversation_id is not None:
            self._core.check_room()
        self._rates.check(now)
        core = self._core
        response = ResponseLifecycle(
            core.context.ids("resp"), settings, core.emit, core.emit_audio, core.conversation.previous_id
        )
        if response.out_of_band:
            self._beside[response.id] = response
        else:
            self.active, self.idle_since = response, None
            self._core.ledger.settle()
            self.remote.answer_owed = False
            self._was_idle = False
        if left := self._rates.begin(response.id, settings.max_output_tokens, now):
            self._core.emit(events.RateLimitsUpdated, rate_limits=left)
        return response

    def _waits(self, response: ResponseLifecycle) -> bool:
        """Whether something is under way that belongs into the context: words, or the result of a call."""
        waits = self.remote.calling and not response.out_of_band
        return self.requests.waits_for_words(response.settings) or waits

    def _in_progress(self) -> Iterator[ResponseLifecycle]:
        if self.active is not None:
            yield self.active
        yield from tuple(self._beside.values())

    # -- what the engine says ------------------------------------------------------------------------------------------

    def engine_output(self, output: EngineOutput, now: float) -> bool:
        """Take more of a response. False: the output is of none that is in progress here."""
        active = self.active
        if active is not None and active.request_id == output.request_id:
            self._arrived(active, output, now)
            return True
        for response in self._beside.values():
            if response.request_id == output.request_id:
                self._arrived(response, output, now)
                return True
        return False

    def _arrived(self, response: ResponseLifecycle, output: EngineOutput, now: float) -> None:
        """The engine has made more of a response: it is taken at once, or held back until its sound is due."""
        response.usage = output.usage  # what it has used so far is what it has used if it is broken off now
        sound = output.delta if isinstance(output.delta, AudioDelta) else None
        if sound is not None and not response.out_of_band:
            message = response.message or self._message(response)[0]
            self._core.ledger.generated(message.id, len(sound.pcm) // 2)
        paces = sound is not None and self._lead_s is not None
        if response is self.active and (paces or self.pacer.paused or self.pacer.held):
            self.pacer.put(output)
            self.flow(now)
        else:
            self._take(response, output, now)

    def _take(self, response: ResponseLifecycle, output: EngineOutput, now: float) -> None:
        match output.delta:
            case AudioDelta(pcm=pcm, words=words):
                message, entry = self._message(response)
                if not response.out_of_band:
                    self._core.ledger.projected(message.id, len(pcm) // 2)
                    if self._core.echo is not None:
                        self._core.echo.made(message.id, pcm)
                if self.media.used:
                    self.media.play(response.id, message.id, pcm)
                else:
                    message.add_audio(pcm)
                self.voice_used = True
                if entry is not None:
                    entry.words.extend(words)
                    self._core.conversation.keep_audio(entry, pcm)
            case TextDelta(text=text):
                message, entry = self._message(response)
                message.add_text(text)
                if entry is not None:
                    entry.spoken_text += text
            case ToolCallDelta(call_id=key, name=name, arguments=arguments):
                self._take_call(response, key, name, arguments)
            case Finished(reason=reason, usage=usage, error=error):
                response.usage = usage
                if reason in ("failed", "aborted"):
                    self._core.emit_server_error(error or "The answer could not be finished.")
                else:
                    self._release_calls(response)
                    self._start_open_call(response)
                outcome = Outcome.of(reason, error)
                if response.running_calls and outcome.status != "failed":
                    response.outcome = outcome
                else:
                    self._abandon_calls(response)
                    self._finish(response, outcome, now)

    # -- pacing --------------------------------------------------------------------------------------------------------

    @property
    def _lead_s(self) -> float | None:
        """Seconds of sound that may be ahead of what is heard; None: any number."""
        session = self._core.session
        if session is not self._led:
            self._led, self._lead = session, lead_s(session)
        return self._lead

    @property
    def paused(self) -> bool:
        return self.pacer.paused

    def flow(self, now: float) -> None:
        """Let out what is due of what is held back."""
        response = self.active
        while response is not None and response.message is not None and self.active is response:
            output = self.pacer.next(response.message.id, self._lead_s or math.inf, now)
            if output is None:
                break
            self._take(response, output, now)
        self.due = math.inf
        if self.active is not None and self.active.message is not None:
            self.due = self.pacer.due(self.active.message.id, self._lead_s or math.inf, now)

    def left_s(self, now: float) -> float:
        """Seconds of the answer's sound that are still to be heard; infinite while it is being made. 0: it does not
        sound, or not yet."""
        left = self._core.ledger.left_s(now)
        response = self.active
        if left and response is not None and not self.pacer.holds_end:
            return math.inf
        return left

    def pause(self, now: float) -> None:
        """Hold the answer where it is, to go on from there or to be interrupted."""
        if self.active is None or self.active.message is None or self.pacer.paused:
            return
        if (piece := self.pacer.pause()) is not None:
            self._take(self.active, piece, now)
        self.flow(now)

    def resume(self, now: float) -> None:
        """Go on with an answer that was held, at its next sample."""
        self.pacer.resume()
        self.flow(now)

    def _message(self, response: ResponseLifecycle) -> tuple[MessageOutput, Entry | None]:
        """A response's answer in words, begun at its first delta, and its entry; None once that was deleted."""
        begun = response.message
        if begun is not None:
            return begun, self._core.conversation.find(begun.id)
        self._close_open(response)
        message = response.open_message(self._core.context.ids("item"))
        entry = self._enter(response, message)
        if response.spoken and not response.out_of_band:
            self._core.ledger.begin(message.id, response.id)
        return message, entry

    def _take_call(self, response: ResponseLifecycle, key: str, name: str, arguments: str) -> None:
        """A piece of the call that the engine names ``key``."""
        call = response.call(key)
        if call is None and response.refuses_call(key):
            return
        if call is None and response.open_output is not None:
            response.hold_call(key, name, arguments)
        elif call is None:
            self._open_call(response, key, name).add_arguments(arguments)
        elif call.status == "in_progress":  # no engine comes back to a call after the words that follow it
            call.add_arguments(arguments)

    def _open_call(self, response: ResponseLifecycle, key: str, name: str) -> AnyCall:
        call = response.open_call(key, name, self._core.context.ids)
        self._enter(response, call)
        return call

    def _release_calls(self, response: ResponseLifecycle) -> None:
        """What is open is whole: the calls that waited for it follow."""
        for key, held in response.held_calls.items():
            self._close_open(response)
            self._open_call(response, key, held.name).add_arguments(held.arguments)

    def _close_open(self, response: ResponseLifecycle) -> None:
        """The item that is being made is whole, since another begins."""
        self._start_open_call(response)
        output = response.open_output
        if output is not None:
            response.close(output)
            self._settle(output)

    def _start_open_call(self, response: ResponseLifecycle) -> None:
        """A call to an MCP server is whole, and can be made."""
        if isinstance(output := response.open_output, McpCallOutput):
            self.remote.start(output)

    def _enter(self, response: ResponseLifecycle, output: OutputItem) -> Entry | None:
        """Put a new item into the conversation, if it belongs there, and announce it."""
        if response.out_of_band:
            response.announce(output)
            return None
        entry = Entry(output.item)
        self._core.conversation.insert(entry)
        response.announce(output)
        return entry

    # -- results of MCP calls ------------------------------------------------------------------------------------------

    def tool_answered(self, answer: ToolAnswered, now: float) -> None:
        """A call to an MCP server is over. One that nobody waits for any more is not noticed."""
        self.remote.answered(answer)
        for response in self._in_progress():
            output = next((call for call in response.running_calls if call.id == answer.item_id), None)
            if output is None:
                continue
            output.result = answer.result
            response.close(output)
            self._settle(output)
            if response.outcome is not None and not response.running_calls:
                self._finish(response, response.outcome, now)
                self._answer_results(response, now)
        self.pursue(now)

    def _answer_results(self, response: ResponseLifecycle, now: float) -> None:
        """Go on from what the calls gave, unless the client has calls of its own to answer first."""
        settings = response.settings
        if any(isinstance(output, CallOutput) for output in response.outputs):
            return
        if settings.tool_round >= self._core.context.limits.max_tool_rounds:
            return
        context = settings.context
        if context is not None or response.out_of_band:
            asked = tuple(self._core.conversation) if context is None else context
            context = (*asked, *map(self._entry_of, response.outputs))
        # What had to be called has been called: from now on the model may stop.
        choice: ToolChoice = "none" if settings.tool_choice == "none" else "auto"
        try:
            self._begin(replace(settings, context=context, tool_choice=choice, tool_round=settings.tool_round + 1), now)
        except ProtocolError as error:
            self._core.emit_error(error)

    def _entry_of(self, output: OutputItem) -> Entry:
        entry = self._core.conversation.find(output.id)
        if entry is None:
            entry = Entry(output.item, spoken_text="".join(output.text) if isinstance(output, MessageOutput) else "")
        return entry

    def _abandon_calls(self, response: ResponseLifecycle) -> None:
        for call in response.running_calls:
            self.remote.abandon(call)

    # -- ending --------------------------------------------------------------------------------------------------------

    def cancel(self, response_id: str | None, now: float) -> None:
        """The client has had enough of a response. Raises ``ProtocolError`` if there is none."""
        response = self.active
        if response_id is not None and (response is None or response.id != response_id):
            response = self._beside.get(response_id)
        if response is None:
            raise ProtocolError("response_cancel_not_active", "Cancellation failed: no active response found")
        self._cancel(response, "client_cancelled", now)

    def interrupt(self, now: float) -> None:
        """The user speaks: what is unheard stays unheard, and the conversation's response ends."""
        if self.active is None and not self._core.ledger.unplayed(now):
            return
        if self._core.echo is not None:
            self._core.echo.stopped(now)
        if self.media.used:
            self.media.silence()
        else:
            queued = self._core.ledger.interrupt(now)
            self._core.effects += [DropAudio(response_id) for response_id in queued]
            self._core.conversation.version += 1
        if self.active is not None:
            self._cancel(self.active, "turn_detected", now)
        self.media.truncate()

    def end_all(self, outcome: Outcome, now: float) -> None:
        """The session ends, and with it whatever is in progress."""
        for response in self._in_progress():
            self._end(response, outcome, now)

    def deleted(self, item_id: str) -> None:
        """An item has left the conversation."""
        output = self.active.output(item_id) if self.active is not None else None
        if output is not None:
            output.deleted = True
        self._core.ledger.forget(item_id)

    def _cancel(self, response: ResponseLifecycle, reason: CancelReason, now: float) -> None:
        self._end(response, Outcome("cancelled", reason), now)

    def _end(self, response: ResponseLifecycle, outcome: Outcome, now: float) -> None:
        """End a response before the engine does."""
        if response.request_id is not None:
            self._core.effects.append(AbortRequest(response.request_id))
        self._core.effects.append(DropAudio(response.id))
        self._abandon_calls(response)
        self._finish(response, outcome, now)

    def _finish(self, response: ResponseLifecycle, outcome: Outcome, now: float) -> None:
        response.finish(outcome)
        self.media.finish(response.id)
        self._rates.end(response.id, response.usage, now)
        if response.out_of_band:
            del self._beside[response.id]
            return
        self.active = None
        self.pacer.clear()
        self.due = math.inf
        for output in response.outputs:
            self._settle(output)
        core, spoken = self._core, response.message if response.spoken else None
        unsent = 0
        if spoken is not None and spoken.id in core.ledger:
            truncates = self.media.used and outcome.reason == "turn_detected"  # interrupt() cuts it to what was played
            if outcome.status in ("cancelled", "failed") and not truncates:
                core.ledger.stop(spoken.id)
            else:
                unsent = core.ledger.unsent(spoken.id)
        self.idle_since = max(now, core.ledger.queue_ends_at) + unsent / OUTPUT_SAMPLE_RATE

    def _settle(self, output: OutputItem) -> None:
        """The conversation's entry gets the finished item."""
        entry = self._core.conversation.find(output.id)
        if entry is None:
            return
        entry.item = output.item
        if entry.truncated and isinstance(entry.item, MessageItem):
            entry.item = MessageItem(id=entry.id, status=output.status, role="assistant", content=(OutputAudio(),))
        self._core.conversation.version += 1


def already_active(response: ResponseLifecycle) -> ProtocolError:
    message = (
        f"Conversation already has an active response in progress: {response.id}. "
        "Wait until the response is finished before creating a new one."
    )
    return ProtocolError("conversation_already_has_active_response", message)
