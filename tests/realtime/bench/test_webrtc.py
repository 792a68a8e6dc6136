"""``duologue bench webrtc``: it runs and counts what it says; no speed is asserted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from missing import need_libopus, need_package
from typer.testing import CliRunner

from duologue.codecs.pcm import PCM16
from duologue.realtime.bench.cli import app

need_package("aiortc")
need_libopus()

from duologue.codecs.opus import OpusDecoder  # noqa: E402
from duologue.realtime.bench import webrtc_av, webrtc_load, webrtc_lossy, webrtc_voice  # noqa: E402
from duologue.realtime.bench.webrtc_peer import hum_packets, turn_packets, voice_packets  # noqa: E402
from duologue.realtime.bench.webrtc_run import WebRtcReport  # noqa: E402


def test_packets_to_be_told_apart_are_all_different() -> None:
    for packets in (hum_packets(), voice_packets()):
        assert len(set(packets)) == len(packets) > 150
    assert len(turn_packets()) == 200


def test_a_gap_in_the_hum_is_a_click_and_the_hum_is_none() -> None:
    decoder = OpusDecoder(24_000)
    hum = b"".join(map(decoder.decode, hum_packets()))
    assert webrtc_lossy.clicks(hum, 24_000) == 0
    samples = np.frombuffer(hum, PCM16).copy()
    for start in (10_000, 50_000):
        samples[start : start + 480] = 0
    assert webrtc_lossy.clicks(samples.tobytes(), 24_000) in (2, 3, 4)


async def test_a_bad_link_is_measured_on_both_sides() -> None:
    row = await webrtc_lossy._row(0.1, 20, 2.0, seed=2)
    assert row.packets > 80
    assert row.lost > 0
    for side in (row.duologue, row.aiortc):
        assert side.hold.n > 40
        assert side.hold.mean is not None
    assert msgspec.json.decode(msgspec.json.encode(row), type=webrtc_lossy.LossyRow) == row


@pytest.mark.models
async def test_a_small_run_of_every_server_counts_what_came_back() -> None:
    report = await webrtc_load.run_load(1, 2.0, ramp=False)
    assert [load.server for load in report.costs] == [
        server.name for server in (webrtc_load.ECHO, webrtc_load.MEDIA, webrtc_load.BOTH, webrtc_load.LISTENING)
    ]
    for load in report.costs:
        assert load.sent > 50
        assert load.cpu_percent_per_call > 0
        assert load.received > 50 or not load.answers
    assert report.costs[-1].received < 20
    assert report.ratio is not None


@pytest.mark.models
async def test_the_load_of_a_gateway_counts_its_media_workers() -> None:
    report = await webrtc_load.run_load(1, 1.0, ramp=False, media_workers=1)
    assert report.media_workers == 1
    listening = report.costs[-1]
    assert listening.sent > 25
    assert listening.cpu_percent_per_call > 0


@pytest.mark.models
async def test_turns_are_answered_and_interrupted_over_both_transports() -> None:
    report = await webrtc_voice.run_voice_lines(1)
    for voice in (report.websocket, report.webrtc):
        assert voice.answered.n + voice.silent.n + voice.missed == 3
        assert voice.answered.n >= 1
    assert report.added_p50_ms is not None


def test_offsets_and_drift_are_reckoned_from_onsets() -> None:
    sound = [100 + 2.0 * n for n in range(200)]
    together = webrtc_av.reckoned(6.0, sound, [at + 0.02 + 0.001 * (n % 7) for n, at in enumerate(sound)])
    assert together.held
    assert (together.offset.n, together.outside, together.unpaired) == (200, 0, 0)
    assert together.offset.min == pytest.approx(20)
    assert together.drift_ms == pytest.approx(0, abs=1.1)
    apart = webrtc_av.reckoned(6.0, sound, [at + 0.02 + 0.0001 * n for n, at in enumerate(sound)])
    assert apart.drift_ms == pytest.approx(19.9, abs=0.1)
    assert not apart.held
    late = webrtc_av.reckoned(6.0, sound[:4], [sound[0] + 0.11, sound[1] - 0.05, sound[2]])
    assert (late.outside, late.unpaired, late.drift_ms, late.held) == (2, 1, None, False)
    assert not webrtc_av.reckoned(6.0, [], []).held


@pytest.mark.models
async def test_fc_149_sound_and_picture_are_watched_in_a_real_call() -> None:
    report = await webrtc_av.run_av(0.1)
    assert report.offset.n >= 2
    assert report.offset.p50 is not None
    assert -45 <= report.offset.p50 <= 100


def test_the_command_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc_lossy, "LOSSES", (0.05,))
    monkeypatch.setattr(webrtc_lossy, "JITTERS_MS", (0,))
    run = CliRunner().invoke(app, ["webrtc", "--part", "link", "--seconds", "1", "--json"])
    assert run.exit_code == 0, run.output
    report = msgspec.json.decode(run.stdout, type=WebRtcReport)
    assert report.load is None
    assert report.link is not None
    assert len(report.link) == 1
    table = CliRunner().invoke(app, ["webrtc", "--part", "link", "--seconds", "1"])
    assert "aiortc" in table.stdout
