"""Events within the size that the peer's data channel takes, and no faster than it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_sessions import manager_of
from rtc_client import calling, tone
from scripted_engine import ScriptedEngine
from session_driver import speech

from duologue.engine.requests import Finished, TranscriptDelta
from duologue.realtime.dialects import GA
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc.call_media import HIGH_WATER
from duologue.realtime.webrtc.channel import fitting
from duologue.sessions import server_events as events
from duologue.sessions.config import PcmFormat
from duologue.sessions.items import InputAudio, InputImage, InputText, MessageItem, OutputText

PLACE: Any = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}


def said(event: events.ServerEvent, limit: int) -> list[dict[str, Any]]:
    messages = fitting(event, GA, limit)
    assert all(len(message) <= limit or not limit for message in messages)
    return [json.loads(message) for message in messages]


def retrieved(*content: Any) -> events.ItemRetrieved:
    return events.ItemRetrieved(
        event_id="e", item=MessageItem(id="i", role="user", content=content, status="completed")
    )


@pytest.mark.parametrize("limit", [0, 65_536, 262_144])
def test_what_fits_is_said_as_it_is(limit: int) -> None:
    event = retrieved(InputAudio(audio=speech(500), transcript="Hi"))
    (message,) = said(event, limit)
    assert message["item"]["content"][0]["audio"]


def test_an_item_that_is_too_long_goes_without_its_media() -> None:
    event = retrieved(InputAudio(audio=speech(5000), transcript="Hi"), InputImage(image_url="data:," + "x" * 70_000))
    (message,) = said(event, 65_536)
    assert message["type"] == "conversation.item.retrieved"
    assert message["item"]["content"] == [{"type": "input_audio", "transcript": "Hi"}, {"type": "input_image"}]


def test_the_end_of_a_long_response_goes_without_its_output() -> None:
    output = (MessageItem(id="i", role="assistant", content=(OutputText(text="x" * 70_000),), status="completed"),)
    response = events.Response(
        id="r",
        status="completed",
        output=output,
        conversation_id="c",
        output_modalities=("text",),
        max_output_tokens="inf",
        audio=events.ResponseAudio(output=events.ResponseAudioOutput(format=PcmFormat(), voice="hibari")),
    )
    (message,) = said(events.ResponseDone(event_id="e", response=response), 65_536)
    assert (message["type"], message["response"]["status"]) == ("response.done", "completed")
    assert message["response"]["output"] == []


def test_what_cannot_be_shortened_is_an_error_that_says_so() -> None:
    for event in (
        retrieved(InputText(text="x" * 70_000)),
        events.OutputTextDone(
            event_id="e", response_id="r", item_id="i", output_index=0, content_index=0, text="é" * 40_000
        ),
    ):
        (message,) = said(event, 65_536)
        assert (message["type"], message["error"]["code"]) == ("error", "duologue.event_too_large")
        assert "65536" in message["error"]["message"]


async def test_a_long_recording_is_retrieved_over_the_channel_without_its_sound(
    serve: Any, settings: EdgeSettings
) -> None:
    engine = ScriptedEngine()
    async with (
        serve(manager_of(engine), settings=settings) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        client.microphone.say(tone(5000))
        item_id = (await client.until("input_audio_buffer.committed"))["item_id"]
        (await engine.opened()).give(TranscriptDelta(text="Mm."), Finished(reason="completed"))
        client.send({"type": "conversation.item.retrieve", "item_id": item_id})
        item = (await client.until("conversation.item.retrieved"))["item"]
        assert "audio" not in item["content"][0], "5 s are more than 256 KiB of base64"
        assert item["id"] == item_id


async def test_more_than_a_channel_holds_comes_whole_and_in_order(serve: Any, settings: EdgeSettings) -> None:
    text, times = "x" * 50_000, 60
    assert len(text) * times > 2 * HIGH_WATER
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        content = [{"type": "input_text", "text": text}]
        client.send(
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}
        )
        item_id = (await client.until("conversation.item.done"))["item"]["id"]
        for _ in range(times):
            client.send({"type": "conversation.item.retrieve", "item_id": item_id})
        client.send({"type": "session.update", "session": {"type": "realtime", "instructions": "Be kind."}})
        await client.until("session.updated", 60)
        came = [event for event in client.events if event["type"] == "conversation.item.retrieved"]
        assert len(came) == times
        assert all(event["item"]["content"][0]["text"] == text for event in came)
