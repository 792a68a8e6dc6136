"""The inline executor by itself: turns, slots, credit, release, close."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from duologue.engine.executors import inline
from duologue.engine.executors.base import WINDOW, Consumed, Done, Emitted, Failed, Message, Released
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.executors.outbox import Outbox
from duologue.engine.requests import EngineRequest, Speak


def request(name: str) -> EngineRequest:
    return EngineRequest(request_id=name, session_id="session", payload=Speak(text="x"))


@pytest.fixture
async def replica_of(no_thread_left: None) -> AsyncIterator[Callable[..., Any]]:
    replicas: list[InlineReplica] = []

    async def make(stage: Any, slots: int = 1) -> InlineReplica:
        replica = InlineReplica("stage", lambda: stage, slots)
        await replica.load()
        await replica.warm_up()
        replicas.append(replica)
        return replica

    yield make
    for replica in replicas:
        await replica.close()


async def reports_until(kind: type[Message], replica: InlineReplica, count: int = 1) -> list[Message]:
    reports: list[Message] = []
    async with asyncio.timeout(20):
        while sum(isinstance(report, kind) for report in reports) < count:
            reports += await replica.messages()
    return reports


async def test_waiting_requests_take_turns_piece_by_piece(kit: Any, replica_of: Any) -> None:
    order: list[str] = []
    gate, inside = kit.Gate(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        name = context.request.request_id
        if name == "first":
            inside.set()
            gate.wait()
        else:
            order.append(name)

    replica = await replica_of(kit.Scripted(process))
    for name in ("a", "b", "first"):
        replica.open(request(name))
    replica.push("first", 0)
    await inside.wait()
    for name in "ab":
        for n in range(4):
            replica.push(name, n)
        replica.end_input(name)
    gate.open()
    await reports_until(Released, replica, 2)
    assert order == list("abababab")


def due(name: str, in_s: float) -> EngineRequest:
    return EngineRequest(request_id=name, session_id="session", payload=Speak(text="x"), due_in_s=in_s)


async def test_a_long_piece_gives_way_to_who_waits_and_goes_on_before_what_may_wait(kit: Any, replica_of: Any) -> None:
    """One at a time: an answer far ahead, then a turn that waits, the answer again, at last what was prepared."""
    order: list[str] = []
    gate, inside = kit.Gate(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        name = context.request.request_id
        order.append(name)
        if name == "ahead":
            context.made(30.0)
            inside.set()
            gate.wait()
            while context.outranked:
                assert context.give_way()
                order.append("ahead")

    stage = kit.Scripted(process)
    stage.concurrency = 1
    replica = await replica_of(stage, 4)
    replica.open(request("ahead"))
    replica.push("ahead", 0)
    await inside.wait()
    for asked in (due("prepared", 60.0), due("soon", 5.0), due("now", 0.0)):
        replica.open(asked)
        replica.push(asked.request_id, 0)
        replica.end_input(asked.request_id)
    async with asyncio.timeout(20):
        while sum(lane.computes for lane in replica.ready) < 3:  # noqa: ASYNC110 - until all have been started
            await asyncio.sleep(0)
    gate.open()
    await reports_until(Released, replica, 3)
    assert order == ["ahead", "now", "soon", "ahead", "prepared"]


async def test_only_the_least_urgent_of_those_that_compute_gives_way(kit: Any, replica_of: Any) -> None:
    gates = {name: kit.Gate() for name in ("soon", "later")}
    inside = {name: kit.Signal() for name in gates}
    outranked: dict[str, bool] = {}

    def process(piece: Any, context: Any) -> None:
        name = context.request.request_id
        if name in gates:
            inside[name].set()
            gates[name].wait()
            outranked[name] = context.outranked

    stage = kit.Scripted(process)
    stage.concurrency = 2
    replica = await replica_of(stage, 4)
    for name, in_s in (("soon", 5.0), ("later", 60.0)):
        replica.open(due(name, in_s))
        replica.push(name, 0)
        await inside[name].wait()
    replica.open(request("now"))
    replica.push("now", 0)
    async with asyncio.timeout(20):
        while not any(lane.computes for lane in replica.ready):  # noqa: ASYNC110 - until it has been started
            await asyncio.sleep(0)
    gates["soon"].open()
    await reports_until(Consumed, replica)
    assert outranked == {"soon": False}
    gates["later"].open()


@pytest.mark.parametrize("runs_short", [False, True])
async def test_an_answer_far_ahead_rests_while_another_computes(
    kit: Any, replica_of: Any, monkeypatch: pytest.MonkeyPatch, runs_short: bool
) -> None:
    """There is a place for both. It goes on once nobody needs the processor, or once it needs it itself."""
    order: list[str] = []
    begun, go_on = kit.Signal(), kit.Gate()
    rests = threading.Event()

    def process(piece: Any, context: Any) -> None:
        if context.request.request_id == "ahead":
            context.made(30.0)
            begun.set()
            go_on.wait()
            while not context.outranked:
                time.sleep(0.001)  # stands for a step of a model: between two it asks
            rests.set()
            assert context.give_way()
            order.append("ahead")
        else:
            order.append("now")
            assert rests.wait(20)
            assert not context.outranked
            if runs_short:
                monkeypatch.setattr(inline, "RESTED_S", 60.0)
                while "ahead" not in order:
                    assert not context.outranked
            order.append("now")

    replica = await replica_of(kit.Scripted(process), 4)
    replica.open(request("ahead"))
    replica.push("ahead", 0)
    await begun.wait()
    replica.open(request("now"))
    replica.push("now", 0)
    go_on.open()
    await reports_until(Consumed, replica, 2)
    assert order == (["now", "ahead", "now"] if runs_short else ["now", "now", "ahead"])


async def test_the_end_comes_with_the_last_piece_and_not_after_everybody_elses(kit: Any, replica_of: Any) -> None:
    gate, inside = kit.Gate(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        if context.request.request_id == "first":
            inside.set()
            gate.wait()

    replica = await replica_of(kit.Scripted(process))
    for name in ("first", "second"):
        replica.open(request(name))
        replica.push(name, 0)
        replica.end_input(name)
    await inside.wait()
    gate.open()
    reports = await reports_until(Released, replica, 2)
    assert [type(report) for report in reports if report.request_id == "first"] == [Consumed, Done, Released]
    assert [report.request_id for report in reports if isinstance(report, Done)] == ["first", "second"]
    assert reports.index(next(report for report in reports if report.request_id == "second")) == 3


async def test_an_abort_is_released_while_another_request_has_the_only_slot(kit: Any, replica_of: Any) -> None:
    """Both of one with a piece that waits, and of one that has not begun."""
    answers: list[bool] = []
    gate, inside, began = kit.Gate(), kit.Signal(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        if context.request.request_id == "now":
            inside.set()
            gate.wait()
        else:
            began.set()
            answers.append(context.give_way())

    stage = kit.Scripted(process)
    stage.concurrency = 1
    replica = await replica_of(stage, 4)
    replica.open(due("later", 60.0))
    replica.push("later", 0)
    await began.wait()
    await reports_until(Consumed, replica)
    for name in ("now", "later too"):
        replica.open(request(name))
        replica.push(name, 0)
    await inside.wait()
    replica.push("later", 0)
    for name in ("later", "later too"):
        replica.abort(name)
    released = await reports_until(Released, replica, 2)
    assert {report.request_id for report in released if isinstance(report, Released)} == {"later", "later too"}
    gate.open()
    assert answers == [True]


@pytest.mark.parametrize("slots", [1, 3])
async def test_at_most_slots_requests_are_worked_on_at_once(kit: Any, replica_of: Any, slots: int) -> None:
    lock = threading.Lock()
    inside = most = 0
    met = threading.Barrier(slots)

    def process(piece: Any, context: Any) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        met.wait(kit.timeout_s)  # passes only when `slots` requests are inside together
        with lock:
            inside -= 1

    replica = await replica_of(kit.Scripted(process), slots)
    for n in range(3 * slots):
        replica.open(request(str(n)))
        replica.push(str(n), 0)
        replica.end_input(str(n))
    await reports_until(Released, replica, 3 * slots)
    assert most == slots


async def test_pieces_of_one_request_never_overlap_whatever_the_slots(kit: Any, replica_of: Any) -> None:
    order: list[int] = []
    busy = threading.Lock()

    def process(piece: Any, context: Any) -> None:
        assert busy.acquire(blocking=False)
        order.append(piece)
        busy.release()

    replica = await replica_of(kit.Scripted(process), 4)
    replica.open(request("a"))
    for n in range(200):
        replica.push("a", n)
    replica.end_input("a")
    reports = await reports_until(Released, replica)
    assert order == list(range(200))
    assert sum(r.count for r in reports if isinstance(r, Consumed)) == 200
    assert [type(r) for r in reports[-2:]] == [Done, Released]


async def test_emit_stops_at_the_credit_and_the_slot_goes_to_another(kit: Any, replica_of: Any) -> None:
    def process(piece: Any, context: Any) -> None:
        for n in range(2 * WINDOW):
            context.emit(n)

    replica = await replica_of(kit.Scripted(process))
    for name in "abc":  # one slot, and each of them stops in the middle of its piece
        replica.open(request(name))
        replica.push(name, 0)
        replica.end_input(name)
    reports = await reports_until(Emitted, replica, 3 * WINDOW)
    assert {r.request_id for r in reports} == {"a", "b", "c"}
    assert not any(isinstance(r, Done) for r in reports)
    for name in "cab":
        replica.grant(name, 2 * WINDOW)
    reports += await reports_until(Released, replica, 3)
    for name in "abc":
        assert [r.piece for r in reports if isinstance(r, Emitted) and r.request_id == name] == [*range(2 * WINDOW)]


async def test_requests_that_come_back_from_waiting_still_share_the_slots(kit: Any, replica_of: Any) -> None:
    computing = threading.Lock()

    def process(piece: Any, context: Any) -> None:
        for n in range(4 * WINDOW):
            assert computing.acquire(blocking=False), "two requests compute in one slot"
            time.sleep(0)  # invites the other threads
            computing.release()
            context.emit(n)

    replica = await replica_of(kit.Scripted(process))
    names = [str(n) for n in range(6)]
    for name in names:
        replica.open(request(name))
        replica.push(name, 0)
        replica.end_input(name)
    emitted = dict.fromkeys(names, 0)
    over = 0
    async with asyncio.timeout(kit.timeout_s):
        while over < len(names):
            for report in await replica.messages():
                assert not isinstance(report, Failed), report.error
                over += isinstance(report, Released)
                if isinstance(report, Emitted):
                    emitted[report.request_id] += 1
                    replica.grant(report.request_id, emitted[report.request_id] + WINDOW)
    assert set(emitted.values()) == {4 * WINDOW}


async def test_threads_started_for_blocked_requests_go_away_again(kit: Any, replica_of: Any) -> None:
    def workers() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name == "stage-worker"}

    def process(piece: Any, context: Any) -> None:
        for n in range(WINDOW + 1):
            context.emit(n)

    replica = await replica_of(kit.Scripted(process))
    names = [str(n) for n in range(5)]
    for name in names:
        replica.open(request(name))
        replica.push(name, 0)
        replica.end_input(name)
    await reports_until(Emitted, replica, 5 * WINDOW)
    many = workers()
    assert 5 <= len(many) <= 6
    for name in names:
        replica.grant(name, 2 * WINDOW)
    await reports_until(Released, replica, 5)
    last = many - workers()
    for thread in last:
        thread.join(kit.timeout_s)
    assert len(replica._threads) - replica._blocked >= 1
    replica.open(request("again"))
    replica.push("again", 0)
    replica.grant("again", 2 * WINDOW)
    replica.end_input("again")
    await reports_until(Released, replica)


async def test_an_abort_drops_what_waits_and_releases_once(kit: Any, replica_of: Any) -> None:
    gate, inside = kit.Gate(), kit.Signal()
    seen: list[int] = []

    def process(piece: Any, context: Any) -> None:
        seen.append(piece)
        inside.set()
        gate.wait()
        assert context.aborted
        assert context.emit("late") is False

    stage = kit.Scripted(process)
    replica = await replica_of(stage)
    replica.open(request("a"))
    for n in range(5):
        replica.push("a", n)
    await inside.wait()
    replica.abort("a")
    replica.abort("a")
    replica.push("a", 6)
    replica.end_input("a")
    replica.abort("never heard of")
    gate.open()
    reports = await reports_until(Released, replica)
    assert seen == [0]
    assert stage.released == ["a"]
    assert [type(r) for r in reports if not isinstance(r, Consumed)] == [Released]
    assert replica.depth() == (0, 0)


async def test_what_a_stage_raises_because_of_an_abort_is_no_failure(kit: Any, replica_of: Any) -> None:
    gate, inside = kit.Gate(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        inside.set()
        gate.wait()
        raise RuntimeError("cancelled")

    replica = await replica_of(kit.Scripted(process))
    replica.open(request("a"))
    replica.push("a", 0)
    await inside.wait()
    replica.abort("a")
    gate.open()
    assert not any(isinstance(r, Failed) for r in await reports_until(Released, replica))


async def test_an_abort_wakes_a_stage_that_waits_for_something_outside(kit: Any, replica_of: Any) -> None:
    inside, woken = kit.Signal(), threading.Event()
    interrupted: list[Any] = []

    class Waiting(kit.Scripted):
        def interrupt(self, state: Any) -> None:
            interrupted.append(state)
            woken.set()

    def process(piece: Any, context: Any) -> None:
        inside.set()
        assert woken.wait(20)
        assert context.aborted

    replica = await replica_of(Waiting(process))
    replica.open(request("a"))
    replica.push("a", 0)
    await inside.wait()
    assert interrupted == []
    replica.abort("a")
    await reports_until(Released, replica)
    replica.abort("a")
    assert interrupted == ["a"]


async def test_close_interrupts_a_blocked_emit_and_leaves_no_thread(kit: Any, replica_of: Any) -> None:
    def process(piece: Any, context: Any) -> None:
        while context.emit(0):
            pass

    stage = kit.Scripted(process)
    replica = await replica_of(stage, 2)
    for name in "abc":
        replica.open(request(name))
        replica.push(name, 0)
    await reports_until(Emitted, replica, 3 * WINDOW)
    assert await replica.close()
    assert sorted(stage.released) == ["a", "b", "c"]
    assert stage.closed == 1
    assert not [t for t in threading.enumerate() if t.name == "stage-worker"]


async def test_close_gives_up_on_a_stage_that_does_not_return_and_never_frees_its_model(
    kit: Any, replica_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "CLOSE_TIMEOUT_S", 0.01)
    gate, inside = kit.Gate(), kit.Signal()

    def process(piece: Any, context: Any) -> None:
        inside.set()
        gate.wait()

    stage = kit.Scripted(process)
    replica = await replica_of(stage)
    replica.open(request("a"))
    replica.push("a", 0)
    await inside.wait()
    assert await replica.close() is False
    assert stage.closed == 0
    gate.open()
    for thread in list(replica._threads):
        thread.join(kit.timeout_s)


async def test_a_stage_that_cannot_load_raises_its_own_error() -> None:
    class Broken:
        def load(self) -> None:
            raise FileNotFoundError("weights.bin")

    replica = InlineReplica("stage", Broken, 1)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"weights\.bin"):
        await replica.load()
    assert await replica.close()


async def test_many_puts_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wakes = 0
    real = loop.call_soon_threadsafe

    def counted(*args: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return real(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    outbox: Outbox[int] = Outbox(loop, batch=1000)
    thread = threading.Thread(target=lambda: [outbox.put(n) for n in range(500)])
    thread.start()
    thread.join()
    assert await outbox.take() == list(range(500))
    assert wakes == 1
    outbox.put(1)
    assert await outbox.take() == [1]
