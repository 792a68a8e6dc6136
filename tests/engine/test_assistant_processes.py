"""The packaged pipeline with its models in worker processes says what it says inline."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.engine.deploy import load_deploy
from duologue.engine.engine import Engine
from duologue.engine.requests import AudioDelta, EngineRequest, Finished, Speak

SPLIT = "stages: [{stage_id: 2, executor: process}, {stage_id: 3, executor: process}]\n"


@pytest.mark.models
async def test_speech_from_processes_is_the_same_sample_for_sample(tmp_path: Path) -> None:
    spoken = []
    for text in ("", SPLIT):
        (tmp_path / "deploy.yaml").write_text(text)
        engine = Engine(load_deploy(tmp_path / "deploy.yaml"))
        await engine.start()
        request = EngineRequest(
            request_id="r", session_id="s", payload=Speak(text="One clause, and then another one.", seed=7)
        )
        deltas = await engine.collect(request)
        await engine.close()
        assert deltas[-1] == Finished(reason="completed")
        sound = [delta for delta in deltas if isinstance(delta, AudioDelta)]
        spoken.append((b"".join(d.pcm for d in sound), [word for d in sound for word in d.words]))
    assert len(spoken[0][0]) > 48_000
    assert spoken[0] == spoken[1]
