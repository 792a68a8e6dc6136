"""Whose decode is next: urgency, deadlines, sharing, giving up. The model is scripted, and the threads are real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from duologue.engine.stages.decode_queue import SLACK_S, DecodeQueue, Ticket
from duologue.engine.stages.whisper import Hypothesis


class Model:
    """Keeps what was done in which order, and holds every step until it is told to go on."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, ...]] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.fails = False

    def step(self, *what: str) -> None:
        self.steps.append(what)
        self.entered.release()
        assert self.gate.acquire(timeout=5)
        if self.fails:
            raise RuntimeError("no memory")

    def decode(self, batch: list[Sound]) -> None:
        self.step("decode", *(sound.name for sound in batch))
        for sound in batch:
            sound.result = Hypothesis(sound.name, 0.0, 0.0)


class Sound:
    """A recognition of two steps."""

    def __init__(self, model: Model, name: str, key: int = 0) -> None:
        self.whisper = model
        self.name = name
        self.key = key
        self.encoded: Any = None
        self.result: Hypothesis | None = None

    def encode(self) -> None:
        self.whisper.step("encode", self.name)
        self.encoded = self.name


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(model: Model, clock: Clock) -> Iterator[DecodeQueue]:
    queue = DecodeQueue(1, clock)
    queue.start()
    yield queue
    model.gate.release(1000)
    queue.close()
    assert not any(thread.is_alive() for thread in queue._threads)


def busy(queue: DecodeQueue, model: Model) -> Ticket:
    """Somebody is being encoded, and stays it until the gate is opened."""
    ticket = queue.put(Sound(model, "first", key=-1))
    assert model.entered.acquire(timeout=5)
    return ticket


def order(model: Model, queue: DecodeQueue, *tickets: Ticket) -> list[tuple[str, ...]]:
    model.gate.release(1000)
    for ticket in tickets:
        queue.wait(ticket)
    return model.steps[1:]


def test_turns_that_are_over_go_before_those_that_may_be_and_these_before_partials(queue, model):
    first = busy(queue, model)
    tickets = [
        queue.put(Sound(model, urgency, key), urgency)
        for key, urgency in enumerate(("partial", "speculative", "final"))
    ]
    done = [step[1] for step in order(model, queue, first, *tickets) if step[0] == "decode"]
    assert done == ["first", "final", "speculative", "partial"]


def test_a_decode_in_a_hurry_goes_before_the_next_step_of_one_that_can_wait(queue, model):
    partial = queue.put(Sound(model, "partial"), "partial")
    assert model.entered.acquire(timeout=5)
    final = queue.put(Sound(model, "final"), "final")
    assert order(model, queue, partial, final) == [("encode", "final"), ("decode", "final"), ("decode", "partial")]


def test_a_speculation_that_has_waited_goes_before_a_turn_that_has_just_ended(queue, model, clock):
    first = busy(queue, model)
    waiting = queue.put(Sound(model, "waiting", 1), "speculative")
    clock.now += SLACK_S["speculative"] + 0.01
    fresh = queue.put(Sound(model, "fresh", 2), "final")
    done = [step[1] for step in order(model, queue, first, waiting, fresh) if step[0] == "decode"]
    assert done == ["first", "waiting", "fresh"]


def test_who_says_when_it_is_due_is_believed(queue, model):
    first = busy(queue, model)
    late = queue.put(Sound(model, "late", 1), "speculative", 0.4)
    soon = queue.put(Sound(model, "soon", 2), "speculative", 0.1)
    done = [step[1] for step in order(model, queue, first, late, soon) if step[0] == "decode"]
    assert done == ["first", "soon", "late"]


def test_those_that_wait_for_the_same_share_a_decode_and_others_do_not(queue, model):
    first = busy(queue, model)
    alike = [queue.put(Sound(model, name)) for name in "abc"]
    other = queue.put(Sound(model, "other", key=1))
    partial = queue.put(Sound(model, "partial"), "partial")
    steps = order(model, queue, first, *alike, other, partial)
    assert [step[1:] for step in steps if step[0] == "decode"] == [
        ("first",),
        ("a", "b", "c"),
        ("other",),
        ("partial",),
    ]


def test_a_batch_is_bounded(queue, model):
    first = busy(queue, model)
    many = [queue.put(Sound(model, str(number))) for number in range(10)]
    sizes = [len(step) - 1 for step in order(model, queue, first, *many) if step[0] == "decode"]
    assert sizes == [1, 4, 4, 2]


def test_two_workers_share_what_waits(model, clock):
    queue = DecodeQueue(2, clock)
    tickets = [queue.put(Sound(model, name)) for name in "abcd"]
    model.gate.release(1000)
    queue.start()
    assert [queue.wait(ticket).text for ticket in tickets] == list("abcd")  # type: ignore[union-attr]
    queue.close()
    assert max(len(step) - 1 for step in model.steps) <= 2


def test_a_partial_that_comes_too_late_is_dropped_and_a_late_final_is_not(queue, model, clock):
    first = busy(queue, model)
    late, final = queue.put(Sound(model, "late"), "partial"), queue.put(Sound(model, "final", 1))
    clock.now += SLACK_S["partial"] + 0.01
    fresh = queue.put(Sound(model, "fresh"), "partial")
    steps = order(model, queue, first, final, fresh, late)
    assert queue.wait(late) is None
    assert not any("late" in step for step in steps)
    assert queue.wait(final).text == "final"  # type: ignore[union-attr]


def test_who_gives_up_need_not_wait_for_the_step_in_hand(queue, model):
    ticket = busy(queue, model)
    queue.cancel(ticket)
    assert queue.wait(ticket) is None
    after = queue.put(Sound(model, "after"))
    assert order(model, queue, after) == [("encode", "after"), ("decode", "after")]


def test_what_is_cancelled_while_it_waits_is_never_begun(queue, model):
    first = busy(queue, model)
    ticket = queue.put(Sound(model, "gone"))
    queue.cancel(ticket)
    after = queue.put(Sound(model, "after"))
    assert not any("gone" in step for step in order(model, queue, first, after))


def test_an_error_belongs_to_those_whose_step_it_was(queue, model):
    ticket = busy(queue, model)
    model.fails = True
    model.gate.release()
    with pytest.raises(RuntimeError, match="no memory"):
        queue.wait(ticket)
    model.fails = False
    after = queue.put(Sound(model, "after"))
    model.gate.release(1000)
    assert queue.wait(after).text == "after"  # type: ignore[union-attr]


def test_closing_lets_everybody_go(model, clock):
    queue = DecodeQueue(1, clock)
    queue.start()
    first = busy(queue, model)
    waiting = queue.put(Sound(model, "waiting"))
    model.gate.release(1000)
    queue.close()
    assert queue.wait(waiting) is None
    assert first.over.is_set()
    assert queue.wait(queue.put(Sound(model, "late"))) is None
