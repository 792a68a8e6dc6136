"""The input half of the session core: from appended bytes to turns of the user.

Bytes go onto the timeline; voice activity over them comes back frame by frame; the turn policy turns the frames into
signals; the turns become committed items. What an utterance leads to is the other half's business
(:mod:`duologue.sessions.answering`), reached through :class:`TurnListener`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from duologue.sessions import server_events as events
from duologue.sessions.conversation import Entry, Recording
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import FeedVoiceActivity, GoOn, MoreAudio, StopVoiceActivity
from duologue.sessions.errors import ProtocolError
from duologue.sessions.input_audio import PIECE_BYTES, InputTimeline, reduces_noise
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS, ticks_per_sample, to_ms
from duologue.sessions.turns.policy import Paused, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

MIN_COMMIT_MS = 100


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


@dataclass(frozen=True)
class TurnSound:
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


class TurnListener(Protocol):
    """Who is told about the user's turns."""

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
        self._stream = 0
        self._stream_position = 0
        self._settled = 0
        self._silent_until_ms = 0
        """Up to where idle timeouts have said that nobody spoke."""
        self._reduces_noise = False
        self.settings_changed(detection_changed=True)

    @property
    def speaking(self) -> bool:
        return self._turn is not None

    def settings_changed(self, *, detection_changed: bool) -> None:
        """Follow the session's input format, noise reduction and turn detection."""
        session_input = self._core.session.audio.input
        rate_changed = self._timeline.change_encoding(self._core.input_encoding)
        self._follow_noise_reduction(rate_changed)
        if rate_changed:
            self._restart_stream()
        if not detection_changed:
            return
        detection = session_input.turn_detection
        if detection is None:
            self._turn = self._policy = None
            self._listener.turn_dropped()
            self._core.effects.append(StopVoiceActivity())
            return
        settings = SilenceSettings.of(detection, self._core.context.limits.max_turn_s)
        if self._policy is None:
            self._uncommitted_id = None
            self._listener.turn_dropped()
            self._restart_stream()
            self._policy = SilencePolicy(settings, max(self._settled, self._timeline.start))
        else:
            self._policy.configure(settings)

    def append(self, data: bytes) -> None:
        limit_s = self._core.context.limits.max_manual_buffer_s
        if self._policy is None and self._timeline.end - self._timeline.start > limit_s * TICKS_PER_SECOND:
            message = f"The input buffer holds {limit_s:.0f} s of uncommitted audio; commit or clear it first."
            raise ProtocolError("invalid_value", message, "audio")
        if self._timeline.suppresses_noise and len(data) > PIECE_BYTES:
            self.append_from(data, 0)
        else:
            self._feed(self._timeline.append(data))

    def hear(self, pcm: bytes) -> None:
        """Sound from a media track: it comes whether it is wanted or not, so only the newest is kept."""
        self._feed(self._timeline.append(pcm))
        if self._policy is None:
            kept = int(self._core.context.limits.max_manual_buffer_s * TICKS_PER_SECOND)
            self._timeline.drop_before(self._timeline.end - kept)

    def append_from(self, data: bytes, offset: int) -> None:
        """The next piece of an append from ``offset`` on; the rest comes back."""
        self._feed(self._timeline.append(data[offset : offset + PIECE_BYTES]))
        if offset + PIECE_BYTES < len(data):
            self._core.effects.append(GoOn(MoreAudio(data, offset + PIECE_BYTES)))

    def _feed(self, pcm: bytes) -> None:
        if not pcm:
            return
        if self._policy is not None:
            self._core.effects.append(FeedVoiceActivity(self._stream, pcm, self._timeline.sample_rate))
        else:
            self._uncommitted_id = self._uncommitted_id or self._core.context.ids("item")
            start, end = self._timeline.start, self._timeline.clean_end
            self._listener.turn_heard(TurnSound(self._uncommitted_id, start, end, self._timeline))

    def _follow_noise_reduction(self, rate_changed: bool) -> None:
        wanted = reduces_noise(self._core.session.audio.input.noise_reduction)
        if wanted == self._reduces_noise and not (wanted and rate_changed):
            return
        self._reduces_noise = wanted
        make = self._core.context.make_suppressor
        # What it held goes to voice activity as it came: the stream goes on without a gap.
        self._feed(self._timeline.suppress_noise(make(self._timeline.sample_rate) if wanted else None))

    def commit(self) -> Entry:
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
        if self._turn is not None:
            self._core.emit(events.SpeechStopped, audio_end_ms=to_ms(end), item_id=self._turn.item_id)
            self._listener.turn_resumed()
        uncommitted, self._uncommitted_id = self._uncommitted_id, None
        item_id = self._turn.item_id if self._turn is not None else uncommitted or self._core.context.ids("item")
        self._turn = None
        entry = self._make_item(item_id, start, end)
        self._settle(end)
        return entry

    def clear(self) -> None:
        self._turn = self._uncommitted_id = None
        self._listener.turn_dropped()
        self._timeline.clear()
        self._settle(self._timeline.end)
        self._core.emit(events.InputAudioCleared)

    def commit_silence(self, silence_s: float) -> None:
        """An idle timeout: an item without sound that says how long nobody spoke."""
        end, item_id = self._timeline.end, self._core.context.ids("item")
        # A client that sends nothing while nobody speaks has been silent for longer than what it has written.
        start_ms = max(to_ms(self._settled), self._silent_until_ms, to_ms(end) - round(silence_s * 1000))
        self._silent_until_ms = to_ms(end)
        self._core.emit(events.IdleTimeoutTriggered, audio_start_ms=start_ms, audio_end_ms=to_ms(end), item_id=item_id)
        entry = self._make_item(item_id, end, end)
        entry.silence_s, entry.transcript = silence_s, ""

    def voice_activity(self, stream: int, probability: float, now: float) -> None:
        """The next frame's speech probability. Frames of a stream that has been left are stale."""
        if stream != self._stream or self._policy is None:
            return
        start = self._stream_position
        end = self._stream_position = start + VAD_FRAME_TICKS
        if end > self._settled:
            for signal in self._policy.frame(start, end, probability):
                self._follow(signal, end, now)
            if self._turn is not None and not self._paused:
                self._listener.turn_heard(TurnSound(self._turn.item_id, self._turn.start, end, self._timeline))
        keep_from = self._turn.start if self._turn is not None else end - self._policy.lookback
        self._timeline.drop_before(keep_from)

    def _follow(self, signal: TurnSignal, position: int, now: float) -> None:
        self._paused = isinstance(signal, Paused)
        match signal:
            case Started(start=start):
                self._turn = UserTurn(self._core.context.ids("item"), max(start, self._timeline.start))
                milliseconds = to_ms(self._turn.start)
                self._core.emit(events.SpeechStarted, audio_start_ms=milliseconds, item_id=self._turn.item_id)
                self._listener.turn_started(now)
            case Paused() if self._turn is not None:
                self._listener.turn_paused(self._utterance(self._turn.start, position), now)
            case Resumed():
                self._listener.turn_resumed()
            case Stopped(end=end) if self._turn is not None:
                turn, self._turn = self._turn, None
                self._core.emit(events.SpeechStopped, audio_end_ms=to_ms(end), item_id=turn.item_id)
                entry = self._make_item(turn.item_id, turn.start, end)
                self._settled = end
                self._listener.turn_committed(entry, now)

    def _make_item(self, item_id: str, start: int, end: int) -> Entry:
        core = self._core
        core.emit(events.InputAudioCommitted, item_id=item_id, previous_item_id=core.conversation.last_id)
        item = MessageItem(id=item_id, status="completed", role="user", content=(InputAudio(),))
        utterance = self._utterance(start, end)
        recording = Recording(bytearray(utterance.pcm), utterance.sample_rate)
        entry = Entry(item, recording=recording)
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
        self._timeline.drop_before(position)
        if self._policy is not None:
            self._policy.reset(position)

    def _restart_stream(self) -> None:
        self._stream += 1
        self._stream_position = self._timeline.clean_end
