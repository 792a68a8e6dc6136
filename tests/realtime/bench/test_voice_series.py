from __future__ import annotations

from pathlib import Path

import pytest

from duologue.realtime.bench.voice_report import within
from duologue.realtime.bench.voice_run import VoiceOptions
from duologue.realtime.bench.voice_score import Outcome, UtteranceResult
from duologue.realtime.bench.voice_series import plan_series
from duologue.realtime.bench.voice_to_voice import VoiceSplit


def result(outcome: Outcome, v2v_ms: float | None) -> UtteranceResult:
    split = VoiceSplit(v2v_ms, None, None, None, None, None)
    return UtteranceResult(id="u", call="c", outcome=outcome, split=split)


def test_the_share_within_a_time_counts_those_that_were_never_answered_rightly() -> None:
    results = [
        result("answered", 480.0),
        result("answered", 900.0),
        result("answered", 5_000.0),
        result("wrong_words", 400.0),
        result("early", -200.0),
        result("unanswered", None),
        result("failed", None),
        result("answered", None),
    ]
    assert within(results) == {"0.5": 0.125, "1": 0.25, "2": 0.25, "4": 0.25}
    assert within([]) == {}


def test_a_series_is_every_window_with_every_number_of_callers_each_beside_its_baseline(tmp_path: Path) -> None:
    runs = list(plan_series(VoiceOptions(out=tmp_path), [1, 8], [500, 200], baseline=True))
    assert [name for name, _ in runs][:4] == [
        "1-callers-500-ms",
        "1-callers-500-ms-baseline",
        "8-callers-500-ms",
        "8-callers-500-ms-baseline",
    ]
    name, options = runs[-1]
    assert (name, options.sessions, options.settings.silence_ms) == ("8-callers-200-ms-baseline", 8, 200)
    assert options.baseline
    assert options.out == tmp_path / name
    assert not runs[-2][1].baseline


def test_a_baseline_needs_a_server_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--url"):
        list(plan_series(VoiceOptions(out=tmp_path, url="ws://127.0.0.1:1"), [1], [500], baseline=True))
