"""The input half of the session core: from appended bytes to turns of the user.

Bytes go onto the timeline; voice activity over them comes back frame by frame; the turn policy turns the frames into
signals; the turns become committed items. While a model judges whether a turn is over, the frames that come wait, so
that how long it takes changes nothing but the moment of the decision. What an utterance leads to is the other half's
business (:mod:`duologue.sessions.answering`), reached through :class:`TurnListener`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import UNSET

from duologue.codecs.noise_suppression import FRAMES_PER_SECOND, FarEnd
from duologue.engine.sound_levels import PART_MS, heard
from duologue.sessions import server_events as events
from duologue.sessions.config import AudioInput, EchoCancellation, ServerVad
from duologue.sessions.conversation import Entry, Recording
from duologue.sessions.core import SessionCore
from duologue.sessions.echo import EchoReference
from duologue.sessions.effects import (
    AskTurnModel,
    EngineOutput,
    FeedVoiceActivity,
    GoOn,
    Interrupted,
    MoreAudio,
    StopVoiceActivity,
    VoiceActivity,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.input_audio import PIECE_BYTES, InputTimeline, reduces_noise
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.overlap import Held, OverlapGate, Speaker
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS, ticks_per_sample
from duologue.sessions.turns.policy import Asked, Paused, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.semantic import policy_for
from duologue.sessions.turns.silence import MIN_SPEECH_MS, SilencePolicy

MIN_COMMIT_MS = 100
PREFIX_PADDING_MS = ServerVad().prefix_padding_ms
ECHO_WINDOW_MS = 200
"""How much of the input is compared with what we have played, to tell our own voice."""
ECHO_DOUBT = 0.2
"""Probability of speech from which on it is compared."""
JUDGED_S = 8
"""How much of a turn a model gets to judge."""
ANSWER_WITHIN_S = 0.5
"""How long the model's answer is waited for; without one silence decides."""
MAX_HELD = 1024
"""Frames (33 s) that may wait for the answer, where input comes faster than in real time."""
OVERLAP_GAP_S = 1.0
"""Without input for so long, speech over an answer is judged by what has come of it."""
GAP_STEP_S = 0.2
"""How often the time without input is counted, once it counts as silence."""


@dataclass(frozen=True)
class Utterance:
    """Sound of the user, as a recogniser gets it: mono PCM16."""

    pcm: bytes
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / self.sample_rate

    def after(self, ticks: int) -> Utterance:
        """Its end, from a position on that is counted from its start."""
        return Utterance(self.pcm[ticks // ticks_per_sample(self.sample_rate) * 2 :], self.sample_rate)


class TurnSound(msgspec.Struct, frozen=True):
    """Sound of a turn that goes on."""

    item_id: str
    """Of the item that it will become."""
    start: int
    end: int
    timeline: InputTimeline

    @property
    def length(self) -> int:
        """In ticks."""
        return self.end - self.start

    def after(self, ticks: int) -> Utterance:
        """What there is of it from a position on that is counted from its start."""
        return Utterance(self.timeline.cut(self.start + ticks, self.end), self.timeline.sample_rate)


@dataclass(frozen=True)
class UserTurn:
    """A turn in progress: the id of the item that it will become, and where it began."""

    item_id: str
    start: int


class TurnListener(Speaker, Protocol):
    """Who is told about the user's turns, and may be speaking when they begin."""

    def turn_started(self, now: float) -> None: ...

    def turn_heard(self, turn: TurnSound) -> None:
        """The user has gone on, or (without turn detection) sent more sound."""

    def turn_paused(self, utterance: Utterance, now: float) -> None: ...

    def turn_resumed(self) -> None: ...

    def turn_dropped(self) -> None:
        """What was heard of the turn in progress will not become an item."""

    def turn_committed(self, entry: Entry, now: float) -> None:
        """A turn ended by the detector has become ``entry`` of the conversation."""


class Listening:
    """Owns the timeline, the turn policy and the turn in progress."""

    def __init__(self, core: SessionCore, listener: TurnListener) -> None:
        self._core = core
        self._listener = listener
        self._timeline = InputTimeline(core.input_encoding)
        self._turn: UserTurn | None = None
        self._paused = False
        self._uncommitted_id: str | None = None
        """Of the item that the buffer will become, without turn detection."""
        self._policy: SilencePolicy | None = None
        self._questions = 0
        self._asked_at: int | None = None
        """The position that the model has been asked about and has not answered yet."""
        self._answer_until = math.inf
        self._held: deque[VoiceActivity] = deque()
        """Frames that wait for its answer."""
        self._heard_until = -math.inf
        """When input came last, or when the time without it was counted as silence last."""
        self._input_at = -math.inf
        self._watch_at = math.inf
        """When to look whether input still comes."""
        self._stream = 0
        self._stream_position = 0
        self._heard_from = 0.0
        """Power from which on something is heard, as of the last frame."""
        self._settled = 0
        self._silent_until_ms = 0
        """Up to where idle timeouts have said that nobody spoke."""
        self._processing: tuple[bool, EchoCancellation | None] = (False, None)
        self._overlap = OverlapGate(core, listener, self._utterance, self._timeline.wire_ms)
        self.settings_changed(detection_changed=True, now=0.0)

    @property
    def speaking(self) -> bool:
        return self._turn is not None

    def settings_changed(self, *, detection_changed: bool, now: float) -> None:
        """Follow the session's input format, noise reduction and turn detection."""
        session_input = self._core.session.audio.input
        rate_changed = self._timeline.change_encoding(self._core.input_encoding)
        self._follow_processing(session_input, rate_changed, now)
        if rate_changed:
            self._restart_stream()
        if not detection_changed:
            return
        detection = session_input.turn_detection
        if detection is None:
            self._turn = self._policy = None
            self._overlap.dismiss(self._timeline.end, now)
            self._watch_at = math.inf
            self._forget_question()
            self._listener.turn_dropped()
            self._core.effects.append(StopVoiceActivity())
            return
        position = max(self._settled, self._timeline.start)
        context = self._core.context
        policy = policy_for(detection, context.limits.max_turn_s, position, judged=context.judges_turns)
        if self._policy is None:
            self._uncommitted_id = None
            self._listener.turn_dropped()
            self._restart_stream()
        else:
            policy.take_over(self._policy)
        self._policy = policy

    @property
    def deadline(self) -> float:
        """When :meth:`tick` is due at the latest."""
        deadline = self._answer_until if self._answer_until < self._watch_at else self._watch_at
        overlap = self._overlap.open
        if overlap is not None and overlap.speaking:
            deadline = min(deadline, self._input_at + OVERLAP_GAP_S)
        return deadline

    def append(self, data: bytes, now: float) -> None:
        self._input_at = self._heard_until = now
        if self._core.echo is not None:
            self._core.echo.arrived(self._timeline.end + self._timeline.ticks_of(data), now)
        if self._policy is None:
            self._check_room()
        if len(data) > PIECE_BYTES and self._timeline.suppresses_noise:
            self.append_from(data, 0, now)
        else:
            self._feed(self._timeline.append(data), now)

    def _check_room(self) -> None:
        """Raise ``ProtocolError`` if nobody ends turns and the buffer is full."""
        limit_s = self._core.context.limits.max_manual_buffer_s
        if self._timeline.end - self._timeline.start > limit_s * TICKS_PER_SECOND:
            message = f"The input buffer holds {limit_s:.0f} s of uncommitted audio; commit or clear it first."
            raise ProtocolError("invalid_value", message, "audio")

    def hear(self, pcm: bytes, now: float) -> None:
        """Sound from a media track: it comes whether it is wanted or not, so only the newest is kept."""
        if self._core.echo is not None:
            self._core.echo.arrived(self._timeline.end + self._timeline.ticks_of(pcm), now)
        self._input_at = self._heard_until = now
        self._feed(self._timeline.append(pcm), now)
        if self._policy is None:
            kept = int(self._core.context.limits.max_manual_buffer_s * TICKS_PER_SECOND)
            self._timeline.drop_before(self._timeline.end - kept)

    def append_from(self, data: bytes, offset: int, now: float) -> None:
        """The next piece of an append from ``offset`` on; the rest comes back."""
        self._feed(self._timeline.append(data[offset : offset + PIECE_BYTES]), now)
        if offset + PIECE_BYTES < len(data):
            self._core.effects.append(GoOn(MoreAudio(data, offset + PIECE_BYTES)))

    def _feed(self, pcm: bytes, now: float) -> None:
        if not pcm:
            return
        if self._policy is not None:
            self._core.effects.append(FeedVoiceActivity(self._stream, pcm, self._timeline.sample_rate))
            self._look_for_silence(self._policy, now)
        else:
            self._uncommitted_id = self._uncommitted_id or self._core.context.ids("item")
            start, end = self._timeline.start, self._timeline.clean_end
            self._listener.turn_heard(TurnSound(self._uncommitted_id, start, end, self._timeline))

    def _follow_processing(self, settings: AudioInput, rate_changed: bool, now: float) -> None:
        """Clean the input of noise and echo, as far as the session asks for it."""
        echo = None if settings.echo_cancellation is UNSET else settings.echo_cancellation
        wanted = (reduces_noise(settings.noise_reduction), echo)
        if wanted == self._processing and not (any(wanted) and rate_changed):
            return
        noise, self._processing = wanted[0], wanted
        make, rate = self._core.context.make_suppressor, self._timeline.sample_rate
        suppressor, self._core.echo = None, None
        if echo is not None:
            self._core.echo = EchoReference(echo.delay_ms / 1000)
            suppressor = make(rate, self._far_end(self._core.echo), noise=noise)
        elif noise:
            suppressor = make(rate)
        # What it held goes to voice activity as it came: the stream goes on without a gap.
        self._feed(self._timeline.suppress_noise(suppressor), now)

    def _far_end(self, reference: EchoReference) -> FarEnd:
        """``reference`` by frames of the stream that begins now."""
        begins, frame_ticks = self._timeline.end, TICKS_PER_SECOND // FRAMES_PER_SECOND
        return lambda frame: reference.frame(begins + frame * frame_ticks)

    def commit(self, now: float) -> Entry:
        """The client ends the turn by hand; this never creates a response."""
        start = self._turn.start if self._turn is not None else self._timeline.start
        end = self._timeline.end
        held_ms = (end - start) / TICKS_PER_MS
        if held_ms < MIN_COMMIT_MS:
            message = (
                "Error committing input audio buffer: buffer too small. "
                f"Expected at least {MIN_COMMIT_MS}ms of audio, but buffer only has {held_ms:.2f}ms of audio."
            )
            raise ProtocolError("input_audio_buffer_commit_empty", message)
        self._core.check_room()
        if self._turn is not None:
            self._core.emit(events.SpeechStopped, audio_end_ms=self._timeline.wire_ms(end), item_id=self._turn.item_id)
            self._listener.turn_resumed()
        uncommitted, self._uncommitted_id = self._uncommitted_id, None
        item_id = self._turn.item_id if self._turn is not None else uncommitted or self._core.context.ids("item")
        self._turn = None
        entry = self._make_item(item_id, start, end)
        self._settle(end)
        self._overlap.dismiss(end, now)
        return entry

    def clear(self, now: float) -> None:
        self._turn = self._uncommitted_id = None
        self._overlap.dismiss(self._timeline.end, now)
        self._listener.turn_dropped()
        self._timeline.clear()
        self._settle(self._timeline.end)
        self._core.emit(events.InputAudioCleared)

    def commit_silence(self, silence_s: float) -> None:
        """An idle timeout: an item without sound that says how long nobody spoke. Raises ``ProtocolError``."""
        self._core.check_room()
        end, item_id = self._timeline.end, self._core.context.ids("item")
        # A client that sends nothing while nobody speaks has been silent for longer than what it has written.
        settled_ms, end_ms = map(self._timeline.wire_ms, (self._settled, end))
        start_ms = max(settled_ms, self._silent_until_ms, end_ms - round(silence_s * 1000))
        self._silent_until_ms = end_ms
        self._core.emit(events.IdleTimeoutTriggered, audio_start_ms=start_ms, audio_end_ms=end_ms, item_id=item_id)
        entry = self._make_item(item_id, end, end)
        entry.silence_s, entry.transcript = silence_s, ""

    def voice_activity(self, frame: VoiceActivity, now: float) -> None:
        """The next frame. Frames of a stream that has been left are stale."""
        if frame.stream != self._stream or self._policy is None:
            return
        if self._asked_at is None:
            self._frame(self._policy, frame, now)
            return
        self._held.append(frame)
        if len(self._held) > MAX_HELD:
            self.turn_judged(self._questions, None, now)

    @property
    def _asking(self) -> bool:
        """Whether the model has yet to answer. Not read off the attribute where that has just been set to None: mypyc
        would take it for None from there on, whatever is called in between."""
        return self._asked_at is not None

    def turn_judged(self, question: int, probability: float | None, now: float) -> None:
        """The model's answer. One that comes too late finds no question open."""
        if self._asked_at is None or question != self._questions:
            return
        position, self._asked_at, self._answer_until = self._asked_at, None, math.inf
        if self._policy is not None:
            self._follow_all(self._policy.judged(probability), position, now)
            self._look_for_silence(self._policy, now)
        while self._held and not self._asking and self._policy is not None:
            self._frame(self._policy, self._held.popleft(), now)

    def turn_worded(self, full_stop: float) -> None:
        """What the recogniser says of the words up to the pause that goes on."""
        if self._policy is not None:
            self._policy.worded(full_stop)

    def tick(self, now: float) -> None:
        """Go on without an answer that is late, and count time without input as silence."""
        if now >= self._answer_until:
            self.turn_judged(self._questions, None, now)
        if now >= self._input_at + OVERLAP_GAP_S:
            self._overlap.break_off(self._stream_position)
        if now < self._watch_at:
            return
        gap_at = self._input_at + self._core.context.limits.input_gap_ms / 1000
        if now < gap_at:
            self._watch_at = gap_at
            return
        self._watch_at = now + GAP_STEP_S
        silence_s, self._heard_until = now - self._heard_until, now
        self._feed(self._timeline.append_silence(silence_s), now)

    def _frame(self, policy: SilencePolicy, frame: VoiceActivity, now: float) -> None:
        start = self._stream_position
        end = self._stream_position = start + VAD_FRAME_TICKS
        probability, self._heard_from = frame.probability, frame.heard_from
        if self._core.echo is not None and self._is_echo(self._core.echo, probability, end):
            probability = 0.0
        if end > self._settled:
            if signals := policy.frame(start, end, probability, frame.quiet_ms * TICKS_PER_MS):
                self._follow_all(signals, end, now)
            if self._overlap.open is not None:
                self._release(self._overlap.frame(end, now), now)
            if self._turn is not None and not self._paused:
                self._listener.turn_heard(TurnSound(self._turn.item_id, self._turn.start, end, self._timeline))
        held_for = self._turn or self._overlap.open
        self._timeline.drop_before(end - policy.lookback if held_for is None else held_for.start)
        self._look_for_silence(policy, now)

    def _look_for_silence(self, policy: SilencePolicy, now: float) -> None:
        """Let the policy know of silence for which it need not wait until the frame is complete.

        Done as soon as there is sound up to there and all frames before have come; so always before the frame that
        holds it, and how the sound came in pieces makes no difference.
        """
        while self._stream_position < policy.due <= self._timeline.clean_end and not self._asking:
            due = policy.due
            start = min(self._stream_position, due - PART_MS * TICKS_PER_MS)
            if heard(self._timeline.cut(start, due), self._timeline.sample_rate, self._heard_from):
                return
            self._follow_all(policy.silent(), due, now)

    def _is_echo(self, echo: EchoReference, probability: float, position: int) -> bool:
        """Whether what might begin a turn is our own voice."""
        if probability < ECHO_DOUBT or self._turn is not None or self._overlap.start is not None:
            return False
        sound = self._timeline.as_it_came(position - ECHO_WINDOW_MS * TICKS_PER_MS, position)
        return echo.echoes(sound, self._timeline.sample_rate, position)

    def overlap_output(self, output: EngineOutput, now: float) -> bool:
        """Take what the recogniser says of speech over an answer. False: the output is somebody else's."""
        if not self._overlap.owns(output.request_id):
            return False
        signals = self._overlap.output(output.delta, now)
        if signals is None:
            self._settle(self._stream_position)
            self._overlap.dismiss(self._stream_position, now)
        else:
            self._release(signals, now)
        return True

    def _follow_all(self, signals: Sequence[TurnSignal], position: int, now: float) -> None:
        for signal in signals:
            if isinstance(signal, Asked) and self._overlap.start is not None and self._policy is not None:
                self._follow_all(self._policy.judged(None), position, now)  # its words decide, not a model
            else:
                self._release(self._overlap.signal(signal, position, now), now)

    def _release(self, signals: Sequence[Held], now: float) -> None:
        for signal, position in signals:
            self._follow(signal, position, now)

    def _follow(self, signal: TurnSignal, position: int, now: float) -> None:
        if not isinstance(signal, Asked):
            self._paused = isinstance(signal, Paused)
        match signal:
            case Started(start=start):
                try:
                    self._core.check_room()
                except ProtocolError as error:  # of a turn without a beginning nothing else is said
                    self._core.emit_error(error)
                    return
                self._turn = UserTurn(self._core.context.ids("item"), max(start, self._timeline.start))
                # Prefix padding may reach back into what an idle timeout has told of; positions never decrease (O9).
                milliseconds = max(self._timeline.wire_ms(self._turn.start), self._silent_until_ms)
                self._core.emit(events.SpeechStarted, audio_start_ms=milliseconds, item_id=self._turn.item_id)
                self._watch_input()
                sounded = self._listener.left_s(now) > 0
                self._listener.turn_started(now)
                if sounded and not self._listener.left_s(now):
                    self._core.effects.append(Interrupted(self._since_onset_s(self._turn.start, position)))
            case Paused() if self._turn is not None:
                self._listener.turn_paused(self._utterance(self._turn.start, position), now)
            case Resumed():
                self._listener.turn_resumed()
            case Asked(end=end) if self._turn is not None:
                self._ask(self._turn, end, now)
            case Stopped(end=end) if self._turn is not None:
                turn, self._turn = self._turn, None
                self._watch_at = math.inf
                milliseconds = self._timeline.wire_ms(end)
                self._core.emit(events.SpeechStopped, audio_end_ms=milliseconds, item_id=turn.item_id)
                entry = self._make_item(turn.item_id, turn.start, end)
                self._settled = end
                self._listener.turn_committed(entry, now)

    def _since_onset_s(self, start: int, position: int) -> float:
        """How much has come since the first of the voice that was found at ``position``, in a turn from ``start``."""
        detection = self._core.session.audio.input.turn_detection
        padding_ms = detection.prefix_padding_ms if isinstance(detection, ServerVad) else PREFIX_PADDING_MS
        onset = min(start + padding_ms * TICKS_PER_MS, position - MIN_SPEECH_MS * TICKS_PER_MS)
        return (self._timeline.end - onset) / TICKS_PER_SECOND

    def _ask(self, turn: UserTurn, end: int, now: float) -> None:
        self._questions += 1
        self._asked_at, self._answer_until = end, now + ANSWER_WITHIN_S
        heard = self._utterance(max(turn.start, end - JUDGED_S * TICKS_PER_SECOND), end)
        self._core.effects.append(AskTurnModel(self._questions, heard.pcm, heard.sample_rate))

    def _forget_question(self) -> None:
        """What the model has been asked about is settled otherwise, and so are the frames that waited for it."""
        self._asked_at, self._answer_until = None, math.inf
        self._stream_position += len(self._held) * VAD_FRAME_TICKS
        self._held.clear()

    def _watch_input(self) -> None:
        gap_s = self._core.context.limits.input_gap_ms / 1000
        self._watch_at = self._input_at + gap_s if gap_s else math.inf

    def _make_item(self, item_id: str, start: int, end: int) -> Entry:
        core = self._core
        core.emit(events.InputAudioCommitted, item_id=item_id, previous_item_id=core.conversation.last_id)
        item = MessageItem(id=item_id, status="completed", role="user", content=(InputAudio(),))
        utterance = self._utterance(start, end)
        recording = Recording(utterance.pcm, utterance.sample_rate)
        entry = Entry(item, recording=recording, seen=core.take_view())
        core.conversation.insert(entry)
        previous = core.conversation.previous_id(item_id)
        core.emit(events.ItemAdded, previous_item_id=previous, item=item)
        core.emit(events.ItemDone, previous_item_id=previous, item=item)
        return entry

    def _utterance(self, start: int, end: int) -> Utterance:
        return Utterance(self._timeline.cut(start, end), self._timeline.sample_rate)

    def _settle(self, position: int) -> None:
        """Audio before ``position`` belongs to an item or is gone; no turn reaches back to it."""
        self._settled = position
        self._watch_at = math.inf
        self._forget_question()
        self._timeline.drop_before(position)
        if self._policy is not None:
            self._policy.reset(position)

    def _restart_stream(self) -> None:
        self._forget_question()
        self._stream += 1
        self._stream_position = self._timeline.clean_end
