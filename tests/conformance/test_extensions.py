"""Our extensions of a session with the real models, through the official client."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from recorder import Recorder
from voice import synthesised

pytestmark = pytest.mark.models

SECOND = 48_000
"""Bytes of one second of PCM16 at 24 kHz."""
ADAPTIVE = {"interruption": {"mode": "adaptive"}}


async def begin_an_answer(talk: Recorder) -> str:
    """Ask for some seconds of speech; returns the response's id once its sound has begun."""
    await talk.write("Tell me a story about a dragon.")
    await talk.send("response.create", response={"max_output_tokens": 45})
    return (await talk.until("response.output_audio.delta"))["response_id"]


async def test_speech_interrupts_an_adaptive_session_and_a_stock_client_sees_nothing_new(
    converse: Any, recording: Callable[[str], bytes]
) -> None:
    async with converse() as talk:
        await talk.update(**ADAPTIVE, max_output_tokens=20)
        response_id = await begin_an_answer(talk)
        await talk.append(recording("librivox-austen-0880") + bytes(SECOND))
        await talk.until("input_audio_buffer.speech_started")
        cut = (await talk.until("response.done"))["response"]
        assert (cut["id"], cut["status_details"]["reason"]) == (response_id, "turn_detected")
        assert (await talk.until("response.done"))["response"]["status"] in ("completed", "incomplete")


async def test_fc_029_a_spoken_okay_leaves_the_answer_whole(converse: Any) -> None:
    async with converse(check=False) as talk:
        await talk.update(**ADAPTIVE, extensions=["interruption"])
        response_id = await begin_an_answer(talk)
        okay = b"".join(delta.pcm for delta in synthesised("Okay."))
        await talk.append(okay + bytes(SECOND))
        pending = await talk.until("x.interruption.pending")
        dismissed = await talk.until("x.interruption.dismissed")
        assert pending["response_id"] == dismissed["response_id"] == response_id
        done = (await talk.until("response.done"))["response"]
        assert done["status"] in ("completed", "incomplete")
        assert not talk.received("input_audio_buffer.speech_started", "input_audio_buffer.committed")
        assert len(talk.audio_of(response_id)) > 3 * SECOND


async def test_playback_is_reported(converse: Any) -> None:
    async with converse() as talk:
        error = await talk.refused("playback.ack", response_id="r", item_id="i", played_ms=0, committed_ms=0)
        assert error["code"] == "invalid_event"
        assert (await talk.update(extensions=["playback"]))["session"]["extensions"] == ["playback"]
        response_id = await begin_an_answer(talk)
        item_id = talk.received("response.output_item.added")[-1]["item"]["id"]
        report = {"response_id": response_id, "played_ms": 100, "committed_ms": 100}
        await talk.send("playback.ack", item_id=item_id, **report)
        error = await talk.refused("playback.ack", item_id="item_unknown", **report)
        assert error["code"] == "playback_item_not_found"
        await talk.until("response.done")


@pytest.mark.parametrize("asked_ms", [100, 700])
async def test_the_first_sound_is_as_long_as_asked(converse: Any, asked_ms: int) -> None:
    async with converse() as talk:
        await talk.update(audio={"output": {"first_chunk_ms": asked_ms}})
        response_id = await begin_an_answer(talk)
        first = talk.received("response.output_audio.delta")[0]["delta"]
        assert len(base64.b64decode(first)) / 48 >= asked_ms, "of its own accord it has no more than 75 ms"
        await talk.until("response.done")
        assert len(talk.audio_of(response_id)) > SECOND
