"""Growing and shrinking between bounds: what is decided, and that bound requests stay where they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.autoscale import Autoscaler, replicas_wanted
from duologue.engine.deploy import Autoscale
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.restarts import WorkerError

TIMEOUT_S = 20.0


@given(st.integers(0, 500), st.integers(1, 5), st.integers(0, 20), st.floats(0.25, 16))
def test_the_wanted_number_is_within_the_bounds_and_enough(load: int, least: int, more: int, depth: float) -> None:
    bounds = Autoscale(min_replicas=least, max_replicas=least + more, target_queue_depth=depth)
    wanted = replicas_wanted(bounds, load)
    assert least <= wanted <= least + more
    assert wanted == least + more or wanted * depth >= load
    assert wanted == least or (wanted - 1) * depth < load


class Scaled:
    """Stage 0 of a rig, scaled. A request waits at its own gate, if it has one."""

    def __init__(self, kit: Any, rig: Any, bounds: Autoscale, process: Callable[[Any, Any], None]) -> None:
        self.rig = rig
        self.made: list[InlineReplica] = []
        self.ended: list[int] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.broken = False
        self._stage = lambda: kit.Scripted(process)
        self.scaler = Autoscaler(0, bounds, rig.replicas[0], rig.orchestrator, self._start, self._end)
        rig.orchestrator.on_load = self.scaler.look

    async def _start(self, index: int) -> InlineReplica:
        await self.may_start.wait()
        if self.broken:
            raise WorkerError("no room")
        self.made.append(InlineReplica("stage-0", self._stage, 1, index))
        await self.made[-1].load()
        await self.made[-1].warm_up()
        return self.made[-1]

    async def _end(self, replica: Any) -> None:
        assert replica.depth()[0] == 0, "it has drained"
        self.ended.append(replica.index)
        if replica in self.made:
            self.made.remove(replica)
            assert await replica.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
                await asyncio.sleep(0.005)

    @property
    def indices(self) -> list[int]:
        return sorted(replica.index for replica in self.scaler.serving)


@pytest.fixture
async def scaled(rig_of: Any, kit: Any) -> AsyncIterator[Callable[..., Any]]:
    made: list[Scaled] = []
    gates = {name: kit.Gate() for name in ("slow-kept", *(f"slow{n}" for n in range(5)))}

    def process(piece: Any, context: Any) -> None:
        if gate := gates.get(context.request.request_id):
            gate.wait()
        context.emit(piece)

    async def make(**bounds: Any) -> tuple[Scaled, dict[str, Any]]:
        made.append(Scaled(kit, await rig_of(kit.Scripted(process), s0=4), Autoscale(**bounds), process))
        return made[-1], gates

    yield make
    for gate in gates.values():
        gate.open()
    for each in made:
        await each.scaler.close()
        await each.rig.orchestrator.close()
        for replica in each.made:
            assert await replica.close()


async def test_load_brings_replicas_up_to_the_bound_and_idleness_takes_them_away(scaled: Callable[..., Any]) -> None:
    it, gates = await scaled(max_replicas=3, target_queue_depth=1, cooldown_s=0.05)
    streams = [it.rig.open(request_id=f"slow{n}") for n in range(5)]
    await it.until(lambda: it.indices == [0, 1, 2])
    assert it.scaler._cooldown is None, "no timer while there is nothing to decide"
    for n in range(5):
        gates[f"slow{n}"].open()
    for stream in streams:
        assert (await it.rig.read(stream))[-1].reason == "completed"
    await it.until(lambda: it.indices == [0] and sorted(it.ended) == [1, 2])
    assert it.scaler._cooldown is None


async def test_a_replica_that_leaves_keeps_its_request_to_the_end(scaled: Callable[..., Any]) -> None:
    it, gates = await scaled(max_replicas=2, target_queue_depth=2, cooldown_s=0.01)
    first = [it.rig.open(request_id=f"slow{n}") for n in range(3)]
    await it.until(lambda: it.indices == [0, 1])
    kept = it.rig.open(request_id="slow-kept")
    leaving = it.scaler.serving[1]
    assert leaving.depth()[0] == 1, "bound to the new replica, which has none"
    for n in range(2):
        gates[f"slow{n}"].open()
        await it.rig.read(first[n])
    await it.until(lambda: it.indices == [0])
    other = it.rig.open(request_id="other")
    assert leaving.depth()[0] == 1, "nothing new is bound to it"
    assert (await it.rig.read(other))[-1].reason == "completed"
    assert it.ended == []
    gates["slow-kept"].open()
    assert (await it.rig.read(kept))[-1].reason == "completed"
    await it.until(lambda: it.ended == [1])
    gates["slow2"].open()
    assert (await it.rig.read(first[2]))[-1].reason == "completed"


async def test_short_idleness_removes_nothing(scaled: Callable[..., Any]) -> None:
    it, gates = await scaled(max_replicas=2, target_queue_depth=1, cooldown_s=3600)
    streams = [it.rig.open(request_id=f"slow{n}") for n in range(2)]
    await it.until(lambda: it.indices == [0, 1])
    for n in range(2):
        gates[f"slow{n}"].open()
    for stream in streams:
        await it.rig.read(stream)
    await it.rig.released()
    assert it.scaler._cooldown is not None
    assert it.indices == [0, 1]
    more = [it.rig.open(request_id=f"r{n}") for n in range(2)]
    assert it.scaler._cooldown is None, "load that comes back ends the cooldown"
    for stream in more:
        await it.rig.read(stream)


async def test_a_start_is_not_asked_for_twice_and_a_failed_one_is_held_back(scaled: Callable[..., Any]) -> None:
    it, gates = await scaled(max_replicas=2, target_queue_depth=1, cooldown_s=3600)
    it.may_start.clear()
    streams = [it.rig.open(request_id=f"slow{n}") for n in range(4)]
    assert len(it.scaler._starting) == 1
    it.broken = True
    it.may_start.set()
    await it.until(lambda: not it.scaler._starting)
    streams.append(it.rig.open(request_id="slow4"))
    assert not it.scaler._starting, "held back after the failure"
    assert it.indices == [0]
    for n in range(5):
        gates[f"slow{n}"].open()
    for stream in streams:
        assert (await it.rig.read(stream))[-1].reason == "completed"
