import pytest

from duologue.engine.text.repetition import (
    collapse_repeats,
    compression_ratio,
    ends_in_a_loop,
    repeats,
    runs_in_circles,
)


@pytest.mark.parametrize(
    ("text", "seconds", "circling"),
    [
        ("ten of clubs ten of clubs ten of clubs ten of clubs", 1.1, True),
        ("ten of clubs ten of clubs", 1.1, True),
        ("five " * 30, 1.5, True),
        ("no no no no", 2.0, False),
        ("ask not what your country can do for you ask what you can do for your country", 6.0, False),
        ("he was not an ill disposed young man", 1.5, False),
        ("", 0.0, False),
    ],
)
def test_only_what_cannot_have_been_said_runs_in_circles(text, seconds, circling):
    assert runs_in_circles(text.split(), seconds) is circling


def test_repeats():
    assert repeats(["a"] * 4)
    assert not repeats(["a"] * 3)
    assert repeats(["x", "a", "b", "a", "b", "a", "b"])
    assert not repeats(["x", "a", "b", "a", "b"])


def test_collapsed_to_one():
    assert collapse_repeats("ten of clubs, ten of clubs, Ten of clubs. And so") == "ten of clubs, And so"
    assert collapse_repeats("a b c") == "a b c"
    assert collapse_repeats("") == ""


def test_stutter_compresses():
    assert compression_ratio("PA" * 20) > 2.4
    assert compression_ratio("And so my fellow Americans ask not what your country can do for you") < 1.6


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("It is a nice day. " * 12, True),
        ("One way or another. " + "We went to the harbour, and then we went home again. " * 4, True),
        ("哈" * 200, True),
        ("我们去公园吧。" * 30, True),
        ("It is a nice day. " * 5, False),
        ("".join(f"The number {i} follows {i - 1}, and so on. " for i in range(60)), False),
        ("1, 2, 3, " + ", ".join(map(str, range(4, 100))), False),
        ("no, " * 20, False),
        ("no, " * 25, True),
        ("The 7" + " 7" * 22, False),
        ("The 7" + " 7" * 23, True),
        ("-" * 80 + "\n", False),
        ("| --- " * 30, False),
        ("1" + "0" * 100, False),
        ("", False),
    ],
)
def test_a_text_that_goes_round_in_a_loop_is_noticed(text, loop):
    assert ends_in_a_loop(text) is loop


def test_a_loop_is_noticed_wherever_a_model_may_be_cut():
    text = "Once upon a time. " + "There was a king who had a daughter. " * 20
    noticed = [end for end in range(len(text)) if ends_in_a_loop(text[:end])]
    assert noticed[0] < 18 + 37 * 7
    assert noticed == list(range(noticed[0], len(text)))
