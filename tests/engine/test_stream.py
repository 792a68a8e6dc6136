"""The collector: merging, its bound, and the reserved place of the terminal delta."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.requests import (
    AudioDelta,
    Finished,
    TextDelta,
    ToolCallDelta,
    TranscriptDelta,
    Usage,
    WordSpan,
)
from duologue.engine.stream import Stream


class Owner:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def abort(self, reason: str) -> None:
        self.calls.append(f"abort {reason}")

    def read_out(self) -> None:
        self.calls.append("read out")

    def room(self) -> None:
        self.calls.append("room")


EDGE = EdgeTrace(source="codec", target="client")


def stream(limit: int = 1000) -> Stream:
    return Stream("r", Owner(), limit, [EDGE])  # type: ignore[arg-type]


def audio(pcm: bytes, *ends: int) -> AudioDelta:
    return AudioDelta(pcm=pcm, words=tuple(WordSpan(text_start=0, text_end=1, end_sample=end) for end in ends))


async def test_pending_deltas_of_a_kind_come_out_as_one() -> None:
    s = stream()
    for delta in (TextDelta(text="a"), TextDelta(text="b"), audio(b"12", 1), audio(b"34", 2), TextDelta(text="c")):
        s.put(delta, EDGE)
    s.finish(Finished(reason="completed"))
    assert [d async for d in s] == [
        TextDelta(text="abc"),
        audio(b"1234", 1, 2),
        Finished(reason="completed"),
    ]


async def test_pending_pieces_of_a_call_are_joined_and_calls_kept_apart() -> None:
    def call(call_id: str, arguments: str) -> ToolCallDelta:
        return ToolCallDelta(call_id=call_id, name="look_up", arguments=arguments)

    s = stream()
    for delta in (call("a", '{"x"'), audio(b"12"), call("b", "{}"), call("a", ":1}"), audio(b"34")):
        s.put(delta, EDGE)
    s.finish(Finished(reason="completed"))
    assert [d async for d in s] == [
        call("a", '{"x":1}'),
        audio(b"12"),
        call("b", "{}"),
        audio(b"34"),
        Finished(reason="completed"),
    ]


async def test_a_reader_that_keeps_up_gets_every_delta_by_itself() -> None:
    s = stream()
    for text in "abc":
        s.put(TextDelta(text=text), EDGE)
        assert await anext(s) == TextDelta(text=text)


async def test_a_waiting_reader_is_woken() -> None:
    s = stream()
    reader = asyncio.create_task(anext(s))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    s.put(TranscriptDelta(text="x"), EDGE)
    assert await asyncio.wait_for(reader, 5) == TranscriptDelta(text="x")


async def test_full_from_the_limit_until_half_is_taken() -> None:
    s = stream(limit=10)
    s.put(TextDelta(text="x" * 10), EDGE)
    assert not s.full
    s.put(audio(b"1234"), EDGE)
    assert s.full
    await anext(s)
    assert s._owner.calls == ["room"]  # type: ignore[attr-defined]
    assert not s.full
    assert s.pending_bytes == 4


async def test_the_first_terminal_delta_wins_and_carries_the_usage() -> None:
    s = stream()
    s.count(Usage(input_tokens=1))
    s.count(Usage(input_tokens=2, output_tokens=5))
    s.finish(Finished(reason="failed", error="first"))
    s.finish(Finished(reason="completed"))
    s.put(TextDelta(text="late"), EDGE)
    assert [d async for d in s] == [
        Finished(reason="failed", error="first", usage=Usage(input_tokens=3, output_tokens=5))
    ]


async def test_abort_drops_what_is_pending_and_tells_the_owner_once() -> None:
    s = stream()
    s.put(TextDelta(text="x"), EDGE)
    s.abort()
    s.abort()
    assert s._owner.calls == ["abort client_abort", "read out"]  # type: ignore[attr-defined]
    assert s.pending_bytes == 0
    assert [d async for d in s] == [Finished(reason="aborted")]
    s.abort()
    assert s._owner.calls == ["abort client_abort", "read out"]  # type: ignore[attr-defined]


KINDS = st.sampled_from(["text", "audio", "transcript", "read"])


@given(st.lists(KINDS, max_size=60))
def test_any_mix_keeps_each_kind_whole_and_sound_never_ahead_of_its_text(steps: list[str]) -> None:
    """Each audio delta here speaks the text put before it: when it is read, that text must have been read."""

    async def run() -> None:
        s = stream()
        put: dict[str, list[str]] = {"text": [], "audio": [], "transcript": []}
        got: dict[str, str] = {"text": "", "audio": "", "transcript": ""}

        def take(delta: Any) -> None:
            if isinstance(delta, AudioDelta):
                got["audio"] += delta.pcm.decode()
                assert delta.words[-1].text_end <= len(got["text"])
            else:
                got["text" if isinstance(delta, TextDelta) else "transcript"] += delta.text

        for n, step in enumerate(steps):
            mark = f"{n},"
            if step == "read":
                if s.pending_bytes:
                    take(await anext(s))
                continue
            if step == "text":
                s.put(TextDelta(text=mark), EDGE)
            elif step == "transcript":
                s.put(TranscriptDelta(text=mark), EDGE)
            else:
                end = len("".join(put["text"]))
                span = WordSpan(text_start=0, text_end=end, end_sample=n)
                s.put(AudioDelta(pcm=mark.encode(), words=(span,)), EDGE)
            put[step].append(mark)
            assert len(s._pending) <= 5
        s.finish(Finished(reason="completed"))
        *rest, last = [d async for d in s]
        for delta in rest:
            take(delta)
        assert last == Finished(reason="completed")
        assert got == {kind: "".join(marks) for kind, marks in put.items()}

    asyncio.run(run())
