"""Bandit: texts and chances by hand."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.bandit import Bandit
from envs.base import STATE_FORMATS
from envs.solvers import Bounds, Budget, HasBounds
from envs.testing import check_text_env
from tests.envs.processes import said_in_every_process

FIRST_PHOENIX, FIRST_DRAGON = (
    "The arms are Phoenix and Dragon.",
    "The arms are Dragon and Phoenix.",
)


def reset_game(arms: str = "train", seed: int = 0) -> Bandit:
    game = Bandit(arms)
    game.reset(seed=seed)
    return game


def seed_with(start: str) -> int:
    """The first seed whose state opens so."""
    return next(seed for seed in range(50) if reset_game(seed=seed).describe().startswith(start))


@pytest.mark.parametrize("env_id", ["bandit", "bandit_test"])
def test_every_id_keeps_the_promises_of_an_environment(env_id: str) -> None:
    check_text_env(env_id)


def test_the_ids_differ_in_names_only() -> None:
    names = {}
    for env_id in ("bandit", "bandit_test"):
        game = envs.make(env_id).unwrapped
        assert isinstance(game, Bandit) and game.few_puzzles
        game.reset(seed=0)
        names[env_id] = (game.action_names, game.oracle())
    assert names == {
        "bandit": (("Phoenix", "Dragon"), "Dragon"),
        "bandit_test": (("Librarian", "Trader"), "Librarian"),
    }
    assert Bandit.sheet is not None and set(Bandit.sheet.variants) == set(names)


def test_the_state_before_and_after_the_low_arm() -> None:
    game = reset_game(seed=seed_with(FIRST_PHOENIX))
    assert game.describe() == f"{FIRST_PHOENIX} None has been pulled."
    text, reward, terminated, truncated, info = game.step("Phoenix")
    assert text == f"{FIRST_PHOENIX} Phoenix was pulled and paid 0.1."
    assert (reward, terminated, truncated) == (0.1, True, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
    assert game.render() == text


def test_the_high_arm_succeeds_whatever_it_pays() -> None:
    start = {0.0: "Dragon was pulled and paid 0.0.", 1.0: "Dragon was pulled and paid 1.0."}
    paid: Counter[float] = Counter()
    game = Bandit()
    game.reset(seed=0)
    for _ in range(8000):
        before, _ = game.reset()
        text, reward, terminated, _, info = game.step("dragon")
        assert terminated and info["success"]
        assert text == before.replace("None has been pulled.", start[reward])
        paid[reward] += 1
    assert set(paid) == {0.0, 1.0}
    assert paid[1.0] / 8000 == pytest.approx(0.25, abs=0.02)


def test_a_second_pull_pays_and_changes_nothing() -> None:
    for first, second in (("Phoenix", "Dragon"), ("Dragon", "Dragon"), ("Dragon", "Phoenix")):
        game = reset_game()
        after, *_, before_info = game.step(first)
        stream = game.np_random.bit_generator.state
        text, reward, terminated, _, info = game.step(second)
        assert (text, reward, terminated) == (after, 0.0, True)
        assert info["success"] == before_info["success"] == (first == "Dragon")
        assert info["action_is_valid"] and not info["action_is_effective"]
        assert game.possible_next([second]) == {after: 1.0}
        assert game.np_random.bit_generator.state == stream


def test_what_may_happen_is_a_true_distribution() -> None:
    game = reset_game(seed=seed_with(FIRST_DRAGON))
    low = {f"{FIRST_DRAGON} Phoenix was pulled and paid 0.1.": 1.0}
    high = {
        f"{FIRST_DRAGON} Dragon was pulled and paid 1.0.": 0.25,
        f"{FIRST_DRAGON} Dragon was pulled and paid 0.0.": 0.75,
    }
    none = {f"{FIRST_DRAGON} None has been pulled.": 1.0}
    for state_format in STATE_FORMATS:
        assert game.possible_next(["Phoenix"], state_format) == low
        assert game.possible_next(["Dragon"], state_format) == high
        assert game.possible_next(["neither", "Dragon", "Phoenix"], state_format) == high
        assert game.possible_next(["Trader"], state_format) == none
        assert game.possible_next([], state_format) == none
        assert {game.describe(state_format): 1.0} == none
    for call in (game.describe, lambda name: game.possible_next([], name)):
        with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'grid'"):
            call("gird")


def test_the_order_is_drawn_evenly_and_is_the_puzzle() -> None:
    game = Bandit()
    keys: Counter[str] = Counter()
    for seed in range(2000):
        game.reset(seed=seed)
        key = game.state_key()
        game.step("Dragon")
        assert game.state_key() == key
        keys[key] += 1
    assert set(keys) == {f"bandit\n{FIRST_PHOENIX}", f"bandit\n{FIRST_DRAGON}"}
    assert keys[f"bandit\n{FIRST_PHOENIX}"] / 2000 == pytest.approx(0.5, abs=0.05)


HASHES = {
    "The arms are Phoenix and Dragon.\nseed 3": "89cb3e61b6cab780",
    "The arms are Phoenix and Dragon.\nseed 3, reset 1": "8911f1175f2c772e",
    "The arms are Dragon and Phoenix.\nseed 3, reset 2": "11dd243643cb81a4",
}
"""By `printf 'bandit\\n<text>' | sha256sum`."""


def hashes_after(*seeds: int | None) -> list[str]:
    """Of one game, reset with these seeds one after the other."""
    game, found = Bandit(), []
    for seed in seeds:
        game.reset(seed=seed)
        found.append(game.puzzle_hash())
    return found


def test_the_hash_of_a_puzzle_holds_the_seed_and_the_resets_after_it() -> None:
    first, second, third = HASHES.values()
    assert hashes_after(3, None, None, 3, None) == [first, second, third, first, second]


def test_neither_play_nor_another_generator_changes_the_hash() -> None:
    game = reset_game(seed=3)
    game.step("Dragon")
    game.np_random = np.random.default_rng(8)
    assert game.puzzle_hash() == "89cb3e61b6cab780"


def test_games_that_were_never_seeded_are_different_puzzles() -> None:
    assert len({*hashes_after(None, None, None), *hashes_after(None, None, None)}) == 6


def test_a_habit_of_the_second_name_wins_train_and_loses_test() -> None:
    shares = {}
    for arms in ("train", "test"):
        game = reset_game(arms)
        assert game.action_names is not None
        shares[arms] = game.step(game.action_names[1])[4]["success"]
    assert shares == {"train": True, "test": False}


def test_bounds_are_what_play_reaches() -> None:
    game, choose = Bandit("test"), np.random.default_rng(0)
    assert isinstance(game, HasBounds)
    game.reset(seed=0)
    assert game.success_bounds(Budget(1, 1, 1)) == Bounds(0.5, 1.0)
    random_wins = oracle_wins = 0
    for _ in range(4000):
        game.reset()
        random_wins += game.step(game.sample_action(choose))[4]["success"]
        game.reset()
        oracle_wins += game.step(game.oracle())[4]["success"]
    assert random_wins / 4000 == pytest.approx(0.5, abs=0.03)
    assert oracle_wins == 4000


@given(st.one_of(st.text(max_size=40), st.builds(lambda n: "Dragon" * n, st.integers(2, 16_000))))
def test_other_texts_leave_the_pull_unused(text: str) -> None:
    game = reset_game()
    before = game.describe()
    after, reward, terminated, truncated, info = game.step(text)
    assert (after, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert game.step(" PHOENIX\n")[1:3] == (0.1, True)


def test_seeds_give_the_same_episodes_in_every_process() -> None:
    code = (
        "import envs, json; env = envs.make('bandit'); out = []\n"
        "for seed in range(12):\n"
        "    text, _ = env.reset(seed=seed)\n"
        "    out.append([text, env.step('Dragon')[0], env.unwrapped.puzzle_hash()])\n"
        "print(json.dumps(out))"
    )
    output = said_in_every_process(code)
    episodes = json.loads(output)
    assert len({before for before, _, _ in episodes}) == 2
    assert len({after for _, after, _ in episodes}) == 4
    assert len({puzzle for _, _, puzzle in episodes}) == 12
    assert episodes[3][2] == HASHES["The arms are Phoenix and Dragon.\nseed 3"]


@pytest.mark.parametrize("arms", ["tests", "", None, 1, True, ["train"]])
def test_unknown_arms_are_refused(arms: object) -> None:
    with pytest.raises(
        envs.EnvironmentConfigError, match=r"bandit: unknown arms .*Known: test, train"
    ):
        Bandit(arms)  # type: ignore[arg-type]


def test_the_rules_name_no_arm_and_no_number() -> None:
    assert Bandit.instruction == (
        "You stand before two arms of a gambling machine and may pull one of them, once.\n"
        "Each arm pays in its own way, and its name hints at how. Pull the one that you expect to "
        "pay more on average.\n"
        "An action is the name of an arm. The game ends with your pull."
    )
