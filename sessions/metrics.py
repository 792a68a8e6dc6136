"""Prometheus families of the sessions. Registered once, at import."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from duologue.sessions import server_events as events
from duologue.sessions.server_events import ServerEvent

sessions_open = Gauge("duologue_sessions_open", "Sessions in progress")
sessions_refused = Counter("duologue_sessions_refused", "Sessions refused because the server was full")
speculations = Counter("duologue_speculations", "Answers begun in secret")
speculations_refused = Counter(
    "duologue_speculations_refused", "Answers not begun in secret because too many had been in vain"
)
speculations_wasted = Counter("duologue_speculations_wasted", "Answers prepared in secret and thrown away")
responses_total = Counter("duologue_responses", "Responses by their final status", ["status"])
speech_stopped_to_first_audio_s = Histogram(
    "duologue_speech_stopped_to_first_audio_s",
    "Seconds from the event that ends the user's turn to the first sound of the answer, both as queued for the client",
    buckets=(0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 60),
)


interruption_s = Histogram(
    "duologue_interruption_s",
    "Seconds of the user's voice that had come when an answer that sounded was stopped for it",
    buckets=(0.064, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.75, 1, 1.5, 2, 5),
)


class SessionMeter:
    """Counts what a session sends to its client."""

    def __init__(self) -> None:
        self._stopped: float | None = None
        """When the user's turn ended, while its answer has not sounded."""
        self._wasted = 0

    def wasted(self, speculations: int) -> None:
        """So many answers have been prepared in vain since the session began."""
        if speculations > self._wasted:
            speculations_wasted.inc(speculations - self._wasted)
            self._wasted = speculations

    def interrupted(self, after_s: float) -> None:
        """The user has stopped an answer."""
        interruption_s.observe(after_s)

    def sent(self, event: ServerEvent, now: float) -> None:
        """An event was queued for the client at ``now``, in seconds of the session's clock."""
        match event:
            case events.OutputAudioDelta() | events.OutputAudioStarted():
                if self._stopped is not None:
                    speech_stopped_to_first_audio_s.observe(now - self._stopped)
                    self._stopped = None
            case events.SpeechStopped():
                self._stopped = now
            case events.SpeechStarted():
                self._stopped = None
            case events.ResponseDone():
                responses_total.labels(event.response.status).inc()
