"""The Agents SDK's own session, which is strict about shapes, in a conversation with the real models."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents.realtime import RealtimeAgent, RealtimeRunner
from served import Served

pytestmark = pytest.mark.models

PATIENCE_S = 60


async def test_a_turn_and_an_interruption_in_an_agents_session(served: Served) -> None:
    agent = RealtimeAgent(name="Assistant", instructions="Answer briefly.")
    runner = RealtimeRunner(agent, config={"model_settings": {"model_name": "gpt-realtime"}})
    seen: list[Any] = []

    async def until(session: Any, kind: str) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            async for event in session:
                seen.append(event)
                assert event.type != "error", event
                if event.type == kind:
                    return event
        raise AssertionError(f"the session ended before {kind}")

    async with await runner.run(model_config={"url": served.ws, "api_key": "none"}) as session:
        await session.send_message("What is the capital of France?")
        await until(session, "audio")
        await until(session, "audio_end")
        await until(session, "agent_end")
        await session.send_message("Tell me a very long story about a dragon.")
        await until(session, "audio")
        await session.interrupt()
        await until(session, "audio_interrupted")
        await until(session, "agent_end")
    kinds = {event.type for event in seen}
    assert {"agent_start", "history_added", "audio", "audio_end", "audio_interrupted"} <= kinds
