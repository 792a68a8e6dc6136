"""A call from its offer to its end, over a scripted engine: signalling, events, playout, what is left."""

from __future__ import annotations

from typing import Any

from live_sessions import manager_of, settled
from rtc_client import LOOPBACK, calling, tone
from scripted_engine import ScriptedEngine

from duologue.engine.requests import AudioDelta, Finished, TextDelta, TranscriptDelta
from duologue.realtime.gateway import EdgeSettings

CALLS = "/v1/realtime/calls"
SETTINGS = EdgeSettings(webrtc=LOOPBACK)


async def test_a_spoken_turn_over_a_call(serve: Any) -> None:
    engine = ScriptedEngine()
    async with serve(manager_of(engine), settings=SETTINGS) as edge, edge.http() as http, calling(http) as client:
        assert client.events[0]["type"] == "session.created"
        client.microphone.say(tone(800))
        await client.until("input_audio_buffer.speech_started")
        await client.until("input_audio_buffer.committed")
        (await engine.opened()).give(TranscriptDelta(text="Hello there."), Finished(reason="completed"))
        stream = await engine.opened()
        stream.give(TextDelta(text="One two."), AudioDelta(pcm=tone(1000)), Finished(reason="completed"))
        created = await client.until("response.created")
        done = await client.until("response.done")
        stopped = await client.until("output_audio_buffer.stopped")
        assert stopped["response_id"] == created["response"]["id"] == done["response"]["id"]
        kinds = client.kinds()
        assert "response.output_audio.delta" not in kinds
        assert kinds.index("response.content_part.added") < kinds.index("output_audio_buffer.started")
        assert "response.output_audio.done" in kinds
        await settled(lambda: len(client.loud_at) >= 45)
        assert edge.gateway.desk().__len__() == 1
    assert engine.detectors[-1].closed
