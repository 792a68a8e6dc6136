"""What the edge counts. Served at ``/metrics`` from the process-wide registry, with the families of the rooms below."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

connections_refused = Counter("duologue_connections_refused", "Realtime connections refused, by reason", ["reason"])
invalid_events = Counter("duologue_invalid_events", "Client events refused by the wire format, by code", ["code"])
oversize_events = Counter(
    "duologue_oversize_events", "Events too large for the data channel of a call, by type", ["type"]
)
calls_ended = Counter("duologue_calls_ended", "Peer connections of calls that are over, by reason", ["reason"])
av_delay_difference = Gauge(
    "duologue_call_av_delay_difference_s",
    "Wait of incoming pictures in the jitter buffer less that of incoming sound, mean of the calls that have both",
)
event_loop_tasks = Gauge("duologue_event_loop_tasks", "Tasks on the event loop, that of this look included")
media_worker_calls = Gauge("duologue_media_worker_calls", "Calls whose media a media worker has", ["worker"])
media_workers_lost = Counter("duologue_media_workers_lost", "Media workers that ended or hung while at work")
unheard_s = Counter(
    "duologue_call_unheard_s", "Sound of callers that was left out because the gateway did not keep up, in seconds"
)
