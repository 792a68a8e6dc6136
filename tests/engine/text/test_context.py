from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.requests import ChatMessage, ImagePart
from duologue.engine.text.context import estimated_tokens, fit


def conversation(turns: int, words: int = 10) -> list[ChatMessage]:
    messages = [ChatMessage(role="system", text="Be brief.")]
    for i in range(turns):
        messages.append(ChatMessage(role="user", text=f"question {i} " + "word " * words))
        messages.append(ChatMessage(role="assistant", text=f"answer {i} " + "word " * words))
    return [*messages, ChatMessage(role="user", text="and now?")]


def test_a_short_conversation_stays_whole():
    messages = conversation(3)
    assert fit(messages, 1000) == tuple(messages)


@given(st.integers(0, 60), st.integers(0, 200), st.integers(200, 1500))
def test_the_budget_holds_and_the_newest_stays(turns, words, budget):
    messages = conversation(turns, words)
    kept = fit(messages, budget)
    assert sum(map(estimated_tokens, kept)) <= budget
    assert kept[0] == messages[0]
    assert kept[-1] == messages[-1]
    assert kept[1].role == "user"
    assert list(kept[1:]) == messages[-len(kept) + 1 :]


def test_old_turns_go_in_blocks_so_that_the_prefix_stays():
    starts = [fit(conversation(turns), 600)[1].text for turns in range(1, 60)]
    changes = sum(before != after for before, after in pairwise(starts))
    assert 3 <= changes <= 12
    for turns in range(1, 59):
        if starts[turns - 1] == starts[turns]:
            now, later = fit(conversation(turns), 600), fit(conversation(turns + 1), 600)
            assert later[: len(now) - 1] == now[:-1]


def test_a_question_is_not_lost_among_its_pictures():
    """Of those that are too many the oldest go, and the last one stays even where it is too large by the estimate."""
    pictures = [ImagePart(data=bytes([n]), media_type="image/png") for n in range(6)]
    question = ChatMessage.of_parts("user", [*pictures, "Which of these is blue?"])
    for budget, left in ((2000, 6), (1000, 3), (700, 2), (320, 1), (200, 1)):
        (kept,) = fit([question], budget)
        assert kept.images == tuple(pictures[-left:])
        assert kept.text == "Which of these is blue?"
        if budget > 320:
            assert estimated_tokens(kept) <= budget
    wordy = ChatMessage.of_parts("user", [*pictures, "x" * 6000 + " which?"])
    (kept,) = fit([wordy], 800)
    assert kept.images == tuple(pictures[-1:])
    assert kept.text.endswith("which?")
    assert estimated_tokens(kept) <= 800
    turns = [question, ChatMessage(role="assistant", text="The last."), ChatMessage(role="user", text="And now?")]
    assert fit(turns, 2500) == tuple(turns)


def test_messages_that_are_too_long_by_themselves_are_cut():
    system = ChatMessage(role="system", text="s" * 9000)
    last = ChatMessage(role="user", text="u" * 9000 + " the question")
    kept = fit([system, last], 500)
    assert sum(map(estimated_tokens, kept)) <= 500
    assert kept[0].text == "s" * len(kept[0].text)
    assert kept[1].text.endswith("the question")
    assert fit([], 100) == ()
    assert sum(map(estimated_tokens, fit([system], 100))) <= 100
