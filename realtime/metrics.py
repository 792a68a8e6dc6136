"""What the edge counts. Served at ``/metrics`` from the process-wide registry, together with the engine's families."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

sessions_open = Gauge("duologue_sessions_open", "Realtime sessions open now")
sessions_refused = Counter("duologue_sessions_refused_total", "Realtime sessions refused, by reason", ["reason"])
invalid_events = Counter("duologue_invalid_events_total", "Client events refused by the wire format, by code", ["code"])
