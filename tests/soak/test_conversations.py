"""Eight spoken conversations at once on the packaged models. ``pytest -m soak tests/soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.voice_run import VoiceOptions, run_voice

CALLERS = 8


@pytest.mark.soak
async def test_eight_conversations_at_once_are_answered_without_a_gap(tmp_path: Path) -> None:
    """Every caller speaks three times, in real time, and listens to the whole answer.

    The simulated loudspeaker has no buffer; a gap below 0.1 s is one that a client's own does not let through.
    """
    settings = CallerSettings(reply_ms=None, max_output_tokens=64)
    options = VoiceOptions(
        out=tmp_path / "run",
        utterances=3 * CALLERS,
        barge_ins=0,
        sessions=CALLERS,
        recognise=0,
        idle_s=0.5,
        settings=settings,
    )
    report = await run_voice(options)
    print(report.answers, report.underrun, report.metrics["v2v"], sep="\n")
    assert report.answers.attempted == 3 * CALLERS
    assert (report.answers.unanswered, report.answers.failed) == (0, 0)
    assert report.underrun.responses > 0
    assert report.underrun.continuity == 1.0
