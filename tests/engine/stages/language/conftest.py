"""What the tests of all language-model backends share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from missing import missing

from duologue.engine.requests import ChatMessage, Converse, Tool


@pytest.fixture(scope="session")
def chatml_tools() -> Path:
    """A chat template that knows tools, for a model whose own does not."""
    return Path(__file__).parent / "chatml_tools.jinja"


@pytest.fixture(scope="session")
def projectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of projectors (``mmproj``) for the packaged model, and two that are none."""
    if not all(map(importlib.util.find_spec, ("gguf", "PIL"))):
        missing("gguf or pillow is not installed: pip install 'duologue[omni]'")
    from tiny_projector import tiny_projector

    folder = tmp_path_factory.mktemp("mmproj")
    width = 576  # of the packaged model's embeddings
    tiny_projector(folder / "llava.gguf", width)
    tiny_projector(folder / "gemma.gguf", width, "gemma3", image_size=128)
    tiny_projector(folder / "narrow.gguf", width - 64)
    (folder / "broken.gguf").write_bytes(b"GGUF and then nothing of the kind")
    return folder


@pytest.fixture(scope="session")
def asks_for_weather() -> Callable[[], Converse]:
    """A conversation in which even a very small model calls the tool, once it has seen how that is written."""

    def request() -> Converse:
        call = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
        messages: list[ChatMessage] = []
        for city in ("Paris", "Oslo", "Berlin"):
            messages += [
                ChatMessage(role="user", text=f"Weather in {city}?"),
                ChatMessage(role="assistant", text=call % city),
            ]
        messages.append(ChatMessage(role="user", text="Weather in Rome?"))
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
        tool = Tool(name="weather", description="The weather", parameters=schema)
        return Converse(messages=tuple(messages), tools=(tool,), temperature=0.0, max_output_tokens=60)

    return request
