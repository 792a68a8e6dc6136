"""Calls with the real models: real speech goes in over RTP, and what comes back is understood."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from ordering import Line, violations
from rtc_client import RtcClient
from served import Served
from shapes import check_shapes
from understood import understood, words

pytestmark = pytest.mark.models

SESSION: Any = {
    "type": "realtime",
    "model": "gpt-realtime",
    "max_output_tokens": 30,
    "audio": {"input": {"transcription": {"model": "whisper-1"}}},
}


async def test_openai_webrtc_call(served: Served, recording: Any) -> None:
    """A spoken turn over a call that openai-python has placed: heard, answered, and the answer understood."""
    client = RtcClient()
    try:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as openai:
            answer = await openai.realtime.calls.create(sdp=await client.offer(), session=SESSION)
            await client.take(answer.text)
            created = await client.until("session.created")
            assert created["session"]["max_output_tokens"] == 30
            client.microphone.say(recording("goforward"))
            completed = await client.until("conversation.item.input_audio_transcription.completed", 60)
            assert {"go", "forward", "meters"} <= set(words(completed["transcript"])), client.events
            done = await client.until("response.done", 60)
            await client.until("output_audio_buffer.stopped", 60)
            spoken = done["response"]["output"][0]["content"][0]["transcript"]
            said = words(spoken)
            heard = words(await understood(served, bytes(client.heard)))
            assert len(set(said) & set(heard)) >= 0.6 * len(set(said)), (spoken, heard)
            location = answer.response.headers["location"]
            await openai.realtime.calls.hangup(location.rpartition("/")[2])
            await client.until_closed()
        trace = [Line(True, event) for event in client.said] + [Line(False, event) for event in client.events]
        check_shapes(trace)
        assert violations(trace) == []
    finally:
        await client.close()


async def test_a_call_is_interrupted_by_real_speech(served: Served, recording: Any) -> None:
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as http:
        client = RtcClient()
        try:
            await client.call(http)
            await client.until("session.created")
            client.send(
                {"type": "session.update", "session": {"type": "realtime", "instructions": "Tell a long story."}},
                {"type": "response.create"},
            )
            await client.until("output_audio_buffer.started", 60)
            client.microphone.say(recording("goforward"))
            await client.until("input_audio_buffer.speech_started")
            began = client.loop_time()
            await client.until("output_audio_buffer.cleared")
            truncated = [event for event in client.events if event["type"] == "conversation.item.truncated"]
            assert truncated
            await client.until("output_audio_buffer.started", 60)
            gap = [at for at in client.loud_at if began + 0.2 < at < client.loop_time() - 0.3]
            assert len(gap) < 5, "nothing of the old answer is heard after the interruption"
        finally:
            await client.close()
