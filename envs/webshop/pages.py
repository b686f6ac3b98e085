"""The shop's pages: where each link leads, and what a page says.

A `State` is all that an episode remembers. `links` is the one place that knows what can be
clicked; in a page's text every clickable label stands in square brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from envs.webshop.catalogue import Product, Wanted
from envs.webshop.search import SearchEngine, words

SEARCH, RESULTS, ITEM, DONE = "search", "results", "item", "done"
DESCRIPTION, FEATURES, REVIEWS = "Description", "Features", "Reviews"
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = (DESCRIPTION, FEATURES, REVIEWS)
PAGE_SIZE = 10

_MAX_QUERY = 300
"""Characters of a search that count; a title has less."""


class State(NamedTuple):
    """Where the shopper is. Fields that a page doesn't need are empty."""

    page: str = SEARCH
    query: str = ""
    number: int = 0
    """Page of results, from 1."""
    asin: str = ""
    options: tuple[Wanted, ...] = ()
    """(option, chosen value), in the product's order."""


class Shop(NamedTuple):
    """What can be found and bought."""

    products: Mapping[str, Product]
    engine: SearchEngine


def advance(shop: Shop, state: State, action: str) -> State | None:
    """The state after an action; None where the text is no action on this page."""
    verb, argument = _parse(action)
    if verb == "search" and state.page == SEARCH:
        query = _query(argument)
        return State(RESULTS, query, 1) if query else None
    if verb == "click":
        wanted = argument.lower()
        return {label.lower(): after for label, after in links(shop, state).items()}.get(wanted)
    return None


def links(shop: Shop, state: State) -> dict[str, State]:
    """Label -> where it leads."""
    back = {BACK: State()}
    if state.page == RESULTS:
        return back | _result_links(shop, state)
    if state.page == ITEM:
        return back | _item_links(shop.products[state.asin], state)
    if state.page in SUB_PAGES:
        return back | {PREVIOUS: state._replace(page=ITEM)}
    return {}


def _result_links(shop: Shop, state: State) -> dict[str, State]:
    query, number = state.query, state.number
    found = shop.engine.ranking(query)
    first, last = (number - 1) * PAGE_SIZE, number * PAGE_SIZE
    before = {PREVIOUS: State(RESULTS, query, number - 1)} if number > 1 else {}
    after = {NEXT: State(RESULTS, query, number + 1)} if last < len(found) else {}
    return before | after | {asin: State(ITEM, query, number, asin) for asin in found[first:last]}


def _item_links(product: Product, state: State) -> dict[str, State]:
    """A value that two options share chooses in the later one; a button goes before a value."""
    buttons = {
        PREVIOUS: State(RESULTS, state.query, state.number),
        **{name: state._replace(page=name) for name in SUB_PAGES},
        BUY: State(DONE, "", 0, state.asin, state.options),
    }
    taken = {label.lower() for label in (BACK, *buttons)}
    return buttons | {
        value: state._replace(options=_choose(product, state.options, name, value))
        for name, values in product.options
        for value in values
        if value not in taken
    }


def describe(shop: Shop, state: State, instruction: str, score: float) -> str:
    """The page as text; equal texts are equal states. `score` is shown after buying."""
    lines = [f"Instruction: {_line(instruction)}", *_PAGES.get(state.page, _sub_page)(shop, state)]
    if state.page == DONE:
        lines.append(f"Your score (0 to 1): {score:.4g}")
    return "\n".join(lines)


def _parse(action: str) -> tuple[str, str]:
    """`Click[ Buy  Now ]` is ("click", "Buy Now")."""
    verb, bracket, argument = action.strip().partition("[")
    if not bracket or not argument.endswith("]"):
        return "", ""
    return verb.strip().lower(), " ".join(argument[:-1].split())


def _query(text: str) -> str:
    """A search as it is kept: words in lower case, joined by spaces."""
    return " ".join(words(" ".join(words(text))[:_MAX_QUERY]))


def _choose(
    product: Product, options: tuple[Wanted, ...], name: str, value: str
) -> tuple[Wanted, ...]:
    chosen = dict(options) | {name: value}
    return tuple((group, chosen[group]) for group, _ in product.options if group in chosen)


def _search_page(shop: Shop, state: State) -> Iterator[str]:
    yield "Page: search"
    yield "Here search[words] finds products."


def _results_page(shop: Shop, state: State) -> Iterator[str]:
    found = shop.engine.ranking(state.query)
    yield f'Page: results {state.number} of the search "{state.query}" ({len(found)} in all)'
    labels = links(shop, state)
    yield " ".join(f"[{label}]" for label in labels if label in (BACK, PREVIOUS, NEXT))
    for asin in labels:
        if asin in shop.products:
            product = shop.products[asin]
            yield f"[{asin}] {_line(product.title)} - {product.price_tag}"


def _item_page(shop: Shop, state: State) -> Iterator[str]:
    product, chosen = shop.products[state.asin], dict(state.options)
    yield f"Page: product {state.asin}, {_came_from(state)}"
    yield f"[{BACK}] [{PREVIOUS}]"
    yield _line(product.title)
    yield f"Price: {product.price_tag}"
    yield f"Rating: {product.rating}"
    for name, values in product.options:
        labels = " ".join(f"[{value}]" for value in values)
        yield f"{name} (chosen: {chosen.get(name, 'none')}): {labels}"
    yield " ".join(f"[{label}]" for label in (*SUB_PAGES, BUY))


def _sub_page(shop: Shop, state: State) -> Iterator[str]:
    yield f"Page: {state.page} of product {state.asin}{_with(state)}, {_came_from(state)}"
    yield f"[{BACK}] [{PREVIOUS}]"
    product = shop.products[state.asin]
    if state.page == DESCRIPTION:
        yield _line(product.description) or "No description."
    elif state.page == FEATURES:
        yield from (f"- {_line(feature)}" for feature in product.features)
    elif product.reviews:
        for title, score, body in product.reviews:
            yield f'"{_line(title)}" {score}/5: {_line(body)}'
    else:
        yield "No reviews."


def _done_page(shop: Shop, state: State) -> Iterator[str]:
    yield f"Page: bought product {state.asin}{_with(state)}"
    yield "Thank you for shopping with us!"


_PAGES = {SEARCH: _search_page, RESULTS: _results_page, ITEM: _item_page, DONE: _done_page}


def _came_from(state: State) -> str:
    return f'from results {state.number} of the search "{state.query}"'


def _with(state: State) -> str:
    return "".join(f", {name}: {value}" for name, value in state.options)


def _line(text: str) -> str:
    return " ".join(text.split())
