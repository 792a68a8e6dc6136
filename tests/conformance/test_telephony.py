"""A telephone call with the real models: G.711 goes in, and what comes back over the line is understood."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from openai import AsyncOpenAI
from phone_provider import ULAW_SILENCE, dialled
from served import Served
from understood import understood, words

from duologue.codecs import g711
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample

pytestmark = pytest.mark.models


async def test_a_caller_is_answered_in_words_that_can_be_understood(
    served: Served, recording: Callable[[str], bytes]
) -> None:
    asked = g711.encode_ulaw(float_to_pcm16(resample(pcm16_to_float(recording("goforward")), 24_000, 8_000)))
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as openai:
        secret = await openai.realtime.client_secrets.create(session={"type": "realtime", "max_output_tokens": 40})
    async with dialled(served.url.removeprefix("http://")) as provider:
        await provider.start(key=secret.value)
        await provider.speak(asked + ULAW_SILENCE * 8 * 1500)
        async with asyncio.timeout(60):
            await provider.sound_came.wait()
        await provider.until_heard(1200)
        heard = resample(pcm16_to_float(g711.decode_ulaw(bytes(provider.heard))), 8_000, 24_000)
        await provider.stop()
    assert len(words(await understood(served, float_to_pcm16(heard)))) >= 2
