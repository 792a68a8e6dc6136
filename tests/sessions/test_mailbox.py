"""The mailbox: what comes straight in never overtakes what waits, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.sessions.actor import Mailbox
from duologue.sessions.effects import MediaAudio

LIMIT = 3


def event(number: int) -> MediaAudio:
    return MediaAudio(bytes([number]))


def idle_box() -> Mailbox:
    """Nobody takes anything out but the test."""
    return Mailbox(lambda: None, LIMIT)


def take_out(box: Mailbox) -> Any:
    event = box.events.popleft()
    box.let_in()
    return event


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def full_box_and_one_waiting() -> tuple[Mailbox, asyncio.Task[None]]:
    box = idle_box()
    for number in range(LIMIT):
        assert box.ready()
        box.take(event(number))
    waiting = asyncio.create_task(box.put(event(LIMIT)))
    await settle()
    assert box.full()
    assert not waiting.done()
    return box, waiting


async def test_whoever_waits_goes_first_when_there_is_room() -> None:
    box, waiting = await full_box_and_one_waiting()
    take_out(box)
    assert not box.full()
    assert not box.ready(), "it would overtake the one that waits"
    await settle()
    assert waiting.done()
    assert [waits.pcm[0] for waits in box.events] == [1, 2, 3]  # type: ignore[union-attr]
    take_out(box)
    assert box.ready()


async def test_who_stops_waiting_holds_nobody_up() -> None:
    box, waiting = await full_box_and_one_waiting()
    waiting.cancel()
    await settle()
    assert not box.ready()
    take_out(box)
    assert box.ready()


async def order_of(steps: list[Literal["come", "pop", "turn"]]) -> tuple[list[int], int, int]:
    """A connection hands in numbers, straight or (where the box is not ready) by a queue and a reader. Returns the
    numbers as they came out, how many there were, and the most that the box held."""
    box, queue, came, out, most = idle_box(), asyncio.Queue[int](), 0, list[int](), 0

    async def read() -> None:
        while True:
            await box.put(event(await queue.get()))

    def pop() -> None:
        held: Any = take_out(box)
        out.append(held.pcm[0])

    reader = asyncio.create_task(read())
    for step in steps:
        if step == "come":
            if queue.empty() and box.ready():
                box.take(event(came))
            else:
                queue.put_nowait(came)
            came += 1
        elif step == "pop" and box.events:
            pop()
        elif step == "turn":
            await asyncio.sleep(0)
        most = max(most, len(box.events))
    while len(out) < came:
        await settle()
        pop()
    reader.cancel()
    return out, came, most


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["come", "come", "pop", "turn"]), max_size=60))
def test_everything_comes_out_in_the_order_in_which_it_came(steps: list[Literal["come", "pop", "turn"]]) -> None:
    out, came, most = asyncio.run(order_of(steps))
    assert out == list(range(came))
    assert most <= LIMIT
