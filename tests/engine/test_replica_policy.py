"""Which replica a request is bound to, that it stays there, and replicas that come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.executors.inline import InlineReplica
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.replica_policy import PolicyName, ReplicaPool
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, TextDelta
from duologue.engine.stream import Stream

POLICIES: tuple[PolicyName, ...] = ("least_in_flight", "round_robin", "session_hash")


@dataclass(eq=False)
class Fake:
    index: int
    live: bool = True
    open: int = 0
    stage: str = "s"

    def depth(self) -> tuple[int, int]:
        return self.open, 0


def pool(policy: PolicyName, *fakes: Fake) -> Any:
    return ReplicaPool(fakes, policy)  # type: ignore[arg-type]


def test_least_in_flight_takes_the_emptiest() -> None:
    fakes = [Fake(0, open=3), Fake(1, open=1), Fake(2, open=1)]
    assert pool("least_in_flight", *fakes).bind("a") is fakes[1]


def test_round_robin_takes_each_in_turn_and_each_stage_has_its_own_turn() -> None:
    fakes = [Fake(i) for i in range(3)]
    one, other = pool("round_robin", *fakes), pool("round_robin", *fakes)
    assert [one.bind("a").index for _ in range(5)] == [0, 1, 2, 0, 1]
    assert other.bind("a").index == 0


@given(st.lists(st.text(min_size=1), min_size=1, max_size=200, unique=True), st.integers(2, 6))
def test_session_hash_is_stable_and_a_new_replica_moves_only_what_it_gets(sessions: list[str], count: int) -> None:
    fakes = [Fake(i) for i in range(count)]
    before = {s: pool("session_hash", *fakes[:-1]).bind(s) for s in sessions}
    after = {s: pool("session_hash", *fakes).bind(s) for s in sessions}
    assert after == {s: pool("session_hash", *reversed(fakes)).bind(s) for s in sessions}
    assert all(after[s] in (before[s], fakes[-1]) for s in sessions)


def test_session_hash_spreads_sessions() -> None:
    spread = Counter(pool("session_hash", *(Fake(i) for i in range(4))).bind(f"sess_{n}").index for n in range(1000))
    assert all(180 < spread[i] < 320 for i in range(4)), spread


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dead_replica_is_left_out_while_another_lives(policy: PolicyName) -> None:
    dead, alive = Fake(0, live=False), Fake(1, open=9)
    chosen = pool(policy, dead, alive)
    assert {chosen.bind(f"s{n}") for n in range(20)} == {alive}
    alive.live = False
    assert chosen.bind("s") in (dead, alive), "nobody is left: the request is to fail by name"


# -- with an orchestrator ----------------------------------------------------------------------------------------------


class Pair:
    """One stage with two replicas; what a replica emits says which one it is."""

    def __init__(self, kit: Any, policy: PolicyName) -> None:
        self.kit = kit
        self.gates: dict[str, Any] = {}
        self.stages = [kit.Scripted(self._script(i)) for i in range(3)]
        self.replicas = [InlineReplica("stage-0", lambda i=i: self.stages[i], 2, i) for i in range(3)]
        config, _ = kit.chain(self.stages[0])
        self.orchestrator = Orchestrator(config, {0: self.replicas[:2]}, policies={0: policy})

    def _script(self, index: int) -> Callable[..., None]:
        def process(piece: Any, context: Any) -> None:
            if gate := self.gates.get(context.request.request_id):
                gate.wait()
            context.emit(TextDelta(text=str(index)))

        return process

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.load()
            await replica.warm_up()
        self.orchestrator.start()

    def open(self, name: str, session: str = "s") -> Stream:
        payload = Converse(messages=(ChatMessage(role="user", text="x"),), modalities=("text",))
        return self.orchestrator.open(EngineRequest(request_id=name, session_id=session, payload=payload))

    async def read(self, stream: Stream) -> str:
        async with asyncio.timeout(self.kit.timeout_s):
            return "".join([d.text async for d in stream if isinstance(d, TextDelta)])

    async def close(self) -> None:
        await self.orchestrator.close()
        for replica in self.replicas:
            assert await replica.close()


@pytest.fixture
async def pair_of(kit: Any) -> AsyncIterator[Callable[..., Any]]:
    pairs: list[Pair] = []

    async def make(policy: PolicyName) -> Pair:
        pairs.append(Pair(kit, policy))
        await pairs[-1].start()
        return pairs[-1]

    yield make
    for pair in pairs:
        await pair.close()


async def test_requests_of_a_session_stay_together_or_take_turns_as_the_policy_says(pair_of: Any) -> None:
    turns = await pair_of("round_robin")
    assert [await turns.read(turns.open(f"t{n}")) for n in range(4)] == ["0", "1", "0", "1"]
    hashed = await pair_of("session_hash")
    for session in ("a", "b", "c", "d"):
        assert len({await hashed.read(hashed.open(f"{session}{n}", session)) for n in range(3)}) == 1


async def test_an_added_replica_takes_requests_and_a_removed_one_finishes_what_it_has(kit: Any, pair_of: Any) -> None:
    pair = await pair_of("round_robin")
    pair.orchestrator.add_replica(0, pair.replicas[2])
    pair.gates["held"] = kit.Gate()
    held = pair.open("held")  # bound to replica 0
    removal = asyncio.create_task(pair.orchestrator.remove_replica(0, pair.replicas[0]))
    assert {await pair.read(pair.open(f"r{n}")) for n in range(4)} == {"1", "2"}
    assert not removal.done()
    pair.gates["held"].open()
    assert await pair.read(held) == "0", "a request stays with its replica"
    await asyncio.wait_for(removal, kit.timeout_s)
    assert pair.orchestrator.healthy
    await pair.orchestrator.remove_replica(0, pair.replicas[1])
    with pytest.raises(ValueError, match=r"Replica 2 is the last one of stage 'stage-0'"):
        await pair.orchestrator.remove_replica(0, pair.replicas[2])


async def test_closing_ends_a_removal_that_waits(kit: Any, pair_of: Any) -> None:
    pair = await pair_of("round_robin")
    pair.gates["held"] = kit.Gate()
    pair.open("held")
    removal = asyncio.create_task(pair.orchestrator.remove_replica(0, pair.replicas[0]))
    await asyncio.sleep(0)
    await pair.orchestrator.close()
    await asyncio.wait_for(removal, kit.timeout_s)
    pair.gates["held"].open()
