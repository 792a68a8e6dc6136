"""What the engine measures of requests: each value once, a measured zero kept, a missing value left out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import REGISTRY, generate_latest

from duologue.engine import loop_lag
from duologue.engine.continuity import RealTimePlayer
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.loop_lag import EVERY_S
from duologue.engine.metering import REMEMBERED_WORK_S, RequestMeter, Work
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import PipelineConfig, StageConfig
from duologue.engine.requests import (
    OUTPUT_SAMPLE_RATE,
    AudioDelta,
    ChatMessage,
    Converse,
    EngineRequest,
    Finished,
    TextDelta,
    Transcribe,
)
from duologue.engine.sizes import piece_bytes

SECOND = b"\0\0" * OUTPUT_SAMPLE_RATE


class Meter:
    """Differences of the process-wide registry."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        return {f"{s.name}{sorted(s.labels.items())}": s.value for family in REGISTRY.collect() for s in family.samples}

    def since(self, name: str, **labels: str) -> float | None:
        """How much a sample has grown; None: there is no such series."""
        key = f"duologue_{name}{sorted(labels.items())}"
        now = self._now()
        return None if key not in now else now[key] - self._before.get(key, 0.0)


@pytest.fixture
def meter() -> Meter:
    return Meter()


def speaking(kit: Any, speak: Any, write: Any = None) -> tuple[PipelineConfig, dict[int, Any]]:
    """Text from ``metered-writer`` to the client and to ``metered-voice``, which speaks."""

    def word(piece: Any, context: Any) -> None:
        context.emit(TextDelta(text="four"))

    config = PipelineConfig(
        "metered",
        (
            StageConfig(0, "metered-writer", "x", accepts=(Converse,), final_output=True, final_output_type="text"),
            StageConfig(1, "metered-voice", "x", input_sources=(0,), final_output=True, final_output_type="audio"),
        ),
    )
    return config, {0: kit.Scripted(write or word), 1: kit.Scripted(speak)}


def both(text: str = "hello") -> Converse:
    return Converse(messages=(ChatMessage(role="user", text=text),))


VOICE = {"stage": "metered-voice", "replica": "0"}
WRITER = {"stage": "metered-writer", "replica": "0"}
BETWEEN = {"from_stage": "metered-writer", "from_replica": "0", "to_stage": "metered-voice", "to_replica": "0"}
TO_CLIENT = {"from_stage": "metered-voice", "from_replica": "0", "to_stage": "client", "to_replica": ""}


async def test_a_spoken_answer_is_measured_once(kit: Any, rig_of: Any, meter: Meter) -> None:
    def speak(piece: Any, context: Any) -> None:
        context.emit(AudioDelta(pcm=SECOND))
        context.emit(AudioDelta(pcm=SECOND))

    config, stages = speaking(kit, speak)
    rig = await rig_of(config=config, by_id=stages)
    await rig.read(rig.open(both()))
    await rig.released()
    for name in ("audio_ttfp_s", "audio_duration_s", "audio_rtf", "audio_underrun_s", "stage_gen_time_s"):
        assert meter.since(f"{name}_count", **VOICE) == 1, name
    assert meter.since("audio_duration_s_sum", **VOICE) == 2.0
    assert (
        meter.since("audio_underrun_s_sum", **VOICE),
        meter.since("audio_underrun_s_bucket", le="0.0", **VOICE),
    ) == (
        0.0,
        1.0,
    ), "a measured zero is recorded"
    assert meter.since("audio_continuity_ok_total", threshold_ms="100") == 1
    assert meter.since("time_to_first_token_s_count", **WRITER) == 1
    assert meter.since("e2e_request_latency_s_count", kind="converse") == 1
    assert meter.since("transfer_size_bytes_sum", **BETWEEN) == len("four")
    assert meter.since("transfer_size_bytes_sum", **TO_CLIENT) == 2 * len(SECOND)
    for name in ("transfer_tx_s_count", "transfer_in_flight_s_count"):
        assert meter.since(name, **BETWEEN) == 1, name
    assert meter.since("transfer_tx_s_count", **TO_CLIENT) == 2
    assert meter.since("transfer_in_flight_s_count", **TO_CLIENT) is None, "nobody tells when a client is through"


async def test_the_first_events_of_each_edge_are_on_one_clock_and_in_order(kit: Any, rig_of: Any, meter: Meter) -> None:
    config, stages = speaking(kit, lambda piece, context: context.emit(AudioDelta(pcm=SECOND)))
    rig = await rig_of(config=config, by_id=stages)
    began = time.monotonic()
    stream = rig.open(both())
    await rig.read(stream)
    await rig.released()
    edges = {(edge.source, edge.target): edge for edge in stream.trace}
    assert set(edges) == {
        ("client", "metered-writer"),
        ("metered-writer", "metered-voice"),
        ("metered-writer", "client"),
        ("metered-voice", "client"),
    }
    for (source, target), edge in edges.items():
        times = [edge.emitted, edge.sent, edge.accepted, edge.produced]
        if target == "client":
            assert times.pop() is None
        assert times == sorted(times)
        assert began <= times[0] <= times[-1] <= time.monotonic()
        for event in ("emitted", "sent", "accepted", "produced")[: len(times)]:
            labels = {"from_stage": source, "to_stage": target, "event": event, "clock": "host"}
            assert meter.since("edge_first_event_s_count", **labels) == 1, labels
    labels = {"from_stage": "metered-voice", "to_stage": "client", "event": "produced", "clock": "host"}
    assert meter.since("edge_first_event_s_count", **labels) is None


async def test_sound_that_comes_late_is_an_underrun(kit: Any, rig_of: Any, meter: Meter) -> None:
    def speak(piece: Any, context: Any) -> None:
        context.emit(AudioDelta(pcm=b"\0\0" * 24))  # a millisecond
        gate.wait()
        context.emit(AudioDelta(pcm=SECOND))

    gate = kit.Gate()
    config, stages = speaking(kit, speak)
    rig = await rig_of(config=config, by_id=stages)
    stream = rig.open(both())
    while not isinstance(await anext(stream), AudioDelta):
        pass
    heard = time.monotonic()
    await asyncio.to_thread(time.sleep, 0.15)  # the silence that is to be measured
    silent = time.monotonic() - heard
    gate.open()
    await rig.read(stream)
    await rig.released()
    underrun = meter.since("audio_underrun_s_sum", **VOICE)
    assert underrun is not None
    assert silent - 0.002 <= underrun
    assert not meter.since("audio_continuity_ok_total", threshold_ms="100")


@pytest.mark.parametrize(
    ("sound", "error", "reason"),
    [(0, None, "no_audio"), (1, None, "single_chunk"), (0, "broken", "failed")],
)
async def test_sound_that_cannot_be_judged_is_counted_as_skipped(
    kit: Any, rig_of: Any, meter: Meter, sound: int, error: str | None, reason: str
) -> None:
    def speak(piece: Any, context: Any) -> None:
        for _ in range(sound):
            context.emit(AudioDelta(pcm=SECOND))
        if error:
            raise RuntimeError(error)

    config, stages = speaking(kit, speak)
    rig = await rig_of(config=config, by_id=stages)
    await rig.read(rig.open(both()))
    await rig.released()
    assert meter.since("audio_skipped_requests_total", reason=reason) == 1
    assert meter.since("audio_underrun_s_count", **VOICE) is None, "a missing value is left out"
    assert meter.since("audio_ttfp_s_count", **VOICE) == (sound or None)


async def test_failures_by_their_cause(kit: Any, rig_of: Any, meter: Meter) -> None:
    def act(piece: Any, context: Any) -> None:
        if piece.messages[0].text == "fail":
            raise RuntimeError("broken")
        while context.emit(TextDelta(text="x")):
            pass

    rig = await rig_of(kit.Scripted(act))
    endless = [rig.open() for _ in range(4)]
    for stream, reason in zip(endless, ("client_abort", "client_disconnect", "unknown", "superseded"), strict=True):
        stream.abort(reason)
        stream.abort("client_abort")  # the first word counts
    failing = Converse(messages=(ChatMessage(role="user", text="fail"),), modalities=("text",))
    assert (await rig.read(rig.open(failing)))[-1].reason == "failed"
    await rig.released()
    for reason in ("client_abort", "client_disconnect", "unknown", "stage_error"):
        assert meter.since("requests_failed_total", reason=reason) == 1, reason
    assert meter.since("requests_failed_total", reason="superseded") is None, "nobody was waiting for that one"
    assert meter.since("requests_total", finished_reason="aborted") == 4
    assert meter.since("requests_total", finished_reason="failed") == 1


async def test_a_dead_replica_is_not_shown_and_a_removed_one_is_forgotten(meter: Meter, kit: Any) -> None:
    class Mortal(InlineReplica):
        alive = True

        @property
        def live(self) -> bool:
            return self.alive

    config, stages = kit.chain(kit.Scripted())
    replica = Mortal("mortal", lambda: stages[0], 1, index=3)
    orchestrator = Orchestrator(config, {0: [replica]})
    await replica.load()
    await replica.warm_up()
    orchestrator.start()
    payload = Converse(messages=(ChatMessage(role="user", text="x"),), modalities=("text",))
    async with orchestrator.open(EngineRequest(request_id="r", session_id="s", payload=payload)) as stream:
        assert [delta async for delta in stream][-1] == Finished(reason="completed")
    await orchestrator.idle()

    def shown() -> set[str]:
        return {line.partition("{")[0] for line in generate_latest().decode().splitlines() if '"mortal"' in line}

    families = {"duologue_stage_in_flight", "duologue_stage_waiting_requests", "duologue_stage_gen_time_s_count"}
    assert families | {"duologue_transfer_size_bytes_count"} <= shown()
    replica.alive = False
    assert not {name for name in shown() if "edge" not in name}
    replica.alive = True
    assert families <= shown()
    await orchestrator.close()
    assert not {name for name in shown() if "edge" not in name}
    await replica.close()


async def test_the_loop_is_watched_only_while_a_request_lives(
    kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = kit.Gate()
    rig = await rig_of(kit.Scripted(lambda piece, context: gate.wait()))
    timers = _counted_timers(monkeypatch)
    stream = rig.open()
    assert EVERY_S in timers
    sampled = kit.Signal()
    monkeypatch.setattr(loop_lag, "loop_lag_s", SimpleNamespace(observe=lambda lag: sampled.set()))
    await sampled.wait()
    gate.open()
    await rig.read(stream)
    await rig.released()
    del timers[:]
    await asyncio.to_thread(time.sleep, 3 * EVERY_S)
    assert not timers


def _counted_timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    original = loop.call_later

    def call_later(delay: float, *rest: Any, **options: Any) -> Any:
        delays.append(delay)
        return original(delay, *rest, **options)

    monkeypatch.setattr(loop, "call_later", call_later)
    return delays


@pytest.fixture
def traces(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    caplog.set_level(logging.DEBUG, "duologue.trace")
    found: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.trace)  # type: ignore[attr-defined,method-assign]
    logging.getLogger("duologue.trace").addHandler(handler)
    yield found
    logging.getLogger("duologue.trace").removeHandler(handler)


async def test_the_log_has_one_trace_a_request_also_of_one_that_was_aborted(
    kit: Any, rig_of: Any, traces: list[dict[str, Any]]
) -> None:
    config, stages = speaking(kit, lambda piece, context: context.emit(AudioDelta(pcm=SECOND)))
    rig = await rig_of(config=config, by_id=stages)
    await rig.read(rig.open(both(), request_id="whole"))
    stopped = rig.open(both(), request_id="stopped")
    stopped.abort()
    await rig.read(stopped)
    await rig.released()
    whole, aborted = sorted(traces, key=lambda trace: trace["request_id"], reverse=True)
    assert (whole["request_id"], whole["reason"], whole["failure"]) == ("whole", "completed", None)
    assert {(edge["source"], edge["target"]) for edge in whole["edges"]} >= {("client", "metered-writer")}
    assert (aborted["request_id"], aborted["reason"], aborted["failure"]) == ("stopped", "aborted", "client_abort")


async def test_what_cannot_be_measured_is_delivered_all_the_same(
    kit: Any, rig_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        @property
        def nbytes(self) -> int:
            raise RuntimeError("no size")

    def broken(trace: Any) -> None:
        raise RuntimeError("no room for statistics")

    monkeypatch.setattr(RequestMeter, "close", lambda self, trace: broken(trace))
    rig = await rig_of(
        kit.Scripted(lambda piece, context: context.emit(Odd())),
        kit.Scripted(lambda piece, context: context.emit(TextDelta(text="odd"))),
    )
    assert await rig.read(rig.open()) == [TextDelta(text="odd"), Finished(reason="completed")]
    await rig.released()


def test_a_player_that_waits_is_silent_for_as_long_as_one_that_does_not_falls_behind() -> None:
    player = RealTimePlayer()
    for at in (0.5, 0.7, 1.1, 1.5):
        player.receive(at, 0.2)
    assert (round(player.underrun_s, 6), player.stalls, round(player.longest_s, 6)) == (0.4, 2, 0.2)


def test_pieces_of_any_type_have_a_size_or_none() -> None:
    assert piece_bytes(TextDelta(text="fünf")) == 5
    assert piece_bytes(np.zeros((3, 4), np.float32)) == 48
    assert piece_bytes((b"12", [np.zeros(2, np.int16)], {"a": "xy"})) == 8
    assert piece_bytes(both("x" * 1000)) == 999 + (piece_bytes(both("x")) or 0)
    assert piece_bytes(7) is None


def test_only_work_in_advance_that_was_superseded_counts_as_wasted() -> None:
    work = Work()

    def ended(payload: Any, reason: Any, failure: Any = None, due_in_s: float = 0.0) -> tuple[float, float]:
        request = EngineRequest(request_id="r", session_id="s", payload=payload, due_in_s=due_in_s)
        before = work.useful_s, work.wasted_s
        meter = RequestMeter(request, work)
        meter.released(("stage", "0"), 2.0)
        meter.finished(reason, failure)
        meter.close(())
        return work.useful_s - before[0], work.wasted_s - before[1]

    useful, wasted = (2.0, 0.0), (0.0, 2.0)
    sound = Transcribe(audio=b"", sample_rate=16_000, urgency="speculative")
    text = Converse(messages=(), modalities=("text",))
    assert ended(sound, "aborted") == wasted
    assert ended(sound, "completed") == useful
    assert ended(text, "aborted", due_in_s=0.4) == wasted
    assert ended(text, "aborted", "client_abort", due_in_s=0.4) == useful, "it had been confirmed, and was interrupted"
    assert ended(text, "aborted") == useful
    assert ended(msgspec.structs.replace(text, prepare=True), "aborted", due_in_s=60.0) == useful
    for _ in range(1000):
        work.add(1.0, wasted=False)
    assert work.useful_s <= REMEMBERED_WORK_S, "what was long ago is forgotten"
