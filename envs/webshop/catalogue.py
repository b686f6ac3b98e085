"""Products, and how they are read from the published files.

The files are those of the WebShop repository's `setup.sh`; nothing of them is shipped or
downloaded here, since the texts are scraped from a shop. A product file is read whole: see
`DataSheet.puzzles` of the environment for what that costs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envs.errors import EnvironmentConfigError

PRODUCT_FILES = ("items_shuffle_1000.json", "items_shuffle.json")
ATTRIBUTE_FILES = ("items_ins_v2_1000.json", "items_ins_v2.json")
HUMAN_FILE = "items_human_ins.json"

_PRODUCT_KEYS = (
    "asin", "name", "category", "query", "product_category", "full_description",
    "small_description", "customization_options",
)  # fmt: skip
_NO_PRICE = 100.0
"""What a product without a price costs, as published."""
_MAX_ASIN = 10

Wanted = tuple[str, str]
"""(option, value) of a goal; the option is "" where the instruction names the value only."""


class Instruction(NamedTuple):
    """What a shopper asks for, before a price bound is added."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[Wanted, ...] | None
    """None for made-up instructions, which go with every choice of options."""


class Review(NamedTuple):
    """What a buyer says."""

    title: str
    score: int
    body: str


class Product(NamedTuple):
    """One product, with what the shop knows and doesn't show (query, attributes, price)."""

    asin: str
    title: str
    category: str
    query: str
    path: str
    """Categories from wide to narrow, joined by `›`."""
    description: str
    features: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, values), all in lower case."""
    attributes: tuple[str, ...]
    price: float
    """What it costs; drawn once where the shop shows a range."""
    price_tag: str
    instructions: tuple[Instruction, ...]
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()


Record = Mapping[str, Any]


def read_published(folder: Path) -> tuple[Product, ...]:
    """The products of a folder with the published files.

    With `items_human_ins.json` the instructions are those of people, else the made-up ones of the
    attribute file. Raises `EnvironmentConfigError` for a file that is missing or can't be read.
    """
    products_path = _existing(folder, PRODUCT_FILES)
    attributes_path = _existing(folder, ATTRIBUTE_FILES)
    items = _read_json(products_path, list, "a list of products")
    attributes = _read_json(attributes_path, dict, "an object from product ids to attributes")
    human_path = folder / HUMAN_FILE
    human = None
    if human_path.is_file():
        human = _read_json(human_path, dict, "an object from product ids to instructions")
    products = parse(items, attributes, human, name=str(products_path))
    if not products:
        raise EnvironmentConfigError(f"webshop: {products_path} holds no product to sell.")
    return products


def parse(
    items: Iterable[Record],
    attributes: Record,
    human: Record | None = None,
    reviews: Mapping[str, tuple[Review, ...]] | None = None,
    name: str = "catalogue",
) -> tuple[Product, ...]:
    """Products from records in the published format.

    Products whose id is `nan`, longer than ten characters or seen before are left out, as
    published. `name` is the file that an error names.
    """
    products: dict[str, Product] = {}
    for number, item in enumerate(items):
        _check_keys(item, number, name)
        asin = str(item["asin"])
        if asin == "nan" or len(asin) > _MAX_ASIN or asin in products:
            continue
        try:
            product = _product(item, attributes.get(asin) or {}, human)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EnvironmentConfigError(
                f"webshop: product {number} ({asin}) of {name} or what is said of it in the other "
                f"files can't be read ({type(error).__name__}: {error}); "
                "see that the files are those of WebShop's setup.sh."
            ) from error
        told = (reviews or {}).get(asin)
        products[asin] = product._replace(reviews=told, rating=_mean(told)) if told else product
    return tuple(products.values())


def _existing(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    present = sorted(path.name for path in folder.iterdir())[:10] if folder.is_dir() else None
    seen = "is no folder" if present is None else f"holds {', '.join(present) or 'nothing'}"
    raise EnvironmentConfigError(
        f"webshop: data is {str(folder)!r}, which {seen}; it must be a folder with "
        f"{' or '.join(names)}, which WebShop's setup.sh downloads "
        "(leave data out for the made-up catalogue)."
    )


def _read_json(path: Path, kind: type, what: str) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentConfigError(
            f"webshop: {path} can't be read as JSON ({error}); it must hold {what}."
        ) from error
    if not isinstance(content, kind):
        raise EnvironmentConfigError(
            f"webshop: {path} holds a {type(content).__name__}; it must hold {what}."
        )
    return content


def _check_keys(item: Any, number: int, name: str) -> None:
    seen = "no object" if not isinstance(item, Mapping) else ""
    if not seen:
        seen = ", ".join(repr(key) for key in _PRODUCT_KEYS if key not in item)
        seen = f"without {seen}" if seen else ""
    if seen:
        raise EnvironmentConfigError(
            f"webshop: product {number} of {name} is {seen}; "
            f"a product needs the keys {', '.join(_PRODUCT_KEYS)}."
        )


def _product(item: Record, about: Record, human: Record | None) -> Product:
    asin, small = str(item["asin"]), item["small_description"]
    price, price_tag = _price(item.get("pricing"), asin)
    return Product(
        asin=asin,
        title=_text(item["name"]),
        category=_text(item["category"]),
        query=_text(item["query"]).lower().strip(),
        path=_text(item["product_category"]),
        description=_text(item["full_description"]),
        features=tuple(map(_text, small if isinstance(small, list) else [small])),
        options=_options(item["customization_options"] or {}),
        attributes=_texts(about.get("attributes")),
        price=price,
        price_tag=price_tag,
        instructions=_made_up(about) if human is None else _human(human.get(asin) or ()),
    )


def _text(value: Any) -> str:
    """The files say null or NaN for a text that isn't there."""
    return value if isinstance(value, str) else ""


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values or [], list) or not all(isinstance(x, str) for x in values or []):
        raise TypeError(f"{values!r} is no list of texts")
    return tuple(values or ())


def _price(tag: Any, asin: str) -> tuple[float, str]:
    """`$5.00` costs that, `$5.00$8.00` something between, drawn from the product's id."""
    parts = tag.split("$")[1:3] if tag else []
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in parts]
    if not prices:
        return _NO_PRICE, f"${_NO_PRICE}"
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    low, high = prices
    price = low + (high - low) * random.Random(f"price {asin}").random()
    return price, f"${low} to ${high}"


def _options(groups: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    options = {
        _label(name): tuple(filter(None, (_label(choice["value"]) for choice in choices)))
        for name, choices in groups.items()
        if choices
    }
    return tuple((name, values) for name, values in options.items() if values)


def _label(value: str) -> str:
    """As published, `/` becomes ` | `; runs of white space are one space, as a browser shows."""
    return " ".join(value.replace("/", " | ").lower().split())


def _made_up(about: Record) -> tuple[Instruction, ...]:
    text, attributes = about.get("instruction"), _texts(about.get("instruction_attributes"))
    return (Instruction(text, attributes, None),) if text and attributes else ()


def _human(records: Iterable[Record]) -> tuple[Instruction, ...]:
    """Without those that name no attribute, as published."""
    instructions = (
        Instruction(
            record["instruction"].strip("."),
            _texts(record["instruction_attributes"]),
            _wanted(record["instruction_options"]),
        )
        for record in records
    )
    return tuple(instruction for instruction in instructions if instruction.attributes)


def _wanted(options: Any) -> tuple[Wanted, ...]:
    if isinstance(options, Mapping):
        return tuple((str(name), str(value)) for name, value in options.items())
    return tuple(("", value) for value in _texts(options))


def _mean(reviews: tuple[Review, ...]) -> str:
    return f"{sum(review.score for review in reviews) / len(reviews):.1f}"
