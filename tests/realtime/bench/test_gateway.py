"""``duologue bench gateway``: it runs and counts what it says; no speed is asserted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from duologue.codecs.pcm import pcm16_to_float
from duologue.realtime.bench import gateway_signal
from duologue.realtime.bench.cli import app
from duologue.realtime.bench.gateway_caller import append_frame, text_frame
from duologue.realtime.bench.gateway_long import Counts, LongReport, Sample, summary
from duologue.realtime.bench.gateway_run import GatewayOptions, GatewayReport, run_gateway
from duologue.realtime.compiled import is_compiled


def samples(sizes: list[int], threads: int = 5) -> list[Sample]:
    return [Sample(float(n), size, 0.01 * n, threads, 20) for n, size in enumerate(sizes)]


def test_a_server_that_stays_where_it_is_after_the_warm_up_does_not_grow() -> None:
    warming = [100_000 + 500 * n for n in range(25)]
    report = summary(1.0, 1, Counts(), samples([*warming, *[112_000] * 75]))
    assert report.plateau
    assert (report.rss_kib_after_warm_up, report.rss_kib_at_end, report.kib_per_minute) == (112_000, 112_000, 0.0)
    assert report.cpu_percent == pytest.approx(1.0)


def test_a_server_that_grows_by_a_little_all_the_time_is_found_out() -> None:
    report = summary(1.0, 1, Counts(), samples([100_000 + 50 * n for n in range(100)]))
    assert not report.plateau
    assert report.kib_per_minute == pytest.approx(3000)


@pytest.mark.models
def test_the_voice_is_taken_for_speech_once_in_every_round_and_the_silence_is_not() -> None:
    sent = gateway_signal.loop()
    assert {len(chunk) for chunk in sent} == {gateway_signal.CHUNK_BYTES}
    assert 0.2 < np.abs(pcm16_to_float(b"".join(sent))).max() < 0.4
    round_s = len(sent) * gateway_signal.CHUNK_S
    found = gateway_signal.decisions(3 * round_s)
    assert [decision.kind.rpartition("_")[2] for decision in found] == ["started", "stopped"] * 3
    for decision in found:
        late_ms = decision.chunk * 20 - decision.at_ms
        assert -20 <= late_ms < 500


def test_a_frame_says_its_own_length() -> None:
    for size in (10, 200, 70_000):
        frame = text_frame(b"x" * size)
        assert frame[0] == 0x81
        assert frame.endswith(bytes(4) + b"x" * size)
    assert b'"input_audio_buffer.append"' in append_frame(bytes(960))


@pytest.mark.models
async def test_a_small_run_measures_everything() -> None:
    phases: list[str] = []
    options = GatewayOptions(sessions=2, seconds=4.0, ramp=False, max_sessions=4)
    report = await run_gateway(options, phases.append)
    assert len(phases) == 6
    assert report.compiled == is_compiled()
    assert report.incoming.chunks_in > 0
    assert report.incoming.chunks_out == 0
    assert report.outgoing.chunks_in == 0
    assert report.outgoing.chunks_out > 0
    assert report.both.chunks_out > 0
    assert not any(load.errors or load.lost or load.unexpected for load in (report.incoming, report.both))
    assert report.both.added_sound.n == report.both.chunks_out
    assert report.incoming.added_decision.n + report.both.added_decision.n > 0
    assert report.echo is not None
    assert report.echo.chunks_out > 0
    assert msgspec.json.decode(msgspec.json.encode(report), type=GatewayReport) == report


@pytest.mark.models
def test_a_few_seconds_of_talk_are_summed_up() -> None:
    result = CliRunner().invoke(app, ["gateway", "--minutes", "0.2", "--json"])
    report = msgspec.json.decode(result.stdout, type=LongReport)
    assert report.turns >= 1
    assert not report.errors
    assert len(report.samples) > 10
