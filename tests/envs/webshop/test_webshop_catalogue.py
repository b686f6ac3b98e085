from __future__ import annotations

import hashlib
import json
import re
from collections import Counter

import pytest

from envs import EnvironmentConfigError
from envs.webshop import synthetic
from envs.webshop.catalogue import Instruction, Review, parse, read_published
from envs.webshop.goals import make_goals, select
from envs.webshop.reward import COLOURS, score


def test_published_products(folder):
    shirt, ranged, lamp = read_published(folder)
    assert shirt.asin == "B000000001"
    assert shirt.title == "Acme Cotton Shirt"
    assert shirt.query == "men's shirts"
    assert shirt.options == (("color", ("red | white", "navy")), ("size", ("large",)))
    assert (shirt.price, shirt.price_tag) == (19.99, "$19.99")
    assert shirt.attributes == ("cotton", "machine wash")
    assert shirt.instructions == (Instruction("Find me cotton men's shirts", ("cotton",), None),)
    assert (shirt.rating, shirt.reviews) == ("N.A.", ())
    assert 10.0 <= ranged.price <= 30.0
    assert (ranged.price_tag, ranged.features) == ("$10.0 to $30.0", ("One text",))
    assert ranged.instructions == ()
    assert (lamp.price, lamp.price_tag) == (100.0, "$100.0")
    assert (lamp.description, lamp.features, lamp.options, lamp.attributes) == ("", (), (), ())


def test_instructions_of_people_go_before_made_up_ones(folder, human):
    (folder / "items_human_ins.json").write_text(json.dumps(human))
    shirt, ranged, lamp = read_published(folder)
    text = "i want a red shirt for the machine"
    assert shirt.instructions == (Instruction(text, ("machine wash",), (("", "red"),)),)
    assert ranged.instructions == ()
    wanted = (("color", "white"),)
    assert lamp.instructions == (Instruction("a lamp for my desk", ("desk",), wanted),)


def test_the_thousand_come_before_the_full_files(folder, items):
    (folder / "items_shuffle.json").write_text(json.dumps(items[3:4]))
    assert len(read_published(folder)) == 3
    (folder / "items_shuffle_1000.json").unlink()
    assert [product.asin for product in read_published(folder)] == ["B000000003"]


def test_a_price_of_a_range_is_the_products_own(items, attributes):
    alone = parse([items[1]], attributes)[0].price
    assert parse(items, attributes)[1].price == alone
    assert parse([items[1] | {"asin": "B000000009"}], attributes)[0].price != alone


def test_reviews_make_the_rating(items, attributes):
    told = (Review("Good", 5, "Yes."), Review("Bad", 2, "No."))
    shirt, ranged, _ = parse(items, attributes, reviews={"B000000001": told})
    assert (shirt.rating, shirt.reviews) == ("3.5", told)
    assert ranged.rating == "N.A."


def error_of(folder) -> str:
    with pytest.raises(EnvironmentConfigError) as caught:
        read_published(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_that_isnt_there(tmp_path):
    message = error_of(tmp_path / "nowhere")
    assert "nowhere', which is no folder" in message
    assert "items_shuffle_1000.json or items_shuffle.json" in message


def test_a_missing_file(folder):
    (folder / "items_ins_v2_1000.json").unlink()
    message = error_of(folder)
    assert "holds items_shuffle_1000.json;" in message
    assert "items_ins_v2_1000.json or items_ins_v2.json" in message


def test_an_empty_folder(tmp_path):
    assert "which holds nothing; it must be" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "seen", "needed"),
    [
        ("items_shuffle_1000.json", b"[{", "can't be read as JSON", "a list of products"),
        ("items_shuffle_1000.json", b"\xff", "can't be read as JSON", "a list of products"),
        ("items_shuffle_1000.json", b"{}", "holds a dict", "a list of products"),
        ("items_shuffle_1000.json", b"[]", "holds no product", "to sell"),
        ("items_shuffle_1000.json", b"[3]", "product 0", "is no object"),
        ("items_ins_v2_1000.json", b"[]", "holds a list", "product ids to attributes"),
        ("items_human_ins.json", b"nonsense", "can't be read as JSON", "to instructions"),
    ],
)
def test_files_that_hold_something_else(folder, name, content, seen, needed):
    (folder / name).write_bytes(content)
    message = error_of(folder)
    assert name in message
    assert seen in message
    assert needed in message


def test_missing_keys_are_all_named(folder, items):
    del items[1]["query"], items[1]["full_description"]
    (folder / "items_shuffle_1000.json").write_text(json.dumps(items))
    message = error_of(folder)
    assert "product 1 of" in message
    assert "items_shuffle_1000.json is without 'query', 'full_description';" in message
    assert "needs the keys asin, name, category" in message


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"pricing": "$1.2.3"}, "1.2.3"),
        ({"pricing": 5}, "'int' object"),
        ({"customization_options": {"size": [{"image": None}]}}, "KeyError: 'value'"),
        ({"customization_options": ["size"]}, "'list' object"),
    ],
)
def test_what_a_product_says_badly_names_the_product(folder, items, change, seen):
    items[3] |= change
    (folder / "items_shuffle_1000.json").write_text(json.dumps(items))
    message = error_of(folder)
    assert "product 3 (B000000003) of" in message
    assert seen in message


def test_what_is_said_of_a_product_badly_names_it_too(folder, attributes, human):
    del human["B000000001"][0]["instruction_options"]
    (folder / "items_human_ins.json").write_text(json.dumps(human))
    assert "product 0 (B000000001)" in error_of(folder)
    (folder / "items_human_ins.json").unlink()
    attributes["B000000001"]["attributes"] = "cotton"
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    assert "'cotton' is no list of texts" in error_of(folder)


def test_made_up_goals_ask_for_every_choice(items, attributes):
    products = parse(items, attributes)
    goals = make_goals(products)
    said = {goal.text.partition(", and price")[0]: goal for goal in goals}
    first = "Find me cotton men's shirts with color: red | white, and size: large"
    assert set(said) == {first, first.replace("red | white", "navy")}
    assert said[first].options == (("color", "red | white"), ("size", "large"))
    assert said[first].attributes == ("cotton",)
    assert said[first].product is products[0]
    # 19.99 is below 20, 30, 40, 50, and the larger of two is at least the second.
    assert said[first].price_upper in (30.0, 40.0, 50.0)
    assert goals[0].text.endswith(f", and price lower than {said[first].price_upper:.2f} dollars")
    # The one attribute is asked for by two goals.
    assert [goal.weight for goal in goals] == [0.5, 0.5]


def test_goals_of_people_weigh_the_same(items, attributes, human):
    goals = make_goals(parse(items, attributes, human))
    assert Counter(goal.product.asin for goal in goals) == {"B000000001": 1, "B000000003": 1}
    assert [goal.weight for goal in goals] == [1.0, 1.0]
    lamp = next(goal for goal in goals if goal.product.asin == "B000000003")
    assert lamp.price_upper in (120.0, 130.0, 140.0)


@pytest.mark.parametrize(
    ("price", "bounds"), [("$969.99", {980.0, 990.0}), ("$979.99", {990.0}), ("$980.00", {1e6})]
)
def test_dear_products_have_a_late_bound_or_none(items, attributes, price, bounds):
    """980 and 990 remain above 979.99, and the larger is 990; above 980 only one remains."""
    goals = make_goals(parse([items[0] | {"pricing": price}], attributes))
    assert {goal.price_upper for goal in goals} <= bounds
    assert ("price lower" in goals[0].text) == (bounds != {1e6})


def test_goals_are_shuffled_as_published(items, attributes):
    """random.seed(233) makes of abcdefgh what stands here."""
    options = {"letter": [{"value": letter} for letter in "ABCDEFGH"]}
    goals = make_goals(parse([items[0] | {"customization_options": options}], attributes))
    assert "".join(goal.options[0][1] for goal in goals) == "ghafdbec"


def test_splits_are_the_published_ones():
    goals = make_goals(synthetic.products())
    parts = {name: select(goals, name) for name in ("test", "dev", "train")}
    assert [len(part) for part in parts.values()] == [500, 1000, len(goals) - 1500]
    assert [*parts["test"], *parts["dev"], *parts["train"]] == list(select(goals, "all"))


def test_a_split_without_goals(items, attributes):
    goals = make_goals(parse(items, attributes))
    assert len(select(goals, "test")) == 2
    with pytest.raises(EnvironmentConfigError, match=r"'dev' is empty.* has 2 goals"):
        select(goals, "dev")


def test_the_made_up_catalogue_is_the_same_everywhere():
    text = json.dumps(synthetic.records(), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "07f20c0fbd7b9e199367f2d7dc062170202db863fc944ece7af715bf5819ae3a"


def test_the_made_up_catalogue_is_sound():
    products = synthetic.products()
    assert len(products) == 1000
    assert Counter(product.query for product in products) == dict.fromkeys(
        (kind.query for kind in synthetic.KINDS), synthetic.PER_KIND
    )
    assert len({product.title for product in products}) == 1000
    for product in products:
        assert re.fullmatch("B0[0-9A-Z]{8}", product.asin)
        assert 5.0 < product.price < 1400.0
        assert set(product.instructions[0].attributes) <= set(product.attributes)
        assert all(2 <= len(values) <= 3 for _, values in product.options)


def test_made_up_sizes_hold_no_colour_by_accident():
    """`standard` would be `tan`, and no choice could meet it."""
    for kind in synthetic.KINDS:
        for name, values in kind.options.items():
            for value in values:
                held = [colour for colour in COLOURS if colour in value]
                assert all(colour in re.split(r"[\s-]", value) for colour in held), (name, value)


def test_every_made_up_goal_can_be_met_by_its_product():
    for goal in make_goals(synthetic.products()):
        assert score(goal.product, [value for _, value in goal.options], goal) == 1.0, goal.text
