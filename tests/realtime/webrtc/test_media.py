"""Our media against a stock aiortc peer, over a link that loses, delays and repeats."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from webrtc_call import calling, until

from duologue.codecs.pcm import PCM16

RATE = 24_000


def tone(seconds: float, hertz: float = 440.0, level: float = 8000.0) -> bytes:
    at = np.arange(int(seconds * RATE))
    return (level * np.sin(2 * np.pi * hertz * at / RATE)).astype(PCM16).tobytes()


async def test_both_ends_hear_each_other() -> None:
    async with calling() as call:
        call.outgoing.push("r", "i", tone(1.0))
        call.outgoing.finish("r")
        await until(lambda: ("stopped", "r", 0) in call.listener.events)
        await until(lambda: len(call.server_pcm()) > RATE)
        await asyncio.sleep(0.3)
        heard = call.peer_pcm()
        assert np.abs(heard).max() > 6000
        spectrum = np.abs(np.fft.rfft(heard))
        assert np.fft.rfftfreq(len(heard), 1 / 48_000)[spectrum.argmax()] == pytest.approx(440, abs=5)
        ours = call.server_pcm()[RATE // 2 :]
        spectrum = np.abs(np.fft.rfft(ours))
        assert np.fft.rfftfreq(len(ours), 1 / RATE)[spectrum.argmax()] == pytest.approx(220, abs=5)
        assert call.listener.played == {"i": RATE}
        assert call.listener.events == [("started", "r", 0), ("stopped", "r", 0)]
