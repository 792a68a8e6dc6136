"""What the edge counts. Served at ``/metrics`` from the process-wide registry, with the families of the rooms below."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

connections_refused = Counter("duologue_connections_refused", "Realtime connections refused, by reason", ["reason"])
invalid_events = Counter("duologue_invalid_events", "Client events refused by the wire format, by code", ["code"])
event_loop_tasks = Gauge("duologue_event_loop_tasks", "Tasks on the event loop, that of this look included")
