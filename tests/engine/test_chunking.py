"""Handing on at once, in chunks and whole: the same final output, over any graph."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.chunking import HandOver, join_text
from duologue.engine.executors import inline
from duologue.engine.executors.base import WINDOW, Working
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import (
    AudioDelta,
    ChatMessage,
    Converse,
    Finished,
    Speak,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from duologue.engine.stage import StageFinish

HERE = "scripted_stages"
JOIN = "duologue.engine.chunking:join_text"
TALK = Converse(messages=(ChatMessage(role="user", text="hello"),))
TEXT_ONLY = Converse(messages=TALK.messages, modalities=("text",))


def words(count: int) -> Any:
    def process(piece: Any, context: Any) -> None:
        for n in range(count):
            if not context.emit(TextDelta(text=chr(97 + n % 26))):
                return

    return process


def text_of(deltas: list[Any]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, TextDelta))


VOICE = PipelineConfig(
    "voice",
    (
        StageConfig(0, "model", "x", accepts=(Converse,), final_output=True, final_output_type="text"),
        StageConfig(
            1, "talker", "x", input_sources=(0,), accepts=(Speak,), final_output=True, final_output_type="audio"
        ),
    ),
)


def say(piece: Any, context: Any) -> None:
    context.emit(AudioDelta(pcm=piece.text.encode()))


# -- whole -------------------------------------------------------------------------------------------------------------


async def test_whole_output_comes_at_the_end_and_the_client_is_not_held_back(kit: Any, rig_of: Any) -> None:
    gate, given = kit.Gate(), []

    def model(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="ab"))
        gate.wait()
        context.emit(TextDelta(text="cd"))

    def talker(piece: Any, context: Any) -> None:
        given.append(piece)
        say(piece, context)

    stages = {
        0: kit.Scripted(model, finish=lambda context: context.emit(TextDelta(text="ef"))),
        1: kit.Scripted(talker),
    }
    rig = await rig_of(config=VOICE, by_id=stages, hand_over={0: HandOver(True, JOIN, final=True)})
    stream = rig.open(TALK)
    assert await asyncio.wait_for(anext(stream), kit.timeout_s) == TextDelta(text="ab")
    assert given == []
    gate.open()
    deltas = await rig.read(stream)
    assert text_of(deltas) == "cdef"
    assert given == [TextDelta(text="abcdef")]
    assert [d.pcm for d in deltas if isinstance(d, AudioDelta)] == [b"abcdef"]
    assert deltas[-1] == Finished(reason="completed")
    assert [(e.source, e.target) for e in stream.trace if e.emitted is None] == []
    by_name = {(e.source, e.target): e for e in stream.trace}
    assert by_name["model", "client"].emitted < by_name["model", "talker"].emitted


async def test_more_pieces_than_a_window_go_through_whole(kit: Any, rig_of: Any) -> None:
    count = 5 * WINDOW
    rig = await rig_of(kit.Scripted(words(count)), kit.Scripted(), hand_over={0: HandOver(True)})
    assert len(text_of(await rig.read(rig.open()))) == count


async def test_what_is_not_for_the_next_stage_passes_at_once(kit: Any, rig_of: Any) -> None:
    call = ToolCallDelta(call_id="c", name="f", arguments="{}")
    given: list[Any] = []

    def model(piece: Any, context: Any) -> None:
        context.emit(call)
        context.emit(TextDelta(text="x"))
        context.emit(Usage(output_tokens=2))
        context.emit(StageFinish())

    stages = {0: kit.Scripted(model), 1: kit.Scripted(lambda piece, context: given.append(piece))}
    rig = await rig_of(config=VOICE, by_id=stages, hand_over={0: HandOver(True, final=True)})
    deltas = await rig.read(rig.open(TALK))
    assert call in deltas
    assert deltas[-1] == Finished(reason="length", usage=Usage(output_tokens=2))
    assert given == [TextDelta(text="x")]


async def test_an_abort_stops_a_stage_that_hands_on_nothing_yet(kit: Any, rig_of: Any) -> None:
    begun, after = kit.Signal(), []
    aborted = threading.Event()

    def model(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="x"))
        begun.set()
        assert aborted.wait(kit.timeout_s)
        after.append(context.emit(TextDelta(text="y")))

    rig = await rig_of(kit.Scripted(model), kit.Scripted(), hand_over={0: HandOver(True)})
    stream = rig.open()
    await begun.wait()
    stream.abort()
    aborted.set()
    await rig.released()
    assert after == [False]
    assert await rig.read(stream) == [Finished(reason="aborted")]


async def test_work_that_is_not_handed_on_is_progress(kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer of a stage that is not final must not run into the request's timeout."""
    monkeypatch.setattr(inline, "WORKING_S", 0.0)
    steps = [threading.Event() for _ in range(4)]

    def model(piece: Any, context: Any) -> None:
        for step in steps:
            assert step.wait(kit.timeout_s)
            context.emit(TextDelta(text="x"))

    rig = await rig_of(kit.Scripted(model), kit.Scripted(), hand_over={0: HandOver(True)})
    loop = asyncio.get_running_loop()
    real, offset = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + offset)
    stream = rig.open(timeout_s=30)
    run = rig.orchestrator._runs[stream.request_id]
    told, handle = asyncio.Event(), run.handle

    def handle_and_tell(node: Any, message: Any, now: float) -> None:
        handle(node, message, now)
        if isinstance(message, Working):
            told.set()

    run.handle = handle_and_tell
    for step in steps:
        offset += 25
        told.clear()
        step.set()
        await told.wait()
    assert text_of(await rig.read(stream)) == "xxxx"


# -- chunks ------------------------------------------------------------------------------------------------------------


async def test_chunks_have_left_context_and_the_rest_is_flushed(kit: Any, rig_of: Any) -> None:
    plan = HandOver(False, f"{HERE}:five_with_two_before", final=True)
    stages = {0: kit.Scripted(words(12)), 1: kit.Scripted(say)}
    rig = await rig_of(config=VOICE, by_id=stages, hand_over={0: plan})
    deltas = await rig.read(rig.open(TALK))
    assert text_of(deltas) == "abcdefghijkl", "the client gets every piece as it is"
    assert b"".join(d.pcm for d in deltas if isinstance(d, AudioDelta)) == b"[]abcde[de]fghij[ij]kl"


async def test_chunks_of_two_requests_do_not_mix(kit: Any, rig_of: Any) -> None:
    plan = HandOver(False, f"{HERE}:five_with_two_before")
    rig = await rig_of(kit.Scripted(words(12)), kit.Scripted(), s0=2, hand_over={0: plan})
    answers = await asyncio.gather(*(rig.read(rig.open()) for _ in range(8)))
    assert {text_of(deltas) for deltas in answers} == {"[]abcde[de]fghij[ij]kl"}


async def test_a_chunk_is_handed_on_before_the_stage_is_done(kit: Any, rig_of: Any) -> None:
    gate = kit.Gate()

    def model(piece: Any, context: Any) -> None:
        words(7)(piece, context)
        gate.wait()

    plan = HandOver(False, f"{HERE}:five_with_two_before")
    rig = await rig_of(kit.Scripted(model), kit.Scripted(), hand_over={0: plan})
    stream = rig.open()
    assert await asyncio.wait_for(anext(stream), kit.timeout_s) == TextDelta(text="[]abcde")
    gate.open()
    assert text_of(await rig.read(stream)) == "[de]fg"


async def test_a_processor_that_fails_fails_its_request_only(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(kit.Scripted(words(3)), kit.Scripted(), hand_over={0: HandOver(True, f"{HERE}:broken")})
    assert (await rig.read(rig.open()))[-1].error == "Stage 'stage-0' failed: no"


def test_a_processor_that_cannot_be_imported_is_an_error() -> None:
    for name in ("duologue.engine.chunking:nothing", "duologue.engine.nowhere:x"):
        with pytest.raises(ImportError):
            HandOver(True, name).function()


def test_text_is_joined_and_nothing_else_is_touched() -> None:
    sound = AudioDelta(pcm=b"\0\0")
    pieces = [TextDelta(text="a"), TextDelta(text="b"), sound, TextDelta(text="c")]
    assert join_text(pieces) == [TextDelta(text="ab"), sound, TextDelta(text="c")]
    assert pieces[0] == TextDelta(text="a"), "a pure function"
    assert join_text([]) == []


# -- the same output over any graph ------------------------------------------------------------------------------------


@st.composite
def _graphs(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 5))
    sources = [()] + [
        tuple(sorted(draw(st.sets(st.integers(0, i - 1), min_size=1, max_size=min(i, 2))))) for i in range(1, count)
    ]
    return {
        "sources": sources,
        "groups": [draw(st.integers(1, 4)) for _ in range(count)],
        "pieces": draw(st.integers(0, 2 * WINDOW)),
        "requests": draw(st.integers(1, 3)),
        "limit": draw(st.sampled_from([20, 1_000_000])),
        "joined": [draw(st.booleans()) for _ in range(count)],
    }


class _Grouping:
    """A stage's work that does not depend on how its input is cut: groups of ``size`` characters, the rest at the end.

    With several sources the order between them is open, so every character is a group there.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.left: dict[str, str] = {}

    def process(self, piece: Any, context: Any) -> None:
        name = context.request.request_id
        text = self.left.get(name, "") + piece.text
        while len(text) >= self.size:
            if not context.emit(TextDelta(text=text[: self.size])):
                return
            text = text[self.size :]
        self.left[name] = text

    def finish(self, context: Any) -> None:
        if left := self.left.pop(context.request.request_id, ""):
            context.emit(TextDelta(text=left))


def _run_graph(kit: Any, plan: dict[str, Any], whole: bool) -> list[str]:
    count = len(plan["sources"])
    has_target = {source for sources in plan["sources"] for source in sources}
    configs = tuple(
        StageConfig(
            i,
            f"stage-{i}",
            "x",
            input_sources=plan["sources"][i],
            accepts=() if i else (Converse,),
            final_output=i == count - 1,
            final_output_type="text" if i == count - 1 else None,
            max_num_seqs=2,
        )
        for i in range(count)
    )
    stages = {0: kit.Scripted(words(plan["pieces"]))}
    for i in range(1, count):
        grouping = _Grouping(plan["groups"][i] if len(plan["sources"][i]) == 1 else 1)
        stages[i] = kit.Scripted(grouping.process, grouping.finish)
    plans = {i: HandOver(True, JOIN if plan["joined"][i] else None) for i in has_target} if whole else {}

    async def run() -> list[str]:
        rig = kit.Rig(PipelineConfig("graph", configs), stages, plan["limit"], plans)
        await rig.start()
        answers = await asyncio.gather(*(rig.read(rig.open()) for _ in range(plan["requests"])))
        await rig.released()
        await rig.close()
        for deltas in answers:
            assert [d.reason for d in deltas if isinstance(d, Finished)] == ["completed"]
        return [text_of(deltas) for deltas in answers]

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(plan=_graphs())
def test_async_chunk_on_and_off_give_the_same_output_over_any_graph(kit: Any, plan: dict[str, Any]) -> None:
    on, off = (_run_graph(kit, plan, whole) for whole in (False, True))
    if all(len(sources) <= 1 for sources in plan["sources"]):
        assert on == off
    else:  # where sources meet their order is open, and what they made is not
        assert [sorted(text) for text in on] == [sorted(text) for text in off]
