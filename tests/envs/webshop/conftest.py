"""Three products in the published format, and what must not reach the shop."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

SHIRT = {
    "asin": "B000000001",
    "name": "Acme Cotton Shirt",
    "category": "fashion",
    "query": " Men's Shirts ",
    "product_category": "Clothing › Men › Shirts",
    "full_description": "A soft shirt\nof one piece.",
    "small_description": ["Machine Wash", "Two pockets"],
    "pricing": "$19.99",
    "customization_options": {
        "Color": [{"value": " Red/White ", "image": None}, {"value": "Navy", "image": "n.jpg"}],
        "Size": [{"value": "Large"}],
        "Style": None,
    },
    "images": ["a.jpg"],
}
RANGE = {
    "asin": "B000000002",
    "name": "Bolt Linen Shirt",
    "category": "fashion",
    "query": "men's shirts",
    "product_category": "Clothing › Men › Shirts",
    "full_description": "Cool.",
    "small_description": "One text",
    "pricing": "$10.00$30.00",
    "customization_options": {},
    "images": ["b.jpg"],
}
LAMP = {
    "asin": "B000000003",
    "name": "Crux Desk Lamp",
    "category": "garden",
    "query": "lamps",
    "product_category": "Home › Light › Lamps",
    "full_description": None,
    "small_description": [],
    "pricing": "",
    "customization_options": None,
    "images": ["c.jpg"],
}
ITEMS = [SHIRT, RANGE, SHIRT | {"name": "Seen before"}, LAMP, LAMP | {"asin": "nan"},
         LAMP | {"asin": "B0000000004"}]  # fmt: skip
ATTRIBUTES = {
    "B000000001": {
        "attributes": ["cotton", "machine wash"],
        "instruction": "Find me cotton men's shirts",
        "instruction_attributes": ["cotton"],
    },
    "B000000002": {"attributes": ["linen"], "instruction": None, "instruction_attributes": None},
}
HUMAN = {
    "B000000001": [
        {"instruction": "i want a red shirt for the machine.",
         "instruction_attributes": ["machine wash"], "instruction_options": ["red"]},
        {"instruction": "anything", "instruction_attributes": [], "instruction_options": []},
    ],
    "B000000003": [
        {"instruction": "a lamp for my desk", "instruction_attributes": ["desk"],
         "instruction_options": {"color": "white"}},
    ],
}  # fmt: skip


@pytest.fixture
def items() -> list[dict[str, Any]]:
    return copy.deepcopy(ITEMS)


@pytest.fixture
def attributes() -> dict[str, Any]:
    return copy.deepcopy(ATTRIBUTES)


@pytest.fixture
def human() -> dict[str, Any]:
    return copy.deepcopy(HUMAN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The published files without those of people."""
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(ATTRIBUTES), encoding="utf-8")
    return tmp_path
