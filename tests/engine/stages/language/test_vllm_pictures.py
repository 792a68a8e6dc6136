"""Pictures with the backend ``vllm``, for real: ``pytest -m vllm``, like ``test_vllm.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pictures import coloured

from duologue.engine.models import ModelUnavailable
from duologue.engine.requests import ChatMessage, Converse, ImagePart, TextDelta, Usage
from duologue.engine.stages.language.vllm import VllmLanguageModel

pytestmark = pytest.mark.vllm

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmLanguageModel]:
    """An Idefics3: most other models that see need torchvision, and PyPI's does not fit a torch for the CPU."""
    import tiny_checkpoints as tiny

    # vLLM's attention on a CPU has heads of 32 and more. Larger weights would make much of the last bit of a number.
    folder = tiny.tiled_model(tmp_path_factory.mktemp("idefics3"), hidden_size=128, initializer_range=0.2)
    made = VllmLanguageModel(
        str(folder),
        max_num_seqs=2,
        context_tokens=1024,
        sampling={"temperature": 0.0},
        vllm_args={"enforce_eager": True, "gpu_memory_utilization": 0.2, "dtype": "float32"},
    )
    made.load()
    made.warm_up()
    yield made
    made.close()


def picture(colour: tuple[int, int, int], kind: str = "PNG") -> ImagePart:
    return ImagePart(data=coloured(colour, kind), media_type=f"image/{kind.lower()}")


def shown(*parts: str | ImagePart) -> Converse:
    return Converse(messages=(ChatMessage.of_parts("user", parts),), max_output_tokens=16)


def text_of(pieces: list[Any]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def usage_of(pieces: list[Any]) -> Usage:
    reports = [piece for piece in pieces if isinstance(piece, Usage)]
    return Usage(**{name: sum(getattr(report, name) for report in reports) for name in Usage.__struct_fields__})


def test_pictures_give_what_generate_gives(stage: VllmLanguageModel, run_stage: Run) -> None:
    import tiny_checkpoints as tiny

    assert stage.abilities({"model": stage._name}) == {"image_in"}
    answers = set()
    red, blue = picture((250, 20, 30)), picture((0, 40, 250), "JPEG")
    for parts in ((red, "what"), (blue, "what"), (red, blue, "end")):
        pieces = run_stage(stage, shown(*parts))
        text, length = tiny.generated_from_pictures(
            stage._name, [part if isinstance(part, str) else part.data for part in parts]
        )
        assert text_of(pieces).rstrip("\ufffd") == text.rstrip("\ufffd")  # a character may be cut at the end
        assert usage_of(pieces).input_tokens == length
        assert usage_of(pieces).image_input_tokens == 5 * 4 * (len(parts) - 1)
        answers.add(text_of(pieces))
    assert len(answers) == 3


def test_a_picture_of_an_earlier_turn_is_not_read_again(stage: VllmLanguageModel, run_stage: Run) -> None:
    first = shown(picture((5, 250, 5)), "what")
    before = run_stage(stage, first)
    messages = (*first.messages, ChatMessage(role="assistant", text="ok"), ChatMessage(role="user", text="and now"))
    after = usage_of(run_stage(stage, Converse(messages=messages, max_output_tokens=4)))
    assert after.cached_tokens >= usage_of(before).input_tokens // 32 * 32
    other = usage_of(run_stage(stage, shown(picture((5, 5, 5)), "what")))
    assert other.cached_tokens == 0, "the same place, another picture"


def test_older_pictures_go_where_they_are_more_than_fit(
    stage: VllmLanguageModel, run_stage: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM alone knows how many tokens each takes: more here than estimated."""
    monkeypatch.setattr("duologue.engine.text.context._TOKENS_PER_PICTURE", 5)
    pictures = [picture((6 * n, 5, 5)) for n in range(40)]
    turns = [ChatMessage.of_parts("user", (one, f"picture {n}")) for n, one in enumerate(pictures)]
    pieces = run_stage(stage, Converse(messages=tuple(turns), max_output_tokens=4))
    assert 0 < usage_of(pieces).image_input_tokens < 20 * len(pictures)
    assert usage_of(pieces).input_tokens <= 1024 - 4


def test_a_model_that_vllm_cannot_take_is_named(tmp_path: Path) -> None:
    """And nothing of it is left, though it was half loaded."""
    import tiny_checkpoints as tiny

    config = json.loads((tiny.tiled_model(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    stage = VllmLanguageModel(str(tmp_path), context_tokens=256)
    with pytest.raises(ModelUnavailable, match=f"vLLM cannot load model '{tmp_path}'"):
        stage.load()
    stage.close()


def test_a_picture_that_cannot_be_read_is_refused(stage: VllmLanguageModel, run_stage: Run) -> None:
    with pytest.raises(ValueError, match="image/png cannot be read"):
        run_stage(stage, shown(ImagePart(data=b"no picture", media_type="image/png")))
    assert text_of(run_stage(stage, shown("still there")))
