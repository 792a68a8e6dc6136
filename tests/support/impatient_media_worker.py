"""A media worker that misses a vanished peer after two seconds: consent is asked for every 0.2 s, and not every 5."""

from __future__ import annotations

import aioice.ice

from duologue.realtime.webrtc.media_worker import main

if __name__ == "__main__":
    aioice.ice.CONSENT_INTERVAL = 0.2
    main()
