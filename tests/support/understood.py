"""What the server's own recogniser makes of a sound."""

from __future__ import annotations

import base64
from typing import Any

from openai import AsyncOpenAI
from served import Served


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c.isspace()).split()


async def understood(served: Served, pcm: bytes) -> str:
    """What the server's own recogniser makes of a sound that it is sent over a WebSocket."""
    async with (
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as openai,
        openai.realtime.connect(model="gpt-realtime") as connection,
    ):
        settings: Any = {
            "type": "realtime",
            "audio": {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}},
        }
        await connection.session.update(session=settings)
        await connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
        await connection.input_audio_buffer.commit()
        async for event in connection:
            if event.type == "conversation.item.input_audio_transcription.completed":
                return event.transcript
    raise AssertionError("no transcript")
