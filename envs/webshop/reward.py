"""The score of a purchase, by the published formula.

    score = type * (attributes met + options met + price met) / (attributes + options + 1)

Fuzzy comparison is thefuzz 0.19.0's `token_set_ratio` above 85, on the standard library's
`difflib`, which that version uses unless python-Levenshtein is there too. One part differs:
published, the type compares the nouns that spaCy's tagger finds in two titles; here it compares
all words with a letter but stop words, so that a shared adjective counts, too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache

from envs.webshop.catalogue import Product, Wanted
from envs.webshop.goals import Goal
from envs.webshop.search import STOP_WORDS, words

COLOURS = tuple(
    words(
        """
        alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze
        brown burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas
        coffee cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso
        fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
        lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
        multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple
        rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone
        stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
        """
    )
)
"""WebShop's colour words, in its order: the first one found stands for the whole text."""
_ALIKE = 85
_NO_LATIN_1 = dict.fromkeys(range(128, 256))


def score(product: Product, chosen: Iterable[str], goal: Goal) -> float:
    """Between 0 and 1, for buying `product` with the option values `chosen`."""
    met = _attributes_met(product, goal) + _options_met(chosen, goal.options)
    met += product.price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    return met / asked * type_score(product, goal.product)


def type_score(bought: Product, wanted: Product) -> float:
    """1 for the same kind of product, 0.5 for a doubtful one, 0.1 or 0 for another kind."""
    title = _title_score(bought.title, wanted.title)
    if title == 0.0:
        return 0.0
    if title < 0.1:
        return 0.1
    is_same_path = len(_categories(bought.path) & _categories(wanted.path)) >= 2
    is_same = bought.query == wanted.query or is_same_path or title > 0.2
    return 1.0 if is_same else 0.5


def _title_score(bought: str, wanted: str) -> float:
    """Share of the wanted title's words that the bought one's title has."""
    type_words = _type_words(wanted)
    if not type_words:
        return 0.2
    return len(type_words & _type_words(bought)) / len(type_words)


def _type_words(title: str) -> set[str]:
    return {
        word
        for word in words(title)
        if word not in STOP_WORDS and any(letter.isalpha() for letter in word)
    }


def _categories(path: str) -> set[str]:
    return {name.strip() for name in path.split("›")}


def _attributes_met(product: Product, goal: Goal) -> int:
    """By one of the product's attributes, or word for word in its texts."""
    texts = (product.title, " ".join(product.features), product.description)
    shown = [text.lower() for text in texts]
    return sum(
        any(is_alike(attribute, wanted) for attribute in product.attributes)
        or any(wanted in text for text in shown)
        for wanted in goal.attributes
    )


def _options_met(chosen: Iterable[str], wanted: Iterable[Wanted]) -> int:
    values = [_colour(value) for value in chosen]
    return sum(any(is_alike(value, _as_text(option)) for value in values) for option in wanted)


def fits(value: str, option: Wanted) -> bool:
    """Whether choosing `value` meets an option of a goal."""
    return is_alike(_colour(value), _as_text(option))


def _as_text(option: Wanted) -> str:
    """Published, a named option is compared as the text of a Python pair, and its colour is found
    only where it is the whole value."""
    name, value = option
    if not name:
        return _colour(value)
    return next((colour for colour in COLOURS if colour in option), str(option))


def _colour(value: str) -> str:
    """The first colour word inside a value, even within a word (`standard` is `tan`)."""
    return next((colour for colour in COLOURS if colour in value), value)


@lru_cache(maxsize=65_536)
def is_alike(first: str, second: str) -> bool:
    """Whether thefuzz's token set ratio of two texts is above 85."""
    words_1, words_2 = _tokens(first), _tokens(second)
    if not words_1 or not words_2:
        return False
    shared = sorted(words_1 & words_2)
    rest_1, rest_2 = sorted(words_1 - words_2), sorted(words_2 - words_1)
    texts = [" ".join(part) for part in (shared, shared + rest_1, shared + rest_2)]
    return any(_ratio(*pair) > _ALIKE for pair in itertools.combinations(texts, 2))


def _tokens(text: str) -> set[str]:
    return set(re.sub(r"\W", " ", text.translate(_NO_LATIN_1)).lower().split())


def _ratio(first: str, second: str) -> int:
    """Percent of the characters that match, in the order that difflib finds."""
    if not first or not second:
        return 0
    return round(100 * SequenceMatcher(None, first, second).ratio())
