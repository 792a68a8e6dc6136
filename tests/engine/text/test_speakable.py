import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.text.speakable import TracedText, make_speakable


def spoken(text: str) -> str:
    return " ".join(word.text for word in make_speakable(text))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("**Sure!** Here's a *list*:", "Sure! Here's a list:"),
        ("- one 😀 thing", "one thing"),
        ("## Heading", "Heading"),
        ("> quoted `code`", "quoted code"),
        ("```python\nx = 1\n```", "x = 1"),
        ("See [the docs](https://a.b/c).", "See the docs."),
        ("Go to https://www.example.com/my-page?x=1.", "Go to example dot com slash my dash page."),
        ("Mail me@x.org!", "Mail me at x dot org!"),
        ("It costs $9.99, or €1, or £0.01.", "It costs 9 dollars and 99 cents, or 1 euro, or 1 penny."),
        ("$1,250 and $3M", "1,250 dollars and 3 million dollars"),
        ("50% at 5 m/s", "50 percent at 5 meters per second"),
        ("e.g. this, i.e. that, etc.", "for example, this, that is, that, et cetera."),
        ("C# and .NET", "C sharp and dot NET"),
        ("2 * 3 = 6 & more", "2 times 3 = 6 & more"),
        ("snake_case and 5*6", "snake_case and 5 times 6"),
        ("thumbs 👍🏽 up 👨‍👩‍👧", "thumbs up"),
        ("20°C, café, naïve", "20°C, café, naïve"),
        ("<b>bold</b> &amp; plain", "bold & plain"),
        ("a | b", "a, b"),
        ("---", ""),
        ("😀🎉", ""),
        ("", ""),
    ],
)
def test_made_speakable(written, expected):
    assert spoken(written) == expected


@given(
    st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=12), st.sampled_from(["**", "*", "`", "_", "~~"])
)
def test_plain_words_survive_any_markup_around_them(words, mark):
    text = " ".join(f"{mark}{word}{mark}," for word in words)
    assert re.findall(r"[a-z]+", spoken(text)) == words


@given(st.text(max_size=80))
def test_every_word_says_where_it_was_written(text):
    last = 0
    for word in make_speakable(text):
        assert 0 <= word.start < word.end <= len(text)
        assert word.start >= last or word.end > last
        last = max(last, word.start)


def test_words_of_an_amount_all_point_at_it():
    text = "It costs $9.99 today."
    places = [(word.text, text[word.start : word.end]) for word in make_speakable(text)]
    assert places == [
        ("It", "It"),
        ("costs", "costs"),
        *((word, "$9.99") for word in ("9", "dollars", "and", "99", "cents")),
        ("today.", "today."),
    ]


def test_traces_hold_over_several_substitutions():
    traced = TracedText("a [b](c) d")
    traced.substitute(re.compile(r"\[(\w)\]\(\w\)"), r"\1")
    traced.substitute(re.compile("b"), "bee")
    assert traced.text == "a bee d"
    assert [(word.text, word.start, word.end) for word in traced.words()] == [("a", 0, 1), ("bee", 3, 4), ("d", 9, 10)]
