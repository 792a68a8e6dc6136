"""Local agreement: which words stand, what is settled, and that nothing that stands is ever taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.requests import TokenLogprob, TranscriptDelta
from duologue.sessions.live_transcript import LiveTranscript, Words


def words(text: str, language: str = "en", tokens: tuple[TokenLogprob, ...] = ()) -> Words:
    heard = Words()
    heard.add(TranscriptDelta(text=text, language=language, logprobs=tokens))
    return heard


def after(*hypotheses: str) -> LiveTranscript:
    live = LiveTranscript(held_back=1)
    for text in hypotheses:
        live.hear(words(text))
    return live


def test_one_hypothesis_is_not_believed() -> None:
    assert after("Go forward ten").text == ""


def test_what_two_in_a_row_begin_with_stands_but_for_the_last_word() -> None:
    assert after("Go for", "Go forward").text == "Go"
    assert after("Go forward", "Go forward").text == "Go"
    assert after("Go forward", "Go forward ten").text == "Go forward"


def test_two_words_are_held_back() -> None:
    live = LiveTranscript()
    for _ in range(2):
        live.hear(words("Go for ten meters"))
    assert live.text == "Go for"


def test_two_that_do_not_follow_each_other_are_not_enough() -> None:
    assert after("Go forward ten", "No.", "Go forward ten meters").text == ""


def test_punctuation_and_case_are_not_another_word_and_the_end_of_the_sound_is_not_the_end_of_a_sentence() -> None:
    live = after("Go forward.", "go forward, ten")
    assert live.text == "go forward"
    live.hear(words("Go forward ten meters"))
    assert live.text == "go forward ten"
    assert live.whole(words("Go forward ten meters.")).text == "go forward ten meters."


def test_words_that_stand_stand_and_the_rest_goes_on_where_it_fits() -> None:
    live = after("Recognise speech with", "Recognise speech with a")
    assert live.text == "Recognise speech with"
    assert live.whole(words("Recognise a beach with a smile")).text == "Recognise speech with a smile"
    live.hear(words("Recognise a beach with a smile"))
    assert live.text == "Recognise speech with a"


def test_a_turn_in_which_nothing_is_heard_at_last_keeps_what_stands() -> None:
    assert after("One two three", "One two three").whole(words("")).text == "One two"


def test_settled_sound_is_not_heard_again() -> None:
    live = after("One two three four", "One two three four five")
    live.settle(words("One two three."), 48_000)
    assert (live.settled_text, live.text, live.until) == ("One two three", "One two three four", 48_000)
    live.hear(words("four five six"))
    live.hear(words("four five six seven"))
    assert live.text == "One two three four five six"
    live.settle(words("Four, five, six, seven, eight."), 96_000)
    assert live.text == "One two three four five six, seven, eight."
    assert live.whole(words("Nine.")).text == "One two three four five six, seven, eight. Nine."


def test_settling_needs_no_hypotheses() -> None:
    live = LiveTranscript(held_back=1)
    live.settle(words("One two."), 1)
    live.settle(words(""), 2)
    live.settle(words("Three."), 3)
    assert live.text == live.whole(words("")).text == "One two. Three."


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_a_language_without_spaces_goes_by_characters(language: str) -> None:
    live = LiveTranscript(held_back=1)
    for text in ("今日は", "今日は天気", "今日は天気がいい"):
        live.hear(words(text, language))
    assert live.text == "今日は天気"
    assert live.whole(words("今日は天気がいいです。", language)).text == "今日は天気がいいです。"


def token(text: str, logprob: float = -0.5) -> TokenLogprob:
    return TokenLogprob(token=text, logprob=logprob, bytes=text.encode())


def test_the_tokens_are_those_of_the_words_that_stand_and_of_the_rest() -> None:
    live = LiveTranscript(held_back=1)
    tokens = (token("One"), token(" tw"), token("o"), token(" three"))
    live.hear(words("One two three", tokens=tokens))
    live.hear(words("One two three", tokens=tokens))
    whole = live.whole(words("Won two free four", tokens=tuple(map(token, ("Won", " two", " free", " four")))))
    assert whole.text == "One two free four"
    assert "".join(part.token for part in whole.logprobs) == whole.text
    assert b"".join(part.bytes for part in whole.logprobs).decode() == whole.text
    assert live.whole(words("One two three")).logprobs == []  # some are not known


vocabulary = st.sampled_from(["go", "Go", "go.", "on,", "on", "ten", "to", "-", "no"])
sentence = st.lists(vocabulary, max_size=7).map(" ".join)


@given(
    st.lists(st.tuples(st.sampled_from(["hear", "settle"]), sentence), max_size=12),
    sentence,
)
def test_whatever_is_heard_nothing_that_stands_is_taken_back(steps: list[tuple[str, str]], last: str) -> None:
    live, stood = LiveTranscript(held_back=1), ""
    for number, (kind, text) in enumerate(steps):
        if kind == "hear":
            live.hear(words(text))
        else:
            live.settle(words(text), number)
        assert live.text.startswith(stood)
        assert live.text.startswith(live.settled_text)
        stood = live.text
    whole = live.whole(words(last)).text
    assert whole.startswith(stood)
    assert live.whole(words(last)).text == whole
