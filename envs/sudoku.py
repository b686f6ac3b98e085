"""Sudoku: fill the blank cells so that each row, column and box holds every digit once.

The texts of the state are those of SPA's authors, character by character. Drawing puzzles and
searching boards is in `envs.sudoku_boards`.

Deviations from the published environment
1. Puzzles come from all grids, the 4x4 ones uniformly; the published one shuffles a fixed pattern,
   which reaches one of the two kinds of 4x4 grids and hardly any of 9x9.
2. `coords` alone, which isn't published, lists the filled cells too: the published line names the
   empty ones only, and different boards would read the same.
3. `place 3 at row 1 col 2` is no action; `1,2,3` and `1 2 3` are.
4. There's no step limit of its own (published: 30); the action budget ends an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.base import COORDS, GRID, GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace
from envs.drawn import drawn
from envs.errors import EnvironmentConfigError, unknown_name
from envs.solvers import Bounds, Budget
from envs.sudoku_boards import (
    BLANK,
    BOXES,
    FEWEST_CLUES,
    Layout,
    Move,
    draw_puzzle,
    layout,
    random_success,
    repair,
    written,
)

_NUMBER_WORDS = {2: "four 2x2", 3: "nine 3x3"}
_GIVEN = str.maketrans("123456789", "abcdefghi")
"""Givens in a picture; no text marks them."""
_GIVEN_TILES = {letter: f"given_{digit}" for digit, letter in enumerate("abcdefghi", start=1)}


class Sudoku(TextEnv):
    """A board with given digits and blanks.

    Actions: `row,column,digit` or the same with white space instead of commas, counted from 1.
    Writing where the same row, column or box holds the digit already changes nothing. A legal
    digit needn't be the right one, may be overwritten by a legal other, and can't be erased.
    Reward: 1 for filling the last cell, else 0. End: the board is full, and then solved.
    Symbols: `|` opens a row, `.` is a blank.
    Ids: `sudoku` (4x4, 10 clues), `sudoku_medium` (9), `sudoku_hard` (6), `sudoku_9x9` (36).
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    tiles = {BLANK: "blank"} | {digit: f"digit_{digit}" for digit in "123456789"}
    sheet = DataSheet(
        title="Sudoku",
        summary="Fill the blank cells of a board so that each row, column and box holds every "
        "digit once.",
        state="The board stands on one line: each row opens with `| `, each cell is followed by a "
        "space, and `.` is blank. The line after it names the empty cells. Coordinates are "
        "`(row,column)`, count from 1 and follow reading order. `coords` alone lists the filled "
        "cells digit by digit and then the empty ones. Givens look like the player's own digits.",
        actions="`row,column,digit`, or the three numbers with white space between them, counted "
        "from 1 and written as plain single digits; white space around a number is ignored. A text "
        "of another form, a number out of range and a given cell are no action. A digit that the "
        "row, column or box holds already is an action that changes nothing, as is writing the "
        "digit that stands there. An own digit may be overwritten, and can't be erased.",
        reward="1 for filling the last cell, else 0.",
        end="When the board is full. Since conflicts are never written, a full board is a solved "
        "one: success. A legal digit that isn't the solution's may block the others for good; "
        "the game doesn't tell.",
        puzzles="Each has exactly one solution. 4x4: a seed draws one of the 288 grids and a set "
        "of cells, both uniformly, again until the cells determine the grid, which makes all "
        "puzzles with that many clues equally likely. 9x9: three diagonal boxes at random, the "
        "rest by a search with random digits, then cells go in random order while one solution "
        "stays; every puzzle can come up, not all equally often. Two puzzles are the same only if "
        "their boards are. There are 2,204,928 4x4 puzzles with 10 clues, 2,958,336 with 9 and "
        "1,041,408 with 6 (counted); renaming digits and turning or swapping lines makes up to "
        "3,072 of one. The splits keep boards apart, not these symmetric images.",
        solver="The ceiling is exact: one action a blank, so 1 where the budget has as many "
        "actions as the board has blanks, else 0. The floor is exact where the budget is too small "
        "or the givens leave at most 100,000 boards (of six to ten blanks on 4x4 all that were "
        "tried); else it is estimated by play. A random player draws a cell (not a given) and a "
        "digit, uniformly. "
        "The oracle is optimal from every start; after wrong digits it searches for a shortest "
        "way back, where one exists and is found within 2,000 boards.",
        source="SPA (arXiv 2510.15047), the authors' environment; RAGEN's own came later and "
        "pays differently.",
        deviations=(
            "Puzzles come from all grids, the 4x4 ones uniformly; the published ones from one "
            "shuffled pattern, which reaches one of the two kinds of 4x4 grids and hardly any of "
            "9x9.",
            "`sudoku_9x9` is meant for 50 actions in ten turns (`conf/env/sudoku_9x9.yaml`).",
            "`coords` lists the filled cells as well, since the published line alone doesn't say "
            "what the board holds.",
            "`place 3 at row 1 col 2` is no action: two ways to say it are enough.",
            "No step limit of its own (published: 30): the action budget ends an episode.",
        ),
        variants={
            "sudoku": "4x4, 10 clues: six blanks, as published.",
            "sudoku_medium": "4x4, 9 clues: seven blanks.",
            "sudoku_hard": "4x4, 6 clues: ten blanks.",
            "sudoku_9x9": "9x9, 36 clues: 45 blanks, which the published 25 actions can't fill.",
        },
    )

    def __init__(self, size: int = 4, clues: int = 10, render_mode: str | None = None) -> None:
        """`size` is 4 or 9; `clues` are the filled cells of a new board."""
        _check_arguments(size, clues, render_mode)
        self.size, self.clues = size, clues
        self.render_mode = render_mode
        self._layout = layout(size)
        self._template = "| " + "| ".join(["%s " * size] * size)
        self.action_space = TextSpace(",".join(numbers) for numbers in self._layout.moves)
        self.observation_space = TextSpace()
        self.instruction = _instruction(size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a puzzle."""
        super().reset(seed=seed)
        draw = partial(draw_puzzle, self.size, self.clues, self.np_random)
        how = "sudoku", self.size, self.clues
        self._givens, self._solution = drawn(self.np_random, how, draw)
        self._own = [cell for cell, digit in enumerate(self._givens) if digit == BLANK]
        self._board = self._givens
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Write a digit, if the rules allow it. No digit fits on a full board."""
        before, move = self._board, self._move(action)
        if move is not None:
            self._board = self._after(before, move)
        is_effective = self._board != before
        is_full = BLANK not in self._board
        info = {
            "success": is_full,
            "action_is_valid": move is not None,
            "action_is_effective": is_effective,
        }
        reward = 1.0 if is_effective and is_full else 0.0
        return self.describe(), reward, is_full, False, info

    def render(self) -> str | NDArray[np.uint8]:
        """The board as text, or in `rgb_array` mode as a picture with grey givens."""
        if self.render_mode != "rgb_array":
            return self.describe(GRID)
        from envs.tiles import picture

        cells = [
            own if given == BLANK else given.translate(_GIVEN)
            for given, own in zip(self._givens, self._board, strict=True)
        ]
        starts = range(0, len(cells), self.size)
        rows = ["".join(cells[start : start + self.size]) for start in starts]
        return picture(rows, {**self.tiles, **_GIVEN_TILES})

    def board_rows(self, text: str) -> list[str]:
        """The rows between the strokes, without the blanks between the cells."""
        rows = ["".join(row.split()) for row in text.split("|")]
        return rows if rows[0] else rows[1:]

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. Coordinates are (row,column), count from 1, in reading order."""
        return self._describe(self._board, state_format)

    def state_key(self) -> str:
        """The literal board: renamed digits make another puzzle."""
        return f"sudoku\n{self._describe(self._givens, GRID)}"

    def oracle(self, actions_left: int | None = None) -> str | None:
        """The next blank with its digit; with wrong digits on the board, first the way back.

        Where none is found, the right digit of a wrong cell: there's nothing better to say.
        """
        board, solution = self._board, self._solution
        filled = [cell for cell in self._own if board[cell] != BLANK]
        if any(board[cell] != solution[cell] for cell in filled):
            move = repair(board, solution, filled, self.size)
            if move is not None:
                return _text(move, self.size)
            todo = [cell for cell in filled if board[cell] != solution[cell]]
        else:
            todo = [cell for cell in self._own if board[cell] == BLANK] or self._own
        return _text((todo[0], solution[todo[0]]), self.size)

    def sample_action(self, rng: np.random.Generator) -> str:
        """A cell that isn't given, and a digit, uniformly; the rules needn't allow it."""
        draw = int(rng.integers(len(self._own) * self.size))
        place, digit = divmod(draw, self.size)
        return _text((self._own[place], self._layout.digits[digit]), self.size)

    def legal_actions(self) -> tuple[str, ...]:
        """Every digit in every cell that isn't given; the rules needn't allow it."""
        digits = self._layout.digits
        return tuple(_text((cell, digit), self.size) for cell in self._own for digit in digits)

    def success_bounds(self, budget: Budget) -> Bounds:
        """The floor is None where there are too many boards; the ceiling is always exact."""
        floor = random_success(self._givens, self.size, budget.playable)
        return Bounds(floor, float(len(self._own) <= budget.playable))

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`. One outcome: nothing is left to luck."""
        board = self._board
        for action in actions:
            move = self._move(action)
            if move is not None:
                board = self._after(board, move)
        return {self._describe(board, state_format): 1.0}

    def _move(self, action: str) -> Move | None:
        """What an action writes where; None for any other text, and where a given stands."""
        numbers = action.split(",") if "," in action else action.split()
        if len(numbers) != 3:
            return None
        row, column, digit = numbers
        move = self._layout.moves.get((row.strip(), column.strip(), digit.strip()))
        return None if move is None or self._givens[move[0]] != BLANK else move

    def _after(self, board: str, move: Move) -> str:
        """The board with a digit written, or as it is where the rules forbid that."""
        cell, digit = move
        return board if digit in self._layout.seen[cell](board) else written(board, cell, digit)

    def _describe(self, board: str, state_format: str) -> str:
        if state_format == COORDS:
            return f"{_filled(board, self._layout)} {_empty(board, self._layout)}"
        grid = self._template % tuple(board)
        if state_format == GRID_COORDS:
            return f"{grid}\n{_empty(board, self._layout)}"
        if state_format == GRID:
            return grid
        raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))


def _empty(board: str, plan: Layout) -> str:
    """The published line."""
    places = [name for name, held in zip(plan.names, board, strict=True) if held == BLANK]
    if not places:
        return "No empty positions found (board might be complete)."
    if len(places) == 1:
        return f"Empty position to be filled is at {places[0]}."
    return f"Empty positions to be filled are at {', '.join(places)}."


def _filled(board: str, plan: Layout) -> str:
    """Where each digit stands; one that stands nowhere isn't mentioned."""
    parts = []
    for digit in plan.digits:
        places = [name for name, held in zip(plan.names, board, strict=True) if held == digit]
        if places:
            parts.append(f"{digit} is at {', '.join(places)}")
    return "; ".join(parts) + "."


def _text(move: Move, size: int) -> str:
    row, column = divmod(move[0], size)
    return f"{row + 1},{column + 1},{move[1]}"


def _check_arguments(size: Any, clues: Any, render_mode: Any) -> None:
    if type(size) is not int or size not in BOXES:
        message = f"sudoku: size is {size!r}; it must be 4 or 9, the square of a box's side."
        raise EnvironmentConfigError(message)
    fewest, most = FEWEST_CLUES[size], size * size - 1
    if type(clues) is not int or not fewest <= clues <= most:
        message = (
            f"sudoku: clues is {clues!r}; a {size}x{size} board takes a whole number from "
            f"{fewest} (with fewer a board with one solution doesn't exist or is hardly ever "
            f"found) to {most} (one blank)."
        )
        raise EnvironmentConfigError(message)
    modes = Sudoku.metadata["render_modes"]
    if render_mode is not None and render_mode not in modes:
        raise EnvironmentConfigError(unknown_name("render mode", str(render_mode), modes))


def _instruction(size: int) -> str:
    return (
        f"You solve a {size}x{size} Sudoku: fill the blank cells so that each row, each column and "
        f"each of the {_NUMBER_WORDS[BOXES[size]]} boxes holds every digit from 1 to {size} once.\n"
        "The board is written on one line: | opens a row and . is a blank cell.\n"
        "Coordinates are written (row,column) and count from 1: (1,1) is the top left cell and "
        f"({size},{size}) the bottom right one.\n"
        "An action is row,column,digit: 2,3,4 writes a 4 into row 2, column 3. A digit that the "
        "same row, column or box holds already isn't written, and the digits that the board came "
        "with stay. Your own digits can be overwritten, but not erased.\n"
        "The game ends when the board is full and right, which is worth 1."
    )
