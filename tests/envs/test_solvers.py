"""Floor and ceiling: by hand, against brute force on tiny lakes, and against known figures."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from functools import cache as cached
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import envs
from envs import bounds_cache, solvers, sources, tabular
from envs.base import GRID_COORDS, TextEnv, TextSpace
from envs.frozenlake import ACTIONS, FrozenLake
from envs.solvers import (
    Budget,
    PuzzleBounds,
    bounds_of_puzzles,
    floor_and_ceiling,
    wilson_interval,
)
from envs.tabular import TabularWorld, best_success, random_success

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
        @cached
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

        @cached
        def best(cell: Cell, left: int, turns_left: int) -> float:
            if turns_left == 0 or left == 0:
                return self.won(cell)
            lengths = range(1, min(per_turn, left) + 1)
            plans = (p for n in lengths for p in itertools.product(range(4), repeat=n))
            return max(follow(cell, plan, left - len(plan), turns_left - 1) for plan in plans)

        @cached
        def follow(cell: Cell, plan: tuple[int, ...], left: int, turns_left: int) -> float:
            if not plan:
                return best(cell, left, turns_left)
            return sum(
                chance * follow(target, plan[1:], left, turns_left)
                for chance, target in self.outcomes(cell, plan[0])
            )

        return best(self.start, actions, turns)

    def random(self, actions: int) -> float:
        @cached
        def mean(cell: Cell, left: int) -> float:
            if left == 0:
                return self.won(cell)
            return sum(
                chance * mean(target, left - 1) / 4
                for a in range(4)
                for chance, target in self.outcomes(cell, a)
            )

        return mean(self.start, actions)


def world_of(rows: list[str], intended_prob: float) -> TabularWorld:
    """The slow lake's outcomes as tables; any rectangle will do."""
    slow = SlowLake(rows, intended_prob)
    cells = list(itertools.product(range(len(rows)), range(len(rows[0]))))
    transition = np.zeros((4, len(cells), len(cells)))
    for (index, cell), action in itertools.product(enumerate(cells), range(4)):
        for chance, target in slow.outcomes(cell, action):
            transition[action, index, cells.index(target)] += chance
    won = np.array([rows[row][column] == "G" for row, column in cells])
    return TabularWorld(transition, won, cells.index(slow.start))


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
    monkeypatch.setattr(tabular, "_PRUNE_ABOVE", prune_above)
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

        @cached
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
    bounds = floor_and_ceiling(env_id, actions, range(512), turns, per_turn)
    assert bounds["ceiling"] is not None and low <= bounds["ceiling"] <= high
    assert bounds["floor_exact"] is bounds["ceiling_exact"] is True


# Optimal play on 128 other maps of 6x6, measured on RAGEN's own generator.
PUBLISHED_6X6 = [
    (1 / 3, 5, 0.126),
    (0.8, 5, 0.454),
    (1.0, 5, 0.680),
    (1 / 3, 10, 0.229),
    (0.8, 10, 0.749),
    (1.0, 10, 0.969),
]


@pytest.mark.parametrize(("intended_prob", "actions", "published"), PUBLISHED_6X6)
def test_6x6_ceilings_are_the_published_ones_within_their_error(
    intended_prob: float, actions: int, published: float
) -> None:
    game = FrozenLake(size=6, intended_prob=intended_prob)
    ceilings = []
    for seed in range(512):
        game.reset(seed=seed)
        ceilings.append(best_success(game.tabular_world(), actions))
    error = float(np.std(ceilings)) * (1 / 128 + 1 / 512) ** 0.5
    assert np.mean(ceilings) == pytest.approx(published, abs=3 * error)
    assert error < 0.05


def test_random_play_is_the_same_with_and_without_slips() -> None:
    """A slip of a uniformly random move is a uniformly random move. Over 12,000 puzzles the mean
    is 0.220; blocks of 128 lie between 0.19 and 0.25."""
    small = [env_id for env_id in envs.list_ids() if env_id.startswith("frozenlake")]
    small = [env_id for env_id in small if "6x6" not in env_id]
    floors = [floor_and_ceiling(env_id, 10, range(512))["floor"] for env_id in small]
    assert floors[0] is not None and 0.205 <= floors[0] <= 0.225
    assert floors == pytest.approx([floors[0]] * 3)


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


STRAIT = ["P_G", "OOO", "OOO"]
"""Random play gets there in two moves with 1/16, with slips and without."""


def test_arguments_reach_the_environment() -> None:
    bounds = floor_and_ceiling("frozenlake", 2, [0], map=STRAIT, intended_prob=1.0)
    assert bounds == {
        "floor": pytest.approx(1 / 16),
        "floor_low": pytest.approx(1 / 16),
        "floor_high": pytest.approx(1 / 16),
        "floor_exact": True,
        "ceiling": 1.0,
        "ceiling_exact": True,
    }


@pytest.mark.parametrize(
    "limits", [{"max_actions": 0}, {"seeds": []}, {"max_turns": 0}, {"num_episodes": 0}]
)
def test_an_empty_budget_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="must be at least 1"):
        floor_and_ceiling("frozenlake", **{"max_actions": 10, "seeds": [0], **limits})


class Stairs(TextEnv):
    """Climb from step 0 to `height`; `Up` works with `grip`. Even seeds publish what they know."""

    instruction = "Climb."
    action_names = ("Up", "Down")

    def __init__(
        self,
        height: int = 2,
        grip: float = 1.0,
        published: str = "nothing",
        is_optimal: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.height, self.grip, self.published = height, grip, published
        self.oracle_is_optimal = is_optimal
        self.observation_space = self.action_space = TextSpace()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number, self.seed = 0, seed
        return self.describe(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "Down":
            self.step_number = max(0, self.step_number - 1)
        elif self.grip == 1.0 or self.np_random.random() < self.grip:
            self.step_number += 1
        is_up = self.step_number == self.height
        return self.describe(), float(is_up), is_up, False, {"success": is_up}

    def describe(self, state_format: str = GRID_COORDS) -> str:
        return f"step {self.step_number}"

    def state_key(self) -> str:
        return f"stairs\n{self.height}"

    def possible_next(self, actions: Any, state_format: str = GRID_COORDS) -> dict[str, float]:
        assert actions == ["Up"]
        there = f"step {self.step_number + 1}"
        return {there: 1.0} if self.grip == 1.0 else {there: 0.5, "step 0": 0.5}

    def oracle(self, actions_left: int | None = None) -> str | None:
        return "Up"

    def success_bounds(self, budget: solvers.Budget) -> solvers.Bounds:
        if self.published == "all":
            return solvers.Bounds(0.125, 0.75)
        is_known = self.published == "half" and self.seed % 2 == 0
        return solvers.Bounds(0.5 if is_known else None, None)


@pytest.fixture
def stairs(monkeypatch: pytest.MonkeyPatch) -> str:
    """An id for the game of this file, whatever name pytest gave the module."""
    monkeypatch.setitem(sys.modules, "stairs_game", sys.modules[__name__])
    return "stairs_game:Stairs"


def test_what_a_game_publishes_comes_first(stairs: str) -> None:
    bounds = floor_and_ceiling(stairs, 10, range(4), published="all")
    assert (bounds["floor"], bounds["ceiling"]) == (0.125, 0.75)
    assert bounds["floor_exact"] is bounds["ceiling_exact"] is True


@pytest.mark.parametrize(
    ("actions", "chance", "best"), [(1, 0.0, 0.0), (2, 1 / 4, 1.0), (3, 3 / 8, 1.0)]
)
def test_unknown_bounds_are_played(stairs: str, actions: int, chance: float, best: float) -> None:
    """Two steps. Up Up wins at once; of the rest that end after three, only Down Up Up does."""
    bounds = floor_and_ceiling(stairs, actions, range(50), num_episodes=100)
    assert (bounds["ceiling"], bounds["ceiling_exact"]) == (best, True)
    assert bounds["floor"] == pytest.approx(chance, abs=0.025)
    assert bounds["floor_exact"] is False
    assert bounds["floor_low"] <= chance <= bounds["floor_high"]
    assert bounds["floor_high"] - bounds["floor_low"] < 0.03
    assert bounds == floor_and_ceiling(stairs, actions, range(50), num_episodes=100)


def test_turns_limit_play(stairs: str) -> None:
    assert floor_and_ceiling(stairs, 10, [0], max_turns=1, max_actions_per_turn=1)["ceiling"] == 0.0
    assert floor_and_ceiling(stairs, 10, [0], max_turns=1, max_actions_per_turn=2)["ceiling"] == 1.0


def test_luck_varies_between_episodes_of_one_puzzle(stairs: str) -> None:
    """Up at once: 1/2 of the choices, and 0.3 of the luck."""
    bounds = floor_and_ceiling(stairs, 1, [0], num_episodes=4000, height=1, grip=0.3)
    assert bounds["floor"] == pytest.approx(0.15, abs=0.02)


def test_luck_and_heuristics_give_no_ceiling(stairs: str) -> None:
    for arguments in ({"grip": 0.5}, {"is_optimal": False}):
        bounds = floor_and_ceiling(stairs, 10, [0], num_episodes=2, **arguments)
        assert (bounds["ceiling"], bounds["ceiling_exact"]) == (None, False)


def test_half_known_floors_have_half_the_interval(stairs: str) -> None:
    """Even seeds publish 1/2; odd ones are played, where 1/4 of the games are won."""
    bounds = floor_and_ceiling(stairs, 2, range(100), num_episodes=80, published="half")
    assert bounds["floor"] == pytest.approx((0.5 + 0.25) / 2, abs=0.01)
    wins = round((bounds["floor"] * 100 - 25) * 80)
    low, high = wilson_interval(wins, 4000)
    assert bounds["floor_low"] == pytest.approx(0.25 + low / 2)
    assert bounds["floor_high"] == pytest.approx(0.25 + high / 2)
    assert bounds["floor_exact"] is False


def test_wilson_interval_by_hand() -> None:
    """The textbook's numbers: 0 of 10, 5 of 10 and 10 of 10."""
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


class Untabled(Stairs):
    """A game that can't be played at random."""

    action_names = None

    def oracle(self, actions_left: int | None = None) -> str | None:
        return None


UNKNOWN = {
    "floor": None,
    "floor_low": None,
    "floor_high": None,
    "floor_exact": False,
    "ceiling": None,
    "ceiling_exact": False,
}


def test_a_game_that_draws_no_action_has_no_bounds(stairs: str) -> None:
    untabled = stairs.replace("Stairs", "Untabled")
    assert floor_and_ceiling(untabled, 10, [0]) == UNKNOWN
    assert solvers.shown(UNKNOWN) == ("unknown", "unknown")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spa-agents" / "bounds"


def test_the_users_cache_follows_the_desktops_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert bounds_cache.cache_directory() == Path("/somewhere/spa-agents/bounds")
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/home/me")
        assert bounds_cache.cache_directory() == Path("/home/me/.cache/spa-agents/bounds")


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds whose bounds are computed from here on."""
    computed: list[int] = []
    original = solvers._puzzle_bounds

    def counted(env: Any, seed: int, *rest: Any) -> Any:
        computed.append(seed)
        return original(env, seed, *rest)

    monkeypatch.setattr(solvers, "_puzzle_bounds", counted)
    return computed


def test_bounds_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = counting(monkeypatch)
    cache = tmp_path / "deep" / "down"
    first = floor_and_ceiling("frozenlake_upstream", 10, range(3), cache=cache)
    assert computed == [0, 1, 2] and len(list(cache.iterdir())) == 1
    assert floor_and_ceiling("frozenlake_upstream", 10, range(3), cache=cache) == first
    assert floor_and_ceiling("frozenlake", 10, range(3), cache=cache, intended_prob=1 / 3) == first
    assert computed == [0, 1, 2]
    assert floor_and_ceiling("frozenlake_upstream", 10, range(3)) == first
    assert computed == [0, 1, 2] * 2


CHANGES: list[dict[str, Any]] = [
    {"max_actions": 9},
    {"seeds": [0, 2]},
    {"max_turns": 3},
    {"max_turns": 3, "max_actions_per_turn": 2},
    {"num_episodes": 8},
    {"intended_prob": 0.9},
    {"size": 5},
]


def test_whatever_the_numbers_depend_on_is_in_the_key(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"env_id": "frozenlake", "max_actions": 10, "seeds": [0, 1]}
    for number, change in enumerate([{}, *CHANGES], start=1):
        assert floor_and_ceiling(**usual | change, cache=tmp_path) == floor_and_ceiling(
            **usual | change
        )
        assert len(list(tmp_path.iterdir())) == number, change


GAME = """
from envs.frozenlake import FrozenLake
from tarn_rules import SIZE

class Tarn(FrozenLake):
    def __init__(self, render_mode=None):
        super().__init__(size=SIZE)
"""


def test_changed_source_text_is_computed_anew(tmp_path: Path) -> None:
    """Also that of a module beside the game's own in its package. Each in a fresh process."""
    package, cache = tmp_path / "tarn", tmp_path / "cache"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "game.py").write_text(GAME.replace("tarn_rules", "tarn.rules"))
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from envs.solvers import floor_and_ceiling\n"
        "print(floor_and_ceiling('tarn.game:Tarn', 5, [0], cache=Path(sys.argv[3]))['ceiling'])"
    )
    root = Path(envs.__file__).parents[1]
    said = []
    for text in ("SIZE = 2", "SIZE = 2", "SIZE = 1 + 1"):
        (package / "rules.py").write_text(text)
        result = subprocess.run(
            [sys.executable, "-B", "-c", code, str(root), str(tmp_path), str(cache)],
            capture_output=True,
            check=True,
            text=True,
        )
        said.append((len(list(cache.iterdir())), result.stdout))
    assert [number for number, _ in said] == [1, 1, 2]
    assert len({value for _, value in said}) == 1


RULES = {
    "factory": {
        "flood.py": "from envs.frozenlake import FrozenLake\n\ndef make():\n"
        "    return FrozenLake(intended_prob=1.0)\n",
    },
    "beside": {
        "flood.py": "from flood_rules import PROB\nfrom envs.frozenlake import FrozenLake\n\n"
        "def make():\n    return FrozenLake(intended_prob=PROB)\n",
        "flood_rules.py": "PROB = 1.0\n",
    },
    "above in the package": {
        "flood/__init__.py": "",
        "flood/games/__init__.py": "from flood.games.lake import Lake as make\n",
        "flood/games/lake.py": "from flood.rules import PROB\n"
        "from envs.frozenlake import FrozenLake\n\nclass Lake(FrozenLake):\n"
        "    def __init__(self):\n        super().__init__(intended_prob=PROB)\n",
        "flood/rules.py": "PROB = 1.0\n",
    },
}
"""Files of a stranger's game, whose chance is changed in one."""


@pytest.mark.parametrize("case", RULES)
def test_a_ceiling_of_other_rules_isnt_told_again(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    env_id = "flood.games:make" if "package" in case else "flood:make"
    found = []
    for prob in ("1.0", "1 / 3"):
        for name, text in RULES[case].items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text.replace("1.0", prob))
        found.append(floor_and_ceiling(env_id, 5, [0], cache=tmp_path / "cache"))
        for name in [name for name in sys.modules if name.startswith("flood")]:
            sys.modules.pop(name)
        for each in (envs._creator, sources._strangers, sources.code_digest):
            each.cache_clear()
    assert found[0]["ceiling"] == 1.0
    assert found[1]["ceiling"] < 1.0


def test_a_game_without_a_file_is_computed_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ModuleType("typed_in")
    typed.Lake = type("Lake", (FrozenLake,), {"__module__": "typed_in"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "typed_in", typed)
    assert floor_and_ceiling("typed_in:Lake", 5, [0], cache=tmp_path)["ceiling"] is not None
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_a_game_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"max_actions": 1, "seeds": [0], "cache": tmp_path, "check": "exact"}
    for count, number in ((1, "1.14.0"), (1, "1.14.0"), (2, "1.15.0")):
        monkeypatch.setattr(sources, "version_of", lambda name, number=number: number)
        floor_and_ceiling("metamathqa", **given)
        assert len(list(tmp_path.iterdir())) == count


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"floor": 0.5}',
        b"[[0.5, 1.0]]",
        b'[["a", 1.0, 0, 0]]',
        b"[[0.5, 1.0, 0, 0], [0.5, 1.0, 0, 0]]",
        b"[" * 100_000,
    ],
    ids=range(10),
)
def test_a_broken_file_is_computed_anew_and_mended(tmp_path: Path, broken: bytes) -> None:
    whole = floor_and_ceiling("frozenlake", 10, [0], cache=tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(broken)
    assert floor_and_ceiling("frozenlake", 10, [0], cache=tmp_path) == whole
    assert file.read_bytes() == good


def test_a_directory_that_cant_be_written_keeps_nothing(tmp_path: Path) -> None:
    """Where a file stands in its place nobody can write, not even root."""
    (tmp_path / "file").touch()
    expected = floor_and_ceiling("frozenlake", 10, [0])
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        assert floor_and_ceiling("frozenlake", 10, [0], cache=cache) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_in_the_files_place_does_no_harm(tmp_path: Path) -> None:
    expected = floor_and_ceiling("frozenlake", 10, [0], cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    assert floor_and_ceiling("frozenlake", 10, [0], cache=tmp_path) == expected
    assert list(tmp_path.iterdir()) == [file], "no scratch file is left behind"


def test_other_answers_to_the_same_questions_are_another_world(tmp_path: Path) -> None:
    """Random play answers with another question's answer: right where all are alike."""
    data = tmp_path / "rows.jsonl"
    found = []
    for answers in (["7"] * 4, ["1", "2", "3", "4"]):
        rows = [
            {"query": f"Question {number}?", "response": f"The answer is: {answer}"}
            for number, answer in enumerate(answers)
        ]
        data.write_text("\n".join(map(json.dumps, rows)))
        os.utime(data, ns=(len(found), len(found)))
        arguments = {"data": str(data), "check": "exact", "cache": tmp_path / "cache"}
        found.append(floor_and_ceiling("metamathqa", 1, range(20), **arguments)["floor"])
    assert found == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0.000"), (0.1952, "0.195"), (0.0005, "0.001"), (0.00044, "0.0004"),
     (0.00009, "9e-05"), (1.0, "1.000")],
)  # fmt: skip
def test_a_small_rate_doesnt_vanish(rate: float | None, text: str) -> None:
    assert solvers.rate_text(rate) == text


def test_command_line_prints_both_and_keeps_them(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["frozenlake", "--max-actions", "2", "--puzzles", "1", "--set"]
    line.append(f"map={json.dumps(STRAIT)}")
    solvers.main([*line, "--no-cache"])
    assert capsys.readouterr().out == "floor   0.062 (exact)\nceiling 0.640 (exact)\n"
    assert not cache.exists()
    for _ in range(2):
        solvers.main(line)
        assert capsys.readouterr().out == "floor   0.062 (exact)\nceiling 0.640 (exact)\n"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("cache")
def test_command_line_says_how_a_floor_was_found(
    stairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    solvers.main(
        [stairs, "--puzzles", "4", "--episodes", "8", "--max-actions", "2", "--set", "grip=0.0"]
    )
    assert capsys.readouterr().out == (
        "floor   0.000 [0.000, 0.107] by 8 random episodes a puzzle\nceiling unknown\n"
    )


def test_command_line_refuses_an_unknown_id(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        solvers.main(["frozenlak"])
    assert error.value.code == 2
    assert "did you mean 'frozenlake'?" in capsys.readouterr().err


def test_each_puzzle_has_bounds_of_its_own_which_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = counting(monkeypatch)
    budget = Budget(10)
    found = bounds_of_puzzles("frozenlake", budget, range(5), cache=tmp_path)
    assert [each.chance for each in found] == [
        floor_and_ceiling("frozenlake", 10, [seed])["floor"] for seed in range(5)
    ]
    assert computed == [0, 1, 2, 3, 4] * 2
    assert bounds_of_puzzles("frozenlake", budget, range(5), cache=tmp_path) == found
    assert len(computed) == 10


def test_the_chance_of_a_played_puzzle_is_its_wins() -> None:
    assert PuzzleBounds(None, 1.0, wins=3, episodes=4).chance == 0.75
    assert PuzzleBounds(0.0, 1.0, wins=3, episodes=4).chance == 0.0
    assert PuzzleBounds(None, 1.0).chance is None
