"""The backend ``transformers``: token for token what the library's own ``generate`` writes, in a shared batch."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from missing import missing

from duologue.engine.models.gguf import checkpoint, dequantised
from duologue.engine.models.store import locate, require
from duologue.engine.requests import ChatMessage, Converse, ImagePart, TextDelta, Tool, Usage
from duologue.engine.stage import NotSupported, StageFinish

if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
    missing("torch or transformers is not installed: pip install 'duologue[omni]'")

import tiny_checkpoints as tiny
import torch
from pictures import coloured
from transformers import AutoModelForCausalLM, LogitsProcessorList

from duologue.engine.stages.language.batching import SLICE, Batch, Job, Prompt
from duologue.engine.stages.language.pictures import opened
from duologue.engine.stages.language.transformers import TransformersLanguageModel, _Pictures

WRITTEN = 24


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are tiny: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_tokens(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 250, (count,), generator=generator).tolist()


def job(slot: int, tokens: list[int], most: int = WRITTEN) -> Job:
    return Job(slot, Prompt(tokens, tokens), most, LogitsProcessorList(), None)


def written(of: Job) -> list[int]:
    tokens = []
    while (token := of.written.get(timeout=60)) is not None:
        assert not isinstance(token, BaseException), token
        tokens.append(token)
    return tokens


def generated(model: Any, tokens: list[int], most: int = WRITTEN) -> list[int]:
    prompt = torch.tensor([tokens], device=model.device)
    out = model.generate(prompt, max_new_tokens=most, do_sample=False, eos_token_id=None)
    return out[0, len(tokens) :].tolist()


@pytest.fixture(scope="module", params=["llama", "gemma3", "mistral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tiny.text_model(tmp_path_factory.mktemp(request.param), request.param)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


@pytest.fixture
def batch(model: Any) -> Iterator[Batch]:
    made = Batch(model, 4, frozenset())
    made.start()
    yield made
    made.close()


# -- the batch ---------------------------------------------------------------------------------------------------------


def test_a_ragged_batch_writes_what_generate_writes(model: Any, batch: Batch) -> None:
    prompts = [random_tokens(seed, length) for seed, length in enumerate((3, 200, 64, 65, 130, 20))]
    jobs = [job(n % 4, prompt) for n, prompt in enumerate(prompts)]  # two wait for a slot
    for each in jobs:
        batch.submit(each)
    for each, prompt in zip(jobs, prompts, strict=True):
        assert written(each) == generated(model, prompt)
        assert each.reached_limit
    assert batch.steps < len(jobs) * WRITTEN  # they did share steps


def test_the_next_turn_reads_only_what_is_new_and_writes_the_same(model: Any, batch: Batch) -> None:
    history = random_tokens(1, 100)
    for turn in range(4):
        before = batch.slices_read
        each = job(0, history)
        batch.submit(each)
        answer = written(each)
        assert answer == generated(model, history)
        if turn:
            assert each.cached == len(history) - 31  # 30 new, and the last token written had not been read
            assert batch.slices_read == before + 1
        history = history + answer + random_tokens(turn + 9, 30)


def test_a_history_cut_by_a_barge_in_keeps_what_was_heard(model: Any, batch: Batch) -> None:
    history = random_tokens(2, 90)
    first = job(0, history)
    batch.submit(first)
    heard = history + written(first)[:10]
    second = job(0, heard + random_tokens(3, 20))
    batch.submit(second)
    assert written(second) == generated(model, second.prompt.tokens)
    assert second.cached == len(heard)


def test_a_new_session_takes_the_instructions_from_another_one(model: Any, batch: Batch) -> None:
    instructions = random_tokens(4, 150)
    for slot in range(3):
        each = job(slot, instructions + random_tokens(50 + slot, 12))
        batch.submit(each)
        assert written(each) == generated(model, each.prompt.tokens)
        assert each.cached == (len(instructions) if slot else 0)


def test_an_abort_while_a_prompt_is_read_stops_after_the_slice(model: Any, batch: Batch) -> None:
    long = job(0, random_tokens(5, 10 * SLICE))

    def cancel(*_: Any) -> None:
        if batch.slices_read == 2:
            batch.cancel(long)

    hook = model.register_forward_pre_hook(cancel)
    other = job(1, random_tokens(6, 5))
    batch.submit(long)
    assert written(long) == []
    batch.submit(other)
    assert written(other) == generated(model, other.prompt.tokens)
    hook.remove()
    assert batch.slices_read == 3 + 1
    assert long.read == 3 * SLICE
    again = job(0, long.prompt.tokens, 1)
    batch.submit(again)
    assert written(again) == generated(model, again.prompt.tokens, 1)
    assert again.cached == 3 * SLICE  # what was read is not lost


def test_an_abort_while_it_writes_stops_at_the_token(model: Any, batch: Batch) -> None:
    endless = job(0, random_tokens(7, 10), 10_000)
    batch.submit(endless)
    for _ in range(3):
        endless.written.get(timeout=60)
    batch.cancel(endless)
    steps_at_abort = batch.steps
    other = job(1, random_tokens(8, 5), 2)
    batch.submit(other)
    written(other)
    assert batch.steps <= steps_at_abort + 2 + 1


def test_a_failed_step_fails_its_requests_and_the_batch_goes_on(model: Any, batch: Batch) -> None:
    broken = Job(0, Prompt([1, 2, 10**6], [1, 2, 10**6]), 4, LogitsProcessorList(), None)
    batch.submit(broken)
    assert isinstance(broken.written.get(timeout=60), Exception)
    each = job(0, random_tokens(8, 5))
    batch.submit(each)
    assert written(each) == generated(model, each.prompt.tokens)


@pytest.mark.gpu
def test_on_an_accelerator_it_writes_what_generate_writes_there(tmp_path: Path) -> None:
    stage = TransformersLanguageModel(str(tiny.text_model(tmp_path, max_position_embeddings=2048)), dtype="float32")
    stage.load()
    try:
        assert stage._model.device.type != "cpu"
        assert stage._model.device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled()
        stage.warm_up()
        stage._batch._end_tokens = frozenset()
        prompts = [random_tokens(seed, 3 + 90 * seed) for seed in range(8)]
        jobs = [job(slot, prompt) for slot, prompt in enumerate(prompts)]
        for each in jobs:
            stage._batch.submit(each)
        for each, prompt in zip(jobs, prompts, strict=True):
            assert written(each) == generated(stage._model, prompt)
        again = job(0, prompts[0] + jobs[0].tokens + random_tokens(50, 10))
        stage._batch.submit(again)
        assert written(again) == generated(stage._model, again.prompt.tokens)
        assert again.cached == len(prompts[0]) + WRITTEN - 1
    finally:
        stage.close()


# -- the stage ---------------------------------------------------------------------------------------------------------


def user(*parts: str | ImagePart) -> ChatMessage:
    return ChatMessage.of_parts("user", parts)


def text_of(pieces: list[Any]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def usage_of(pieces: list[Any]) -> Usage:
    reports = [piece for piece in pieces if isinstance(piece, Usage)]
    return Usage(**{name: sum(getattr(report, name) for report in reports) for name in Usage.__struct_fields__})


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersLanguageModel]:
    with loaded(tiny.picture_model(tmp_path_factory.mktemp("llava"))) as stage:
        yield stage


@contextmanager
def loaded(folder: Path) -> Iterator[TransformersLanguageModel]:
    stage = TransformersLanguageModel(str(folder), max_num_seqs=2)
    stage.load()
    try:
        stage.warm_up()
        yield stage
    finally:
        stage.close()


RED = ImagePart(data=coloured((250, 20, 30)), media_type="image/png")
BLUE = ImagePart(data=coloured((0, 40, 250), "JPEG"), media_type="image/jpeg")


@pytest.fixture(scope="module", params=[(tiny.picture_model, 16), (tiny.tiled_model, 5 * 4)], ids=["llava", "tiles"])
def sees(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TransformersLanguageModel, int]]:
    """And how many tokens a picture has; where it is cut into tiles, those of four and of the whole."""
    make, tokens_each = request.param
    with loaded(make(tmp_path_factory.mktemp("sees"))) as stage:
        yield stage, tokens_each


def test_pictures_give_what_generate_gives(
    sees: tuple[TransformersLanguageModel, int], run_stage: Callable[..., Any]
) -> None:
    stage, tokens_each = sees
    answers = set()
    for parts in ((RED, "what"), (BLUE, "what"), ("first", RED, "then", BLUE, "end")):
        pieces = run_stage(stage, Converse(messages=(user(*parts),), max_output_tokens=16))
        given = [part if isinstance(part, str) else part.data for part in parts]
        text, length = tiny.generated_from_pictures(stage._name, given)
        assert text_of(pieces).rstrip("\ufffd") == text.rstrip("\ufffd")  # a character may be cut at the end
        assert usage_of(pieces).input_tokens == length
        assert usage_of(pieces).image_input_tokens == tokens_each * (len(parts) // 2)
        answers.add(text_of(pieces))
    assert len(answers) == 3  # it does look


def test_positions_with_three_axes_give_what_generate_gives() -> None:
    turned = tiny.TurnedModel()
    pictures = _Pictures(turned.model, turned)
    batch = Batch(turned.model, 2, frozenset())
    batch.start(pictures.axes)
    try:
        for parts in (("look", RED, "what"), ("first", RED, "then", BLUE, "end")):
            text = "".join(p if isinstance(p, str) else "<|vision_start|><|image_pad|><|vision_end|>" for p in parts)
            shown = [part for part in parts if isinstance(part, ImagePart)]
            each = Job(0, pictures.prompt(text, shown), WRITTEN, LogitsProcessorList(), None)
            batch.submit(each)
            inputs = turned([text], [[opened(part) for part in shown]])
            out = turned.model.generate(**inputs, max_new_tokens=WRITTEN, do_sample=False, eos_token_id=None)
            assert written(each) == out[0, inputs["input_ids"].shape[1] :].tolist()
            assert each.prompt.shift < 0
        plain = job(1, random_tokens(3, 70))
        batch.submit(plain)
        assert written(plain) == generated(turned.model, plain.prompt.tokens)
    finally:
        batch.close()


def test_a_picture_of_an_earlier_turn_is_neither_seen_nor_read_again(
    seeing: TransformersLanguageModel, run_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    look = seeing._model.get_image_features
    monkeypatch.setattr(seeing._model, "get_image_features", lambda **given: looked.append(1) or look(**given))
    green = ImagePart(data=coloured((5, 250, 5)), media_type="image/png")
    messages = [user(green, "what")]
    first = run_stage(seeing, Converse(messages=tuple(messages), max_output_tokens=6), session_id="p")
    messages += [ChatMessage(role="assistant", text="ok"), user("and now")]
    second = usage_of(run_stage(seeing, Converse(messages=tuple(messages), max_output_tokens=6), session_id="p"))
    assert len(looked) == 1
    assert second.cached_tokens >= usage_of(first).input_tokens
    other = [user(ImagePart(data=coloured((5, 5, 5)), media_type="image/png"), "what")]
    third = usage_of(run_stage(seeing, Converse(messages=tuple(other), max_output_tokens=6), session_id="p"))
    assert len(looked) == 2
    assert third.cached_tokens < 8  # the same place, another picture


def test_a_picture_that_cannot_be_read_is_refused(
    seeing: TransformersLanguageModel, run_stage: Callable[..., Any]
) -> None:
    broken = ImagePart(data=b"no picture", media_type="image/png")
    with pytest.raises(ValueError, match="image/png cannot be read"):
        run_stage(seeing, Converse(messages=(user(broken),)))
    assert text_of(run_stage(seeing, Converse(messages=(user("still there"),), max_output_tokens=4)))


@pytest.fixture(scope="module")
def text_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersLanguageModel]:
    folder = str(tiny.text_model(tmp_path_factory.mktemp("text")))
    stage = TransformersLanguageModel(folder, max_num_seqs=2, context_tokens=256)
    stage.load()
    stage.warm_up()
    yield stage
    stage.close()


def test_what_it_can_do_is_read_off_the_checkpoint(
    seeing: TransformersLanguageModel, text_only: TransformersLanguageModel, run_stage: Callable[..., Any]
) -> None:
    assert TransformersLanguageModel.abilities({"model": seeing._name}) == {"image_in"}
    assert TransformersLanguageModel.abilities({"model": text_only._name}) == frozenset()
    assert TransformersLanguageModel.abilities({"model": text_only._name, "tools": True}) == {"tools"}
    with pytest.raises(NotSupported, match="takes no pictures"):
        run_stage(text_only, Converse(messages=(user(RED),)))


def test_the_callers_limit_cuts_and_a_long_conversation_fits(
    text_only: TransformersLanguageModel, run_stage: Callable[..., Any]
) -> None:
    messages = [user(f"the quick brown fox {n}") for n in range(200)]
    pieces = run_stage(text_only, Converse(messages=tuple(messages), max_output_tokens=7))
    assert usage_of(pieces).output_tokens == 7
    assert usage_of(pieces).input_tokens <= 256 - 7
    assert pieces[-1] == StageFinish(reason="length")


def test_seed_and_temperature_are_applied(text_only: TransformersLanguageModel, run_stage: Callable[..., Any]) -> None:
    def answer(**fields: Any) -> str:
        return text_of(run_stage(text_only, Converse(messages=(user("hello"),), max_output_tokens=12, **fields)))

    assert answer(temperature=1.0, seed=3) == answer(temperature=1.0, seed=3)
    assert len({answer(temperature=1.0, seed=seed) for seed in range(4)}) > 1
    assert answer() == answer(temperature=0.0, seed=5)


def test_an_abort_stops_at_the_token(text_only: TransformersLanguageModel, recorder: Callable[..., Any]) -> None:
    payload = Converse(messages=(user("hello"),), max_output_tokens=100)
    context = recorder(payload)
    context._then = lambda piece: (setattr(context, "aborted", True), text_only.interrupt(state))
    state = text_only.start(context.request)
    text_only.process(state, payload, context)
    text_only.release(state)
    assert len([piece for piece in context.pieces if isinstance(piece, TextDelta)]) <= 1


@pytest.mark.models
def test_a_gguf_file_is_dequantised_once_and_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = require("smollm2-135m-instruct")
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path))  # one that holds nothing yet
    folder = dequantised(file)
    weights = folder / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert dequantised(file) == folder
    assert weights.stat().st_mtime_ns == made
    assert [entry.name for entry in (tmp_path / "dequantised").iterdir()] == [folder.name]


@pytest.mark.models
def test_the_packaged_model_answers_and_calls(
    chatml_tools: Path, asks_for_weather: Callable[[], Converse], run_stage: Callable[..., Any]
) -> None:
    stage = TransformersLanguageModel("smollm2-135m-instruct", max_num_seqs=1, tools=True)
    stage.load()
    stage._tokenizer.chat_template = chatml_tools.read_text(encoding="utf-8")
    try:
        assert locate("smollm2-135m-instruct") is not None
        assert Path(checkpoint("smollm2-135m-instruct")).is_dir()
        question = Converse(messages=(user("What is the capital of France?"),), max_output_tokens=12)
        assert "Paris" in text_of(run_stage(stage, question))
        (call,) = [piece for piece in run_stage(stage, asks_for_weather()) if hasattr(piece, "arguments")]
        assert (call.call_id, call.name, json.loads(call.arguments)) == ("0", "weather", {"city": "Rome"})
        tool = Tool(name="say", parameters={"type": "object"})
        forced = Converse(messages=(user("Say hello."),), tools=(tool,), tool_choice="required", max_output_tokens=1)
        assert stage._fitting(forced, 500)[1].startswith("<tool_call>")
    finally:
        stage.close()
