"""Every page, and every way between them, by hand."""

from __future__ import annotations

import logging
import math
import re
import sys
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import EnvironmentConfigError
from envs.webshop import synthetic
from envs.webshop.catalogue import Review, parse
from envs.webshop.goals import Goal, make_goals
from envs.webshop.oracle import make_plan, next_action, wins_within
from envs.webshop.pages import Shop, State, advance, describe, links
from envs.webshop.search import SearchEngine, words

pytest.importorskip("bm25s", reason="needs the extra webshop")


def shop_of(products) -> Shop:
    return Shop({product.asin: product for product in products}, SearchEngine(products))


@pytest.fixture
def shop(items, attributes) -> Shop:
    """A shirt with options and reviews, and 23 lamps that are alike."""
    shirt, _, lamp = parse(items, attributes)
    shirt = shirt._replace(rating="4.0", reviews=(Review("Fine", 4, "It is\nfine."),))
    return shop_of([shirt, *(lamp._replace(asin=f"B0000001{n:02}") for n in range(23))])


def text(shop: Shop, state: State, score: float = 0.0) -> list[str]:
    return describe(shop, state, "find me a thing", score).split("\n")


SHIRT = State("item", "shirt", 1, "B000000001")


def test_the_search_page(shop):
    assert text(shop, State()) == [
        "Instruction: find me a thing",
        "Page: search",
        "Here search[words] finds products.",
    ]
    assert links(shop, State()) == {}


def test_searching(shop):
    assert advance(shop, State(), "search[Desk  LAMP!]") == State("results", "desk lamp", 1)
    assert advance(shop, State(), " Search [lamp] ") == State("results", "lamp", 1)
    for nothing in (
        "search[]",
        "search[ ]",
        "search[!?]",
        "search",
        "search[lamp",
        "click[search]",
    ):
        assert advance(shop, State(), nothing) is None


def test_no_search_from_other_pages(shop):
    for page in (State("results", "lamp", 1), SHIRT, SHIRT._replace(page="Reviews")):
        assert advance(shop, page, "search[lamp]") is None


def test_a_page_of_results(shop):
    state = State("results", "desk lamp", 1)
    lines = text(shop, state)
    assert lines[1] == 'Page: results 1 of the search "desk lamp" (23 in all)'
    assert lines[2] == "[Back to Search] [Next >]"
    assert lines[3] == "[B000000100] Crux Desk Lamp - $100.0"
    assert lines[12] == "[B000000109] Crux Desk Lamp - $100.0"
    assert len(lines) == 13


def test_turning_pages_there_and_back(shop):
    one, two, three = (State("results", "lamp", number) for number in (1, 2, 3))
    assert advance(shop, one, "click[< Prev]") is None
    assert advance(shop, one, "click[next >]") == two
    assert text(shop, two)[2] == "[Back to Search] [< Prev] [Next >]"
    assert advance(shop, two, "CLICK[Next >]") == three
    assert text(shop, three)[2] == "[Back to Search] [< Prev]"
    assert [line[:12] for line in text(shop, three)[3:]] == [
        "[B000000120]", "[B000000121]", "[B000000122]",
    ]  # fmt: skip
    assert advance(shop, three, "click[Next >]") is None
    assert advance(shop, three, "click[< Prev]") == two
    assert advance(shop, three, "click[Back to Search]") == State()


def test_a_search_that_finds_nothing(shop):
    state = State("results", "zebra", 1)
    assert text(shop, state)[1:] == [
        'Page: results 1 of the search "zebra" (0 in all)', "[Back to Search]",
    ]  # fmt: skip
    assert list(links(shop, state)) == ["Back to Search"]


def test_opening_a_product_of_this_page_only(shop):
    state = State("results", "lamp", 2)
    opened = State("item", "lamp", 2, "B000000111")
    assert advance(shop, state, "click[b000000111]") == opened
    assert advance(shop, state, "click[B000000100]") is None


def test_a_product(shop):
    assert text(shop, SHIRT)[1:] == [
        'Page: product B000000001, from results 1 of the search "shirt"',
        "[Back to Search] [< Prev]",
        "Acme Cotton Shirt",
        "Price: $19.99",
        "Rating: 4.0",
        "color (chosen: none): [red | white] [navy]",
        "size (chosen: none): [large]",
        "[Description] [Features] [Reviews] [Buy Now]",
    ]


def test_choosing_options(shop):
    large = advance(shop, SHIRT, "click[Large]")
    assert large.options == (("size", "large"),)
    both = advance(shop, large, "click[red  | white]")
    assert both.options == (("color", "red | white"), ("size", "large"))
    assert advance(shop, both, "click[large]") == both
    changed = advance(shop, both, "click[navy]")
    assert changed.options == (("color", "navy"), ("size", "large"))
    assert text(shop, changed)[6] == "color (chosen: navy): [red | white] [navy]"
    assert advance(shop, SHIRT, "click[blue]") is None


def test_leaving_a_product_forgets_its_options(shop):
    chosen = advance(shop, SHIRT._replace(number=2), "click[navy]")
    assert advance(shop, chosen, "click[< Prev]") == State("results", "shirt", 2)
    assert advance(shop, chosen, "click[Back to Search]") == State()


@pytest.mark.parametrize(
    ("label", "content"),
    [
        ("Description", ["A soft shirt of one piece."]),
        ("Features", ["- Machine Wash", "- Two pockets"]),
        ("Reviews", ['"Fine" 4/5: It is fine.']),
    ],
)
def test_sub_pages_keep_the_options(shop, label, content):
    chosen = advance(shop, SHIRT, "click[navy]")
    sub_page = advance(shop, chosen, f"click[{label.upper()}]")
    assert text(shop, sub_page)[1:] == [
        f'Page: {label} of product B000000001, color: navy, from results 1 of the search "shirt"',
        "[Back to Search] [< Prev]",
        *content,
    ]
    assert advance(shop, sub_page, "click[Buy Now]") is None
    assert advance(shop, sub_page, "click[< Prev]") == chosen
    assert advance(shop, sub_page, "click[Back to Search]") == State()


def test_products_without_texts_say_so(shop):
    lamp = State("item", "lamp", 1, "B000000100")
    assert text(shop, lamp._replace(page="Description"))[3:] == ["No description."]
    assert text(shop, lamp._replace(page="Reviews"))[3:] == ["No reviews."]


def test_buying_ends_it(shop):
    bought = advance(shop, advance(shop, SHIRT, "click[navy]"), "click[buy now]")
    assert bought == State("done", "", 0, "B000000001", (("color", "navy"),))
    assert text(shop, bought, 2 / 3)[1:] == [
        "Page: bought product B000000001, color: navy",
        "Thank you for shopping with us!",
        "Your score (0 to 1): 0.6667",
    ]
    assert links(shop, bought) == {}
    assert advance(shop, bought, "search[lamp]") is None


def test_values_that_two_options_share_and_values_that_are_buttons(items, attributes):
    values = [{"value": "One Size"}, {"value": "Buy Now"}]
    item = items[0] | {"customization_options": {"color": values, "size": values[:1]}}
    odd = shop_of(parse([item], attributes))
    assert advance(odd, SHIRT, "click[one size]").options == (("size", "one size"),)
    assert advance(odd, SHIRT, "click[buy now]").page == "done"


class Market(NamedTuple):
    shop: Shop
    goals: list[Goal]


@cache
def market() -> Market:
    """The made-up catalogue."""
    products = synthetic.products()
    return Market(shop_of(products), make_goals(products))


@given(st.integers(0, 2**32), st.lists(st.integers(0, 10**6), max_size=8))
def test_what_stands_in_brackets_is_what_can_be_clicked(seed, turns):
    shop, goals = market()
    product = goals[seed % len(goals)].product
    state = advance(shop, State(), f"search[{product.title}]")
    for turn in turns:
        labels = links(shop, state)
        page = describe(shop, state, "nothing", 0.0).replace("search[words]", "")
        assert sorted(re.findall(r"\[([^\]]+)\]", page)) == sorted(labels)
        if not labels:
            break
        state = labels[list(labels)[turn % len(labels)]]


@given(st.text(max_size=400))
def test_any_text_leads_to_a_state_or_nowhere(action):
    shop = market().shop
    for state in (State(), State("results", "boots", 1), State("done")):
        after = advance(shop, state, action)
        assert after in (None, *links(shop, state).values()) or after.page == "results"
        searched = advance(shop, state, f"search[{action}]")
        assert (searched is not None) == (state.page == "search" and bool(words(action)))
        if searched is not None:
            assert len(searched.query) <= 300
            assert advance(shop, State(), f"search[{searched.query}]") == searched


def test_search_ranks_by_words_and_breaks_ties_by_place(shop):
    ranking = shop.engine.ranking
    assert ranking("cotton") == ("B000000001",)
    assert ranking("lamps") == tuple(f"B0000001{n:02}" for n in range(23))
    assert ranking("the of and") == ()
    assert ranking("SHIRTS, navy") == ("B000000001",)
    assert ranking("pockets") == ()  # of the features only the first is searched
    assert ranking("machine") == ("B000000001",)


def test_search_agrees_with_bm25_by_hand():
    """Lucene's BM25 with k1 0.9 and b 0.4, computed word by word."""
    products = synthetic.products()[:60]
    query = "black leather boots with rubber sole or slippers pack"
    expected = slow_ranking(products, query)
    assert len(expected) > 20
    assert list(SearchEngine(products).ranking(query)) == expected


def slow_ranking(products, query):
    """Nobody here ends in anything but one `s` too many."""
    stop = words(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
    documents = []
    for product in products:
        options = " ".join(f"{name} {' '.join(values)}" for name, values in product.options)
        text = " ".join((product.title, product.description, product.features[0], options))
        documents.append([word.removesuffix("s") for word in words(text) if word not in stop])
    mean = sum(map(len, documents)) / len(documents)
    scored = []
    for place, document in enumerate(documents):
        total = 0.0
        for term in (word.removesuffix("s") for word in query.split() if word not in stop):
            holding = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            count = document.count(term)
            total += idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * len(document) / mean))
        if total > 0:
            scored.append((-round(total, 5), place))
    return [products[place].asin for _, place in sorted(scored)]


def test_at_most_fifty_results():
    found = market().shop.engine.ranking("dress shirt jeans jacket sweater")
    assert len(found) == len(set(found)) == 50


def test_the_search_engine_is_silent(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        SearchEngine(synthetic.products()[:50]).ranking("boots")
    assert (*capfd.readouterr(), caplog.records) == ("", "", [])


def test_without_bm25s_one_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(EnvironmentConfigError, match=r"pip install 'spa-agents\[webshop\]'"):
        SearchEngine(synthetic.products()[:5])


def test_the_oracle_plays_a_goal_to_its_end():
    shop, (goal, *_) = market()
    plan = make_plan(shop, goal)
    assert plan.asin == goal.product.asin
    state, actions = State(), []
    while state.page != "done":
        actions.append(next_action(shop, state, plan))
        state = advance(shop, state, actions[-1])
    assert actions[0].startswith("search[")
    assert actions[1] == f"click[{plan.asin}]"
    assert actions[2:-1] == [f"click[{value}]" for _, value in plan.options]
    assert actions[-1] == "click[Buy Now]"
    assert wins_within(shop, goal, plan, len(actions))
    assert not wins_within(shop, goal, plan, len(actions) - 1)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 10**6), max_size=6))
def test_the_oracle_finds_back_from_anywhere(seed, turns):
    shop, goals = market()
    goal = goals[seed % len(goals)]
    state = advance(shop, State(), f"search[{goal.product.query}]")
    for turn in turns:
        options = [after for after in links(shop, state).values() if after.page != "done"]
        state = options[turn % len(options)] if options else state
    plan = make_plan(shop, goal)
    for _ in range(20):
        if state.page == "done":
            break
        state = advance(shop, state, next_action(shop, state, plan))
    assert (state.page, state.asin) == ("done", goal.product.asin)
    assert sorted(state.options) == sorted(goal.options)


def test_the_oracle_turns_pages_to_a_product_that_ranks_low(shop, items, attributes):
    lamp = shop.products["B000000122"]
    goal = make_goals(parse(items, attributes))[0]._replace(product=lamp, options=())
    plan = make_plan(shop, goal)
    actions, state = [], State()
    while state.page != "done":
        actions.append(next_action(shop, state, plan))
        state = advance(shop, state, actions[-1])
    assert actions[1:] == [
        "click[Next >]", "click[Next >]", "click[B000000122]", "click[Buy Now]",
    ]  # fmt: skip


def test_the_oracle_buys_something_else_where_it_cant_find_the_product(shop, items, attributes):
    gone = parse(items, attributes)[0]._replace(asin="B000000777", title="Cotton Lamp")
    goal = make_goals(parse(items, attributes))[0]._replace(product=gone)
    assert make_plan(shop, goal).asin in shop.products
    nameless = goal._replace(product=gone._replace(title="?", query="?"), text="?", attributes=())
    assert make_plan(shop, nameless._replace(options=())) is None
