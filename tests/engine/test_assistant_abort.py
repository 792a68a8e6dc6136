"""An abort of a real conversation: each stage does no more than the piece in hand, and nothing more comes out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from duologue.engine.deploy import load_deploy
from duologue.engine.engine import Engine
from duologue.engine.executors import inline
from duologue.engine.requests import AudioDelta, ChatMessage, Converse, EngineRequest, Finished, TextDelta

LONG = Converse(
    messages=(ChatMessage(role="user", text="Tell me a very long story about a boat, in many sentences."),),
    temperature=0.0,
    seed=3,
)
TIMEOUT_S = 60.0
BOUND = {"language_model": 2, "talker": 1, "codec": 1}
"""Pieces that a stage may still try to hand on: the one in hand, of tokens also the one that llama.cpp has reported
in the same breath."""


@pytest.mark.models
async def test_fc_020_every_stage_stops_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    emit = inline.Lane.emit

    def counted(lane: Any, piece: Any, *to: Any) -> bool:
        (after if lane.dead else before)[lane._replica.stage] += 1
        return emit(lane, piece, *to)

    monkeypatch.setattr(inline.Lane, "emit", counted)
    engine = Engine(load_deploy())
    await engine.start()
    try:
        for n, (kind, count) in enumerate([(TextDelta, 1), (TextDelta, 10), (AudioDelta, 1), (AudioDelta, 2)]):
            before.clear()
            after.clear()
            stream = engine.open(EngineRequest(request_id=f"r{n}", session_id="s", payload=LONG))
            async with asyncio.timeout(TIMEOUT_S):
                while count:
                    count -= isinstance(await anext(stream), kind)
                stream.abort()
                assert [delta async for delta in stream] == [Finished(reason="aborted", usage=stream.usage)]
                assert engine._orchestrator is not None
                await engine._orchestrator.idle()
            assert before["language_model"] > 0
            assert all(attempts <= BOUND[stage] for stage, attempts in after.items()), (n, after)
    finally:
        await engine.close()
