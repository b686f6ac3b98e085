"""Sudoku: its texts by hand, its rules against a slow referee, its oracle against every board."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.base import STATE_FORMATS
from envs.solvers import Bounds, Budget, HasBounds
from envs.sudoku import Sudoku
from envs.sudoku_boards import Puzzle
from envs.testing import check_text_env
from tests.envs.processes import said_in_every_process

IDS = {"sudoku": (4, 10), "sudoku_medium": (4, 9), "sudoku_hard": (4, 6), "sudoku_9x9": (9, 36)}
PUBLISHED = ("..14 14.3 42.. .142", "2314 1423 4231 3142")
STUCK = ("4213 ..24 2..1 .4.2", "4213 3124 2341 1432")
ASIDE = ("241. 1... 32.1 413.", "2413 1324 3241 4132")


def game_on(givens: str, solution: str, render_mode: str | None = None) -> Sudoku:
    """A game of this board instead of a drawn one; rows are separated by spaces."""
    puzzle = Puzzle(givens.replace(" ", ""), solution.replace(" ", ""))
    game = Sudoku(clues=16 - puzzle.givens.count("."), render_mode=render_mode)
    with mock.patch("envs.sudoku.drawn", return_value=puzzle):
        game.reset(seed=0)
    return game


def made(env_id: str) -> Sudoku:
    game = envs.make(env_id).unwrapped
    assert isinstance(game, Sudoku)
    return game


def rows_of(text: str) -> list[list[str]]:
    """The published line, cell by cell."""
    line = text.split("\n")[0]
    assert line.startswith("| ") and line.endswith(" ")
    return [row.split() for row in line[1:].split("|")]


def flat(text: str) -> str:
    return "".join(map("".join, rows_of(text)))


def is_solved(rows: list[list[str]]) -> bool:
    size = len(rows)
    side = {4: 2, 9: 3}[size]
    digits = {str(digit + 1) for digit in range(size)}
    groups = [set(row) for row in rows] + [set(column) for column in zip(*rows, strict=True)]
    for top, left in itertools.product(range(0, size, side), repeat=2):
        groups.append({rows[top + i][left + j] for i in range(side) for j in range(side)})
    return all(group == digits for group in groups)


class Referee:
    """The rules once more, on lists of lists."""

    def __init__(self, rows: list[list[str]]) -> None:
        self.givens = [[cell != "." for cell in row] for row in rows]
        self.rows = [list(row) for row in rows]
        self.size = len(rows)

    def is_action(self, row: int, column: int, digit: int) -> bool:
        if not all(1 <= number <= self.size for number in (row, column, digit)):
            return False
        return not self.givens[row - 1][column - 1]

    def conflicts(self, row: int, column: int, digit: int) -> bool:
        side = {4: 2, 9: 3}[self.size]
        for r, c in itertools.product(range(1, self.size + 1), repeat=2):
            if (r, c) == (row, column) or self.rows[r - 1][c - 1] != str(digit):
                continue
            same_box = (r - 1) // side == (row - 1) // side and (c - 1) // side == (
                column - 1
            ) // side
            if r == row or c == column or same_box:
                return True
        return False

    def play(self, row: int, column: int, digit: int) -> tuple[bool, bool, float]:
        """Valid, effective, reward."""
        if not self.is_action(row, column, digit):
            return False, False, 0.0
        if self.conflicts(row, column, digit) or self.rows[row - 1][column - 1] == str(digit):
            return True, False, 0.0
        self.rows[row - 1][column - 1] = str(digit)
        return True, True, float(is_solved(self.rows))

    def text(self) -> str:
        line = "".join("| " + "".join(f"{cell} " for cell in row) for row in self.rows)
        empty = [
            f"({r + 1},{c + 1})"
            for r, row in enumerate(self.rows)
            for c, cell in enumerate(row)
            if cell == "."
        ]
        if not empty:
            return f"{line}\nNo empty positions found (board might be complete)."
        if len(empty) == 1:
            return f"{line}\nEmpty position to be filled is at {empty[0]}."
        return f"{line}\nEmpty positions to be filled are at {', '.join(empty)}."


@pytest.mark.parametrize("env_id", IDS)
def test_every_id_keeps_the_promises_of_an_environment(env_id: str) -> None:
    check_text_env(env_id)


@pytest.mark.parametrize("env_id", IDS)
def test_an_id_is_a_size_and_a_number_of_clues(env_id: str) -> None:
    game = made(env_id)
    text, _ = game.reset(seed=3)
    size, clues = IDS[env_id]
    cells = flat(text)
    assert len(cells) == size * size
    assert len(cells) - cells.count(".") == clues
    assert Sudoku.sheet is not None and set(Sudoku.sheet.variants) == set(IDS)


def test_the_state_is_the_published_text_character_by_character() -> None:
    game = game_on(*PUBLISHED)
    line = "| . . 1 4 | 1 4 . 3 | 4 2 . . | . 1 4 2 "
    empty = "Empty positions to be filled are at (1,1), (1,2), (2,3), (3,3), (3,4), (4,1)."
    assert game.describe("grid") == line
    assert game.describe("grid_coords") == game.describe() == f"{line}\n{empty}"
    assert game.describe("coords") == (
        "1 is at (1,3), (2,1), (4,2); 2 is at (3,2), (4,4); 3 is at (2,4); "
        f"4 is at (1,4), (2,2), (3,1), (4,3). {empty}"
    )
    for action in ("1,1,2", "1,2,3", "2,3,2", "3,3,3", "3,4,1"):
        game.step(action)
    assert game.describe() == (
        "| 2 3 1 4 | 1 4 2 3 | 4 2 3 1 | . 1 4 2 \nEmpty position to be filled is at (4,1)."
    )
    game.step("4,1,3")
    full = "No empty positions found (board might be complete)."
    assert game.describe() == f"| 2 3 1 4 | 1 4 2 3 | 4 2 3 1 | 3 1 4 2 \n{full}"
    assert game.describe("coords") == (
        "1 is at (1,3), (2,1), (3,4), (4,2); 2 is at (1,1), (2,3), (3,2), (4,4); "
        f"3 is at (1,2), (2,4), (3,3), (4,1); 4 is at (1,4), (2,2), (3,1), (4,3). {full}"
    )
    with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'coords'"):
        game.describe("coord")


def test_a_digit_that_stands_nowhere_is_not_mentioned() -> None:
    game = game_on("1.3. 3... .1.. ...1", "1234 3412 2143 4321")
    shown = game.describe("coords").split(" Empty")[0]
    assert shown == "1 is at (1,1), (3,2), (4,4); 3 is at (1,3), (2,1)."


REWARDS = [
    # action, valid, effective: on the published board, one after the other
    ("1,1,3", True, True),  # legal and wrong
    ("1,1,3", True, False),  # the same digit again
    ("1,2,3", True, False),  # 3 stands in the row and box now
    ("1,1,4", True, False),  # 4 stands in the row
    ("1,1,1", True, False),  # 1 stands in the column
    ("4,1,3", True, False),  # 3 stands in the column now
    ("1,3,2", False, False),  # a given cell
    ("1,3,1", False, False),  # a given cell, even with its own digit
    ("1,1,5", False, False),  # no such digit
    ("0,1,2", False, False),  # no such row
    ("1,5,2", False, False),  # no such column
    ("1,1,2", True, True),  # the wrong digit is overwritten
    ("1,2,3", True, True),
    ("2,3,2", True, True),
    ("3,3,3", True, True),
    ("3,4,1", True, True),
]


def test_only_the_last_cell_pays_and_it_ends_the_game() -> None:
    game = game_on(*PUBLISHED)
    for action, is_valid, is_effective in REWARDS:
        before = game.describe()
        after, reward, terminated, truncated, info = game.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False), action
        assert info == {
            "success": False,
            "action_is_valid": is_valid,
            "action_is_effective": is_effective,
        }, action
        assert (after != before) is is_effective
    _, reward, terminated, truncated, info = game.step("4,1,3")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}


def test_nothing_changes_or_pays_after_the_end() -> None:
    game = game_on("2314 1423 423. 3142", PUBLISHED[1])
    assert game.step("3,4,1")[1:3] == (1.0, True)
    full = game.describe()
    for row, column, digit in itertools.product(range(1, 5), repeat=3):
        text, reward, terminated, _, info = game.step(f"{row},{column},{digit}")
        assert (text, reward, terminated) == (full, 0.0, True)
        assert info["success"] and not info["action_is_effective"]
        assert info["action_is_valid"] is ((row, column) == (3, 4))
    text, reward, terminated, _, info = game.step("nonsense")
    assert (text, reward, terminated, info["action_is_valid"]) == (full, 0.0, True, False)


@pytest.mark.parametrize(
    "text", ["1,1,2", " 1,1,2\n", "1, 1, 2", "1 ,\t1 , 2", "1 1 2", "  1\t1\n2 "]
)
def test_three_numbers_with_commas_or_white_space_are_an_action(text: str) -> None:
    game = game_on(*PUBLISHED)
    assert game.step(text)[4]["action_is_effective"]
    assert game.describe().startswith("| 2 . 1 4 |")


@pytest.mark.parametrize(
    "text",
    [
        "", "112", "1,1", "1,1,2,", "1,1,2,2", "1 1,2", "1,1 2", "1;1;2", "(1,1,2)", "(1,1),2",
        "01,1,2", "+1,1,2", "1,1,-2", "1,1,2.0", "1,1,two", "1,1,\u0662", "1,1,\u00b2",
        "place 2 at row 1 col 1", "1,1,2 || 1,2,3", "," * 100_000, "1 " * 50_000, "9" * 100_000,
    ],
)  # fmt: skip
def test_any_other_text_is_no_action(text: str) -> None:
    game = game_on(*PUBLISHED)
    before = game.describe()
    after, reward, terminated, truncated, info = game.step(text)
    assert (after, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert game.possible_next([text]) == {before: 1.0}


@given(
    st.one_of(
        st.text(max_size=50),
        st.text(alphabet="0123456789, \t", max_size=12),
        st.builds(lambda piece, times: piece * times, st.text(max_size=5), st.integers(0, 20_000)),
    )
)
def test_no_text_raises_and_one_that_is_no_action_changes_nothing(text: str) -> None:
    game = game_on(*PUBLISHED)
    before = game.describe()
    expected = game.possible_next([text])
    after, _, _, _, info = game.step(text)
    assert expected == {after: 1.0}
    assert info["action_is_effective"] is (after != before)
    assert info["action_is_valid"] or after == before


@pytest.mark.parametrize(("size", "clues", "num_games"), [(4, 10, 100), (4, 15, 100), (9, 36, 5)])
def test_random_moves_are_played_as_the_referee_plays_them(
    size: int, clues: int, num_games: int
) -> None:
    game, choose = Sudoku(size, clues), np.random.default_rng(1)
    seen: Counter[tuple[bool, bool, float]] = Counter()
    for seed in range(num_games):
        text, _ = game.reset(seed=seed)
        referee = Referee(rows_of(text))
        for _ in range(10_000 // num_games):
            numbers = [int(number) for number in choose.integers(size + 2, size=3)]
            expected = referee.play(*numbers)
            text, reward, terminated, _, info = game.step(",".join(map(str, numbers)))
            outcome = (info["action_is_valid"], info["action_is_effective"], reward)
            assert outcome == expected
            assert text == referee.text()
            assert terminated == info["success"] == is_solved(referee.rows)
            seen[outcome] += 1
            if terminated:
                text, _ = game.reset()
                referee = Referee(rows_of(text))
    kinds = {(False, False, 0.0), (True, False, 0.0), (True, True, 0.0)}
    assert min(seen[kind] for kind in kinds if clues < 15 or kind[1:] != (True, 0.0)) > 80
    assert clues != 15 or seen[(True, True, 1.0)] > 20


def test_possible_next_plays_several_actions_and_touches_nothing() -> None:
    game = game_on(*PUBLISHED)
    state, stream = game.describe(), game.np_random.bit_generator.state
    plan = ["1,1,3", "1,1,2", "1,3,9", "1,2,2", "1,2,3"]
    assert game.possible_next(plan, "grid") == {"| 2 3 1 4 | 1 4 . 3 | 4 2 . . | . 1 4 2 ": 1.0}
    assert game.possible_next([]) == {state: 1.0}
    assert (game.describe(), game.np_random.bit_generator.state) == (state, stream)


def test_boards_that_differ_read_differently_in_every_format() -> None:
    game = game_on(*PUBLISHED)
    texts: dict[str, set[str]] = {name: set() for name in STATE_FORMATS}
    for actions in ((), ("1,1,2",), ("1,1,3",), ("1,2,3",), ("1,1,2", "1,2,3")):
        for name in STATE_FORMATS:
            texts[name] |= set(game.possible_next(actions, name))
    assert [len(each) for each in texts.values()] == [5, 5, 5]


def test_two_swapped_digits_can_lock_each_other_for_good() -> None:
    """Row 2 lacks 1 and 3 only; once 1 stands where 3 belongs and 3 where 1 does, neither goes."""
    game = game_on(*STUCK)
    for action in ("2,1,1", "2,2,3"):
        assert game.step(action)[4]["action_is_effective"]
    for action in ("2,1,3", "2,2,1", "2,1,2", "2,1,4", "2,2,2", "2,2,4"):
        assert not game.step(action)[4]["action_is_effective"]
    assert game.oracle() == "2,1,3"


def test_the_oracle_fills_blanks_in_reading_order() -> None:
    game = game_on(*PUBLISHED)
    said = []
    while not said or not game.step(said[-1])[2]:
        said.append(str(game.oracle(50)))
    assert said == ["1,1,2", "1,2,3", "2,3,2", "3,3,3", "3,4,1", "4,1,3"]


def test_the_oracle_lets_a_digit_step_aside() -> None:
    """4 and 2 of row 2 are swapped and block each other, but a 3 may stand at (2,4) meanwhile."""
    game = game_on(*ASIDE)
    for action in ("2,3,4", "2,4,2"):
        assert game.step(action)[4]["action_is_effective"]
    said = []
    while not said or not game.step(said[-1])[2]:
        said.append(str(game.oracle()))
    assert said == ["2,4,3", "2,3,2", "2,4,4", "1,4,3", "2,2,3", "3,3,4", "4,4,2"]


def all_boards(start: list[list[str]]) -> dict[str, list[str]]:
    """Every board that play can reach -> the boards after one effective move, by the referee."""
    referee = Referee(start)
    blanks = [(r, c) for r, row in enumerate(start) for c, cell in enumerate(row) if cell == "."]
    ahead: dict[str, list[str]] = {}
    queue = ["".join(map("".join, start))]
    for board in queue:
        if board in ahead:
            continue
        referee.rows = [list(board[i : i + 4]) for i in range(0, 16, 4)]
        ahead[board] = [
            board[: 4 * r + c] + str(digit) + board[4 * r + c + 1 :]
            for (r, c), digit in itertools.product(blanks, (1, 2, 3, 4))
            if board[4 * r + c] != str(digit) and not referee.conflicts(r + 1, c + 1, digit)
        ]
        queue += ahead[board]
    return ahead


def actions_to_go(ahead: dict[str, list[str]]) -> dict[str, int]:
    """Fewest actions to a full board; boards without a way are left out."""
    back: dict[str, list[str]] = {board: [] for board in ahead}
    for board, others in ahead.items():
        for other in others:
            back[other].append(board)
    (solved,) = [board for board in ahead if "." not in board]
    away = {solved: 0}
    queue = [solved]
    for board in queue:
        for other in back[board]:
            if other not in away:
                away[other] = away[board] + 1
                queue.append(other)
    return away


@pytest.mark.parametrize(
    ("env_id", "seeds"),
    [("sudoku", range(40)), ("sudoku_medium", range(15)), ("sudoku_hard", range(2))],
)
def test_from_every_board_the_oracle_takes_a_shortest_way(env_id: str, seeds: range) -> None:
    game = made(env_id)
    boards = lost = detours = 0
    for seed in seeds:
        start, _ = game.reset(seed=seed)
        ahead = all_boards(rows_of(start))
        away = actions_to_go(ahead)
        assert away[flat(start)] == len(game._own) == 16 - game.clues
        for board in ahead:
            game._board = board
            action = game.oracle()
            assert action is not None
            (text,) = game.possible_next([action])
            boards += 1
            if board not in away:
                lost += 1
            elif away[board] > 0:
                assert away[flat(text)] == away[board] - 1
                detours += away[board] > sum(
                    a != b for a, b in zip(board, game._solution, strict=True)
                )
    assert boards > 1000 and lost > 0
    assert env_id != "sudoku" or detours > 0


def test_the_oracle_corrects_a_wrong_digit_of_9x9() -> None:
    """One wrong digit alone blocks no right one: 44 blanks and one correction are 45 actions."""
    game, choose = made("sudoku_9x9"), np.random.default_rng(0)
    for seed in range(20):
        game.reset(seed=seed)
        before = game.describe()
        while game.describe() == before:
            action = game.sample_action(choose)
            cell, digit = game._move(action) or (0, "")
            if game._solution[cell] != digit:
                game.step(action)
        ends = [game.step(str(game.oracle()))[2] for _ in range(45)]
        assert ends == [False] * 44 + [True]


def slow_floor(game: Sudoku, num_actions: int) -> float:
    """Probabilities of all boards, action by action, played by `possible_next`."""
    actions = [
        f"{cell // 4 + 1},{cell % 4 + 1},{digit}" for cell in game._own for digit in (1, 2, 3, 4)
    ]
    ahead: dict[str, list[str]] = {}
    chances = {game._board: 1.0}
    for _ in range(num_actions):
        after: dict[str, float] = {}
        for board, chance in chances.items():
            if board not in ahead:
                game._board = board
                ahead[board] = [
                    flat(text)
                    for action in actions
                    for text in game.possible_next([action], "grid")
                ]
            for other in ahead[board]:
                after[other] = after.get(other, 0.0) + chance / len(actions)
        chances = after
    return sum(chance for board, chance in chances.items() if "." not in board)


@pytest.mark.parametrize("clues", [15, 12, 10, 9])
def test_the_floor_is_exact(clues: int) -> None:
    game = Sudoku(clues=clues)
    assert isinstance(game, HasBounds)
    for seed, num_actions in itertools.product(range(3), (8, 25)):
        game.reset(seed=seed)
        bounds = game.success_bounds(Budget(50, num_actions, 1))
        assert bounds.floor == pytest.approx(slow_floor(game, num_actions), abs=1e-14)
        assert bounds.ceiling == 1.0


def test_one_blank_is_hit_by_one_action_in_four() -> None:
    """Of the four digits one fits; after n actions (3/4)^n of the players haven't found it."""
    game = game_on("2314 1423 423. 3142", PUBLISHED[1])
    assert game.success_bounds(Budget(1)) == pytest.approx(Bounds(0.25, 1.0))
    assert game.success_bounds(Budget(3)) == pytest.approx(Bounds(1 - 0.75**3, 1.0))


def test_bounds_depend_on_what_can_be_played() -> None:
    game = made("sudoku")
    game.reset(seed=0)
    assert game.success_bounds(Budget(5)) == Bounds(0.0, 0.0)
    assert game.success_bounds(Budget(50, 5, 1)) == Bounds(0.0, 0.0)
    assert game.success_bounds(Budget(6)).ceiling == 1.0
    large = made("sudoku_9x9")
    large.reset(seed=0)
    assert large.success_bounds(Budget(50, 5, 5)) == Bounds(0.0, 0.0)
    assert large.success_bounds(Budget(50, 10, 5)) == Bounds(None, 1.0)


def test_random_play_draws_cells_and_digits_uniformly() -> None:
    game, choose = game_on(*PUBLISHED), np.random.default_rng(0)
    counts: dict[str, int] = {}
    for _ in range(24_000):
        action = game.sample_action(choose)
        counts[action] = counts.get(action, 0) + 1
    cells = ["1,1", "1,2", "2,3", "3,3", "3,4", "4,1"]
    assert set(counts) == {f"{cell},{digit}" for cell in cells for digit in (1, 2, 3, 4)}
    assert all(850 < count < 1150 for count in counts.values())


HASHES = {
    "sudoku": ["0d15f63f0c973974", "6784177eda164fad", "d356de29d002c323"],
    "sudoku_hard": ["59e08b5a1e908187", "96035ec5d19450b8", "c7758cd7a820aa44"],
    "sudoku_9x9": ["7f0881ac5ca23c89", "9887c7b1f83779e7", "4dac7358f4a26fe9"],
}


def test_seeds_give_the_same_puzzles_in_every_process() -> None:
    """Written down once: a changed draw would move puzzles between the splits of old runs."""
    code = (
        "import envs, json; out = {}\n"
        f"for env_id in {list(HASHES)}:\n"
        "    env = envs.make(env_id).unwrapped; out[env_id] = []\n"
        "    for seed in (0, 1, 123):\n"
        "        env.reset(seed=seed); out[env_id].append(env.puzzle_hash())\n"
        "print(json.dumps(out))"
    )
    output = said_in_every_process(code)
    assert json.loads(output) == HASHES


def test_no_seed_varies_the_puzzle() -> None:
    game = Sudoku()
    game.reset(seed=0)
    assert len({game.reset()[0] for _ in range(50)}) == 50


def test_the_puzzle_is_the_literal_board_of_the_start() -> None:
    game = game_on(*PUBLISHED)
    key = "sudoku\n| . . 1 4 | 1 4 . 3 | 4 2 . . | . 1 4 2 "
    assert game.state_key() == key
    game.step("1,1,2")
    assert game.state_key() == key
    renamed = [text.translate(str.maketrans("12", "21")) for text in PUBLISHED]
    assert game_on(*renamed).state_key() != key


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 5}, "size is 5; it must be 4 or 9"),
        ({"size": 16}, "size is 16"),
        ({"size": "4"}, "size is '4'"),
        ({"size": 4.0}, "size is 4.0"),
        ({"size": True}, "size is True"),
        ({"clues": 3}, "clues is 3; a 4x4 board takes a whole number from 4 "),
        ({"clues": 16}, "clues is 16; .* to 15"),
        ({"clues": True}, "clues is True"),
        ({"clues": 10.0}, "clues is 10.0"),
        ({"clues": None}, "clues is None"),
        ({"size": 9}, "clues is 10; a 9x9 board takes a whole number from 24 "),
        ({"size": 9, "clues": 23}, "clues is 23"),
        ({"size": 9, "clues": 81}, "clues is 81; .* to 80"),
        ({"render_mode": "human"}, "unknown render mode 'human'"),
    ],
)
def test_a_bad_argument_is_refused_with_its_value(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=said) as caught:
        Sudoku(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_board_is_read_from_its_line_and_from_what_a_model_makes_of_it() -> None:
    game = game_on(*PUBLISHED)
    assert game.board_rows(game.describe("grid")) == ["..14", "14.3", "42..", ".142"]
    for line, rows in {
        "| 1 2 | 3 x ": ["12", "3x"],
        "1 2 | 3": ["12", "3"],
        "|": [""],
        "": [],
        "no board": ["noboard"],
    }.items():
        assert game.board_rows(line) == rows
    assert game.tiles["."] == "blank" and game.tiles["4"] == "digit_4"
    assert set(game.tiles) == set(".123456789")


def test_the_picture_tells_givens_from_own_digits() -> None:
    assert Sudoku.metadata["render_modes"] == ["ansi", "rgb_array"]
    game = game_on(*PUBLISHED, render_mode="rgb_array")
    with mock.patch("envs.tiles.picture", return_value=np.zeros((1, 1, 3))) as picture:
        game.step("1,1,2")
        game.render()
    rows, tiles = picture.call_args.args
    names = [[tiles[symbol] for symbol in row] for row in rows]
    assert names == [
        ["digit_2", "blank", "given_1", "given_4"],
        ["given_1", "given_4", "blank", "given_3"],
        ["given_4", "given_2", "blank", "blank"],
        ["blank", "given_1", "given_4", "given_2"],
    ]
    drawn = game.render()
    assert isinstance(drawn, np.ndarray)
    assert (drawn.shape, drawn.dtype) == ((128, 128, 3), np.uint8)
    for mode in (None, "ansi"):
        assert game_on(*PUBLISHED, render_mode=mode).render() == game_on(*PUBLISHED).describe(
            "grid"
        )


def test_the_rules_say_how_to_act() -> None:
    assert Sudoku().instruction == (
        "You solve a 4x4 Sudoku: fill the blank cells so that each row, each column and each of "
        "the four 2x2 boxes holds every digit from 1 to 4 once.\n"
        "The board is written on one line: | opens a row and . is a blank cell.\n"
        "Coordinates are written (row,column) and count from 1: (1,1) is the top left cell and "
        "(4,4) the bottom right one.\n"
        "An action is row,column,digit: 2,3,4 writes a 4 into row 2, column 3. A digit that the "
        "same row, column or box holds already isn't written, and the digits that the board came "
        "with stay. Your own digits can be overwritten, but not erased.\n"
        "The game ends when the board is full and right, which is worth 1."
    )
    assert "nine 3x3 boxes holds every digit from 1 to 9" in Sudoku(9, 36).instruction


@pytest.mark.parametrize("env_id", ["sudoku", "sudoku_9x9"])
def test_legal_actions_are_all_that_the_game_knows(env_id: str) -> None:
    game = envs.make(env_id).unwrapped
    game.reset(seed=1)
    known = [text for text in game.action_space.examples if game.step(text)[-1]["action_is_valid"]]
    assert list(game.legal_actions()) == known
