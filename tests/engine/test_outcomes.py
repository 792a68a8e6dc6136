"""One outcome and one clean-up for each request, whatever order the reports of its stages and the client's wishes take.

The replicas here are scripts: no threads, so that Hypothesis decides the order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from duologue.engine.executors.base import HOST_CLOCK, Consumed, Done, Emitted, Failed, Message, Released
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, Finished, TextDelta

ASK = Converse(messages=(ChatMessage(role="user", text="x"),), modalities=("text",))
CHAIN = PipelineConfig(
    "chain",
    (
        StageConfig(0, "a", "x", accepts=(Converse,)),
        StageConfig(1, "b", "x", input_sources=(0,)),
        StageConfig(2, "c", "x", input_sources=(1,), final_output=True, final_output_type="text"),
    ),
)
OPENED, OVER, GONE = "opened", "over", "gone"


class Script:
    """A replica that reports what it is told to, and notes what it is asked to do."""

    live = True
    index = 0
    clock = HOST_CLOCK

    def __init__(self, stage: str, refuses: bool = False) -> None:
        self.stage = stage
        self.refuses = refuses
        self.calls: Counter[str] = Counter()
        self.state = ""
        self.to_consume = 0
        self.reports: asyncio.Queue[Message] = asyncio.Queue()

    def open(self, request: EngineRequest) -> None:
        self.calls["open"] += 1
        if self.refuses:
            raise RuntimeError("no room")
        self.state = OPENED

    def push(self, request_id: str, piece: Any) -> None:
        self.to_consume += 1
        self.calls["late"] += self.calls["abort"]

    def end_input(self, request_id: str) -> None:
        self.calls["end_input"] += 1

    def grant(self, request_id: str, total: int) -> None:
        self.calls["grant"] += 1

    def abort(self, request_id: str) -> None:
        self.calls["abort"] += 1

    def depth(self) -> tuple[int, int]:
        return 0, 0

    async def messages(self) -> list[Message]:
        return [await self.reports.get()]

    def report(self, what: str) -> str | None:
        """One legal report for the request ``r``; what it may decide, or None when it is not legal now."""
        if self.state == GONE or (self.state == OVER and what != "release"):
            return None
        if what == "emit":
            self.reports.put_nowait(Emitted("r", TextDelta(text="x"), 0.0))
        elif what == "consume" and self.to_consume:
            self.reports.put_nowait(Consumed("r", self.to_consume, 1.0))
            self.to_consume = 0
        elif what == "done" and self.calls["end_input"]:
            self.state = OVER
            self.reports.put_nowait(Done("r"))
        elif what == "fail":
            self.state = OVER
            self.reports.put_nowait(Failed("r", f"{self.stage} failed"))
        elif what == "release" and (self.state == OVER or self.calls["abort"]):
            self.state = GONE
            self.reports.put_nowait(Released("r", 0.0))
        else:
            return None
        return what


def outcomes() -> dict[str, float]:
    """How many requests ended, by reason, in all of this process."""
    return {
        sample.labels["finished_reason"]: sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "duologue_requests_total"
    }


def ended() -> float:
    return sum(outcomes().values())


async def settle() -> None:
    """Let the readers take every report."""
    for _ in range(10):
        await asyncio.sleep(0)


def make(*refusing: int) -> tuple[Orchestrator, list[Script]]:
    scripts = [Script(s.name, s.stage_id in refusing) for s in CHAIN.stages]
    orchestrator = Orchestrator(CHAIN, {i: [script] for i, script in enumerate(scripts)})  # type: ignore[list-item]
    orchestrator.start()
    return orchestrator, scripts


def request() -> EngineRequest:
    return EngineRequest(request_id="r", session_id="s", payload=ASK)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["emit", "consume", "done", "fail", "release"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["abort", "read", "settle"]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_first_terminal_outcome_wins_and_everything_is_released_once(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        orchestrator, scripts = make()
        before = ended()
        stream = orchestrator.open(request())
        first: str | None = None
        aborted = False
        read: list[Any] = []
        for what, stage in steps:
            if what == "abort":
                await settle()
                aborted = aborted or not (read and isinstance(read[-1], Finished))
                first = first or "aborted"
                stream.abort()
            elif what == "read":
                await settle()
                if stream.pending_bytes or first:
                    read += [delta async for delta in _up_to_one(stream)]
            elif what == "settle":
                await settle()
            elif scripts[stage].report(what):
                await settle()
                if what == "fail":
                    first = first or "failed"
                elif what == "done" and all(s.state in (OVER, GONE) for s in scripts):
                    first = first or "completed"
        if first is None:
            stream.abort()
            stream.abort()
            first, aborted = "aborted", True
        for script in scripts:
            script.report("emit")  # late: nobody wants it any more
            script.report("release")
        await settle()
        read += [delta async for delta in stream]
        assert [type(d) for d in read].count(Finished) == 1
        assert read[-1].reason == ("aborted" if aborted else first)
        assert ended() - before == 1, "counted once"
        assert orchestrator.live == 0
        for script in scripts:
            assert script.calls["open"] == 1
            assert script.calls["abort"] <= 1
            assert script.calls["late"] == 0, "nothing is handed on once the request is over"
            assert script.state == GONE, "aborted or over, so it could release"
        again = orchestrator.open(request())  # the id is free
        again.abort()
        await orchestrator.close()

    asyncio.run(run())


async def _up_to_one(stream: Any) -> Any:
    try:
        yield await anext(stream)
    except StopAsyncIteration:
        return


@pytest.mark.parametrize("refusing", [0, 1, 2])
async def test_a_stage_that_cannot_be_opened_rolls_back_those_before_it(refusing: int) -> None:
    orchestrator, scripts = make(refusing)
    stream = orchestrator.open(request())
    assert [delta async for delta in stream] == [
        Finished(reason="failed", error=f"Stage '{'abc'[refusing]}' could not take the request.")
    ]
    assert [script.calls["open"] for script in scripts] == [1] * (refusing + 1) + [0] * (2 - refusing)
    for script in scripts[:refusing]:
        assert script.calls["abort"] == 1
        assert orchestrator.live == 1, "not before each has released"
        script.report("release")
        await settle()
    assert orchestrator.live == 0
    await asyncio.wait_for(orchestrator.idle(), 5)
    await orchestrator.close()
