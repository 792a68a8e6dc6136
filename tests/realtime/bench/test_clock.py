"""Pacing by absolute deadlines, with a scripted clock."""

from __future__ import annotations

import pytest

from duologue.realtime.bench.clock import PacedSender


class ScriptedClock:
    """Time moves only by sleeping and by ``spend``."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep_until(self, at: float) -> None:
        self.time = max(self.time, at)


class Counting:
    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def take(self, samples: int) -> bytes | None:
        if not self.left:
            return None
        self.left -= 1
        return bytes([self.left]) * (samples * 2)


async def paced(pacing: str, spend: dict[int, float]) -> tuple[list[float], list[bytes], PacedSender]:
    clock = ScriptedClock()
    times: list[float] = []
    chunks: list[bytes] = []

    async def send(chunk: bytes, due: float) -> None:
        times.append(round(clock.now() - 100.0, 6))
        chunks.append(chunk)
        clock.time += spend.get(len(times) - 1, 0.0)

    sender = PacedSender(send, clock, pacing=pacing)
    await sender.run(Counting(5))
    return times, chunks, sender


async def test_mic_sends_a_chunk_when_it_has_been_spoken():
    times, chunks, sender = await paced("mic", {})
    assert times == [0.02, 0.04, 0.06, 0.08, 0.1]
    assert {len(chunk) for chunk in chunks} == {960}
    assert sender.t0 == 100.0
    assert sender.lags == [pytest.approx(0.0, abs=1e-9)] * 5


async def test_ahead_sends_a_chunk_when_it_begins():
    times, _, _ = await paced("ahead", {})
    assert times == [0.0, 0.02, 0.04, 0.06, 0.08]


async def test_a_late_chunk_is_sent_at_once_none_is_skipped_and_the_deadlines_do_not_move():
    times, chunks, sender = await paced("mic", {0: 0.05})
    assert times == [0.02, 0.07, 0.07, 0.08, 0.1]
    assert [chunk[0] for chunk in chunks] == [4, 3, 2, 1, 0]
    assert sender.lags == [pytest.approx(lag, abs=1e-9) for lag in (0, 0.03, 0.01, 0, 0)]


async def test_the_input_clock_starts_before_the_first_chunk():
    started: list[float] = []
    clock = ScriptedClock()

    async def send(chunk: bytes, due: float) -> None:
        assert started == [100.0]

    await PacedSender(send, clock, on_start=started.append).run(Counting(1))
