"""A translation session with the real models through the official client: its machinery, and that it really speaks.

The packaged language model is too small to translate; what it writes is spoken, timed and delivered all the same.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from served import Served

pytestmark = pytest.mark.models

FRAME = 9600
"""Bytes of 200 ms of PCM16 at 24 kHz."""


def words(text: str) -> set[str]:
    return set("".join(c for c in text.lower() if c.isalpha() or c.isspace()).split())


async def spoken_words(client: AsyncOpenAI, pcm: bytes) -> str:
    """What a transcription session hears in a sound."""
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        await connection.session.update(session={"type": "transcription", "audio": {"input": {"turn_detection": None}}})
        for first in range(0, len(pcm), 48_000):
            await connection.input_audio_buffer.append(audio=base64.b64encode(pcm[first : first + 48_000]).decode())
        await connection.input_audio_buffer.commit()
        async for event in connection:
            if event.type == "conversation.item.input_audio_transcription.completed":
                return event.transcript
    raise AssertionError("no transcript came")


async def test_speech_comes_out_as_text_and_as_the_sound_of_that_text(
    served: Served, recording: Callable[[str], bytes]
) -> None:
    client = AsyncOpenAI(api_key="none", base_url=f"{served.url}/v1")
    heard: list[Any] = []
    async with client, client.realtime.translations.connect(model="gpt-realtime-translate") as connection:
        audio = {"output": {"language": "es"}, "input": {"transcription": {"model": "whisper-1"}}}
        await connection.session.update(session={"audio": audio})  # type: ignore[typeddict-item]
        sound = recording("goforward") + bytes(4 * FRAME)
        for first in range(0, len(sound), 7000):
            piece = base64.b64encode(sound[first : first + 7000]).decode()
            await connection.session.input_audio_buffer.append(audio=piece)
        await connection.session.close()
        heard = [event async for event in connection]
        assert [event.type for event in heard[:2]] == ["session.created", "session.updated"]
        assert heard[-1].type == "session.closed"
        assert [event.type for event in heard if event.type == "error"] == []
        source = "".join(event.delta for event in heard if event.type == "session.input_transcript.delta")
        assert {"go", "forward"} <= words(source)
        text = "".join(event.delta for event in heard if event.type == "session.output_transcript.delta")
        assert text.strip()
        timed = [event for event in heard if hasattr(event, "elapsed_ms")]
        times = [event.elapsed_ms for event in timed]
        assert times == sorted(times)
        assert all(time % 200 == 0 and 0 < time <= len(sound) / 48 + 200 for time in times)
        pcm = b"".join(base64.b64decode(event.delta) for event in heard if event.type == "session.output_audio.delta")
        recognised = await spoken_words(client, pcm)
        said = words(text)
        assert len(said & words(recognised)) >= len(said) / 2, (text, recognised)
