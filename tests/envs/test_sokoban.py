"""Sokoban: its text and rewards by hand, its moves against a slow loop on a list of lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.sokoban import Sokoban
from envs.sokoban_words import DIRECTIONS
from envs.testing import check_text_env
from tests.envs.processes import said_in_every_process

ROOT = Path(__file__).resolve().parents[2]
IDS = (
    "sokoban",
    "sokoban_2boxes",
    "sokoban_larger",
    "sokoban_harder",
    "sokoban_grid_vocab",
    "sokoban_action_vocab",
    "sokoban_visual",
)
STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}

README_ROOM = ["######", "#___O#", "#__X_#", "#__P_#", "#____#", "######"]
"""Player (3,3), box (2,3), target (1,4): the state of SPA's first example."""
TWO_BOXES = ["#######", "#_O___#", "#PX___#", "#__X__#", "#_O___#", "#######"]


def game_on(rows: list[str], **arguments: Any) -> Sokoban:
    game = Sokoban(map=rows, **arguments)
    game.reset(seed=0)
    return game


def played(rows: list[str], *actions: str, **arguments: Any) -> Sokoban:
    game = game_on(rows, **arguments)
    for action in actions:
        game.step(action)
    return game


class Naive:
    """The rules once more, on a list of lists of (is wall, is target) and a dict of what stands."""

    def __init__(self, grid: str) -> None:
        self.rows = [list(row) for row in grid.split("\n")]
        self.target = [[symbol in "O√S" for symbol in row] for row in self.rows]
        self.wall = [[symbol == "#" for symbol in row] for row in self.rows]
        self.box = [[symbol in "X√" for symbol in row] for row in self.rows]
        (self.at,) = [
            (r, c) for r, row in enumerate(self.rows) for c, x in enumerate(row) if x in "PS"
        ]

    def num_home(self) -> int:
        return sum(
            self.box[r][c] and self.target[r][c]
            for r in range(len(self.rows))
            for c in range(len(self.rows[0]))
        )

    def num_boxes(self) -> int:
        return sum(map(sum, self.box))

    def step(self, action: str) -> tuple[float, bool]:
        if self.num_home() == self.num_boxes():
            return 0.0, True
        home = self.num_home()
        (r, c), (down, right) = self.at, STEPS[action]
        r1, c1, r2, c2 = r + down, c + right, r + 2 * down, c + 2 * right
        if not self.wall[r1][c1] and not self.box[r1][c1]:
            self.at = (r1, c1)
        elif self.box[r1][c1] and not self.wall[r2][c2] and not self.box[r2][c2]:
            self.box[r1][c1], self.box[r2][c2], self.at = False, True, (r1, c1)
        reward = -0.1 + (self.num_home() - home)
        is_won = self.num_home() == self.num_boxes()
        return reward + 10 * is_won, is_won

    def symbol(self, r: int, c: int) -> str:
        if self.wall[r][c]:
            return "#"
        if (r, c) == self.at:
            return "S" if self.target[r][c] else "P"
        if self.box[r][c]:
            return "√" if self.target[r][c] else "X"
        return "O" if self.target[r][c] else "_"

    def grid(self) -> str:
        height, width = len(self.rows), len(self.rows[0])
        return "\n".join("".join(self.symbol(r, c) for c in range(width)) for r in range(height))

    def coords(self) -> str:
        found: dict[str, list[str]] = {symbol: [] for symbol in "PSX√O"}
        for r in range(len(self.rows)):
            for c in range(len(self.rows[0])):
                found.setdefault(self.symbol(r, c), []).append(f"({r},{c})")
        at = f"({self.at[0]},{self.at[1]})"
        free = [
            f"({r},{c})"
            for r, row in enumerate(self.target)
            for c, is_target in enumerate(row)
            if is_target and not self.box[r][c]
        ]
        parts = [f"Player (S) is at {at}, on a target" if found["S"] else f"Player (P) is at {at}"]
        for one, several, symbol, places in (
            ("box", "boxes", "X", found["X"]),
            ("box on target", "boxes on targets", "√", found["√"]),
            ("target", "targets", "O", free),
        ):
            if len(places) == 1:
                parts.append(f"{one} ({symbol}) is at {places[0]}")
            elif places:
                parts.append(f"{several} ({symbol}) are at {', '.join(places)}")
        return "; ".join(parts) + "."


@pytest.mark.parametrize("env_id", IDS)
def test_the_shipped_checker_passes(env_id: str) -> None:
    check_text_env(env_id)


def test_the_checker_passes_on_fixed_and_filtered_rooms() -> None:
    check_text_env(lambda: Sokoban(map=TWO_BOXES), seeds=range(3))
    check_text_env(lambda: Sokoban(num_boxes=2, min_moves=4, max_moves=8), seeds=range(4))
    check_text_env(lambda: Sokoban(num_boxes=2, reverse_play="ragen"), seeds=range(4))


def test_plain_state_is_the_published_text() -> None:
    rows = ["######", "#____#", "#__XP#", "#O___#", "###__#", "######"]
    assert game_on(rows).describe() == (
        "######\n#____#\n#__XP#\n#O___#\n###__#\n######\n"
        "Player (P) is at (2,4); box (X) is at (2,3); target (O) is at (3,1)."
    )


def test_several_boxes_and_targets_are_listed_in_reading_order() -> None:
    assert game_on(TWO_BOXES).describe() == (
        "#######\n#_O___#\n#PX___#\n#__X__#\n#_O___#\n#######\n"
        "Player (P) is at (2,1); boxes (X) are at (2,2), (3,3); targets (O) are at (1,2), (4,2)."
    )


def test_box_on_target_takes_its_target_out_of_the_list() -> None:
    game = played(TWO_BOXES, "Down", "Right", "Up")
    assert game.describe() == (
        "#######\n#_√___#\n#_P___#\n#__X__#\n#_O___#\n#######\n"
        "Player (P) is at (2,2); box (X) is at (3,3); box on target (√) is at (1,2); "
        "target (O) is at (4,2)."
    )


def test_player_on_a_target_is_drawn_and_said_and_the_target_still_listed() -> None:
    game = played(TWO_BOXES, "Up", "Right")
    assert game.describe() == (
        "#######\n#_S___#\n#_X___#\n#__X__#\n#_O___#\n#######\n"
        "Player (S) is at (1,2), on a target; boxes (X) are at (2,2), (3,3); "
        "targets (O) are at (1,2), (4,2)."
    )


def test_solved_room_has_neither_boxes_nor_targets_left() -> None:
    rows = ["#####", "#POO#", "#_XX#", "#___#", "#####"]
    game = played(rows, "Down", "Down", "Right", "Up")
    assert game.describe("coords") == (
        "Player (P) is at (2,2); box (X) is at (2,3); box on target (√) is at (1,2); "
        "target (O) is at (1,3)."
    )
    game = played(rows, "Down", "Down", "Right", "Up", "Down", "Right", "Up")
    assert game.describe() == (
        "#####\n#_√√#\n#__P#\n#___#\n#####\n"
        "Player (P) is at (2,3); boxes on targets (√) are at (1,2), (1,3)."
    )
    one = played(README_ROOM, "Up", "Left", "Up", "Right")
    assert one.describe("coords") == "Player (P) is at (1,3); box on target (√) is at (1,4)."


def test_formats_are_the_grid_the_coordinates_and_both() -> None:
    game = game_on(README_ROOM)
    grid, coords = game.describe("grid"), game.describe("coords")
    assert grid == "\n".join(README_ROOM)
    assert coords == "Player (P) is at (3,3); box (X) is at (2,3); target (O) is at (1,4)."
    assert game.describe("grid_coords") == game.describe() == f"{grid}\n{coords}"
    assert game.possible_next(["Left"], "coords") == {
        "Player (P) is at (3,2); box (X) is at (2,3); target (O) is at (1,4).": 1.0
    }
    with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'coords'"):
        game.describe("coord")


def test_the_readme_example_moves_the_box_up_not_down() -> None:
    game = game_on(README_ROOM)
    after, reward, terminated, truncated, info = game.step("Up")
    assert after == (
        "######\n#__XO#\n#__P_#\n#____#\n#____#\n######\n"
        "Player (P) is at (2,3); box (X) is at (1,3); target (O) is at (1,4)."
    )
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}


def test_the_prompts_three_moves_reach_the_prompts_prediction() -> None:
    rows = ["######", "#_####", "#_P###", "#_X#_#", "#__O_#", "######"]
    game = played(rows, "Down", "Left", "Down")
    assert game.describe("grid") == "######\n#_####\n#__###\n#__#_#\n#PXO_#\n######"
    assert game.possible_next(["Right"], "grid") == {
        "######\n#_####\n#__###\n#__#_#\n#_P√_#\n######": 1.0
    }


REWARD_ROWS = ["########", "#PXO___#", "#__X___#", "#__O___#", "#______#", "########"]


@pytest.mark.parametrize(
    ("before", "action", "reward", "is_over"),
    [
        ((), "Down", -0.1, False),  # a walk
        ((), "Left", -0.1, False),  # into the wall
        ((), "jump", -0.1, False),  # no action at all
        ((), "Right", -0.1 + 1.0, False),  # onto a target
        (("Right",), "Right", -0.1 - 1.0, False),  # off it again
        (("Right", "Right"), "Right", -0.1, False),  # along the floor
        (("Down", "Right"), "Right", -0.1, False),  # beside the targets
        (("Right", "Left", "Down", "Right"), "Right", -0.1, False),
    ],
)
def test_reward_of_each_event(
    before: tuple[str, ...], action: str, reward: float, is_over: bool
) -> None:
    game = played(REWARD_ROWS, *before)
    result = game.step(action)
    assert result[1:4] == (pytest.approx(reward), is_over, False)


def test_the_push_that_finishes_pays_everything_at_once_and_then_nothing_more() -> None:
    game = game_on(README_ROOM)
    paid = [game.step(action)[1] for action in ("Up", "Left", "Up", "Right")]
    assert paid == pytest.approx([-0.1, -0.1, -0.1, 10.9])
    solved = game.describe()
    after, reward, terminated, truncated, info = game.step("Down")
    assert (after, reward, terminated, truncated) == (solved, 0.0, True, False)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": False}
    assert game.step("dance")[1:4] == (0.0, True, False)
    assert game.possible_next(["Down", "Down"]) == {solved: 1.0}


def test_a_push_from_target_to_target_pays_only_the_step() -> None:
    rows = ["#######", "#P√O__#", "#__X__#", "#_____#", "#######"]
    game = game_on(rows)
    assert game.step("Right")[1] == pytest.approx(-0.1)
    assert game.describe("grid") == "#######\n#_S√__#\n#__X__#\n#_____#\n#######"


def test_a_wall_or_a_second_box_behind_a_box_holds_both() -> None:
    wall = game_on(["#####", "#O__#", "#XP_#", "#___#", "#####"])
    in_line = game_on(["#######", "#_____#", "#_____#", "#PXXOO#", "#_____#", "#_____#", "#######"])
    for game, action in ((wall, "Left"), (in_line, "Right")):
        before = game.describe()
        after, reward, terminated, _, info = game.step(action)
        assert (after, reward, terminated) == (before, -0.1, False)
        assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}


def test_each_action_moves_its_way() -> None:
    rows = ["#####", "#___#", "#_P_#", "#__X#", "#__O#", "#####"]
    cells = {action: played(rows, action).describe("coords").split(";")[0] for action in DIRECTIONS}
    assert cells == {
        "Up": "Player (P) is at (1,2)",
        "Down": "Player (P) is at (3,2)",
        "Left": "Player (P) is at (2,1)",
        "Right": "Player (P) is at (2,3)",
    }
    assert played(rows, "Right", "Down").describe("coords") == (
        "Player (P) is at (3,3); box on target (√) is at (4,3)."
    )


@pytest.mark.parametrize("text", ["up", "UP", " Up\n", "uP"])
def test_actions_are_read_in_any_case(text: str) -> None:
    assert played(README_ROOM, text).describe("coords").startswith("Player (P) is at (2,3);")


def test_another_vocabulary_is_used_in_grid_and_coordinates() -> None:
    rows = ["WWWWWW", "W.GB.W", "W..A.W", "WWWWWW"]
    game = game_on(rows, symbols="W.GCBA@")
    assert game.describe() == (
        "WWWWWW\nW.GB.W\nW..A.W\nWWWWWW\n"
        "Player (A) is at (2,3); box (B) is at (1,3); target (G) is at (1,2)."
    )
    game.step("Right"), game.step("Up"), game.step("Left")
    assert game.describe() == (
        "WWWWWW\nW.CA.W\nW....W\nWWWWWW\nPlayer (A) is at (1,3); box on target (C) is at (1,2)."
    )
    on_target = played(rows, "Left", "Up", symbols="W.GCBA@")
    assert on_target.describe() == (
        "WWWWWW\nW.@B.W\nW....W\nWWWWWW\n"
        "Player (@) is at (1,2), on a target; box (B) is at (1,3); target (G) is at (1,2)."
    )
    assert game.state_key() == "sokoban\n######\n#_OX_#\n#__P_#\n######"


def test_symbols_may_swap_published_ones() -> None:
    game = game_on(["______", "_#OX#_", "_##P#_", "______"], symbols="_#O√XPS")
    assert game.describe("grid") == "______\n_#OX#_\n_##P#_\n______"
    assert game.state_key() == "sokoban\n######\n#_OX_#\n#__P_#\n######"


def test_permuted_action_names_do_what_the_instruction_says() -> None:
    rows = ["#####", "#___#", "#_P_#", "#_X_#", "#_O_#", "#####"]
    game = envs.make("sokoban_action_vocab", map=rows).unwrapped
    assert isinstance(game, Sokoban)
    assert game.action_names == ("Left", "Right", "Up", "Down")
    places = {}
    for action in game.action_names:
        game.reset(seed=0)
        places[action] = game.step(action)[0].split(" is at ")[1][:5]
    assert places == {"Left": "(1,2)", "Right": "(3,2)", "Up": "(2,1)", "Down": "(2,3)"}
    assert (
        "Left moves you one cell up, Right moves you one cell down, Up moves you one cell to the "
        "left and Down moves you one cell to the right."
    ) in game.instruction
    game.reset(seed=0)
    assert game.oracle() == "Right"
    assert "`Left` moves up" in Sokoban.sheet.variants["sokoban_action_vocab"]


@pytest.mark.parametrize(
    ("env_ids", "depth"),
    [
        (("sokoban", "sokoban_visual"), 300),
        (("sokoban_grid_vocab", "sokoban_action_vocab"), 30),
    ],
)
def test_ids_differ_in_words_and_share_their_puzzles(env_ids: tuple[str, ...], depth: int) -> None:
    keys = set()
    for env in (*map(envs.make, env_ids), envs.make("sokoban", search_depth=depth)):
        env.reset(seed=11)
        env.step("Left")
        keys.add(env.unwrapped.state_key())
    assert len(keys) == 1
    assert set(Sokoban.sheet.variants) == set(IDS)


@pytest.mark.parametrize("size", [5, 6, 8, 10])
@pytest.mark.parametrize("num_boxes", [1, 2])
def test_steps_are_those_of_the_slow_loop(size: int, num_boxes: int) -> None:
    game = Sokoban(size=size, num_boxes=num_boxes)
    choose = np.random.default_rng(size)
    moves = seed = wins = 0
    while moves < 1300:
        game.reset(seed=seed)
        slow = Naive(game.describe("grid"))
        seed += 1
        for _ in range(40):
            action = DIRECTIONS[int(choose.integers(4))]
            grid = slow.grid()
            after, reward, terminated, truncated, info = game.step(action)
            assert (reward, terminated) == (pytest.approx((told := slow.step(action))[0]), told[1])
            assert after == f"{slow.grid()}\n{slow.coords()}"
            assert game.describe("grid") == slow.grid() and not truncated
            assert info["action_is_effective"] == (slow.grid() != grid)
            assert info["success"] == terminated
            moves, wins = moves + 1, wins + terminated
            if terminated:
                break
    assert wins > 0 or size * num_boxes > 8


def test_coordinates_agree_with_the_grid_in_every_reachable_state() -> None:
    states = 0
    rooms = [Sokoban().reset(seed=seed)[0].split("\nPlayer")[0] for seed in range(40)]
    for grid in [*rooms, "\n".join(TWO_BOXES)]:
        game = game_on(grid.split("\n"))
        paths: dict[str, list[str]] = {grid: []}
        for path in (queue := [[]]):  # type: ignore[var-annotated]
            slow = Naive(grid)
            for action in path:
                slow.step(action)
            assert game.possible_next(path) == {f"{slow.grid()}\n{slow.coords()}": 1.0}
            for action in DIRECTIONS:
                (ahead,) = game.possible_next([*path, action], "grid")
                if ahead not in paths and len(paths) < 400:
                    paths[ahead] = [*path, action]
                    queue.append(paths[ahead])
        states += len(paths)
    assert states > 1000


def test_possible_next_moves_nothing_and_draws_nothing() -> None:
    game = game_on(README_ROOM)
    before, stream = game.describe(), game.np_random.bit_generator.state
    assert game.possible_next([]) == {before: 1.0}
    assert game.possible_next(["Up", "what", "Left"], "coords") == {
        "Player (P) is at (2,2); box (X) is at (1,3); target (O) is at (1,4).": 1.0
    }
    assert (game.describe(), game.np_random.bit_generator.state) == (before, stream)


@given(st.lists(st.sampled_from(DIRECTIONS), max_size=30), st.integers(0, 200))
def test_playing_is_what_possible_next_said(actions: list[str], seed: int) -> None:
    game = Sokoban(num_boxes=2)
    game.reset(seed=seed)
    expected = game.possible_next(actions)
    for action in actions:
        game.step(action)
    assert expected == {game.describe(): 1.0}


@given(st.text(max_size=30) | st.text(max_size=3).map(lambda text: text * 30_000))
def test_other_texts_change_nothing(text: str) -> None:
    game = game_on(README_ROOM)
    before = game.describe()
    after, reward, terminated, truncated, info = game.step(text)
    is_action = text.strip().lower() in {"up", "down", "left", "right"}
    assert info["action_is_valid"] == is_action
    if not is_action:
        assert (after, reward, terminated, truncated) == (before, -0.1, False, False)
        assert game.possible_next([text]) == {before: 1.0}


def test_tiles_follow_the_symbols() -> None:
    assert Sokoban().tiles == {
        "#": "wall", "_": "floor", "O": "target", "√": "box_on_target", "X": "box", "P": "player",
        "S": "player_on_target",
    }  # fmt: skip
    renamed = envs.make("sokoban_grid_vocab").unwrapped
    assert renamed.tiles["W"] == "wall" and renamed.tiles["@"] == "player_on_target"
    assert "#" not in renamed.tiles and renamed.board_rows("W.\nA") == ["W.", "A"]


def test_picture_shows_a_tile_for_each_cell() -> None:
    game = Sokoban(map=README_ROOM, render_mode="rgb_array")
    game.reset(seed=0)
    before = game.render()
    game.step("Up")
    after = game.render()
    assert isinstance(before, np.ndarray) and isinstance(after, np.ndarray)
    assert before.dtype == np.uint8 and before.shape[:2] == (before.shape[0],) * 2
    cell = before.shape[0] // 6
    changed = {
        (r, c)
        for r in range(6)
        for c in range(6)
        if (
            before[r * cell : (r + 1) * cell, c * cell : (c + 1) * cell]
            != after[r * cell : (r + 1) * cell, c * cell : (c + 1) * cell]
        ).any()
    }
    assert changed == {(3, 3), (2, 3), (1, 3)}
    assert game_on(README_ROOM).render() == "\n".join(README_ROOM)


HASHES = {
    "sokoban 0": "621eeaa91859be5d",
    "sokoban 1": "87933b80c1591c33",
    "sokoban 123": "5a83b6082d055038",
    "sokoban_2boxes 0": "908d4490762adf07",
    "sokoban_2boxes 1": "169cbe2b83e4dd99",
    "sokoban_2boxes 123": "c8e9149d1caef286",
    "sokoban_harder 0": "80c607dd97a0d47e",
    "sokoban_harder 1": "e6563ca614132b22",
    "sokoban_harder 123": "ef81063b90584174",
}


def test_seeds_give_the_same_puzzles_in_every_process() -> None:
    """Written down once: a changed draw would move puzzles between the splits of old runs."""
    code = (
        "import envs, json; out = {}\n"
        "for env_id in ('sokoban', 'sokoban_2boxes', 'sokoban_harder'):\n"
        "    env = envs.make(env_id)\n"
        "    for seed in (0, 1, 123):\n"
        "        env.reset(seed=seed); game = env.unwrapped\n"
        "        out[f'{env_id} {seed}'] = game.puzzle_hash()\n"
        "        out[f'{env_id} {seed} oracle'] = game.oracle()\n"
        "        [env.step(action) for action in ('Up', 'Left', 'Down')]; game.describe()\n"
        "        out[f'{env_id} {seed} next'] = list(game.possible_next(['Right']))\n"
        "print(json.dumps(out))"
    )
    output = said_in_every_process(code)
    found = json.loads(output)
    assert {name: found[name] for name in HASHES} == HASHES


def test_no_seed_varies_the_room() -> None:
    game = Sokoban()
    game.reset(seed=0)
    assert len({game.reset()[0] for _ in range(20)}) > 10


ROWS = ["#####", "#PXO#", "#___#", "#####"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 4}, "size is 4; it must be a whole number, at least 5"),
        ({"size": 6.0}, "size is 6.0"),
        ({"size": True}, "size is True"),
        ({"num_boxes": 0}, "num_boxes is 0"),
        ({"num_boxes": "2"}, "num_boxes is '2'"),
        ({"size": 5, "num_boxes": 5}, "num_boxes is 5; a room of size 5 has 9 cells .* most 4"),
        ({"search_depth": 2}, "search_depth is 2; it must be a whole number, at least 3"),
        ({"search_depth": 3, "num_boxes": 2}, "search_depth is 3; to pull 2 .* at least 4"),
        ({"reverse_play": "raven"}, "reverse_play 'raven'; did you mean 'ragen'"),
        ({"render_mode": "human"}, "render_mode 'human'"),
        ({"min_moves": 0}, "min_moves is 0"),
        ({"max_moves": 2.5}, "max_moves is 2.5"),
        ({"min_moves": 9, "max_moves": 3}, "min_moves is 9 and max_moves 3"),
        ({"symbols": "#_O√XP"}, "7 different visible characters"),
        ({"symbols": "#_O√XPP"}, "7 different visible characters"),
        ({"symbols": "# O√XPS"}, "7 different visible characters"),
        ({"symbols": "#\nO√XPS"}, "7 different visible characters"),
        ({"symbols": list("#_O√XPS")}, "7 different visible characters"),
        ({"labels": ("Up", "Down", "Left")}, "list of 4 different names"),
        ({"labels": ("Up", "Down", "Left", "up")}, "list of 4 different names"),
        ({"labels": ("Up", "Down", "Left", "")}, "list of 4 different names"),
        ({"labels": ("Up", "Down", "Left", " Right")}, "list of 4 different names"),
        ({"labels": ("Up", "Down", "Left", 4)}, "list of 4 different names"),
        ({"labels": "UDLR"}, "list of 4 different names"),
        ({"map": []}, "rows of one length"),
        ({"map": "#####"}, "rows of one length"),
        ({"map": [*ROWS[:3], "####"]}, "rows of one length"),
        ({"map": [ROWS[0], "#PXG#", *ROWS[2:]]}, "may hold # _ O √ X P S only"),
        ({"map": ROWS[:3]}, "border must be walls"),
        ({"map": [ROWS[0], "#_XO#", *ROWS[2:]]}, "one player"),
        ({"map": [ROWS[0], "#PXO#", "#_P_#", ROWS[3]]}, "one player"),
        ({"map": [ROWS[0], "#P_O#", *ROWS[2:]]}, "0 boxes and 1 targets"),
        ({"map": [ROWS[0], "#PX_#", *ROWS[2:]]}, "1 boxes and 0 targets"),
        ({"map": [ROWS[0], "#P_√#", *ROWS[2:]]}, "all boxes are on targets"),
        ({"map": [ROWS[0], "#OPX#", *ROWS[2:]]}, "no moves push all boxes"),
    ],
)
def test_a_bad_argument_is_refused_with_its_value(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=said) as caught:
        Sokoban(**arguments)
    assert "\n" not in str(caught.value)


def test_wishes_that_no_room_meets_end_in_one_error() -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=r"none of 1000 rooms .* at least 200 "):
        Sokoban(size=5, min_moves=200).reset(seed=0)
    with pytest.raises(envs.EnvironmentConfigError, match="no room of size 5 with 4 boxes"):
        Sokoban(size=5, num_boxes=4).reset(seed=0)


def test_the_rules_are_complete() -> None:
    assert Sokoban().instruction == (
        "You are in a warehouse and push every box onto a target.\n"
        "The room is a grid of 6 rows and 6 columns. # is a wall, _ is empty floor, O is a target, "
        "√ is a box on a target, X is a box, P is you and S is you on a target.\n"
        "Coordinates are written (row,column) and count from 0: (0,0) is the top left cell and "
        "(5,5) the bottom right one.\n"
        "Up, Down, Left and Right move you one cell that way. If a box stands there, you push it "
        "one cell further the same way. A wall or a second box behind it holds it, and then "
        "nothing moves. You can't pull a box.\n"
        "Each action costs 0.1. A box pushed onto a target is worth 1, a box pushed off a target "
        "costs 1, and the game ends with another 10 when all boxes are on targets."
    )
    assert (
        "A is you and @ is you on a target" in envs.make("sokoban_grid_vocab").unwrapped.instruction
    )
