"""The example game: its rules by hand, and its solver by brute force.

A run of the flow on it is in `tests/flows/test_two_at_once.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.solvers import Budget, floor_and_ceiling
from envs.testing import check_text_env
from envs.tiles import picture
from examples.sliding_tiles import SlidingTiles, _moves_to_order

ROOT = Path(__file__).resolve().parents[1]
TILES = "examples.sliding_tiles:SlidingTiles"
NAMES = ("Left", "Down", "Right", "Up")
ORDERED = [["1", "2", "3"], ["4", "5", "6"], ["7", "8", "_"]]


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"__init__", "sliding_tiles"}


def test_it_keeps_the_promises() -> None:
    check_text_env(TILES)
    check_text_env(lambda: SlidingTiles(moves=31), seeds=range(3))
    assert SlidingTiles.sheet is not None and all(SlidingTiles.sheet[:9])


def game_on(board: str) -> SlidingTiles:
    game = SlidingTiles()
    game.reset(seed=0)
    game.board = game.start = board
    return game


def test_moves_by_hand() -> None:
    game = game_on("1234_6758")
    assert game.describe() == (
        "123\n4_6\n758\nGap (_) is at (1,1); out of place: 5 at (2,1), 8 at (2,2)."
    )
    assert {name: game.possible_next([name], "grid") for name in NAMES} == {
        "Left": {"123\n_46\n758": 1.0},
        "Down": {"123\n456\n7_8": 1.0},
        "Right": {"123\n46_\n758": 1.0},
        "Up": {"1_3\n426\n758": 1.0},
    }
    text, reward, terminated, truncated, info = game.step(" dOWN\n")
    assert text == "123\n456\n7_8\nGap (_) is at (2,1); out of place: 8 at (2,2)."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
    info = game.step("Down")[4]
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}
    text, reward, terminated, _, info = game.step("Right")
    assert text == "123\n456\n78_\nGap (_) is at (2,2); out of place: none."
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    after, reward, terminated, _, info = game.step("Up")
    assert (after, reward, terminated, info["success"]) == (text, 0.0, True, True)
    assert not info["action_is_effective"]
    assert game.state_key() == "sliding_tiles\n123\n4_6\n758"


def slid(rows: list[list[str]], name: str) -> list[list[str]]:
    """The board after a move, with rows and columns spelt out."""
    if rows == ORDERED:
        return rows
    down, right = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}[name]
    ((r, c),) = [(r, c) for r in range(3) for c in range(3) if rows[r][c] == "_"]
    if r + down not in (0, 1, 2) or c + right not in (0, 1, 2):
        return rows
    after = [list(row) for row in rows]
    after[r][c], after[r + down][c + right] = after[r + down][c + right], "_"
    return after


def rows_of(game: SlidingTiles) -> list[list[str]]:
    return [list(row) for row in game.describe("grid").split("\n")]


@given(seed=st.integers(0, 10**6), names=st.lists(st.sampled_from(NAMES), max_size=40))
def test_any_play_is_that_of_a_naive_board(seed: int, names: list[str]) -> None:
    game = SlidingTiles(moves=3)
    game.reset(seed=seed)
    rows = rows_of(game)
    for name in names:
        rows = slid(rows, name)
        assert game.step(name)[4]["success"] == (rows == ORDERED)
        assert rows_of(game) == rows


@given(text=st.text(max_size=10**5))
def test_any_text_is_survived(text: str) -> None:
    game = SlidingTiles()
    before, _ = game.reset(seed=1)
    after, _, _, _, info = game.step(text)
    assert info["action_is_valid"] == (text.strip().lower() in ("left", "down", "right", "up"))
    assert info["action_is_valid"] or after == before


@cache
def chance(rows: tuple[str, ...], left: int) -> float:
    """That random play puts the tiles in order."""
    if rows == ("123", "456", "78_"):
        return 1.0
    if left == 0:
        return 0.0
    boards = (slid([list(row) for row in rows], name) for name in NAMES)
    return sum(chance(tuple(map("".join, board)), left - 1) for board in boards) / 4


def fewest_moves(start: list[list[str]]) -> int:
    """By trying every sequence, the shortest first."""
    for length in itertools.count(1):
        for names in itertools.product(NAMES, repeat=length):
            rows = start
            for name in names:
                rows = slid(rows, name)
            if rows == ORDERED:
                return length
    raise AssertionError


def test_bounds_and_oracle_are_those_of_trying_everything() -> None:
    for seed in range(12):
        game = SlidingTiles(moves=5)
        game.reset(seed=seed)
        fewest = fewest_moves(rows_of(game))
        key = tuple(map("".join, rows_of(game)))
        for budget in (Budget(fewest), Budget(max(fewest - 1, 1)), Budget(9, 2, 3)):
            floor, ceiling = game.success_bounds(budget)
            assert floor == pytest.approx(chance(key, budget.playable), abs=1e-12)
            assert ceiling == float(fewest <= budget.playable)
        for left in range(fewest, 0, -1):
            assert game.step(game.oracle(left) or "")[2] == (left == 1)


def test_the_hardest_boards_are_as_many_and_as_far_as_is_known() -> None:
    """Of the 181,440 boards that can be reached two need 31 moves (Reinefeld, 1993)."""
    away = Counter(_moves_to_order().values())
    assert (sum(away.values()), max(away), away[31]) == (181_440, 31, 2)
    nearest = [away[moves] for moves in range(13)]
    assert nearest == [1, 2, 4, 8, 16, 20, 39, 62, 116, 152, 286, 396, 748]


def test_there_are_puzzles_enough_for_an_evaluation() -> None:
    """1,849 boards are 1 to 12 moves away, and a tenth of them is for the test."""
    game, keys = SlidingTiles(), set()
    for seed in range(30_000):
        game.reset(seed=seed)
        keys.add(game.state_key())
    assert 1700 < len(keys) <= 1849
    assert "sliding_tiles\n123\n456\n78_" not in keys
    bounds = floor_and_ceiling(TILES, 10, range(200))
    assert bounds["floor_exact"] and bounds["ceiling_exact"]
    assert bounds["floor"] == pytest.approx(0.061, abs=0.001)
    assert bounds["ceiling"] == pytest.approx(0.835)


def test_pixels_show_the_board() -> None:
    game = SlidingTiles(render_mode="rgb_array")
    game.reset(seed=0)
    rows = game.describe("grid").split("\n")
    names = {"_": "floor"} | {digit: f"given_{digit}" for digit in "12345678"}
    assert np.array_equal(game.render(), picture(rows, names))
    text = SlidingTiles()
    text.reset(seed=0)
    assert text.render() == "\n".join(rows)


@pytest.mark.parametrize("moves", [0, 32, True, 3.0, "3"])
def test_impossible_arguments_are_refused(moves: Any) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=r"moves is .*; give 1 to 31"):
        envs.make(TILES, moves=moves)


def test_an_unknown_state_format_names_the_nearest() -> None:
    game = SlidingTiles()
    game.reset(seed=0)
    with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'coords'"):
        game.describe("coord")


# An installed package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two games under entry points, one of them broken, as pip leaves an installed package."""
    source = (ROOT / "examples" / "sliding_tiles.py").read_text("utf-8")
    (tmp_path / "tile_games.py").write_text(source, "utf-8")
    (tmp_path / "tile_broken.py").write_text("import no_such_library\n")
    metadata = tmp_path / "tile_games-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tile-games\nVersion: 1.0\n")
    points = {
        "tiles": "tile_games:SlidingTiles",
        "tiles_broken": "tile_broken:SlidingTiles",
        "tiles_gone": "tile_games:NoSuchGame",
        "tiles_odd": "tile_games",
        "frozenlake": "tile_games:SlidingTiles",
    }
    lines = [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[spa.envs]", *lines]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    envs._load_entry_points.cache_clear()
    yield tmp_path
    for name in [name for name in gymnasium.registry if name.startswith("spa/tiles")]:
        del gymnasium.registry[name]
    envs._load_entry_points.cache_clear()
    envs._creator.cache_clear()
    for name in ("tile_games", "tile_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("package")
def test_a_published_game_is_made_checked_and_measured_by_its_short_name() -> None:
    assert "tiles" in envs.list_ids()
    check_text_env("tiles", seeds=range(3))
    assert envs.spec_of("tiles") == {"moves": 12}
    expected = floor_and_ceiling(TILES, 5, range(20))
    assert floor_and_ceiling("tiles", 5, range(20)) == expected


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiles_broken", r"tile_broken:SlidingTiles.*'no_such_library' at .*tile_broken\.py:\d"),
        ("tiles_gone", "tile_games:NoSuchGame.*has no 'NoSuchGame'"),
        ("tiles_odd", "'tile_games', which can't be loaded"),
    ],
)
def test_a_broken_entry_point_is_one_clear_error_and_in_nobodys_way(name: str, said: str) -> None:
    assert {"tiles", name, "frozenlake"} <= set(envs.list_ids())
    with pytest.raises(envs.EnvironmentIdError, match=said) as error:
        envs.make(name)
    assert "\n" not in str(error.value)
    assert envs.make("tiles").reset(seed=0) and envs.make("frozenlake").reset(seed=0)


@pytest.mark.usefixtures("package")
def test_a_name_that_is_taken_stays_what_it_was() -> None:
    assert type(envs.make("frozenlake").unwrapped).__name__ == "FrozenLake"
