"""Goals: what a shopper asks for, the price bound, and the published splits."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from envs.errors import EnvironmentConfigError, unknown_name
from envs.webshop.catalogue import Instruction, Product, Wanted

SPLITS = {
    "all": slice(None), "test": slice(500), "dev": slice(500, 1500), "train": slice(1500, None),
}  # fmt: skip
"""As published, counted after the shuffle."""
_SHUFFLE_SEED = 233
_BOUNDS = tuple(10.0 * number for number in range(1, 100))
_NO_BOUND = 1_000_000.0


class Goal(NamedTuple):
    """A task: an instruction and what a purchase is measured by."""

    text: str
    product: Product
    """The product that the instruction was written for."""
    attributes: tuple[str, ...]
    options: tuple[Wanted, ...]
    price_upper: float
    weight: float = 1.0
    """Chance of being drawn, in proportion; made-up goals of rare attributes weigh more."""


def make_goals(products: Sequence[Product]) -> list[Goal]:
    """Every goal of a catalogue, in the published order."""
    goals = [goal for product in products for goal in _goals_of(product)]
    is_made_up = any(line.options is None for item in products for line in item.instructions)
    if is_made_up:
        goals = _weighted(goals)
    random.Random(_SHUFFLE_SEED).shuffle(goals)
    return goals


def select(goals: Sequence[Goal], split: str) -> Sequence[Goal]:
    """The goals of a split. Raises `EnvironmentConfigError` where there are none."""
    if split not in SPLITS:
        raise EnvironmentConfigError(unknown_name("goal split", split, SPLITS))
    selected = goals[SPLITS[split]]
    if not selected:
        raise EnvironmentConfigError(
            f"webshop: the goal split {split!r} is empty, since the catalogue has {len(goals)} "
            "goals; test takes the first 500, dev the next 1,000, train the rest. "
            "Use goal_split='all', or a larger catalogue."
        )
    return selected


def _goals_of(product: Product) -> Iterator[Goal]:
    for number, instruction in enumerate(product.instructions):
        bound = _price_bound(product, number)
        for options, remark in _choices(product, instruction):
            text = f"{instruction.text}{remark}"
            if bound < _NO_BOUND:
                text += f", and price lower than {bound:.2f} dollars"
            yield Goal(text, product, instruction.attributes, options, bound)


def _choices(
    product: Product, instruction: Instruction
) -> Iterator[tuple[tuple[Wanted, ...], str]]:
    """Options to ask for, and how to say so: every choice where people didn't make one."""
    if instruction.options is not None:
        yield instruction.options, ""
        return
    groups = [[(name, value) for value in values] for name, values in sorted(product.options)]
    for chosen in itertools.product(*groups):
        said = ", and ".join(f"{name}: {value}" for name, value in chosen)
        yield chosen, f" with {said}" if said else ""


def _price_bound(product: Product, number: int) -> float:
    """The larger of two of the four next multiples of ten; none above 980 dollars.

    Published with a generator that nobody seeds; here the product decides.
    """
    above = [bound for bound in _BOUNDS if bound > product.price][:4]
    if len(above) < 2:
        return _NO_BOUND
    return max(random.Random(f"bound {product.asin} {number}").sample(above, 2))


def _weighted(goals: Sequence[Goal]) -> list[Goal]:
    """With the mean rarity of the attributes as weight."""
    count = Counter(attribute for goal in goals for attribute in goal.attributes)
    return [
        goal._replace(weight=fmean(1 / count[attribute] for attribute in goal.attributes))
        for goal in goals
    ]
