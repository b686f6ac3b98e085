"""Which puzzle belongs to whom: self-play, PPO, validation and test never share one.

Seeds don't separate puzzles: different seeds often draw the same small map, and with disjoint seed
ranges most of the validation puzzles turn up in training. So the puzzle's own hash decides, in
every process and for every budget alike.

In a world of a handful of initial states (a bandit with two orders of its arms) a split would own
all of it or nothing. There `TextEnv.few_puzzles` makes the seed a part of the hash: the splits
share those states and differ in the luck alone, and a test measures whether the model plays well,
not whether it has understood puzzles that it never saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count as count_from
from itertools import islice
from typing import Any

import gymnasium

from envs.base import TextEnv
from envs.errors import EnvironmentConfigError, unknown_name

SHARES = {"sft": 0.25, "train": 0.55, "validation": 0.10, "test": 0.10}
"""Share of all puzzles. PPO sees the most fresh puzzles; 128 for a test are found anywhere."""
SPLITS = tuple(SHARES)

_PATIENCE = 20_000
"""Seeds in a row without a find after which a split counts as exhausted."""


def fraction(puzzle_hash: str, salt: str) -> float:
    """A number in [0, 1) fixed by the puzzle; different salts give independent numbers."""
    digest = hashlib.sha256(f"{salt}:{puzzle_hash}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(puzzle_hash: str) -> str:
    """The split that owns a puzzle."""
    left = fraction(puzzle_hash, "split")
    for split, share in SHARES.items():
        left -= share
        if left < 0.0:
            return split
    return SPLITS[-1]


def draw_seeds(
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    split: str,
    count: int,
    base_seed: int,
    *,
    distinct: bool = False,
) -> list[int]:
    """The first `count` seeds from `base_seed` on whose puzzle is in the split.

    `distinct` leaves out seeds that draw a puzzle a second time, as a fair test wants. To go on
    where an earlier call stopped, start from its last seed + 1. Raises `EnvironmentConfigError`
    for an unknown split and where the environment has too few puzzles.
    """
    if split not in SPLITS:
        raise EnvironmentConfigError(unknown_name("split", split, SPLITS))
    with closing(make_env()) as env:
        game = env.unwrapped
        assert isinstance(game, TextEnv), game
        seeds = list(islice(_matching_seeds(env, game, split, base_seed, distinct), count))
    if len(seeds) < count:
        raise EnvironmentConfigError(
            f"{type(game).__name__} has too few puzzles: found {len(seeds)} of {count} for the "
            f"split {split!r} from seed {base_seed} on, then none in {_PATIENCE} seeds. "
            "Ask for fewer puzzles, make the world larger (a fixed map is one puzzle only), or set "
            "few_puzzles = True in its class, where each seed is to be a puzzle of its own (test "
            "starts may then be those of training)."
        )
    return seeds


def _matching_seeds(
    env: gymnasium.Env[Any, Any], game: TextEnv, split: str, base_seed: int, distinct: bool
) -> Iterator[int]:
    drawn: set[str] = set()
    last_find = base_seed
    for seed in count_from(base_seed):
        if seed - last_find > _PATIENCE:
            return
        env.reset(seed=seed)
        puzzle = game.puzzle_hash()
        if puzzle in drawn or split_of(puzzle) != split:
            continue
        if distinct:
            drawn.add(puzzle)
        last_find = seed
        yield seed
