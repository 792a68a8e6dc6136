"""Playout by a clock of ours: where sound leaves over a media track, the server itself knows and cuts what was heard.

The media track is told what to play and reports what it plays; the reports become ``output_audio_buffer.*``. When it is
told to stop, every item of which something is still unheard is truncated to what has been played (O29). On a transport
without a media track nothing here does anything.
"""

from __future__ import annotations

from duologue.engine.requests import OUTPUT_SAMPLE_RATE
from duologue.sessions import server_events as events
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import (
    FinishPlaying,
    Play,
    PlayoutCleared,
    PlayoutStarted,
    PlayoutStopped,
    StopPlaying,
)
from duologue.sessions.playout import ReportedLedger


class MediaOutput:
    """What a session does with its media track."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.used = core.context.media_clock
        """Whether there is a media track; else sound leaves inside events."""
        self._playing: str | None = None
        """The response that is being heard."""

    def plays(self, now: float) -> bool:
        """Whether something is being heard or is about to be."""
        return self.used and (self._playing is not None or self._core.ledger.unplayed(now))

    def play(self, response_id: str, item_id: str, pcm: bytes) -> None:
        """Put more of an item on the track, unless that was told to stop in the middle of it."""
        if self._core.ledger.heard(item_id) is None:
            self._core.effects.append(Play(response_id, item_id, pcm))

    def finish(self, response_id: str) -> None:
        """A response is over; the track plays what it has of it."""
        if self.used:
            self._core.effects.append(FinishPlaying(response_id))

    def stop(self) -> None:
        """Nothing that waits is to be heard any more."""
        if self.used:
            self.silence()
            self.truncate()

    def silence(self) -> None:
        """The track drops what it has not played."""
        self._core.effects.append(StopPlaying())

    def truncate(self) -> None:
        """Cut every item of which something is unheard to what has been played."""
        ledger = self._core.ledger
        if isinstance(ledger, ReportedLedger):
            for item_id, _ in tuple(ledger.unheard()):
                self._cut_item(item_id, ledger.cut_to_sent(item_id))

    def report(self, report: PlayoutStarted | PlayoutStopped | PlayoutCleared) -> None:
        """The track says what it did."""
        core = self._core
        match report:
            case PlayoutStarted(response_id=response_id):
                self._playing = response_id
                core.emit(events.OutputAudioStarted, response_id=response_id)
            case PlayoutStopped(response_id=response_id):
                self._playing = None
                core.emit(events.OutputAudioStopped, response_id=response_id)
            case PlayoutCleared(response_id=response_id):
                self._playing = None
                core.emit(events.OutputAudioCleared, response_id=response_id)

    def _cut_item(self, item_id: str, heard: int) -> None:
        conversation = self._core.conversation
        if conversation.find(item_id) is None:
            return
        entry = conversation.truncate(item_id, 0)
        if entry.recording is not None:
            entry.recording.cut(heard * 2)
        end_ms = heard * 1000 // OUTPUT_SAMPLE_RATE
        self._core.emit(events.ItemTruncated, item_id=item_id, content_index=0, audio_end_ms=end_ms)
