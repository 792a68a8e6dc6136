"""A real server with the real models, a real client, and the strict shapes that another real client insists on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from ordering import violations
from recorder import Recorder
from scripted_server import ScriptedServer, scripted_server
from served import Served, server
from shapes import check_shapes

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav

Converse = Callable[..., AbstractAsyncContextManager[Recorder]]


DEPLOY = """
stages:
  - stage_id: 1  # the language model: always the likeliest token, so that its answers can be known
    sampling: {temperature: 0.0}
webrtc: {addresses: [127.0.0.1]}
"""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``duologue serve`` with the packaged models, started once. Fetches the models if they are missing."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "deploy.yaml").write_text(DEPLOY)
    with server(folder, "--deploy-config", str(folder / "deploy.yaml")) as running:
        yield running
        code, seconds = running.stop()
        assert (code, running.errors.read_text().count("Traceback")) == (0, 0)
        assert seconds < 15


@pytest.fixture
def converse(served: Served) -> Converse:
    """``async with converse(model=...) as talk``: a recorded conversation, checked for shape and order at its end."""

    @asynccontextmanager
    async def conversing(model: str = "gpt-realtime", check: bool = True) -> AsyncIterator[Recorder]:
        async with (
            AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
            client.realtime.connect(model=model) as connection,
        ):
            recorder = Recorder(connection)
            assert (await recorder.next())["type"] == "session.created"
            yield recorder
            if check:
                await recorder.settle()
        if check:
            check_shapes(recorder.trace)
            assert violations(recorder.trace) == []

    return conversing


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    """A server whose language model calls tools and can go on for ever."""
    async with scripted_server() as running:
        yield running


@pytest.fixture(scope="session")
def recording(speech_dir: Path) -> Callable[[str], bytes]:
    """A real recording as the wire wants it: PCM16 at 24 kHz."""

    def load(name: str) -> bytes:
        samples, rate = read_wav(speech_dir / f"{name}.wav")
        return float_to_pcm16(resample(samples, rate, 24_000))

    return load


@pytest.fixture(scope="session")
def recording_16k(speech_dir: Path) -> Callable[[str], bytes]:
    """A real recording as a microphone's track delivers it: PCM16 at its own 16 kHz."""

    def load(name: str) -> bytes:
        samples, rate = read_wav(speech_dir / f"{name}.wav")
        assert rate == 16_000
        return float_to_pcm16(samples)

    return load


@pytest.fixture(autouse=True)
def quiet_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
