"""An installed Chromium with devices that play recordings, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from missing import missing
from playwright.async_api import Browser, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSECURE_HOST = "duologue.test"
"""A name for this machine that browsers do not take for this machine."""

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
    f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1",
)

FAKE_DEVICES = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""Devices, and leave to use them."""


def installed() -> str:
    """Path of the browser. ``DUOLOGUE_TEST_CHROMIUM`` names it where it is not on the path."""
    chosen = os.environ.get("DUOLOGUE_TEST_CHROMIUM")
    found = chosen or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("No Chromium is installed: the page cannot be tried.")
    assert found is not None
    return found


@asynccontextmanager
async def chromium(microphone: Path | None = None, devices: Sequence[str] = FAKE_DEVICES) -> AsyncIterator[Browser]:
    """A headless browser whose microphone plays a WAV file over and over, and whose camera shows a test picture."""
    arguments = [*ARGUMENTS, *devices]
    if microphone is not None:
        arguments.append(f"--use-file-for-fake-audio-capture={microphone}")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=installed(), args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


class Browsers:
    """One browser for all tests; another one after it has crashed, so that only the test fails that it crashed in."""

    def __init__(self, microphone: Path, until_the_end: AsyncExitStack) -> None:
        self._microphone = microphone
        self._until_the_end = until_the_end
        self._running: Browser | None = None

    async def running(self) -> Browser:
        if self._running is None or not self._running.is_connected():
            self._running = await self._until_the_end.enter_async_context(chromium(self._microphone))
        return self._running
