import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pictures import coloured

from duologue.engine.models import ModelUnavailable, pull
from duologue.engine.requests import (
    ChatMessage,
    Converse,
    EngineRequest,
    ImagePart,
    TextDelta,
    ToolCallDelta,
    Usage,
    speaking_rate,
)
from duologue.engine.stage import NotSupported, StageFinish
from duologue.engine.stages.language import llamacpp
from duologue.engine.stages.language.answer import Answer
from duologue.engine.stages.language.llamacpp import LONGEST_ANSWER, LlamaCppLanguageModel, _Writing
from tests.engine.stages.conftest import Recorder

SYSTEM = ChatMessage(role="system", text="You are a helpful assistant. Keep your answers short and simple.")


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", text=text)


def text_of(pieces) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def usage_of(pieces) -> Usage:
    reports = [piece for piece in pieces if isinstance(piece, Usage)]
    return Usage(**{name: sum(getattr(report, name) for report in reports) for name in Usage.__struct_fields__})


@pytest.fixture(scope="module")
def model():
    pull("smollm2-135m-instruct")
    stage = LlamaCppLanguageModel(max_num_seqs=2, context_tokens=512)
    stage.load()
    stage.warm_up()
    yield stage
    stage.close()


def test_an_unknown_sampling_value_is_refused_by_name():
    with pytest.raises(ValueError, match="temprature"):
        LlamaCppLanguageModel(sampling={"temprature": 1})


@pytest.mark.models
def test_it_answers_in_pieces_and_counts(model, run_stage):
    pieces = run_stage(model, Converse(messages=(SYSTEM, user("What is the capital of France?")), seed=1))
    assert "Paris" in text_of(pieces)
    assert len([piece for piece in pieces if isinstance(piece, TextDelta)]) > 3
    usage = usage_of(pieces)
    assert usage.input_tokens > 20
    assert usage.output_tokens >= len(text_of(pieces).split())
    assert not any(isinstance(piece, StageFinish) for piece in pieces)


@pytest.mark.models
def test_an_answer_that_gives_way_again_and_again_goes_on_where_it_stopped(model, run_stage):
    """Also while its prompt is read, and what it has used is counted once. (Late words may differ: the model adds up
    the same numbers in another order when it reads several tokens at once.)"""
    question = Converse(messages=(SYSTEM, user("Tell me about the sea. " * 12)), temperature=0.0, max_output_tokens=40)
    whole = run_stage(model, question, session_id="whole")

    class Outranked(Recorder):
        asked = ways = 0

        @property
        def outranked(self) -> bool:
            self.asked += 1
            return self.asked % 5 == 1

        @outranked.setter
        def outranked(self, value: bool) -> None: ...

        def give_way(self) -> bool:
            self.ways += 1
            return True

    context = Outranked(EngineRequest(request_id="r", session_id="paused", payload=question))
    state = model.start(context.request)
    model.process(state, question, context)
    model.release(state)
    assert context.ways > 4
    assert text_of(context.pieces)[:100] == text_of(whole)[:100]
    before, after = usage_of(whole), usage_of(context.pieces)
    assert after.input_tokens == before.input_tokens
    assert abs(after.output_tokens - len(text_of(context.pieces)) / 4.5) < 10
    assert after.cached_tokens <= before.input_tokens // 4, "what it has read itself is not called cached"
    assert context.made_s > 1.0


@pytest.mark.models
def test_what_was_prepared_while_the_user_spoke_is_not_read_again(model, run_stage):
    """And preparing writes and counts nothing."""
    history = (SYSTEM, user("What is the capital of France?"), ChatMessage(role="assistant", text="It is Paris."))
    prepared = run_stage(model, Converse(messages=history, prepare=True), session_id="prepared")
    assert prepared == []
    usage = usage_of(run_stage(model, Converse(messages=(*history, user("And of Spain?"))), session_id="prepared"))
    assert usage.input_tokens - usage.cached_tokens <= 16, "the last question and the frame around it"


@pytest.mark.models
def test_the_first_words_of_the_user_can_be_prepared_too_and_cost_nothing_if_misheard(model, run_stage):
    words = "And Mr. John Dashwood had then leisure to consider how much there might be in his power to do for them."

    def read(begun: str) -> int:
        run_stage(model, Converse(messages=(SYSTEM,), prepare=True, begun=begun), session_id=begun)
        usage = usage_of(run_stage(model, Converse(messages=(SYSTEM, user(words))), session_id=begun))
        return usage.input_tokens - usage.cached_tokens

    nothing, half, wrong = read(""), read("And Mr. John Dashwood had then leisure to"), read("Pardon me?")
    assert half <= nothing - 8
    assert wrong <= nothing


def test_it_says_that_it_reads_ahead():
    assert LlamaCppLanguageModel.abilities({}) == {"reads_ahead"}
    assert LlamaCppLanguageModel.abilities({"tools": True, "mmproj": "x"}) == {"reads_ahead", "tools", "image_in"}


@pytest.mark.models
def test_what_has_been_used_is_known_before_the_first_word(model, run_stage):
    """An answer may be broken off at any point, and is to say then what it has used."""
    pieces = run_stage(model, Converse(messages=(SYSTEM, user("Name five large cities.")), seed=1))
    before = pieces[: next(i for i, piece in enumerate(pieces) if isinstance(piece, TextDelta))]
    assert usage_of(before).input_tokens == usage_of(pieces).input_tokens
    last_words = max(i for i, piece in enumerate(pieces) if isinstance(piece, TextDelta))
    assert usage_of(pieces).output_tokens - usage_of(pieces[:last_words]).output_tokens <= 10


@pytest.mark.models
def test_the_next_turn_reads_only_what_is_new(model, run_stage):
    messages = [SYSTEM, user("What is the capital of France?")]
    first = run_stage(model, Converse(messages=tuple(messages), seed=1), session_id="next")
    messages += [ChatMessage(role="assistant", text=text_of(first)), user("And of Spain?")]
    second = usage_of(run_stage(model, Converse(messages=tuple(messages), seed=1), session_id="next"))
    assert second.cached_tokens >= usage_of(first).input_tokens
    assert second.input_tokens > second.cached_tokens


@pytest.mark.models
def test_a_new_session_leaves_the_others_cache_alone(model, run_stage):
    long = [SYSTEM, user("Tell me about the sea, the hills and the towns of France. " * 3)]
    first = run_stage(model, Converse(messages=tuple(long), seed=1, max_output_tokens=8), session_id="one")
    run_stage(model, Converse(messages=(SYSTEM, user("Tell me about it.")), max_output_tokens=8), session_id="two")
    long += [ChatMessage(role="assistant", text=text_of(first)), user("And then?")]
    again = run_stage(model, Converse(messages=tuple(long), seed=1, max_output_tokens=8), session_id="one")
    assert usage_of(again).cached_tokens >= usage_of(first).input_tokens


@pytest.mark.models
def test_who_comes_when_somebody_has_gone_leaves_the_others_cache_alone(model, run_stage):
    """There are two slots."""

    def say(session: str, *messages: ChatMessage) -> list[object]:
        return run_stage(model, Converse(messages=messages, seed=1, max_output_tokens=8), session_id=session)

    long = (SYSTEM, user("Tell me about the sea, the hills and the towns of France. " * 3))
    first = say("stays", *long)
    say("goes", SYSTEM, user("Hello."))
    for number in range(3):
        model.end_session(f"comes {number - 1}" if number else "goes")
        say(f"comes {number}", SYSTEM, user("Hello."))
    again = say("stays", *long, ChatMessage(role="assistant", text=text_of(first)), user("And then?"))
    assert usage_of(again).cached_tokens >= usage_of(first).input_tokens


@pytest.mark.models
def test_fc_122_sessions_do_not_see_each_other(model, run_stage):
    questions = {"a": "My dog is called Bello. What is my dog called?", "b": "My cat is Minka. What is my cat called?"}
    answers = {}

    def ask(session):
        pieces = run_stage(model, Converse(messages=(SYSTEM, user(questions[session])), seed=1), session_id=session)
        answers[session] = text_of(pieces)

    threads = [threading.Thread(target=ask, args=(session,)) for session in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "Bello" in answers["a"]
    assert "Minka" not in answers["a"]
    assert "Minka" in answers["b"]
    assert "Bello" not in answers["b"]


@pytest.mark.models
def test_fc_077_temperature_and_seed_are_applied(model, run_stage):
    def answer(**fields):
        return text_of(run_stage(model, Converse(messages=(SYSTEM, user("Tell me a story.")), **fields)))

    assert answer(temperature=0.0, max_output_tokens=40) == answer(temperature=0.0, max_output_tokens=40)
    assert len({answer(temperature=1.5, seed=seed, max_output_tokens=40) for seed in range(3)}) > 1


@pytest.mark.models
def test_the_callers_limit_is_a_length_finish_and_our_own_is_not(model, run_stage):
    story = Converse(messages=(SYSTEM, user("Tell me a very long story about a dragon and a sheep.")), seed=2)
    cut = run_stage(model, Converse(messages=story.messages, seed=2, max_output_tokens=7))
    assert usage_of(cut).output_tokens == 7
    assert cut[-1] == StageFinish(reason="length")
    whole = run_stage(model, story)
    assert not any(isinstance(piece, StageFinish) for piece in whole)
    assert usage_of(whole).output_tokens <= LONGEST_ANSWER + 61


@pytest.mark.models
def test_a_conversation_longer_than_the_context_is_answered(model, run_stage):
    messages = [SYSTEM]
    for i in range(1, 121):
        reply = f"The number {i} comes right after the number {i - 1}, and it is a nice one."
        messages += [user(f"Please tell me about the number {i}."), ChatMessage(role="assistant", text=reply)]
    messages.append(user("What is the capital of France?"))
    assert "Paris" in text_of(run_stage(model, Converse(messages=tuple(messages), seed=1, temperature=0.0)))


@pytest.mark.models
def test_text_that_is_far_from_prose_still_fits(model, run_stage):
    pieces = run_stage(model, Converse(messages=(SYSTEM, user("7!#" * 3000)), max_output_tokens=5))
    assert 0 < usage_of(pieces).input_tokens <= 512


@pytest.mark.models
def test_an_abort_stops_writing_at_the_next_token(model, recorder):
    context = recorder(Converse(messages=(SYSTEM, user("Tell me a very long story.")), seed=1))
    context._then = lambda piece: setattr(context, "aborted", True)
    slot = model.start(context.request)
    model.process(slot, context.request.payload, context)
    model.release(slot)
    assert len([piece for piece in context.pieces if isinstance(piece, TextDelta)]) == 1


@pytest.mark.models
def test_an_abort_while_the_prompt_is_read_stops_after_a_slice(model, recorder):
    class AbortedSoon:
        """Alive for the first report (nothing read yet), dead at the second (one slice read)."""

        def __init__(self):
            self.reports, self.pieces = 0, []

        def emit(self, piece):
            self.pieces.append(piece)
            return not self.aborted

        @property
        def aborted(self):
            self.reports += 1
            return self.reports > 1

    payload = Converse(messages=(SYSTEM, user("other " * 360)), max_output_tokens=1)
    context, dead = recorder(payload), AbortedSoon()
    slot = model.start(context.request)
    model.process(slot, payload, dead)
    assert dead.pieces == []
    assert dead.reports <= 3
    # What it had read is still there, and no more than that.
    model.process(slot, payload, context)
    model.release(slot)
    usage = usage_of(context.pieces)
    assert usage.input_tokens > 4 * 64
    assert usage.cached_tokens <= 3 * 64


@pytest.mark.models
def test_nobody_else_can_use_the_port_that_the_library_opens(model):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{model._server.listening_address}/v1/models", timeout=5)


def test_a_model_closed_right_after_loading_is_gone() -> None:
    """In a process of its own: what must not happen is that it hangs, in native code and for good."""
    program = (
        "from duologue.engine.stages.language.llamacpp import LlamaCppLanguageModel as Model\n"
        "model = Model(); model.load(); model.close()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.models
def test_it_calls_a_tool_by_its_template(chatml_tools, asks_for_weather, run_stage) -> None:
    stage = LlamaCppLanguageModel(max_num_seqs=1, context_tokens=1024, tools=True, chat_template=str(chatml_tools))
    stage.load()
    try:
        calls = [piece for piece in run_stage(stage, asks_for_weather()) if isinstance(piece, ToolCallDelta)]
    finally:
        stage.close()
    assert {(call.call_id, call.name) for call in calls} == {("0", "weather")}
    assert json.loads("".join(call.arguments for call in calls)) == {"city": "Rome"}


def test_pictures_are_refused_without_a_projector(run_stage) -> None:
    message = ChatMessage.of_parts("user", ["What is", ImagePart(data=b"", media_type="image/png")])
    with pytest.raises(NotSupported, match="takes no pictures"):
        run_stage(LlamaCppLanguageModel(), Converse(messages=(message,)))


# -- pictures: a projector with random weights before the packaged model -----------------------------------------------


def seeing(projector: Path) -> LlamaCppLanguageModel:
    stage = LlamaCppLanguageModel(max_num_seqs=2, context_tokens=1024, mmproj=str(projector))
    stage.load()
    return stage


@pytest.fixture(scope="module")
def llava(projectors):
    stage = seeing(projectors / "llava.gguf")
    yield stage
    stage.close()


def picture(colour: tuple[int, int, int], kind: str = "PNG") -> ImagePart:
    return ImagePart(data=coloured(colour, kind), media_type=f"image/{kind.lower()}")


def shown(*parts: str | ImagePart, **fields) -> Converse:
    return Converse(messages=(ChatMessage.of_parts("user", parts),), temperature=0.0, max_output_tokens=12, **fields)


@pytest.mark.models
def test_the_model_sees_pictures_in_their_order(llava, run_stage) -> None:
    """Of random weights: what it says means nothing, but each picture, and each order of them, means something else."""
    red, blue = picture((250, 20, 30)), picture((0, 40, 250), "JPEG")
    asked = [shown("what"), shown(red, "what"), shown(blue, "what"), shown(red, "or", blue), shown(blue, "or", red)]
    pieces = [run_stage(llava, piece, session_id=str(n)) for n, piece in enumerate(asked)]
    assert len({text_of(answer) for answer in pieces}) == len(asked)
    read = [usage_of(answer).input_tokens for answer in pieces]
    assert read[1] - read[0] == read[2] - read[0] == 16, "one token for each patch"
    assert text_of(run_stage(llava, shown(red, "what"), session_id="again")) == text_of(pieces[1])


@pytest.mark.models
def test_a_picture_of_an_earlier_turn_is_not_read_again(llava, run_stage) -> None:
    first = shown(picture((5, 250, 5)), "what")
    before = run_stage(llava, first, session_id="turns")
    messages = (*first.messages, ChatMessage(role="assistant", text=text_of(before)), user("And now?"))
    after = run_stage(llava, Converse(messages=messages, max_output_tokens=4), session_id="turns")
    assert usage_of(after).cached_tokens >= usage_of(before).input_tokens
    other = shown(picture((5, 5, 5)), "what")
    alone = usage_of(run_stage(llava, shown("what"), session_id="none"))
    assert usage_of(run_stage(llava, other, session_id="turns")).cached_tokens < alone.input_tokens, "another picture"


@pytest.mark.models
def test_a_picture_that_cannot_be_read_is_refused(llava, run_stage) -> None:
    with pytest.raises(ValueError, match="load image"):
        run_stage(llava, shown(ImagePart(data=b"no picture", media_type="image/png"), "what"))
    assert text_of(run_stage(llava, shown("what")))


@pytest.mark.models
def test_a_picture_that_is_read_both_ways_is_read_in_one_slice(projectors, run_stage, monkeypatch) -> None:
    """Its first tokens know the last ones: read in slices of 64 tokens it would be another picture."""
    asked = shown(picture((250, 20, 30)), "what")

    def answer() -> tuple[str, int]:
        stage = seeing(projectors / "gemma.gguf")
        try:
            pieces = run_stage(stage, asked)
        finally:
            stage.close()
        return text_of(pieces), usage_of(pieces).input_tokens

    whole, tokens = answer()
    assert tokens > 256
    monkeypatch.setattr(llamacpp, "_SLICE", 512)
    assert answer() == (whole, tokens)


@pytest.mark.models
@pytest.mark.parametrize("name", ["narrow", "broken", "none"])
def test_a_projector_that_does_not_fit_is_named(projectors, name) -> None:
    with pytest.raises(ModelUnavailable, match=rf"{name}\.gguf"):
        seeing(projectors / f"{name}.gguf")


def test_a_file_that_is_no_model_is_named(tmp_path) -> None:
    (tmp_path / "none.gguf").write_bytes(b"GGUF and then nothing of the kind")
    with pytest.raises(ModelUnavailable, match=r"none\.gguf"):
        LlamaCppLanguageModel(str(tmp_path / "none.gguf")).load()


@pytest.mark.models
@pytest.mark.parametrize("speed", [0.0, 1.0, 2.0])
def test_an_answer_is_not_taken_to_be_further_ahead_of_its_listener_than_it_is(talker, recorder, speed):
    text = (
        "The sky is blue because of a process called scattering. When sunlight reaches the air around our planet, it "
        "meets many small parts of gas. Blue light has shorter waves than other colors of light, so it is thrown about "
        "more than they are. This is why we see it wherever we look, and why the sun is red in the evening."
    )
    payload = Converse(messages=(), speed=speed)
    written, spoken = recorder(payload), recorder(payload)
    writing = _Writing(Answer(payload, written, 200), written, may_pause=False, rate=speaking_rate(payload))
    state = talker.start(spoken.request)
    for word in re.findall(r"\S+\s*", text):
        writing.text(word)
        talker.process(state, TextDelta(text=word), spoken)
    assert 0.7 * spoken.made_s < written.made_s < spoken.made_s
