"""All tasks once against the real server with the packaged models: the machinery holds, whatever the answers are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duologue.codecs.wav import read_wav
from duologue.realtime.bench.fdb.dataset import TASKS
from duologue.realtime.bench.fdb.report import load_sounds, recompute, score_run
from duologue.realtime.bench.fdb.run import FdbOptions, run_fdb
from duologue.realtime.bench.fdb.runner import ReplaySettings
from duologue.realtime.bench.fdb.synth import SETS, SynthOptions, synthesise


@pytest.mark.models
def test_every_task_is_replayed_several_at_once_and_scored(tmp_path: Path, speech_dir: Path):
    sets, run = tmp_path / "sets", tmp_path / "run"
    synthesise(
        SynthOptions(sets, count=1, speech=speech_dir, monologue_s=4, noise_s=2, gap_s=2, tail_s=1.5),
    )
    settings = ReplaySettings(max_output_tokens=16, settle_s=0.5)
    asyncio.run(run_fdb(FdbOptions(sets, run, concurrency=5, settings=settings)))
    sounds = load_sounds()
    report = score_run(run, sounds)
    assert [scores.name for scores in report.sets] == list(SETS)
    assert {scores.task for scores in report.sets} == set(TASKS)
    failures = {scores.name: scores.reasons for scores in report.sets if scores.n != 1}
    assert not failures
    for scores in report.sets:
        folder = run / scores.name / "1"
        outputs = ["output.wav", "clean_output.wav"] if scores.task == "overlap" else ["output.wav"]
        for output in outputs:
            audio, rate = read_wav(folder / output)
            assert rate == 24_000
            assert len(audio) == len(read_wav(folder / output.replace("output", "input"))[0])
        written = json.loads((run / scores.name / "fdb_scores.json").read_bytes())
        assert (written["schema"], written["task"], written["n"]) == ("duologue.fdb/1", scores.task, 1)
        (sample,) = scores.samples
        if scores.task in ("pause", "turn_taking", "interruption", "backchannel", "echo", "noise"):
            assert sample.tor in (0, 1)
        if scores.task in ("overlap", "interruption", "echo"):
            assert (folder / "latency_intervals.json").is_file()
    backchannel = next(scores for scores in report.sets if scores.task == "backchannel")
    assert backchannel.jsd is not None
    written = (run / "bench.json").read_bytes()
    recompute(run, sounds)
    assert (run / "bench.json").read_bytes() == written
