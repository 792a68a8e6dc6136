import pytest

from duologue.engine.words import (
    WordErrors,
    cardinal,
    edit_distance,
    normalise_words,
    ordinal,
    word_error_rate,
    word_errors,
)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("33, 4, 692.", "thirty three four six hundred ninety two"),
        ("It's 7:30", "its seven thirty"),
        ("1,250 people", "one thousand two hundred fifty people"),
        ("3.14", "three point one four"),
        ("the 21st and the 30th", "the twenty first and the thirtieth"),
        ("Mr. O'Brien, ill-disposed?", "mister obrien ill disposed"),
        ("007", "zero zero seven"),
        ("100%", "one hundred percent"),
        ("don’t", "dont"),
        ("\u2026 ?!", ""),
    ],
)
def test_spelling_does_not_count_as_an_error(written, spoken):
    assert " ".join(normalise_words(written)) == spoken


def test_numbers_read_out():
    assert cardinal(0) == "zero"
    assert cardinal(1_002_003) == "one million two thousand three"
    assert [ordinal(n) for n in (1, 2, 3, 5, 12, 20, 101)] == [
        *("first", "second", "third", "fifth", "twelfth", "twentieth", "one hundred first"),
    ]
    with pytest.raises(ValueError):
        cardinal(-1)


def test_edit_distance_counts_each_kind_of_error_once():
    assert edit_distance(["a", "b", "c"], ["a", "x", "c"]) == 1
    assert edit_distance(["a", "b", "c"], ["a", "c"]) == 1
    assert edit_distance(["a", "b", "c"], ["a", "b", "c", "d"]) == 1
    assert edit_distance([], ["a", "b"]) == 2


def test_rate_is_over_all_words_not_a_mean_of_rates():
    assert word_error_rate([("a", "b"), ("c d e", "c d e")]) == 0.25
    assert word_errors("", "you") == WordErrors(1, 0)
    assert WordErrors(1, 0).rate == 1.0
    assert WordErrors(0, 0).rate == 0.0
