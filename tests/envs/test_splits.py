"""No puzzle in two splits, in this process or another, whatever the seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

import gymnasium
import pytest

import envs
from envs.frozenlake import FrozenLake, _lake_from_rows
from envs.splits import SHARES, SPLITS, draw_seeds, fraction, split_of


def make_lake() -> gymnasium.Env[str, str]:
    return envs.make("frozenlake")


def make_bandit() -> gymnasium.Env[str, str]:
    return envs.make("bandit")


def keys_of(seeds: list[int]) -> set[str]:
    env, keys = make_lake(), set()
    for seed in seeds:
        env.reset(seed=seed)
        keys.add(env.unwrapped.state_key())
    return keys


def test_splits_of_40000_seeds_share_no_puzzle_and_have_their_shares() -> None:
    env = make_lake()
    keys: dict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for seed in range(40_000):
        env.reset(seed=seed)
        split = split_of(env.unwrapped.puzzle_hash())
        keys[split].add(env.unwrapped.state_key())
        counts[split] += 1
    assert set(keys) == {"sft", "train", "validation", "test"}
    num_different = len(set().union(*keys.values()))
    assert sum(map(len, keys.values())) == num_different
    assert num_different < 39_000, "seeds repeat puzzles, or this test shows nothing"
    shares = {split: counts[split] / 40_000 for split in SPLITS}
    assert shares == pytest.approx(
        {"sft": 0.25, "train": 0.55, "validation": 0.1, "test": 0.1}, abs=0.01
    )


TRAINING_SEEDS = {"frozenlake": 40_000, "frozenlake_6x6": 8_000, "sokoban": 10_000}
"""Fewer where a puzzle takes long to make; 40,000 are 1,250 PPO steps of 32 puzzles."""


@pytest.mark.parametrize("env_id", TRAINING_SEEDS)
def test_training_meets_no_puzzle_of_validation_or_test(env_id: str) -> None:
    """Of its own seeds, that is: most 4x4 lakes and small rooms are drawn again and again, and a
    trainer that took seeds as they come would meet the very same puzzles."""
    env = envs.make(env_id)
    seen: dict[str, set[str]] = defaultdict(set)
    for seed in range(1_000_000, 1_000_000 + TRAINING_SEEDS[env_id]):
        env.reset(seed=seed)
        seen[split_of(env.unwrapped.puzzle_hash())].add(env.unwrapped.state_key())
    trained = seen["train"] | seen["sft"]
    for split in ("validation", "test"):
        held_out = draw_seeds(lambda: envs.make(env_id), split, 128, 2_000_000, distinct=True)
        keys = set()
        for seed in held_out:
            env.reset(seed=seed)
            keys.add(env.unwrapped.state_key())
        assert len(keys) == 128
        assert not keys & trained
        assert keys & seen[split] or env_id == "frozenlake_6x6", "no puzzle comes twice"


def test_splits_are_the_same_in_every_process() -> None:
    code = (
        "import envs; from envs.splits import SPLITS, draw_seeds\n"
        "print([draw_seeds(lambda: envs.make(each), split, 20, 7)"
        " for each in ('frozenlake', 'bandit') for split in SPLITS])"
    )
    said = set()
    for hash_seed in ("0", "1", "31337"):
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
            text=True,
        )
        said.add(result.stdout)
    (output,) = said
    makers = (make_lake, make_bandit)
    expected = [draw_seeds(make, split, 20, 7) for make in makers for split in SPLITS]
    assert output == f"{expected}\n"


class TwoMaps(FrozenLake):
    """Two puzzles; the slips are new with each seed."""

    few_puzzles = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._fixed = _lake_from_rows(["P_", "OG"] if (seed or 0) % 2 else ["PO", "_G"])
        return super().reset(seed=seed)


@pytest.mark.parametrize("make", [TwoMaps, make_bandit])
def test_where_states_are_few_the_splits_share_them_and_divide_seeds(make: Any) -> None:
    drawn = {split: draw_seeds(make, split, 200, 0, distinct=True) for split in SPLITS}
    assert sum(map(len, drawn.values())) == len(set().union(*drawn.values())) == 800
    env = make()
    for split, seeds in drawn.items():
        assert seeds == draw_seeds(make, split, 200, 0)
        keys, hashes = set(), set()
        for seed in seeds:
            env.reset(seed=seed)
            keys.add(env.unwrapped.state_key())
            hashes.add(env.unwrapped.puzzle_hash())
        assert (len(keys), len(hashes)) == (2, 200)
        assert {split_of(each) for each in hashes} == {split}


def test_few_states_or_many_the_splits_have_their_shares() -> None:
    """Of 8000 seeds; a share's standard deviation is 0.0056 at most."""
    env = make_bandit()
    counts: Counter[str] = Counter()
    for seed in range(8000):
        env.reset(seed=seed)
        counts[split_of(env.unwrapped.puzzle_hash())] += 1
    shares = {split: counts[split] / 8000 for split in SPLITS}
    assert shares == pytest.approx(SHARES, abs=0.0225)


def test_drawn_seeds_are_of_their_split_from_any_base_seed() -> None:
    bases = {"sft": 0, "train": 1_000_000, "validation": 0, "test": 2_000_000}
    keys = [keys_of(draw_seeds(make_lake, split, 300, base)) for split, base in bases.items()]
    assert len(set().union(*keys)) == sum(map(len, keys))


EXPECTED_SPLITS = {
    "sft": "248",
    "train": "3579abde",
    "validation": "1c",
    "test": "06f",
}


def test_the_split_of_a_hash_is_written_down() -> None:
    """Fixed for ever: another rule would put old training puzzles into new tests."""
    for split, digits in EXPECTED_SPLITS.items():
        assert {split_of(digit * 16) for digit in digits} <= {split}


def test_shares_are_a_whole() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert SPLITS == ("sft", "train", "validation", "test")


def test_salts_give_independent_fractions() -> None:
    """Half of the puzzles of one half are in the other half, too."""
    hashes = [f"{number:016x}" for number in range(20_000)]
    both = [(fraction(h, "split") < 0.5, fraction(h, "validation") < 0.5) for h in hashes]
    for quarter in ((True, True), (True, False), (False, True), (False, False)):
        assert both.count(quarter) / 20_000 == pytest.approx(0.25, abs=0.015)


def test_seeds_come_in_order_and_go_on_where_they_stopped() -> None:
    whole = draw_seeds(make_lake, "train", 60, 500)
    assert whole == sorted(set(whole)) and whole[0] >= 500
    first = draw_seeds(make_lake, "train", 25, 500)
    assert first + draw_seeds(make_lake, "train", 35, first[-1] + 1) == whole


def test_distinct_leaves_out_repeated_puzzles() -> None:
    def make() -> gymnasium.Env[str, str]:
        return envs.make("frozenlake", size=2)

    repeated = draw_seeds(make, "train", 200, 0)
    env, hashes = make(), []
    for seed in repeated:
        env.reset(seed=seed)
        hashes.append(env.unwrapped.puzzle_hash())
    distinct = draw_seeds(make, "train", len(set(hashes)), 0, distinct=True)
    first_of = {puzzle: seed for seed, puzzle in reversed(list(zip(repeated, hashes, strict=True)))}
    assert distinct == sorted(first_of.values())
    assert len(distinct) < len(repeated)


def test_too_few_puzzles_are_told_from_enough() -> None:
    def make() -> gymnasium.Env[str, str]:
        return envs.make("frozenlake", map=["P_", "_G"])

    env = make()
    env.reset(seed=0)
    owner = split_of(env.unwrapped.puzzle_hash())
    assert draw_seeds(make, owner, 3, 7) == [7, 8, 9]
    with pytest.raises(
        envs.EnvironmentConfigError, match=r"1 of 2 .* fixed map is one.* starts may"
    ):
        draw_seeds(make, owner, 2, 7, distinct=True)
    with pytest.raises(envs.EnvironmentConfigError, match="found 0 of 1"):
        draw_seeds(make, next(split for split in SPLITS if split != owner), 1, 7)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'test'"):
        draw_seeds(make_lake, "tests", 1, 0)
