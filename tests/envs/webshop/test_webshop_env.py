from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs import EnvironmentConfigError
from envs.solvers import Bounds, Budget
from envs.testing import check_text_env
from envs.webshop import WebShop

pytest.importorskip("bm25s", reason="needs the extra webshop")

ROOT = Path(__file__).parents[3]


def test_it_keeps_the_promises_of_a_text_env():
    check_text_env("webshop")


def test_published_files_keep_them_too(folder, human):
    check_text_env(lambda: envs.make("webshop", data=str(folder)))
    (folder / "items_human_ins.json").write_text(json.dumps(human))
    check_text_env(lambda: envs.make("webshop", data=str(folder), goal_split="test"), seeds=[0, 1])


def play(env, *actions):
    results = [env.step(action) for action in actions]
    return [(reward, ended, info["success"]) for _, reward, ended, _, info in results]


def seed_of(env, part: str) -> int:
    return next(seed for seed in range(100) if part in env.reset(seed=seed)[0])


def test_a_purchase_by_hand(folder):
    """Asked for: cotton, color navy, size large, a price: four parts."""
    env = WebShop(data=str(folder))
    seed = seed_of(env, "color: navy")
    open_shirt = ("search[shirt]", "click[B000000001]")
    env.reset(seed=seed)
    assert play(env, *open_shirt, "click[navy]", "click[large]", "click[Buy Now]") == [
        (0.0, False, False), (0.0, False, False), (0.0, False, False), (0.0, False, False),
        (1.0, True, True),
    ]  # fmt: skip
    assert env.describe().endswith("Your score (0 to 1): 1")
    env.reset(seed=seed)
    assert play(env, *open_shirt, "click[navy]", "click[Buy Now]")[-1] == (0.75, True, False)
    env.reset(seed=seed)
    assert play(env, *open_shirt, "click[Buy Now]")[-1] == (0.5, True, False)


def test_after_the_end_nothing_changes(folder):
    env = WebShop(data=str(folder))
    env.reset(seed=0)
    play(env, "search[shirt]", "click[B000000001]", "click[Buy Now]")
    before = env.describe()
    for action in ("click[Buy Now]", "search[shirt]", env.oracle()):
        text, reward, ended, _, info = env.step(action)
        assert (text, reward, ended, info["action_is_valid"]) == (before, 0.0, True, False)


def test_a_choice_that_stands_already_is_valid_and_changes_nothing(folder):
    env = WebShop(data=str(folder))
    env.reset(seed=0)
    play(env, "search[shirt]", "click[B000000001]", "click[navy]")
    *_, info = env.step("click[navy]")
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}


def test_the_instruction_is_the_puzzle(folder):
    env = WebShop(data=str(folder))
    text, _ = env.reset(seed=0)
    assert text.startswith("Instruction: Find me cotton men's shirts with color: ")
    assert env.state_key() == "webshop\n" + text.split("\n")[0].removeprefix("Instruction: ")


def test_goals_are_drawn_by_weight(folder, items, attributes):
    """One goal for linen has weight 1, two for cotton 1/2 each: half of the draws."""
    attributes["B000000002"] |= {"instruction": "linen", "instruction_attributes": ["linen"]}
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    env = WebShop(data=str(folder))
    draws = ["linen" in env.reset(seed=seed)[0] for seed in range(400)]
    assert 160 < sum(draws) < 240


def test_files_are_read_once_and_again_when_they_change(folder, items):
    first, second = WebShop(data=str(folder)), WebShop(data=str(folder))
    assert first._shop is second._shop
    path = folder / "items_shuffle_1000.json"
    path.write_text(json.dumps(items[:1]))
    os.utime(path, ns=(1, 1))
    assert len(WebShop(data=str(folder))._shop.products) == 1
    assert len(first._shop.products) == 3


def test_a_price_changes_the_datas_digest_and_no_puzzle(folder, items):
    hashes, digests = [], []
    for time, price in enumerate(("$20.00", "$20.00", "$20.01")):
        for item in items:
            item["pricing"] = price
        path = folder / "items_shuffle_1000.json"
        path.write_text(json.dumps(items))
        os.utime(path, ns=(time, time))
        env = WebShop(data=str(folder))
        hashes.append(env.reset(seed=0) and env.puzzle_hash())
        digests.append(env.data_digest())
    assert hashes[0] == hashes[1] == hashes[2]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("data", [3, True, "", ["x"]])
def test_data_that_is_no_folder(data):
    with pytest.raises(EnvironmentConfigError, match=r"data is .*must be the path of a folder"):
        envs.make("webshop", data=data)


@pytest.mark.parametrize("split", ["tests", None, 3])
def test_splits_that_arent_there(split):
    with pytest.raises(EnvironmentConfigError, match=r"unknown goal split.*all, dev, test, train"):
        envs.make("webshop", goal_split=split)


def test_splits_share_no_goal():
    games = {split: WebShop(goal_split=split) for split in ("test", "dev", "train")}
    drawn = {
        split: {game.reset(seed=seed)[0] for seed in range(300)} for split, game in games.items()
    }
    assert not drawn["test"] & drawn["dev"]
    assert min(map(len, drawn.values())) > 150


def test_an_unknown_state_format():
    env = WebShop()
    env.reset(seed=0)
    for call in (env.describe, lambda name: env.possible_next([], name)):
        with pytest.raises(EnvironmentConfigError, match="unknown state format 'html'"):
            call("html")


def test_possible_next_is_what_happens():
    env = WebShop()
    env.reset(seed=5)
    actions = [env.oracle(), "nonsense", "click[Next >]", "click[< Prev]"]
    (told,) = env.possible_next(actions)
    for action in actions:
        env.step(action)
    assert env.describe() == told


@given(st.text(max_size=300) | st.text(max_size=30).map(lambda text: f"click[{text}]"))
def test_a_text_that_is_no_action_changes_nothing(action):
    env = game()
    env.reset(seed=3)
    env.step("search[boots]")
    before = env.describe()
    text, reward, ended, _, info = env.step(action)
    if not info["action_is_valid"]:
        assert (text, reward, ended, info["action_is_effective"]) == (before, 0.0, False, False)
    assert reward == 0.0


@cache
def game() -> WebShop:
    return WebShop()


@pytest.mark.parametrize(
    "action", ["search[" + "x" * 100_000 + "]", "search[" + "a. " * 33_000 + "]", "[" * 100_000]
)
def test_long_texts_are_cut_or_ignored(action):
    game().reset(seed=0)
    text, *_ = game().step(action)
    assert len(text) < 1500


@pytest.mark.parametrize("seed", range(40))
def test_the_oracle_scores_one_within_the_published_nine_turns(seed):
    game().reset(seed=seed)
    assert game().success_bounds(Budget(9, 9, 1)) == Bounds(None, 1.0)
    for left in range(9, 0, -1):
        _, reward, ended, _, _ = game().step(game().oracle(left))
        if ended:
            break
    assert (reward, ended) == (1.0, True)


def test_no_ceiling_where_the_oracle_runs_out_of_turns():
    """Search, open and buy are three at least, and a second option makes five."""
    game().reset(seed=0)
    assert game().success_bounds(Budget(2)) == Bounds(None, None)
    assert game().success_bounds(Budget(10, 2, 1)) == Bounds(None, None)


def test_no_ceiling_where_the_product_falls_short(folder, attributes):
    """The shop asks for what its product hasn't got."""
    attributes["B000000001"]["instruction_attributes"] = ["waterproof"]
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    env = WebShop(data=str(folder))
    env.reset(seed=0)
    assert env.success_bounds(Budget(9)) == Bounds(None, None)
    assert env.oracle_is_optimal is False


def test_random_play_is_possible_and_covers_the_page():
    rng = np.random.default_rng(0)
    game().reset(seed=1)
    said = game().describe().split("\n")[0].lower()
    for _ in range(50):
        action = game().sample_action(rng)
        assert action.startswith("search[")
        assert all(word in said for word in action[7:-1].split())
    game().step("search[boots]")
    drawn = {game().sample_action(rng) for _ in range(400)}
    # 50 results: two buttons on the first page, and ten products.
    assert len(drawn) == 12
    assert {"click[Back to Search]", "click[Next >]"} < drawn


def test_same_episodes_whatever_the_hash_seed():
    program = (
        "import envs, numpy as np\n"
        "env = envs.make('webshop').unwrapped\n"
        "rng = np.random.default_rng(0)\n"
        "for seed in range(5):\n"
        "    print(env.reset(seed=seed)[0], env.puzzle_hash())\n"
        "    for _ in range(9):\n"
        "        print(env.step(env.sample_action(rng)))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 5000


def test_importing_the_game_needs_no_search_engine():
    program = "import sys, envs.webshop; print(sorted({'bm25s', 'spacy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"
