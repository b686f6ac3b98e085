from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.catalogue import Product
from envs.webshop.goals import Goal
from envs.webshop.reward import fits, is_alike, score, type_score

TEN = "alpha beta gamma delta epsilon zeta eta theta iota kappa"


def product(**fields) -> Product:
    known = {
        "asin": "B0", "title": "Acme Cotton Shirt", "category": "fashion", "query": "shirts",
        "path": "Clothing › Men › Shirts", "description": "", "features": (), "options": (),
        "attributes": ("cotton", "machine wash"), "price": 20.0, "price_tag": "$20.0",
        "instructions": (),
    }  # fmt: skip
    return Product(**known | fields)


def goal(**fields) -> Goal:
    known = {
        "text": "", "product": product(), "attributes": ("cotton", "machine wash"),
        "options": (("color", "red"), ("size", "large")), "price_upper": 30.0,
    }  # fmt: skip
    return Goal(**known | fields)


def test_everything_met_is_one():
    assert score(product(), ["red", "large"], goal()) == 1.0


def test_the_bound_itself_is_met_and_more_is_too_much():
    assert score(product(price=30.0), ["red", "large"], goal()) == 1.0
    assert score(product(price=30.01), ["red", "large"], goal()) == 4 / 5


@pytest.mark.parametrize(
    ("chosen", "met"),
    [([], 3), (["red"], 4), (["blue", "large"], 4), (["blue", "small"], 3), (["large", "red"], 5)],
)
def test_each_option_counts_one_of_five(chosen, met):
    assert score(product(), chosen, goal()) == met / 5


def test_attributes_count_by_list_or_word_for_word_in_the_texts():
    bare = product(attributes=("cotton",))
    assert score(bare, ["red", "large"], goal()) == 4 / 5
    for told in (
        {"features": ("Soft", "Machine Wash only")},
        {"description": "A machine wash will do."},
        {"title": "Acme Cotton Shirt, Machine Wash"},
    ):
        assert score(bare._replace(**told), ["red", "large"], goal()) == 1.0
    assert score(product(attributes=(), title="Acme Shirt"), [], goal()) == 1 / 5


def test_a_goal_without_options_divides_by_attributes_and_price():
    assert score(product(attributes=("cotton",)), [], goal(options=())) == 2 / 3


def test_the_type_multiplies():
    """One word of ten is shared, in another category: half of the four of five that are met."""
    wanted = goal(product=product(title=TEN))
    other = product(title="Alpha Hat", query="hats", path="Hats")
    assert score(other, ["red"], wanted) == pytest.approx(0.5 * 4 / 5)


@pytest.mark.parametrize(
    ("title", "query", "path", "expected"),
    [
        ("alpha", "other", "Other", 0.5),  # one word of ten
        ("alpha beta", "other", "Other", 0.5),  # two of ten are not above 0.2
        ("Alpha, Beta & GAMMA", "other", "Other", 1.0),  # three of ten
        ("alpha", "shirts", "Other", 1.0),  # same query
        ("alpha", "other", "Clothing › Men › Hats", 1.0),  # two categories shared
        ("alpha", "other", "Men ›Hats› Clothing", 1.0),  # in any order
        ("alpha", "other", "Clothing › Clothing › Hats", 0.5),  # one, twice
        ("omega", "shirts", "Clothing › Men › Shirts", 0.0),  # no word
    ],
)
def test_types_against_a_title_of_ten_words(title, query, path, expected):
    bought = product(title=title, query=query, path=path)
    assert type_score(bought, product(title=TEN)) == expected


def test_one_word_of_eleven_is_a_tenth_even_with_the_same_query():
    assert type_score(product(title="alpha"), product(title=TEN + " lambda")) == 0.1


def test_stop_words_and_numbers_are_no_type():
    assert type_score(product(title="the 12 of with"), product(title="the 12 of with lamp")) == 0.0
    nothing = product(title="12 of", query="a", path="")
    assert type_score(product(query="b", path=""), nothing) == 0.5
    assert type_score(product(query="a", path=""), nothing) == 1.0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("essential oils", "essential oil", True),  # 2*13/27
        ("long sleeve", "short sleeve", False),
        ("Machine-Wash", "wash, machine", True),  # the same words
        ("powder snow", "cool powder snow", True),  # one holds the other
        ("pack of 1", "pack of 12", True),  # "of pack" in "of pack 1": 14/16
        ("abc", "abcd", True),  # 6/7 is 86
        ("x" * 35 + "y" * 6, "x" * 35 + "z" * 6, False),  # 70/82 is 85.4, which rounds to 85
        ("", "", False),
        ("!!", "!!", False),
        ("é", "é", False),  # characters 128 to 255 are dropped
        ("café", "caf", True),
    ],
)
def test_token_set_ratio_above_85(first, second, expected):
    assert is_alike(first, second) is expected


WORD = st.text("abcdefgh", min_size=1, max_size=6)


@given(st.lists(WORD, min_size=1, max_size=4), st.lists(WORD, max_size=4))
def test_more_words_never_hurt(words, more):
    assert is_alike(" ".join(words), " ".join(words + more))


@given(st.lists(WORD, min_size=1, max_size=3), WORD)
def test_the_order_of_words_means_nothing(words, other):
    answers = {is_alike(" ".join(order), other) for order in permutations(words)}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("value", "option", "expected"),
    [
        ("navy blue", ("", "sky blue"), True),  # both are blue
        ("navy blue", ("color", "blue"), True),
        ("navy", ("", "blue"), False),
        ("large", ("size", "x-large"), True),  # "size x large" holds it
        ("standard", ("", "tan"), True),  # a colour within a word, as published
        ("standard", ("size", "standard"), False),  # and there it's lost, as published
        ("women's 7", ("size", "women's 7"), True),
        ("red", ("red", "round"), True),  # an option that is called like a colour
    ],
)
def test_options_and_their_colours(value, option, expected):
    assert fits(value, option) is expected
