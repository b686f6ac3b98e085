"""A puzzle from memory is the one that would have been drawn, and so is what is drawn after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import envs
from envs import drawn as module
from envs.drawn import drawn, forget


@pytest.fixture(autouse=True)
def nothing_drawn() -> Iterator[None]:
    forget()
    yield
    forget()


def test_a_stream_draws_once_and_goes_on_as_if_it_had_drawn_again() -> None:
    calls = []

    def puzzle(rng: np.random.Generator) -> int:
        calls.append(1)
        return int(rng.integers(1000))

    found = []
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        found.append((drawn(rng, "a game", lambda rng=rng: puzzle(rng)), rng.random()))
    assert found[0] == found[1] != found[2] and len(calls) == 2
    rng = np.random.default_rng(1)
    assert found[0] == (int(rng.integers(1000)), rng.random())


def test_what_else_a_puzzle_depends_on_tells_it_apart() -> None:
    sizes = [drawn(np.random.default_rng(1), ("a game", size), lambda size=size: size)
             for size in (4, 5, 4)]  # fmt: skip
    assert sizes == [4, 5, 4]


def test_the_oldest_puzzle_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DRAWN", 2)
    calls = []
    for seed in (1, 2, 3, 3, 2, 1):
        drawn(np.random.default_rng(seed), "a game", lambda seed=seed: calls.append(seed))
    assert calls == [1, 2, 3, 1]


@pytest.mark.parametrize("env_id", ["sokoban", "sokoban_2boxes", "sudoku", "sudoku_9x9"])
def test_games_are_the_same_drawn_and_from_memory(env_id: str) -> None:
    def start(seed: int) -> tuple[str, float]:
        game = envs.make(env_id).unwrapped
        game.reset(seed=seed)
        return game.state_key(), float(game.np_random.random())

    first = [start(seed) for seed in range(4)]
    assert [start(seed) for seed in range(4)] == first
    forget()
    assert [start(seed) for seed in range(4)] == first
    assert len({key for key, _ in first}) == 4


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"size": 7},
    {"num_boxes": 2},
    {"reverse_play": "ragen"},
    {"search_depth": 20},
    {"max_moves": 3},
    {"min_moves": 6},
]


def test_rooms_of_other_arguments_are_other_rooms() -> None:
    def keys(arguments: dict[str, Any]) -> list[str]:
        game = envs.make("sokoban", **arguments).unwrapped
        found = []
        for seed in range(20):
            game.reset(seed=seed)
            found.append(game.state_key())
        return found

    remembered = [keys(arguments) for arguments in ARGUMENTS]
    assert len(set(map(tuple, remembered))) == len(ARGUMENTS)
    for arguments, rooms in zip(ARGUMENTS, remembered, strict=True):
        forget()
        assert keys(arguments) == rooms
