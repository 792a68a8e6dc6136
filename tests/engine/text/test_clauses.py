import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.text.clauses import CHARACTERS, GROWTH, LONGEST_CHARACTERS, WORDS, ClauseSplitter, Ending

STORY = (
    "The capital of France is Paris, and it is known for the Eiffel Tower. Dr. Smith went there on July 4, 2024, "
    'with 3.14 km of rope, e.g. the blue one. What then? He said: "Wait!" I don\'t know...\n'
    "- one thing\n1. First [link, text](https://x.y/z, a) here\n\nThe end of it"
)


def split(*pieces: str):
    splitter = ClauseSplitter()
    return [clause for piece in pieces for clause in splitter.push(piece)] + splitter.finish()


def texts(*pieces: str) -> list[str]:
    return [clause.text.strip() for clause in split(*pieces)]


PARTS = ["a", "word ", ". ", ", ", "\n", "3", "(", "[", "](", ")", "! ", "é", "- ", "\t", "Mr. ", "x" * 90]
TEXT = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)


@given(TEXT | st.text(), st.data())
def test_every_character_belongs_to_one_clause_whatever_the_pieces(text, data):
    whole = split(text)
    assert "".join(clause.text for clause in whole) == text
    assert [clause.start for clause in whole] == [
        sum(len(before.text) for before in whole[:i]) for i in range(len(whole))
    ]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(*pieces) == whole
    assert all(len(clause.text) <= LONGEST_CHARACTERS for clause in whole)


def test_each_clause_is_known_as_soon_as_the_next_word_begins():
    splitter = ClauseSplitter()
    assert splitter.push("Sure.") == []
    assert [clause.text for clause in splitter.push(" ")] == []
    assert [clause.text for clause in splitter.push("A")] == ["Sure. "]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Sure. Here you are.", "Sure."),
        ("Well, I think so, yes.", "Well, I think so,"),
        ("The capital of France is Paris and it is a large city.", "The capital of France"),
        ("No punctuation here whatsoever my dear old friend Robert Brown said", "No punctuation here whatsoever my"),
        ("Mr. Smith paid 3.50 and left. Bye.", "Mr. Smith paid 3.50"),
        ("On July 4, 2024 it rained a lot.", "On July 4, 2024 it"),
        ("1.3, 2, 3, 4, 5, 6, 7, 8", "1.3, 2,"),
        ("Hello", "Hello"),
    ],
)
def test_the_first_clause_is_short(text, first):
    found = texts(text)[0]
    assert text.startswith(found)
    assert len(found.split()) <= 8
    if first in ("1.3, 2,", "Sure.", "Well, I think so,", "The capital of France", "Hello"):
        assert found == first


def test_later_clauses_are_sentences():
    assert texts("That is a thing I can easily tell you about. " + STORY)[2:] == [
        "The capital of France is Paris, and it is known for the Eiffel Tower.",
        "Dr. Smith went there on July 4, 2024, with 3.14 km of rope,",
        "e.g. the blue one.",
        "What then?",
        'He said: "Wait!"',
        "I don't know...",
        "- one thing",
        "1. First [link, text](https://x.y/z, a) here",
        "The end of it",
    ]


def test_endings_say_what_pause_follows():
    assert [clause.ending for clause in split("Sure, I will, yes. Fine\nand so")] == [
        Ending.CLAUSE,
        Ending.SENTENCE,
        Ending.PARAGRAPH,
        Ending.PARAGRAPH,
    ]
    (first, *_) = split("The capital of France is Paris and so on")
    assert first.ending is Ending.OPEN


def test_a_sentence_without_end_is_cut_all_the_same():
    clauses = split("word " * 400)
    assert all(len(clause.text.split()) <= 40 for clause in clauses)
    assert all(CHARACTERS * WORDS[0][1] <= len(clause.text) <= LONGEST_CHARACTERS for clause in split("x" * 3000)[:-1])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("4. The " + "old-" * 60, ["4. The", "old-" * 15]),
        ("old-" * 60, ["old-" * 15]),
        ("  " + "ha" * 100, ["ha" * 29]),
        ("The " + "5 " * 60, ["The 5 5"]),
        ("The " + "5 7 " * 60, ["The" + " 5 7" * 5 + " 5"]),
        ("See [this](https://a.b/" + "c" * 90 + ") today, please.", ["See [this](https://a.b/" + "c" * 90 + ")"]),
        ("Look at https://a.b/" + "c" * 90 + " today, please.", ["Look at https://a.b/" + "c" * 90]),
    ],
)
def test_a_first_clause_ends_even_where_no_word_does(text, start):
    assert texts(text)[: len(start)] == start


def test_amounts_are_not_torn_apart():
    for text in ("It is all about 5 km from here to the old town.", "We have got about 25 apples to eat this evening."):
        first = texts(text)[0]
        assert not first.endswith(("5", "25"))


@pytest.mark.parametrize(
    "text",
    [
        "It is as I said. He lives in Washington D.C. with his two children.",
        "It is as I said. Take approx. three of them, e.g. the red ones.",
    ],
)
def test_a_full_stop_inside_a_sentence_does_not_end_it(text):
    assert texts(text) == ["It is as I said.", text[17:]]


def test_a_short_clause_is_followed_by_one_that_is_soon_written():
    assert texts("Yes. He lives in the old town with his two children and a dog that is older than they are.") == [
        "Yes.",
        "He lives in the old town",
        "with his two children and a dog that is older than they are.",
    ]


@given(st.lists(st.sampled_from(["a ", "word ", "word, ", "word. ", "with ", "of "]), max_size=80).map("".join))
def test_no_clause_is_more_than_so_many_times_as_long_as_all_before_it(text):
    words = [len(clause.text.split()) for clause in split(text)]
    assert all(count <= max(6, GROWTH * sum(words[:i])) + 1 for i, count in enumerate(words))


def test_what_is_written_slowly_is_a_short_clause():
    """Numbers and compounds are many tokens: a whole sentence of them takes longer to write than what came before
    takes to be said."""
    text = "The best present would be custom-made, 3D-printed, 1.6-meter-tall, 1.8-meter-wide, 2-meter-long and blue."
    assert texts(text) == [
        "The best present",
        "would be custom-made,",
        "3D-printed, 1.6-meter-tall, 1.8-meter-wide,",
        "2-meter-long and blue.",
    ]


def hurried(text: str) -> list[str]:
    """What is cut of a text that has come so far, once its whole clauses are gone."""
    splitter = ClauseSplitter()
    splitter.push(text)
    return [clause.text.strip() for clause in splitter.hurry()]


BEGINNING = "That is a thing I can easily tell you about, I think, and you will like it. "


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("When the sun is bright on the sea and the", ["When the sun is bright on the sea"]),
        ("When sunlight comes, it is bent by tin", ["When sunlight comes, it is bent"]),
        ("When the light comes, it", ["When the light comes,"]),
        ("It is", []),
        ("The sea is", []),
        ("There are as many as 5 kil", []),
        ("There are very many, 500", []),
        ("Read [all of it, and more](https://a", []),
    ],
)
def test_who_cannot_wait_gets_the_whole_words_that_lead_on_to_nothing(written, spoken):
    assert hurried(BEGINNING + written) == spoken


@given(TEXT, st.sets(st.integers(0, 40)))
def test_no_character_is_lost_or_doubled_in_a_hurry(text, hurries):
    splitter, clauses = ClauseSplitter(), []
    for index, word in enumerate(re.findall(r"\s*\S+|\s+", text)):
        clauses += splitter.push(word)
        if index in hurries:
            clauses += splitter.hurry()
    clauses += splitter.finish()
    assert "".join(clause.text for clause in clauses) == text
    assert all(clause.text == text[clause.start :][: len(clause.text)] for clause in clauses)


def test_a_date_is_not_cut_at_its_comma():
    assert texts("It was July 4, 2024, when we met.") == ["It was July 4, 2024,", "when we met."]


def test_a_link_is_not_cut():
    text = "Read all of [this, and that](https://a.b/c, d) today, please."
    assert texts(text) == ["Read all of [this, and that](https://a.b/c, d) today,", "please."]
