"""Routing, terminal outcomes, credit: every rule at the top of orchestrator.py, with scripted stages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from duologue.engine.executors.base import WINDOW
from duologue.engine.orchestrator import RequestRefused
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import (
    AudioDelta,
    ChatMessage,
    Converse,
    EngineRequest,
    Finished,
    Speak,
    TextDelta,
    ToolCallDelta,
    Transcribe,
    TranscriptDelta,
    Usage,
)
from duologue.engine.stage import StageFinish

TALK = Converse(messages=(ChatMessage(role="user", text="hello"),))
TEXT_ONLY = Converse(messages=TALK.messages, modalities=("text",))


def say(*words: str) -> Any:
    """A first stage's script: emit these words."""

    def process(piece: Any, context: Any) -> None:
        for word in words:
            if not context.emit(TextDelta(text=word)):
                return

    return process


def numbers(count: int) -> Any:
    return say(*(f"{n} " for n in range(count)))


def text_of(deltas: list[Any]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, TextDelta))


def assistant(kit: Any, **scripts: Any) -> dict[str, Any]:
    """The shape of the packaged pipeline: recogniser alone; language model -> talker -> codec."""

    def recognise(piece: Any, context: Any) -> None:
        context.emit(TranscriptDelta(text="heard"))

    def voice(piece: Any, context: Any) -> None:
        context.emit(AudioDelta(pcm=b"\0\1" * len(piece.text)))

    stages = {
        0: kit.Scripted(scripts.get("recogniser", recognise)),
        1: kit.Scripted(scripts.get("model", say("one ", "two ", "three"))),
        2: kit.Scripted(scripts.get("talker")),
        3: kit.Scripted(scripts.get("codec", voice)),
    }
    config = PipelineConfig(
        "assistant-like",
        (
            StageConfig(0, "recogniser", "x", accepts=(Transcribe,), final_output=True, final_output_type="text"),
            StageConfig(1, "model", "x", accepts=(Converse,), final_output=True, final_output_type="text"),
            StageConfig(2, "talker", "x", input_sources=(1,), accepts=(Speak,)),
            StageConfig(3, "codec", "x", input_sources=(2,), final_output=True, final_output_type="audio"),
        ),
    )
    return {"config": config, "by_id": stages}


DIAMOND = PipelineConfig(
    "diamond",
    (
        StageConfig(0, "a", "x", accepts=(Converse,)),
        StageConfig(1, "b", "x", input_sources=(0,)),
        StageConfig(2, "c", "x", input_sources=(0,), max_num_seqs=2),
        StageConfig(3, "d", "x", input_sources=(1, 2), final_output=True, final_output_type="text"),
    ),
)


# -- routes ------------------------------------------------------------------------------------------------------------


async def test_text_and_sound_leave_by_their_own_stages(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(**assistant(kit))
    deltas = await rig.read(rig.open(TALK))
    assert text_of(deltas) == "one two three"
    assert sum(len(d.pcm) for d in deltas if isinstance(d, AudioDelta)) == 2 * len("one two three")
    assert deltas[-1] == Finished(reason="completed")
    assert rig.stages[0].started == []


async def test_text_only_stops_after_the_language_model(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(**assistant(kit))
    deltas = await rig.read(rig.open(TEXT_ONLY))
    assert text_of(deltas) == "one two three"
    assert not any(isinstance(d, AudioDelta) for d in deltas)
    assert rig.stages[1].started
    assert rig.stages[2].started == rig.stages[3].started == []


async def test_each_payload_enters_at_its_own_stage(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(**assistant(kit))
    heard = await rig.read(rig.open(Transcribe(audio=b"", sample_rate=16_000)))
    assert heard == [TranscriptDelta(text="heard"), Finished(reason="completed")]
    spoken = await rig.read(rig.open(Speak(text="hi")))
    assert spoken == [AudioDelta(pcm=b"\0\1" * 2), Finished(reason="completed")]
    assert rig.stages[1].started == []


async def test_what_no_stage_accepts_or_answers_is_refused_by_name(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(kit.Scripted())
    with pytest.raises(RequestRefused, match=r"'scripted' has no stage that accepts a 'Speak'"):
        rig.open(Speak(text="hi"))
    with pytest.raises(RequestRefused, match="makes no audio from a 'Converse'"):
        rig.open(TALK)
    assert rig.orchestrator.live == 0


@pytest.mark.parametrize("first_chunk_s", [0.0, -1.0, 0.001, 2.5, float("nan")])
async def test_a_first_chunk_out_of_range_is_refused(kit: Any, rig_of: Any, first_chunk_s: float) -> None:
    rig = await rig_of(kit.Scripted())
    request = EngineRequest(request_id="r", session_id="s", payload=TEXT_ONLY, first_chunk_s=first_chunk_s)
    with pytest.raises(RequestRefused, match=r"first_chunk_s is .*; it is from 0\.0125 to 2\."):
        rig.orchestrator.open(request)


async def test_pieces_of_several_sources_all_arrive(kit: Any, rig_of: Any) -> None:
    count = 3 * WINDOW
    rig = await rig_of(
        config=DIAMOND, by_id={0: kit.Scripted(numbers(count)), **{i: kit.Scripted() for i in (1, 2, 3)}}
    )
    words = text_of(await rig.read(rig.open(TEXT_ONLY))).split()
    assert sorted(map(int, words)) == sorted([*range(count), *range(count)])


async def test_the_end_of_one_of_two_sources_is_not_the_end_of_input(kit: Any, rig_of: Any) -> None:
    gate, ended = kit.Gate(), kit.Signal()

    def slow_branch(piece: Any, context: Any) -> None:
        if context.request.request_id == "joined":
            gate.wait()
        context.emit(piece)

    def quick_branch_ends(context: Any) -> None:
        if context.request.request_id == "joined":
            ended.set()

    stages = {
        0: kit.Scripted(numbers(2)),
        1: kit.Scripted(finish=quick_branch_ends),
        2: kit.Scripted(slow_branch),
        3: kit.Scripted(),
    }
    rig = await rig_of(config=DIAMOND, by_id=stages)
    stream = rig.open(TEXT_ONLY, request_id="joined")
    await ended.wait()
    await rig.read(rig.open(TEXT_ONLY))  # the last stage has had its turn with the first request by then
    gate.open()
    assert sorted(text_of(await rig.read(stream)).split()) == ["0", "0", "1", "1"]


async def test_finish_of_a_stage_is_flushed_downstream_before_the_end(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(
        kit.Scripted(say("a"), finish=lambda c: c.emit(TextDelta(text="b"))),
        kit.Scripted(finish=lambda c: c.emit(TextDelta(text="c"))),
    )
    deltas = await rig.read(rig.open())
    assert text_of(deltas) == "abc"
    assert deltas[-1] == Finished(reason="completed")


async def test_usage_adds_up_and_a_short_finish_ends_as_length_after_the_flush(kit: Any, rig_of: Any) -> None:
    def first(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="cut"))
        context.emit(Usage(input_tokens=5, cached_tokens=3, output_tokens=1))
        context.emit(StageFinish("length"))

    seen: list[Any] = []

    def second(piece: Any, context: Any) -> None:
        seen.append(piece)
        context.emit(piece)
        context.emit(Usage(output_tokens=2))

    rig = await rig_of(kit.Scripted(first), kit.Scripted(second, finish=lambda c: c.emit(TextDelta(text="!"))))
    deltas = await rig.read(rig.open())
    assert text_of(deltas) == "cut!"
    assert deltas[-1] == Finished(reason="length", usage=Usage(input_tokens=5, cached_tokens=3, output_tokens=3))
    assert seen == [TextDelta(text="cut")], "control pieces stay with the orchestrator"


async def test_a_tool_call_goes_to_the_client_and_not_to_the_next_stage(kit: Any, rig_of: Any) -> None:
    call = ToolCallDelta(call_id="c", name="look_up", arguments="{}")

    def model(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="Let me see."))
        context.emit(call)

    spoken: list[Any] = []
    config = PipelineConfig(
        "caller",
        (
            StageConfig(0, "model", "x", accepts=(Converse,), final_output=True, final_output_type="text"),
            StageConfig(1, "voice", "x", input_sources=(0,), final_output=True, final_output_type="audio"),
        ),
    )
    stages = {0: kit.Scripted(model), 1: kit.Scripted(lambda piece, context: spoken.append(piece))}
    rig = await rig_of(config=config, by_id=stages)
    deltas = await rig.read(rig.open(TALK))
    assert call in deltas
    assert spoken == [TextDelta(text="Let me see.")]


async def test_stages_are_prepared_before_the_first_piece(kit: Any, rig_of: Any) -> None:
    prepared = threading.Event()

    def first(piece: Any, context: Any) -> None:
        assert prepared.wait(kit.timeout_s), "the second stage was not started before there was a piece for it"
        context.emit(TextDelta(text="x"))

    rig = await rig_of(kit.Scripted(first), kit.Scripted(start=lambda request: prepared.set()))
    assert (await rig.read(rig.open()))[-1].reason == "completed"


async def test_a_live_id_is_refused_and_free_again_after_release(kit: Any, rig_of: Any) -> None:
    gate = kit.Gate()
    rig = await rig_of(kit.Scripted(lambda piece, context: gate.wait()))
    stream = rig.open(request_id="same")
    with pytest.raises(RequestRefused, match="'same' is in use"):
        rig.open(request_id="same")
    stream.abort()
    with pytest.raises(RequestRefused):
        rig.open(request_id="same")  # its stage is still inside
    gate.open()
    await rig.released()
    assert (await rig.read(rig.open(request_id="same")))[-1].reason == "completed"


# -- credit ------------------------------------------------------------------------------------------------------------


async def test_a_producer_is_never_more_than_a_window_ahead(kit: Any, rig_of: Any) -> None:
    emitted = taken = 0
    ahead: list[int] = []
    window_used = kit.Signal()
    gate = kit.Gate()

    def first(piece: Any, context: Any) -> None:
        nonlocal emitted
        for n in range(10 * WINDOW):
            if n == WINDOW:
                window_used.set()
            context.emit(TextDelta(text=f"{n} "))
            emitted += 1

    def second(piece: Any, context: Any) -> None:
        nonlocal taken
        gate.wait()
        ahead.append(emitted - taken)
        taken += 1
        context.emit(piece)

    rig = await rig_of(kit.Scripted(first), kit.Scripted(second))
    stream = rig.open()
    await window_used.wait()
    gate.open()
    words = text_of(await rig.read(stream)).split()
    assert list(map(int, words)) == list(range(10 * WINDOW))
    assert max(ahead) <= WINDOW + 1  # one more: emitted, but not yet counted here


async def test_a_slow_reader_holds_the_first_stage_back_and_loses_nothing(kit: Any, rig_of: Any) -> None:
    count, size, limit = 40 * WINDOW, 100, 2_000
    emitted = 0
    past_limit = kit.Signal()

    def first(piece: Any, context: Any) -> None:
        nonlocal emitted
        slow = context.request.request_id == "slow"
        for n in range(count):
            if n == limit // size + WINDOW:
                past_limit.set()
            context.emit(TextDelta(text=f"{n:<{size}}"))
            emitted += slow

    rig = await rig_of(kit.Scripted(first), kit.Scripted(), s0=2, output_limit=limit)
    stream = rig.open(request_id="slow")
    await past_limit.wait()
    fence = await rig.read(rig.open())  # in the time this takes an unbounded producer would have come to its end
    assert len(text_of(fence)) == count * size
    assert emitted <= limit // size + 3 * WINDOW, "one window per stage, and one to spare"
    assert stream.pending_bytes <= limit + size * (WINDOW + 1)
    assert list(map(int, text_of(await rig.read(stream)).split())) == list(range(count))


async def test_a_slow_reader_never_blocks_another_request_even_with_one_worker(kit: Any, rig_of: Any) -> None:
    blocked = kit.Signal()

    def first(piece: Any, context: Any) -> None:
        for n in range(3 * WINDOW if context.request.request_id == "slow" else 3):
            if n == WINDOW:
                blocked.set()
            context.emit(TextDelta(text="x" * 100))

    rig = await rig_of(kit.Scripted(first), output_limit=50)
    slow = rig.open(request_id="slow")
    await blocked.wait()
    assert len(text_of(await rig.read(rig.open(request_id="quick")))) == 300
    assert len(text_of(await rig.read(slow))) == 3 * WINDOW * 100


async def test_fc_119_an_abort_wakes_every_stage_that_waits_for_credit(kit: Any, rig_of: Any) -> None:
    results: list[bool] = []
    blocked = kit.Signal()
    gate = kit.Gate()

    def first(piece: Any, context: Any) -> None:
        for n in range(100 * WINDOW):
            if n == WINDOW:
                blocked.set()
            if not context.emit(TextDelta(text="x")):
                results.append(context.aborted)
                return

    rig = await rig_of(kit.Scripted(first), kit.Scripted(lambda piece, context: gate.wait()))
    stream = rig.open()
    await blocked.wait()
    stream.abort()
    assert await rig.read(stream) == [Finished(reason="aborted")]
    gate.open()
    await rig.released()
    assert results == [True]
    assert rig.stages[0].released == [stream.request_id]
    assert rig.stages[1].released == rig.stages[1].started, "it may never have got as far as its start"


async def test_streamed_input_is_taken_in_order_with_backpressure(kit: Any, rig_of: Any) -> None:
    gate = kit.Gate()

    def take(piece: Any, context: Any) -> None:
        gate.wait()
        context.emit(TextDelta(text=piece if isinstance(piece, str) else ""))

    rig = await rig_of(kit.Scripted(take))
    stream = rig.open(more_input=True)
    for n in range(WINDOW - 1):
        await stream.push(f"{n} ")
    over = asyncio.create_task(stream.push("last"))
    done, _ = await asyncio.wait({over}, timeout=0)
    assert not done, "the entry stage has taken nothing, so there is no room"
    gate.open()
    await asyncio.wait_for(over, kit.timeout_s)
    stream.end_input()
    stream.end_input()
    deltas = await rig.read(stream)
    assert text_of(deltas) == "".join(f"{n} " for n in range(WINDOW - 1)) + "last"
    assert deltas[-1].reason == "completed"


# -- terminal outcomes -------------------------------------------------------------------------------------------------


async def test_nothing_comes_out_after_abort_but_one_finished(kit: Any, rig_of: Any) -> None:
    def first(piece: Any, context: Any) -> None:
        while context.emit(TextDelta(text="x")):
            pass

    rig = await rig_of(kit.Scripted(first))
    stream = rig.open()
    await anext(stream)
    stream.abort()
    stream.abort()
    assert await rig.read(stream) == [Finished(reason="aborted")]
    stream.abort()
    assert await rig.read(stream) == []
    await rig.released()


async def test_abort_of_a_completed_but_unread_request_drops_its_deltas(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(kit.Scripted(say("all")))
    stream = rig.open()
    await rig.released()
    stream.abort()
    assert await rig.read(stream) == [Finished(reason="aborted")]


async def test_a_reader_that_leaves_aborts(kit: Any, rig_of: Any) -> None:
    def first(piece: Any, context: Any) -> None:
        while context.emit(TextDelta(text="x")):
            pass

    rig = await rig_of(kit.Scripted(first))
    async with rig.open() as stream:
        await anext(stream)
    await rig.released()
    assert rig.stages[0].released == [stream.request_id]


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), MemoryError()])
async def test_fc_117_a_failed_stage_fails_its_own_request_only(kit: Any, rig_of: Any, error: Exception) -> None:
    a_failed = kit.Gate()

    def second(piece: Any, context: Any) -> None:
        if context.request.request_id == "a":
            raise error
        a_failed.wait()
        context.emit(piece)

    rig = await rig_of(kit.Scripted(numbers(5)), kit.Scripted(second), s0=2, s1=2)
    b = rig.open(request_id="b")
    a = await rig.read(rig.open(request_id="a"))
    assert len(a) == 1
    assert a[0].reason == "failed"
    assert a[0].error == f"Stage 'stage-1' failed: {str(error) or 'MemoryError'}"
    a_failed.open()
    assert text_of(await rig.read(b)) == "0 1 2 3 4 "
    assert (await rig.read(rig.open(request_id="c")))[-1].reason == "completed"
    await rig.released()
    assert all(sorted(stage.released) == ["a", "b", "c"] for stage in rig.stages.values())


async def test_fc_117_an_abort_shortly_before_another_request_does_not_touch_it(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(kit.Scripted(numbers(50)), kit.Scripted())
    a = rig.open()
    a.abort()
    b = rig.open()
    assert text_of(await rig.read(b)).split() == [str(n) for n in range(50)]
    assert await rig.read(a) == [Finished(reason="aborted")]


async def test_a_stage_that_fails_to_start_fails_the_request_and_is_not_released(kit: Any, rig_of: Any) -> None:
    def refuse(request: Any) -> None:
        raise RuntimeError("no memory for the cache")

    rig = await rig_of(kit.Scripted(say("x")), kit.Scripted(start=refuse))
    deltas = await rig.read(rig.open())
    assert deltas[-1].reason == "failed"
    assert deltas[-1].error == "Stage 'stage-1' failed: no memory for the cache"
    await rig.released()
    assert rig.stages[1].released == []


async def test_deltas_made_before_a_failure_are_delivered(kit: Any, rig_of: Any) -> None:
    def first(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="half"))
        raise RuntimeError("broken")

    rig = await rig_of(kit.Scripted(first))
    deltas = await rig.read(rig.open())
    assert deltas[0] == TextDelta(text="half")
    assert deltas[1].reason == "failed"


class Clock:
    """Lets the test move the event loop's clock on; timers then are due at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._offset = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._offset)

    async def advance(self, seconds: float) -> None:
        self._offset += seconds
        for _ in range(3):  # the loop looks at its timers once a round
            await asyncio.sleep(0)


async def test_fc_116_a_stalled_stage_fails_its_request_by_name(
    kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = kit.Gate(), kit.Signal()

    def second(piece: Any, context: Any) -> None:
        if context.request.request_id == "stuck":
            inside.set()
            gate.wait()

    rig = await rig_of(kit.Scripted(say("x")), kit.Scripted(second))
    clock = Clock(monkeypatch)
    stream = rig.open(request_id="stuck", timeout_s=30)
    await inside.wait()
    await clock.advance(29)
    assert rig.orchestrator.stalled_stages() == set()
    await clock.advance(2)
    assert await rig.read(stream) == [Finished(reason="failed", error="Stage 'stage-1' made no progress for 30 s.")]
    assert rig.orchestrator.stalled_stages() == {"stage-1"}
    gate.open()
    await rig.released()
    assert rig.orchestrator.stalled_stages() == set()
    assert (await rig.read(rig.open()))[-1].reason == "completed"


async def test_progress_puts_the_timeout_off(kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [threading.Event() for _ in range(5)]

    def first(piece: Any, context: Any) -> None:
        for step in steps:
            assert step.wait(kit.timeout_s)
            context.emit(TextDelta(text="x"))

    rig = await rig_of(kit.Scripted(first))
    clock = Clock(monkeypatch)
    stream = rig.open(timeout_s=30)
    for step in steps:
        await clock.advance(25)
        step.set()
        assert await asyncio.wait_for(anext(stream), kit.timeout_s) == TextDelta(text="x")
    assert (await rig.read(stream))[-1].reason == "completed"


async def test_waiting_for_the_client_is_no_stall(kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = kit.Signal()

    def first(piece: Any, context: Any) -> None:
        for n in range(2 * WINDOW):
            if n == WINDOW:
                blocked.set()
            context.emit(TextDelta(text="x" * 100))

    rig = await rig_of(kit.Scripted(first), output_limit=50)
    clock = Clock(monkeypatch)
    stream = rig.open(timeout_s=30)
    await blocked.wait()
    await clock.advance(1000)
    assert len(text_of(await rig.read(stream))) == 2 * WINDOW * 100


async def test_waiting_for_more_input_is_no_stall(kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await rig_of(kit.Scripted(lambda piece, context: context.emit(TextDelta(text="x"))))
    clock = Clock(monkeypatch)
    stream = rig.open(timeout_s=30, more_input=True)
    assert await asyncio.wait_for(anext(stream), kit.timeout_s) == TextDelta(text="x")
    await clock.advance(1000)
    stream.end_input()
    assert (await rig.read(stream))[-1].reason == "completed"


async def test_closing_ends_every_stream_and_counts_each_request_once(kit: Any, rig_of: Any) -> None:
    def aborted() -> float:
        return REGISTRY.get_sample_value("duologue_requests_total", {"finished_reason": "aborted"}) or 0.0

    gate = kit.Gate()
    rig = await rig_of(kit.Scripted(lambda piece, context: gate.wait()))
    before = aborted()
    streams = [rig.open() for _ in range(3)]
    streams[0].abort()
    await rig.orchestrator.close()
    for stream in streams:
        assert await rig.read(stream) == [Finished(reason="aborted")]
    assert aborted() - before == 3
    with pytest.raises(RequestRefused, match="closed"):
        rig.open()
    gate.open()


# -- many requests -----------------------------------------------------------------------------------------------------


async def test_fc_111_fc_123_many_streams_at_once_get_what_each_would_get_alone(kit: Any, rig_of: Any) -> None:
    def first(piece: Any, context: Any) -> None:
        name = context.request.request_id
        for n in range(60):
            context.emit(TextDelta(text=f"{name}:{n} "))

    rig = await rig_of(kit.Scripted(first), kit.Scripted(), kit.Scripted(), s0=4, s1=2, output_limit=200)
    names = [f"r{n}" for n in range(32)]
    answers = await asyncio.gather(*(rig.read(rig.open(request_id=name)) for name in names))
    for name, deltas in zip(names, answers, strict=True):
        assert text_of(deltas).split() == [f"{name}:{n}" for n in range(60)]
        assert [d.reason for d in deltas if isinstance(d, Finished)] == ["completed"]


async def test_the_trace_has_four_first_events_in_order(kit: Any, rig_of: Any) -> None:
    rig = await rig_of(kit.Scripted(numbers(5)), kit.Scripted())
    stream = rig.open()
    await rig.read(stream)
    assert [(e.source, e.target) for e in stream.trace] == [
        ("client", "stage-0"),
        ("stage-0", "stage-1"),
        ("stage-1", "client"),
    ]
    for edge in stream.trace:
        times = [edge.emitted, edge.sent, edge.accepted] + ([] if edge.target == "client" else [edge.produced])
        assert None not in times
        if edge.source == "client":
            del times[1]  # the first stage may take it before the hand-over has returned
        assert times == sorted(times)


@st.composite
def _plans(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "stages": draw(st.integers(1, 3)),
        "workers": draw(st.integers(1, 3)),
        "limit": draw(st.sampled_from([10, 300, 100_000])),
        "requests": draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "pieces": st.integers(0, 3 * WINDOW),
                        "abort_after_reads": st.none() | st.integers(0, 6),
                        "rounds_between_reads": st.integers(0, 4),
                        "fails_at": st.none() | st.integers(0, 2 * WINDOW),
                    }
                ),
                min_size=1,
                max_size=5,
            )
        ),
    }


@settings(max_examples=60, deadline=None)
@given(plan=_plans())
def test_any_interleaving_has_one_outcome_and_neither_loses_nor_doubles_a_piece(kit: Any, plan: dict[str, Any]) -> None:
    """Random lengths, slow readers, aborts and failures: what is read is a prefix, whole if completed."""
    specs = {str(n): spec for n, spec in enumerate(plan["requests"])}

    def first(piece: Any, context: Any) -> None:
        for n in range(specs[context.request.request_id]["pieces"]):
            if not context.emit(TextDelta(text=f"{n} ")):
                return

    def last(piece: Any, context: Any) -> None:
        if piece.text == f"{specs[context.request.request_id]['fails_at']} ":
            raise RuntimeError("as planned")
        context.emit(piece)

    async def client(rig: Any, name: str) -> None:
        spec = specs[name]
        stream = rig.open(request_id=name)
        deltas: list[Any] = []
        aborted = False
        async for delta in stream:
            deltas.append(delta)
            if len(deltas) - 1 == spec["abort_after_reads"] and not isinstance(delta, Finished):
                stream.abort()
                aborted = True
            for _ in range(spec["rounds_between_reads"]):
                await asyncio.sleep(0)
        finished = [d for d in deltas if isinstance(d, Finished)]
        assert finished == [deltas[-1]]
        read = text_of(deltas).split()
        assert read == [str(n) for n in range(len(read))]
        fails = spec["fails_at"] is not None and spec["fails_at"] < spec["pieces"]
        if aborted:
            assert finished[0].reason == "aborted"
            assert isinstance(deltas[-2], TextDelta)
        elif fails:
            assert finished[0].reason == "failed"
            assert len(read) <= spec["fails_at"]
        else:
            assert finished[0].reason == "completed"
            assert len(read) == spec["pieces"]

    async def run() -> None:
        middle = [kit.Scripted() for _ in range(plan["stages"] - 1)]
        config, stages = kit.chain(kit.Scripted(first), *middle, kit.Scripted(last), s0=plan["workers"])
        rig = kit.Rig(config, stages, plan["limit"])
        await rig.start()
        async with asyncio.timeout(kit.timeout_s), asyncio.TaskGroup() as group:
            for name in specs:
                group.create_task(client(rig, name))
        await rig.released()
        await rig.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
