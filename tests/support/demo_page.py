"""The demo page in a browser, as a person uses it."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from playwright.async_api import Browser, Page, expect

PATIENCE_MS = float(os.environ.get("DEMO_PATIENCE", 90_000))

RECORD = """() => {
  const { context, output, remote } = demo.session.sound;
  const end = context.createMediaStreamDestination();
  (remote ?? output).connect(end);
  const recorder = new MediaRecorder(end.stream);
  const pieces = [];
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  window.stopRecording = () => new Promise((resolve) => {
    recorder.onstop = async () => {
      const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
      resolve(btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), '')));
    };
    recorder.stop();
  });
  recorder.start();
}"""


class DemoPage:
    """``page`` with the demo in it. What the page logs or throws is kept in ``complaints``."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._logged)

    def _logged(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    async def open(self, url: str) -> None:
        await self.page.goto(url)
        await expect(self.page.locator("#start")).to_be_enabled()
        await self.page.evaluate("async () => { window.demo = await import('/demo/js/app.js'); }")

    async def start(self, transport: str, key: str = "") -> None:
        if key:
            await self.page.fill("#key", key)
        radio = self.page.locator(f"input[value={transport}]")
        if not await radio.is_checked():
            if not await radio.is_visible():
                await self.page.click("#devices summary")  # folded on a small screen
            await radio.check()
        await self.page.click("#start")
        await self.until_state("Connected")

    async def until_state(self, words: str) -> None:
        await expect(self.page.locator("#status")).to_have_text(words, timeout=PATIENCE_MS)

    async def mute(self, muted: bool) -> None:
        """Press Mute, or Unmute."""
        button = self.page.locator("#mute")
        await expect(button).to_have_attribute("aria-pressed", str(not muted).lower())
        await button.click()

    async def until_mood(self, mood: str) -> None:
        await self.page.wait_for_function(
            "mood => document.documentElement.dataset.mood === mood", arg=mood, timeout=PATIENCE_MS
        )

    async def until_problem(self, kind: str) -> None:
        problem = self.page.locator(f"#problem[data-kind={kind}]")
        await expect(problem).to_be_visible(timeout=PATIENCE_MS)

    async def say(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.press("#text", "Enter")

    async def said(self, side: str, index: int = 0) -> str:
        """The finished words of the ``index``-th message of ``you``, ``bot`` or ``tool``."""
        words = self.page.locator(f"#transcript .{side}:not(.partial) .words").nth(index)
        await expect(words).not_to_be_empty(timeout=PATIENCE_MS)
        return await words.inner_text()

    async def events(self, name: str) -> list[dict[str, Any]]:
        """The protocol events of one type that the inspector holds."""
        return await self.page.evaluate(
            "name => demo.inspector.events.filter(({ type }) => type === name).map(({ text }) => JSON.parse(text))",
            name,
        )

    async def until_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th event of a type, once it is there."""
        await self.page.wait_for_function(
            "([name, count]) => demo.inspector.events.filter(({ type }) => type === name).length >= count",
            arg=[name, count],
            timeout=PATIENCE_MS,
        )
        return (await self.events(name))[count - 1]

    async def session(self) -> dict[str, Any]:
        """The session as the server confirmed it last."""
        return await self.page.evaluate("() => demo.session.settings")

    async def record(self) -> None:
        """Begin to record what the page plays."""
        await self.page.evaluate(RECORD)

    async def recorded(self) -> NDArray[np.float32]:
        """End the recording: float32 ``[samples]`` at 16 kHz."""
        return decoded(base64.b64decode(await self.page.evaluate("() => window.stopRecording()")))


def decoded(data: bytes) -> NDArray[np.float32]:
    """The sound of a WebM file: float32 ``[samples]`` at 16 kHz, mono."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=16_000)
    with av.open(io.BytesIO(data)) as container:
        frames = [one for frame in container.decode(audio=0) for one in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


@asynccontextmanager
async def demo_page(browser: Browser, url: str, complaints: bool = False, **options: Any) -> AsyncIterator[DemoPage]:
    """The page at ``url`` in a fresh context. Unless ``complaints`` are expected, there must be none.

    Without motion, unless ``options`` say otherwise: a browser that paints by itself takes the server's processor.
    """
    context = await browser.new_context(**{"reduced_motion": "reduce", **options})
    try:
        demo = DemoPage(await context.new_page())
        await demo.open(url)
        yield demo
    finally:
        await context.close()
    if not complaints and demo.complaints:
        raise AssertionError(f"the page complained: {demo.complaints}")
