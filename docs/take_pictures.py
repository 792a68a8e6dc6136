"""Takes the pictures of the demo page: python docs/take_pictures.py http://127.0.0.1:8000 RECORDING.wav

A conversation is held with a running server: the recording is spoken, two things are typed, one answer is interrupted.
Needs Playwright, an installed Chromium and Pillow.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from chromium import chromium  # noqa: E402 - found by the line above
from demo_page import demo_page  # noqa: E402
from playwright.async_api import Browser  # noqa: E402

from duologue.codecs.pcm import float_to_pcm16  # noqa: E402
from duologue.codecs.wav import read_wav, write_wav  # noqa: E402

LAPTOP = {"viewport": {"width": 1360, "height": 850}, "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2}
LEAD_S = 20
"""Silence of the microphone before the recording."""
STORY = "Tell me a long story about the sea, the moon and a fisherman."


async def main(url: str, recording: Path) -> None:
    samples, rate = read_wav(recording)
    silence = np.zeros(rate * LEAD_S, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        microphone = Path(folder) / "microphone.wav"
        write_wav(microphone, float_to_pcm16(np.concatenate([silence, samples, silence[: rate * 5]])), rate)
        await take_all(url, microphone)


async def take_all(url: str, microphone: Path) -> None:
    async with chromium(microphone) as browser:
        await take(browser, url, "demo-laptop", LAPTOP)
        await take(browser, url, "demo-phone", PHONE)


async def take(browser: Browser, url: str, name: str, options: dict[str, object]) -> None:
    async with demo_page(browser, url, reduced_motion="no-preference", **options) as demo:
        await demo.start("webrtc")
        await demo.mute(True)
        await demo.say("What is the capital of France?")
        await demo.until_event("output_audio_buffer.stopped")
        await demo.say(STORY)
        await demo.until_event("output_audio_buffer.started", 2)
        await asyncio.sleep(3)  # of the story
        await demo.page.click("#interrupt")
        await demo.until_event("output_audio_buffer.cleared")
        await demo.mute(False)
        await demo.until_event("output_audio_buffer.started", 3)
        await demo.mute(True)
        await asyncio.sleep(1.2)
        await demo.page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
        picture = Image.open(io.BytesIO(await demo.page.screenshot()))
    path = HERE / f"{name}.png"
    picture.convert("RGB").save(path, optimize=True)
    print(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
