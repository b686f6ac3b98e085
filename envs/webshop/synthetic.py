"""A made-up catalogue: 1,000 products of 25 kinds, the same on every machine.

It is written in the published format and read by the same reader. Nothing is taken from a shop:
brands are invented, and texts are put together from the lists below. The one source of chance is
`random.Random(seed).random()`, whose numbers Python promises to keep from version to version.
Colours and sizes are chosen such that the score's colour words find no colour inside a size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from envs.webshop.catalogue import Product, Review, parse

PER_KIND = 40
_SEED = 20220704
_Words = tuple[str, ...]
_DIGITS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"

BRANDS = (
    "Norvane", "Quillmere", "Tessaly", "Brakhurst", "Ostrava Lane", "Pellworth", "Zuniro",
    "Haldon", "Merrowfield", "Caskett", "Vintarra", "Ludgrove", "Amberlyne", "Dorsika",
    "Fennimore", "Jorvald", "Kestrelle", "Sundrift", "Wexlow", "Yarraby",
)  # fmt: skip
_COLOURS = (
    "black", "white", "grey", "navy blue", "dark green", "light pink", "burgundy", "khaki", "red",
    "yellow", "purple", "orange", "brown", "beige", "teal", "olive",
)  # fmt: skip
_SIZES = ("small", "medium", "large", "x-large", "xx-large")
_SHOE_SIZES = ("6", "7", "8", "9", "10", "11")
_BEDS = ("twin", "queen", "king")
_LENGTHS = ("3 feet", "6 feet", "10 feet", "15 feet")
_STORAGE = ("32 gb", "64 gb", "128 gb")
_PACKS = ("pack of 1", "pack of 3", "pack of 6")
_OUNCES = ("2 ounce", "4 ounce", "8 ounce")
_FLAVOURS = ("original", "honey", "cinnamon", "vanilla", "sea salt", "peanut butter", "maple")
_SCENTS = ("lavender", "coconut", "tea tree", "rose", "citrus")

_CLOTHES = (
    "machine wash", "hand wash", "long sleeve", "short sleeve", "slim fit", "loose fit",
    "quick dry", "button closure", "elastic waist", "cotton blend", "high waist", "side pockets",
)  # fmt: skip
_SHOES = (
    "rubber sole", "memory foam", "slip resistant", "arch support", "lace up", "steel toe",
    "ankle strap", "water resistant", "faux leather", "open toe",
)  # fmt: skip
_HOME = (
    "easy to clean", "space saving", "easy assemble", "modern design", "solid wood", "heavy duty",
    "fade resistant", "non slip", "eco friendly", "stain resistant",
)  # fmt: skip
_DEVICES = (
    "fast charging", "noise cancelling", "long lasting battery", "plug and play", "high speed",
    "hands free", "gold plated", "wall mounted", "water proof", "high definition",
)  # fmt: skip
_FOOD = (
    "gluten free", "low sodium", "sugar free", "non gmo", "dairy free", "keto friendly",
    "high protein", "certified organic", "nut free", "ready to eat",
)  # fmt: skip
_CARE = (
    "cruelty free", "paraben free", "sensitive skin", "dry hair", "essential oils",
    "hyaluronic acid", "alcohol free", "travel size", "dermatologist tested", "easy to use",
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of product."""

    query: str
    category: str
    path: str
    names: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: tuple[int, int]


def _kind(
    query: str, path: str, names: str, attributes: _Words, low: int, high: int, **options: _Words
) -> Kind:
    category = path.partition(" ")[0].lower()
    return Kind(query, category, path, tuple(names.split("/")), attributes, options, (low, high))


_WEAR = {"color": _COLOURS, "size": _SIZES}
_FEET = {"color": _COLOURS, "size": _SHOE_SIZES}
_PLAIN = {"color": _COLOURS}

KINDS = (
    _kind("women's dresses", "Clothing › Women › Dresses",
          "Wrap Dress/Maxi Dress/Shirt Dress", _CLOTHES, 18, 70, **_WEAR),
    _kind("men's shirts", "Clothing › Men › Shirts",
          "Dress Shirt/Henley Shirt/Flannel Shirt", _CLOTHES, 12, 50, **_WEAR),
    _kind("women's jeans", "Clothing › Women › Jeans",
          "Skinny Jeans/Bootcut Jeans/Wide Leg Jeans", _CLOTHES, 20, 80, **_WEAR),
    _kind("men's jackets", "Clothing › Men › Jackets",
          "Bomber Jacket/Rain Jacket/Fleece Jacket", _CLOTHES, 30, 140, **_WEAR),
    _kind("women's sweaters", "Clothing › Women › Sweaters",
          "Cable Knit Sweater/Cardigan Sweater/Turtleneck Sweater", _CLOTHES, 18, 75, **_WEAR),
    _kind("running shoes", "Shoes › Athletic › Running",
          "Trail Running Shoes/Road Running Shoes", _SHOES, 35, 130, **_FEET),
    _kind("women's sandals", "Shoes › Women › Sandals",
          "Wedge Sandals/Platform Sandals/Beach Sandals", _SHOES, 15, 70, **_FEET),
    _kind("work boots", "Shoes › Men › Boots",
          "Leather Work Boots/Ankle Work Boots", _SHOES, 45, 190, **_FEET),
    _kind("slippers", "Shoes › House › Slippers",
          "House Slippers/Moccasin Slippers", _SHOES, 10, 45, **_FEET),
    _kind("area rugs", "Home › Decor › Rugs",
          "Area Rug/Runner Rug/Braided Rug", _HOME, 25, 240, **_PLAIN),
    _kind("coffee tables", "Home › Furniture › Tables",
          "Coffee Table/Side Table/Lift Top Coffee Table", _HOME, 60, 420, **_PLAIN),
    _kind("bed frames", "Home › Furniture › Beds",
          "Platform Bed Frame/Upholstered Bed Frame", _HOME, 110, 990, size=_BEDS),
    _kind("curtains", "Home › Decor › Curtains",
          "Blackout Curtains/Sheer Curtains/Linen Curtains", _HOME, 14, 90, **_PLAIN),
    _kind("bookcases", "Home › Furniture › Shelves",
          "Ladder Bookcase/Corner Bookcase", _HOME, 50, 310, **_PLAIN),
    _kind("headphones", "Electronics › Audio › Headphones",
          "Over Ear Headphones/In Ear Headphones", _DEVICES, 18, 320, **_PLAIN),
    _kind("hdmi cables", "Electronics › Accessories › Cables",
          "HDMI Cable/HDMI Extension Cable", _DEVICES, 6, 40, size=_LENGTHS, package=_PACKS),
    _kind("tablets", "Electronics › Computers › Tablets",
          "Android Tablet/Drawing Tablet", _DEVICES, 80, 640, color=_COLOURS, capacity=_STORAGE),
    _kind("security cameras", "Electronics › Cameras › Security",
          "Doorbell Camera/Outdoor Security Camera", _DEVICES, 30, 260, package=_PACKS),
    _kind("phone chargers", "Electronics › Accessories › Chargers",
          "Phone Charger/Wireless Charger/Car Charger", _DEVICES, 8, 60, **_PLAIN),
    _kind("granola", "Grocery › Breakfast › Granola",
          "Oat Granola/Granola Clusters", _FOOD, 5, 35, flavor=_FLAVOURS, package=_PACKS),
    _kind("protein bars", "Grocery › Snacks › Bars",
          "Protein Bars/Crunchy Protein Bars", _FOOD, 9, 50, flavor=_FLAVOURS, package=_PACKS),
    _kind("nut butters", "Grocery › Spreads › Butters",
          "Almond Butter/Cashew Butter", _FOOD, 7, 40, package=_PACKS),
    _kind("face moisturizers", "Beauty › Skin › Moisturizers",
          "Face Moisturizer/Night Cream/Gel Moisturizer", _CARE, 8, 80, size=_OUNCES),
    _kind("shampoos", "Beauty › Hair › Shampoos",
          "Repair Shampoo/Volume Shampoo", _CARE, 6, 45, scent=_SCENTS, size=_OUNCES),
    _kind("body lotions", "Beauty › Skin › Lotions",
          "Body Lotion/Body Butter/Hand Lotion", _CARE, 6, 40, scent=_SCENTS),
)  # fmt: skip

_OPENINGS = (
    "{brand} makes {name} for people who use it every day",
    "This {name} by {brand} is made to last",
    "Our {name} has been a favourite since the first year of {brand}",
)
_EXTRAS = (
    "Comes with a two year promise of the maker", "Packed without plastic",
    "Designed in a small studio", "A present that is used", "Tested by three hundred customers",
    "Questions are answered within a day",
)  # fmt: skip
_PRAISE = (
    (5, "Exactly what I wanted", "Looks as in the picture, and I use it daily."),
    (5, "Would buy again", "The second one that I order. Still happy with it."),
    (4, "Good for the price", "Does what it should. Delivery took a while."),
    (3, "Fine", "It is fine, neither more nor less."),
    (2, "Not for me", "Smaller than I thought, so it went back."),
)


class Records(NamedTuple):
    """The catalogue in the published format, and the reviews beside it."""

    items: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    reviews: dict[str, tuple[Review, ...]]


@cache
def products() -> tuple[Product, ...]:
    """The catalogue."""
    items, attributes, reviews = records()
    return parse(items, attributes, reviews=reviews)


def records(seed: int = _SEED, per_kind: int = PER_KIND) -> Records:
    """Generate a catalogue."""
    chance = _Chance(seed)
    made = Records([], {}, {})
    for number in range(per_kind):
        for kind in KINDS:
            _add(made, kind, number, chance)
    return made


class _Chance:
    """Draws from `random()` alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, limit: int) -> int:
        return int(self._random() * limit)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def some(self, choices: Sequence[Any], count: int) -> list[Any]:
        """`count` different choices, in their own order."""
        left = list(range(len(choices)))
        taken = {left.pop(self.below(len(left))) for _ in range(min(count, len(choices)))}
        return [choices[index] for index in sorted(taken)]


def _add(made: Records, kind: Kind, number: int, chance: _Chance) -> None:
    brand, name = chance.pick(BRANDS), chance.pick(kind.names)
    attributes = chance.some(kind.attributes, 3 + chance.below(3))
    asin = _new_asin(made, chance)
    model = f"{brand[0]}{kind.query[0].upper()}{100 + 7 * number + chance.below(7)}"
    in_title = chance.some(attributes, 1 + chance.below(2))
    title = f"{brand} {name}, {', '.join(map(str.title, in_title))}, Model {model}"
    made.items.append(
        {
            "asin": asin,
            "name": title,
            "category": kind.category,
            "query": kind.query,
            "product_category": kind.path,
            "full_description": _description(brand, name, attributes, chance),
            "small_description": [*map(str.capitalize, attributes), *chance.some(_EXTRAS, 2)],
            "pricing": _pricing(kind, chance),
            "customization_options": {
                option: [{"value": value} for value in chance.some(values, 2 + chance.below(2))]
                for option, values in kind.options.items()
            },
        }
    )
    asked = chance.some(attributes, 1 + chance.below(3))
    made.attributes[asin] = {
        "attributes": attributes,
        "instruction": f"Find me {', '.join(asked)} {kind.query}",
        "instruction_attributes": asked,
    }
    told = chance.some(_PRAISE, chance.below(4))
    made.reviews[asin] = tuple(Review(title, score, body) for score, title, body in told)


def _new_asin(made: Records, chance: _Chance) -> str:
    while True:
        asin = "B0" + "".join(chance.pick(_DIGITS) for _ in range(8))
        if asin not in made.attributes:
            return asin


def _description(brand: str, name: str, attributes: list[str], chance: _Chance) -> str:
    opening = chance.pick(_OPENINGS).format(brand=brand, name=name.lower())
    told = ", ".join(chance.some(attributes, 2))
    return f"{opening}. Customers like most of all: {told}."


def _pricing(kind: Kind, chance: _Chance) -> str:
    """`$24.99`, and for one in eight a range."""
    low, high = kind.price
    dollars = low + chance.below(high - low)
    if chance.below(8):
        return f"${dollars}.99"
    return f"${dollars}.49${dollars + 1 + dollars // 3}.99"
