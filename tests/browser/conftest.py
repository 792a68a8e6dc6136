"""One browser for all tests, with a microphone that plays a real recording over and over, and one real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from missing import need_package
from numpy.typing import NDArray
from scripted_server import ScriptedServer, scripted_server
from served import Served, server

need_package("playwright")
need_package("av")

from chromium import Browsers, installed  # noqa: E402 - needs the packages
from demo_page import DemoPage, demo_page  # noqa: E402
from playwright.async_api import Browser  # noqa: E402

from duologue.codecs.pcm import float_to_pcm16  # noqa: E402
from duologue.codecs.wav import read_wav, write_wav  # noqa: E402
from duologue.engine.models import locate  # noqa: E402

RATE = 16_000
SPOKEN = "librivox-austen-0880"
"""The only words of the microphone: he was not an ill disposed young man."""
LEAD_S = 6.0
"""Silence before it, in which a slow machine places its call."""

DEPLOY = """
stages:
  - stage_id: 1  # the language model: always the likeliest token, so that its answers can be known
    sampling: {temperature: 0.0}
"""

OpenPage = Callable[..., AbstractAsyncContextManager[DemoPage]]


@pytest.fixture(scope="session")
def microphone(speech_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the microphone hears: silence, a sentence, silence; again and again."""
    samples, rate = read_wav(speech_dir / f"{SPOKEN}.wav")
    assert rate == RATE
    silence = np.zeros(int(RATE * LEAD_S), np.float32)
    path = tmp_path_factory.mktemp("microphone") / "microphone.wav"
    write_wav(path, float_to_pcm16(np.concatenate([silence, samples, silence[: RATE * 2]])), RATE)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browsers(microphone: Path) -> AsyncIterator[Browsers]:
    async with AsyncExitStack() as until_the_end:
        yield Browsers(microphone, until_the_end)


@pytest_asyncio.fixture(loop_scope="session")
async def browser(browsers: Browsers) -> Browser:
    return await browsers.running()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``duologue serve`` with the packaged models."""
    installed()  # before the wait for the models
    folder = tmp_path_factory.mktemp("server")
    (folder / "deploy.yaml").write_text(DEPLOY)
    with server(folder, "--deploy-config", str(folder / "deploy.yaml")) as running:
        yield running
        assert (running.stop()[0], running.errors.read_text().count("Traceback")) == (0, 0)


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedServer]:
    """A server in this process whose language model calls tools and can go on for ever. It asks for a key."""
    async with scripted_server() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """``async with open_page(url) as demo``; the page must have nothing to complain about."""
    return partial(demo_page, browser)


@pytest.fixture(scope="session")
def recognise() -> Callable[[NDArray[np.float32]], str]:
    """The packaged recogniser: float32 ``[samples]`` at 16 kHz to words."""
    from duologue.engine.stages.whisper import Whisper

    folder = locate("whisper-tiny.en")
    assert folder is not None
    whisper = Whisper(folder, threads=2, workers=1)
    return lambda samples: whisper.recognise(samples).text
