"""Floor and ceiling: by hand, against brute force on tiny lakes, and against known figures."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest

import envs
from envs import solvers
from envs.base import GRID_COORDS, TextEnv, TextSpace
from envs.frozenlake import ACTIONS, FrozenLake
from envs.solvers import best_success, floor_and_ceiling, random_success

Cell = tuple[int, int]
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))

TINY = (
    ["PG"],
    ["P_G"],
    ["P_", "OG"],
    ["P_O", "__G"],
    ["PO_", "__G"],
    ["_P_", "O_O", "_G_"],
    ["P__", "_OO", "__G"],
)


def world_of(rows: list[str], intended_prob: float) -> solvers.TabularWorld:
    game = FrozenLake(map=rows, intended_prob=intended_prob)
    game.reset(seed=0)
    return game.tabular_world()


class SlowLake:
    """Expectation and maximum written as recursions over cells, with no tables."""

    def __init__(self, rows: list[str], intended_prob: float) -> None:
        self.rows, self.intended_prob = rows, intended_prob
        height, width = len(rows), len(rows[0])
        cells = itertools.product(range(height), range(width))
        (self.start,) = [(r, c) for r, c in cells if rows[r][c] == "P"]

    def outcomes(self, cell: Cell, action: int) -> list[tuple[float, Cell]]:
        if self.rows[cell[0]][cell[1]] in "OG":
            return [(1.0, cell)]
        side = (1 - self.intended_prob) / 2
        turns = ((0, self.intended_prob), (1, side), (3, side))
        return [(chance, self.step(cell, (action + turn) % 4)) for turn, chance in turns]

    def step(self, cell: Cell, direction: int) -> Cell:
        row, column = cell[0] + STEPS[direction][0], cell[1] + STEPS[direction][1]
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        return (row, column) if inside else cell

    def won(self, cell: Cell) -> float:
        return float(self.rows[cell[0]][cell[1]] == "G")

    def seeing(self, actions: int) -> float:
        @cache
        def best(cell: Cell, left: int) -> float:
            if left == 0:
                return self.won(cell)
            return max(
                sum(chance * best(target, left - 1) for chance, target in self.outcomes(cell, a))
                for a in range(4)
            )

        return best(self.start, actions)

    def blind(self, actions: int, turns: int, per_turn: int) -> float:
        """Every sequence of every length, in every turn."""

        @cache
        def best(cell: Cell, left: int, turns_left: int) -> float:
            if turns_left == 0 or left == 0:
                return self.won(cell)
            lengths = range(1, min(per_turn, left) + 1)
            plans = (p for n in lengths for p in itertools.product(range(4), repeat=n))
            return max(follow(cell, plan, left - len(plan), turns_left - 1) for plan in plans)

        @cache
        def follow(cell: Cell, plan: tuple[int, ...], left: int, turns_left: int) -> float:
            if not plan:
                return best(cell, left, turns_left)
            return sum(
                chance * follow(target, plan[1:], left, turns_left)
                for chance, target in self.outcomes(cell, plan[0])
            )

        return best(self.start, actions, turns)

    def random(self, actions: int) -> float:
        @cache
        def mean(cell: Cell, left: int) -> float:
            if left == 0:
                return self.won(cell)
            return sum(
                chance * mean(target, left - 1) / 4
                for a in range(4)
                for chance, target in self.outcomes(cell, a)
            )

        return mean(self.start, actions)


def test_one_step_from_the_goal_by_hand() -> None:
    """`PG`: Right works with 0.8, and Up and Down slip right with 0.1 each."""
    world = world_of(["PG"], 0.8)
    assert best_success(world, 1) == pytest.approx(0.8)
    assert best_success(world, 2) == pytest.approx(0.96)
    assert random_success(world, 1) == pytest.approx((0.8 + 0.1 + 0.1) / 4)


def test_looking_between_the_moves_is_worth_what_it_is_by_hand() -> None:
    """Down Down wins with 0.8 * 0.8. A first slip to the right isn't lost for one who sees it:
    Left brings the player back with 0.8, and two actions remain for Down Down."""
    world = world_of(["OP_", "O_O", "OG_"], 0.8)
    assert best_success(world, 2) == pytest.approx(0.64)
    assert best_success(world, 4) == pytest.approx(0.64 + 0.1 * 0.8 * 0.64)
    assert 0.64 < best_success(world, 4, max_turns=1) < 0.66


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8, 1.0])
@pytest.mark.parametrize("rows", TINY, ids="/".join)
def test_solver_equals_brute_force(rows: list[str], intended_prob: float) -> None:
    world, slow = world_of(rows, intended_prob), SlowLake(rows, intended_prob)
    for actions in (1, 2, 3, 5, 8):
        assert best_success(world, actions) == pytest.approx(slow.seeing(actions), abs=1e-12)
        assert random_success(world, actions) == pytest.approx(slow.random(actions), abs=1e-12)


@pytest.mark.parametrize("prune_above", [0, 10**9], ids=["pruned", "all"])
@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8])
@pytest.mark.parametrize("rows", TINY, ids="/".join)
def test_blind_turns_equal_brute_force(
    rows: list[str], intended_prob: float, prune_above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "_PRUNE_ABOVE", prune_above)
    world, slow = world_of(rows, intended_prob), SlowLake(rows, intended_prob)
    for actions, turns, per_turn in ((4, 1, 4), (5, 2, 3), (6, 3, 2), (3, 2, 1), (7, 2, 2)):
        found = best_success(world, actions, max_turns=turns, max_actions_per_turn=per_turn)
        assert found == pytest.approx(slow.blind(actions, turns, per_turn), abs=1e-12)


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8])
def test_the_oracle_plays_as_well_as_the_ceiling_says(intended_prob: float) -> None:
    """Its success probability, summed over everything that may happen to it."""
    for seed in range(25):
        game = FrozenLake(size=3, frozen_prob=0.7, intended_prob=intended_prob)
        game.reset(seed=seed)
        slow = SlowLake(game.describe("grid").split("\n"), intended_prob)

        @cache
        def wins(cell: Cell, left: int, game: FrozenLake = game, slow: SlowLake = slow) -> float:
            if left == 0 or slow.rows[cell[0]][cell[1]] in "OG":
                return slow.won(cell)
            game._cell = cell[0] * 4 + cell[1]
            action = ACTIONS.index(game.oracle(left) or "")
            return sum(p * wins(target, left - 1) for p, target in slow.outcomes(cell, action))

        assert wins(slow.start, 6) == pytest.approx(slow.seeing(6), abs=1e-12)


@pytest.mark.parametrize("actions_left", [4, 40, 4000, None])
def test_the_oracle_takes_the_short_way_however_much_time_it_has(actions_left: int | None) -> None:
    game = FrozenLake(map=["P_O", "O__", "__G"], intended_prob=1.0)
    game.reset(seed=0)
    walk = []
    for _ in range(4):
        walk.append(game.oracle(actions_left))
        game.step(walk[-1] or "")
    assert walk[:2] == ["Right", "Down"] and sorted(map(str, walk[2:])) == ["Down", "Right"]
    assert "√" in game.describe("grid")


def test_the_oracle_dares_more_when_time_runs_out() -> None:
    """Down wins with 0.8, falls with 0.1, stays with 0.1; Left stays with 0.9, wins with 0.1.

    Values: 0.8, then 0.8 + 0.1 * 0.8 = 0.88, and then waiting is better:
    0.1 + 0.9 * 0.88 = 0.892 against 0.8 + 0.1 * 0.88 = 0.888.
    """
    game = FrozenLake(map=["PO", "G_"], intended_prob=0.8)
    game.reset(seed=0)
    assert [game.oracle(left) for left in (1, 2, 3, 50)] == ["Down", "Down", "Left", "Left"]
    assert best_success(game.tabular_world(), 3) == pytest.approx(0.892)


# Means over 12,000 puzzles: 0.504, 0.908, 1, 0.297 and 0.757. Published for 128 puzzles of
# RAGEN's generator: 0.466 at 1/3 and 1.0 without slips.
KNOWN = [
    ("frozenlake_upstream", 10, None, None, 0.47, 0.51),
    ("frozenlake", 10, None, None, 0.895, 0.92),
    ("frozenlake_deterministic", 10, None, None, 0.999, 1.0),
    ("frozenlake_upstream", 10, 5, 1, 0.27, 0.31),
    ("frozenlake", 10, 5, 1, 0.73, 0.77),
]


@pytest.mark.parametrize(("env_id", "actions", "turns", "per_turn", "low", "high"), KNOWN)
def test_known_ceilings(
    env_id: str, actions: int, turns: int | None, per_turn: int | None, low: float, high: float
) -> None:
    bounds = floor_and_ceiling(env_id, actions, range(1000), turns, per_turn)
    assert bounds["ceiling"] is not None and low <= bounds["ceiling"] <= high


def test_random_play_is_the_same_with_and_without_slips() -> None:
    """A slip of a uniformly random move is a uniformly random move. Over 12,000 puzzles the mean
    is 0.220; blocks of 128 lie between 0.19 and 0.25."""
    floors = [floor_and_ceiling(env_id, 10, range(1000))["floor"] for env_id in envs.list_ids()]
    assert floors[0] is not None and 0.205 <= floors[0] <= 0.235
    assert floors == pytest.approx([floors[0]] * len(floors))


def test_random_play_is_played_out_as_computed() -> None:
    env, wins = envs.make("frozenlake"), 0
    rng = env.action_space
    rng.seed(0)
    for episode in range(4000):
        env.reset(seed=episode % 100)
        env.unwrapped.np_random.bit_generator.advance(episode)
        for _ in range(10):
            _, _, terminated, _, info = env.step(rng.sample())
            if terminated:
                break
        wins += info["success"]
    assert floor_and_ceiling("frozenlake", 10, range(100))["floor"] == pytest.approx(
        wins / 4000, abs=0.025
    )


def test_more_looks_are_never_worse() -> None:
    ceilings = [
        floor_and_ceiling("frozenlake", 10, range(20), turns, per_turn)["ceiling"] or 0.0
        for turns, per_turn in ((1, 5), (2, 5), (5, 5), (10, 1), (None, None))
    ]
    assert ceilings == sorted(ceilings) and ceilings[0] < ceilings[2] < ceilings[3] == ceilings[4]


def test_arguments_reach_the_environment() -> None:
    bounds = floor_and_ceiling("frozenlake", 2, [0], map=["P_G"], intended_prob=1.0)
    assert bounds == {"floor": pytest.approx(1 / 16), "ceiling": 1.0}


@pytest.mark.parametrize("limits", [{"max_actions": 0}, {"seeds": []}, {"max_turns": 0}])
def test_an_empty_budget_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="must be at least 1"):
        floor_and_ceiling("frozenlake", **{"max_actions": 10, "seeds": [0], **limits})


class Untabled(TextEnv):
    """A game without tables."""

    instruction = "Say anything."

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = self.action_space = TextSpace()

    def describe(self, state_format: str = GRID_COORDS) -> str:
        return "nothing"

    def state_key(self) -> str:
        return "nothing"

    def possible_next(self, actions: Any, state_format: str = GRID_COORDS) -> dict[str, float]:
        return {"nothing": 1.0}


def test_a_game_without_tables_has_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "make", lambda env_id, **kwargs: Untabled())
    assert floor_and_ceiling("untabled", 10, [0]) == {"floor": None, "ceiling": None}


def test_command_line_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    solvers.main(["frozenlake", "--max-actions", "2", "--puzzles", "1", "--set", 'map=["P_G"]'])
    assert capsys.readouterr().out == "floor   0.0625\nceiling 0.6400\n"


def test_command_line_refuses_an_unknown_id(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        solvers.main(["frozenlak"])
    assert error.value.code == 2
    assert "did you mean 'frozenlake'?" in capsys.readouterr().err
