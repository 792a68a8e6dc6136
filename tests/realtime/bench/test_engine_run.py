"""``duologue bench engine``: each measurement runs and counts what it says; no speed is asserted."""

from __future__ import annotations

import msgspec
import pytest
from missing import need_package
from typer.testing import CliRunner

from duologue.realtime.bench import engine_packaged, engine_run
from duologue.realtime.bench.cli import app
from duologue.realtime.bench.engine_packaged import measure_stage_aborts
from duologue.realtime.bench.engine_polling import measure_loops
from duologue.realtime.bench.engine_run import EngineReport, measure_aborts, measure_hop, measure_routing


@pytest.mark.parametrize(
    ("executor", "connector", "threshold"),
    [("inline", "local", 0), ("process", "shared_memory", 0), ("ray", "object_store", 0)],
)
async def test_a_hop_is_measured_for_every_piece_but_the_first_tenth(
    executor: engine_run.Executor, connector: str, threshold: int
) -> None:
    if executor == "ray":
        need_package("ray")
    hop = await measure_hop(executor, connector, threshold, 100_000, 500, 0.2)
    assert (hop.payload_bytes, hop.latency.n, hop.latency.unit) == (100_000, 90, "ms")
    assert hop.latency.min is not None
    assert hop.latency.min > 0


async def test_routing_counts_both_hops_of_every_stream() -> None:
    routing = await measure_routing("inline", streams=3, each=200)
    assert routing.pieces == 2 * 3 * 200
    assert routing.per_second > 0


async def test_an_abort_takes_no_longer_than_its_stages_steps_allow_by_far() -> None:
    aborts = await measure_aborts("inline", count=3)
    assert aborts.until_stopped.n == 3
    assert aborts.until_stopped.max is not None
    assert aborts.until_stopped.max < 1000


async def test_both_loops_give_the_same_answers_and_only_one_of_them_works_when_idle() -> None:
    events, polling = await measure_loops(0.5, rounds=1, turns=2)
    assert (events.loop, polling.loop) == ("events", "polling")
    assert events.first_audio.n == polling.first_audio.n == 2 * events.concurrency
    assert events.idle_cpu_percent < polling.idle_cpu_percent


@pytest.mark.models
async def test_the_same_long_answer_is_measured_with_and_without_async_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_packaged, "TOKENS", 24)
    on, off = await engine_packaged.measure_async_chunk(1)
    assert (on.async_chunk, off.async_chunk) == (True, False)
    assert on.audio_s == off.audio_s > 0
    for chunked in (on, off):
        assert chunked.first_audio.n == chunked.end_to_end.n == 1
        assert chunked.first_audio.p50 <= chunked.end_to_end.p50  # type: ignore[operator]


@pytest.mark.models
async def test_every_stage_of_the_packaged_pipeline_stops_after_an_abort() -> None:
    stopped = {found.stage: found.until_stopped for found in await measure_stage_aborts(2)}
    assert {"recogniser", "language_model"} <= set(stopped) <= {"recogniser", "language_model", "talker", "codec"}
    for found in stopped.values():
        assert 1 <= found.n <= 2


def test_json_is_one_object_that_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    report = EngineReport([], [], [], [], [], [], [])

    async def measured(seconds: float, idle_seconds: float, answers: int) -> EngineReport:
        assert (seconds, idle_seconds, answers) == (4.0, 0.0, 0)
        return report

    monkeypatch.setattr("duologue.realtime.bench.engine_command.run_engine", measured)
    outcome = CliRunner().invoke(app, ["engine", "--idle-seconds", "0", "--answers", "0", "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert msgspec.json.decode(outcome.stdout, type=EngineReport) == report
