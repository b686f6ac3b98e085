"""A shopper who knows the goal's product: finds it, chooses what was asked for, buys it.

A heuristic. The product that an instruction was written for need not score 1 in published data,
and another one may be nearer; but where this shopper wins, nobody can do better.
"""

from __future__ import annotations

from typing import NamedTuple

from envs.webshop.catalogue import Product, Wanted
from envs.webshop.goals import Goal
from envs.webshop.pages import (
    BACK,
    BUY,
    DONE,
    ITEM,
    NEXT,
    PAGE_SIZE,
    PREVIOUS,
    RESULTS,
    SEARCH,
    Shop,
    State,
    advance,
)
from envs.webshop.reward import fits, score


class Plan(NamedTuple):
    """What to search for, what to open, and what to choose there."""

    query: str
    asin: str
    options: tuple[Wanted, ...]


def make_plan(shop: Shop, goal: Goal) -> Plan | None:
    """Of a few searches the one that ranks the goal's product best, by its title first.

    Where none finds it, the plan is to buy what one of them ranks first; None where nothing is
    found at all.
    """
    wanted = goal.product
    asked = " ".join((*goal.attributes, *(value for _, value in goal.options)))
    texts = (wanted.title, f"{asked} {wanted.title}", f"{asked} {wanted.query}", goal.text)
    starts = (advance(shop, State(), f"search[{text}]") for text in texts)
    searches = [(state.query, shop.engine.ranking(state.query)) for state in starts if state]
    finding = [(query, found) for query, found in searches if wanted.asin in found]
    if finding:
        query, _ = min(finding, key=lambda search: search[1].index(wanted.asin))
        return Plan(query, wanted.asin, choices(wanted, goal))
    for query, found in searches:
        if found:
            return Plan(query, found[0], choices(shop.products[found[0]], goal))
    return None


def choices(product: Product, goal: Goal) -> tuple[Wanted, ...]:
    """For every option of the goal that the product has: the value to click, at most one a group.

    A value that two groups share chooses in the later one, so it is looked for from the end.
    """
    chosen: dict[str, str] = {}
    for option in goal.options:
        offers = [
            (name, value)
            for name, values in reversed(product.options)
            for value in values
            if name not in chosen and value not in chosen.values() and fits(value, option)
        ]
        if offers:
            name, value = next((offer for offer in offers if offer[1] == option[1]), offers[0])
            chosen[name] = value
    return tuple((name, chosen[name]) for name, _ in product.options if name in chosen)


def next_action(shop: Shop, state: State, plan: Plan) -> str:
    """The plan's next action from any state; after the purchase one that does nothing."""
    if state.page in (SEARCH, DONE):
        return f"search[{plan.query}]"
    found = shop.engine.ranking(state.query)
    if state.page == RESULTS:
        if plan.asin not in found:
            return f"click[{BACK}]"
        away = found.index(plan.asin) // PAGE_SIZE + 1 - state.number
        return f"click[{(NEXT if away > 0 else PREVIOUS) if away else plan.asin}]"
    if state.page != ITEM:
        return f"click[{PREVIOUS}]"
    if state.asin != plan.asin:
        return f"click[{PREVIOUS if plan.asin in found else BACK}]"
    missing = [value for name, value in plan.options if (name, value) not in state.options]
    return f"click[{missing[0] if missing else BUY}]"


def wins_within(shop: Shop, goal: Goal, plan: Plan, actions: int) -> bool:
    """Whether the plan scores 1 from the start in so many actions."""
    state = State()
    for _ in range(actions):
        state = advance(shop, state, next_action(shop, state, plan)) or state
        if state.page == DONE:
            chosen = (value for _, value in state.options)
            return score(shop.products[state.asin], chosen, goal) == 1.0
    return False
