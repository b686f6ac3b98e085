"""Sudoku boards: how they are laid out, drawn and put right again.

A board is its cells in reading order, as text: digits, and `.` for a blank. Every drawn puzzle has
exactly one solution. How it is drawn depends on the size:

1. 4x4: one of the 288 complete grids and a set of cells, both uniformly, again until the cells
   determine the grid. A puzzle has one solution, so this is uniform over *all* puzzles with that
   many clues.
2. 9x9: three diagonal boxes at random, the rest by a search that takes the most constrained cell
   and its digits in random order; then cells go in random order, as long as one solution stays.
   Every grid and every such puzzle can come up, though not equally often.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, permutations, product
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.errors import EnvironmentConfigError

BLANK = "."
BOXES = {4: 2, 9: 3}
"""Size of the board -> side of a box."""
FEWEST_CLUES = {4: 4, 9: 24}
"""No 4x4 board with less has one solution. On 9x9 that number is 17, but clearing random grids
seldom gets below 23; 24 is the published hard board."""

_MOST_DRAWS = 2000
"""Draws after which a puzzle is given up; the rarest kind takes about 20 on average."""
_MOST_POSITIONS = 2000
"""Boards that `repair` looks at."""
_MOST_STATES = 100_000
"""Boards (conflicting ones too) that `random_success` lists."""

Units = tuple[int, int, int]
Move = tuple[int, str]
"""Cell and digit."""


class Puzzle(NamedTuple):
    """A board with exactly one solution, and that solution."""

    givens: str
    solution: str


class Layout(NamedTuple):
    """What is the same for all boards of a size."""

    digits: str
    names: tuple[str, ...]
    """Coordinates of each cell in words, `(1,1)` the first."""
    peers: tuple[tuple[int, ...], ...]
    """Cells that share a row, column or box with each cell."""
    seen: tuple[Callable[[str], tuple[str, ...]], ...]
    """Board -> what the peers of each cell hold."""
    units: tuple[Units, ...]
    """Row, column and box of each cell, numbered through: 0 to 3 * size - 1."""
    moves: dict[tuple[str, ...], Move]
    """The three numbers of an action -> what it writes where."""


@lru_cache(maxsize=2)
def layout(size: int) -> Layout:
    """The layout of a size, 4 or 9."""
    side, digits = BOXES[size], "123456789"[:size]
    places = list(product(range(size), repeat=2))
    units = [(r, size + c, 2 * size + r // side * side + c // side) for r, c in places]
    peers = [
        tuple(
            other for other, theirs in enumerate(units) if theirs != own and set(theirs) & set(own)
        )
        for own in units
    ]
    moves: dict[tuple[str, ...], Move] = {
        (digits[row], digits[column], digit): (row * size + column, digit)
        for row, column in places
        for digit in digits
    }
    names = tuple(f"({row + 1},{column + 1})" for row, column in places)
    seen = tuple(itemgetter(*cells) for cells in peers)
    return Layout(digits, names, tuple(peers), seen, tuple(units), moves)


def written(board: str, cell: int, digit: str) -> str:
    """The board with a digit in a cell."""
    return f"{board[:cell]}{digit}{board[cell + 1 :]}"


def draw_puzzle(size: int, clues: int, rng: np.random.Generator) -> Puzzle:
    """A puzzle with one solution and exactly so many clues."""
    for _ in range(_MOST_DRAWS):
        puzzle = _draw_4x4(clues, rng) if size == 4 else _draw_9x9(clues, rng)
        if puzzle is not None:
            return puzzle
    raise EnvironmentConfigError(
        f"sudoku: {_MOST_DRAWS} random {size}x{size} grids gave no puzzle with {clues} clues and "
        "one solution; ask for more clues."
    )


@lru_cache(maxsize=1)
def grids_4x4() -> tuple[str, ...]:
    """All 288, in alphabetical order: a band is two rows whose boxes hold four digits each."""
    rows = ["".join(row) for row in permutations("1234")]
    bands = [
        top + bottom
        for top, bottom in product(rows, repeat=2)
        if len(set(top[:2] + bottom[:2])) == len(set(top[2:] + bottom[2:])) == 4
    ]
    columns = [{(i % 4, digit) for i, digit in enumerate(band)} for band in bands]
    pairs = product(range(len(bands)), repeat=2)
    return tuple(bands[a] + bands[b] for a, b in pairs if columns[a].isdisjoint(columns[b]))


@lru_cache(maxsize=1)
def _grids_with() -> tuple[tuple[int, ...], ...]:
    """[grid][cell]: the set, as the bits of a number, of the grids with the same digit there."""
    grids = grids_4x4()
    holders: list[dict[str, int]] = [dict.fromkeys("1234", 0) for _ in range(16)]
    for number, grid in enumerate(grids):
        for cell, digit in enumerate(grid):
            holders[cell][digit] |= 1 << number
    return tuple(tuple(holders[cell][digit] for cell, digit in enumerate(grid)) for grid in grids)


def _draw_4x4(clues: int, rng: np.random.Generator) -> Puzzle | None:
    """A uniform grid and a uniform set of cells, if these determine it."""
    grids = grids_4x4()
    *order, draw = rng.random(17).tolist()
    number = int(draw * len(grids))
    agreeing, same = -1, _grids_with()[number]
    cells = sorted(range(16), key=order.__getitem__)
    for cell in cells[:clues]:
        agreeing &= same[cell]
    if agreeing & (agreeing - 1):
        return None
    givens = list(grids[number])
    for cell in cells[clues:]:
        givens[cell] = BLANK
    return Puzzle("".join(givens), grids[number])


def _draw_9x9(clues: int, rng: np.random.Generator) -> Puzzle | None:
    """A random grid with all but `clues` cells cleared; None where that leaves two solutions."""
    bits = _random_grid(rng)
    solution = "".join([str(bit.bit_length()) for bit in bits])
    blanks = _clear(bits, 81 - clues, rng.permutation(81).tolist())
    if len(blanks) < 81 - clues:
        return None
    givens = [BLANK if cell in blanks else digit for cell, digit in enumerate(solution)]
    return Puzzle("".join(givens), solution)


_BITS = tuple(1 << digit for digit in range(9))
"""Digits 1 to 9 in a search, where sets of digits are numbers."""
_ALL = 0b111_111_111


def _random_grid(rng: np.random.Generator) -> list[int]:
    bits, free = [0] * 81, [_ALL] * 27
    order = rng.permuted(np.tile(_BITS, (81, 1)), axis=1).tolist()
    for start in (0, 30, 60):
        for step, bit in enumerate(order[start]):
            _put(bits, free, start + step // 3 * 9 + step % 3, bit)
    blanks = [cell for cell in range(81) if not bits[cell]]
    is_complete = _complete(bits, free, blanks, order)
    assert is_complete, bits  # three boxes without a common row or column are always a part of one
    return bits


def _clear(bits: list[int], num_blanks: int, order: Sequence[int]) -> set[int]:
    """Blank cells of a complete grid in this order where one solution stays; which ones."""
    units, free = layout(9).units, [0] * 27
    blanks: list[int] = []
    for cell in order:
        if len(blanks) == num_blanks:
            break
        bit = bits[cell]
        for unit in units[cell]:
            free[unit] |= bit
        if _has_another(bits, free, blanks, cell):
            for unit in units[cell]:
                free[unit] ^= bit
        else:
            blanks.append(cell)
    return set(blanks)


def _has_another(bits: list[int], free: list[int], blanks: list[int], cell: int) -> bool:
    """Whether another digit than its own in `cell` can be completed."""
    row, column, box = layout(9).units[cell]
    others = free[row] & free[column] & free[box] & ~bits[cell]
    for bit in _BITS:
        if others & bit:
            trial, trial_free = bits[:], free[:]
            _put(trial, trial_free, cell, bit)
            if _complete(trial, trial_free, blanks, None):
                return True
    return False


def _put(bits: list[int], free: list[int], cell: int, bit: int) -> None:
    bits[cell] = bit
    for unit in layout(9).units[cell]:
        free[unit] ^= bit


def _complete(
    bits: list[int],
    free: list[int],
    blanks: list[int],
    order: Sequence[Sequence[int]] | None,
) -> bool:
    """Fill the blanks, the most constrained first; False, and `free` as before, if none fits.

    `free` holds the digits that each unit lacks; `order` says in which order a cell's are tried.
    """
    if not blanks:
        return True
    units, fewest, chosen, choices = layout(9).units, 10, -1, 0
    for cell in blanks:
        row, column, box = units[cell]
        options = free[row] & free[column] & free[box]
        count = options.bit_count()
        if count < fewest:
            fewest, chosen, choices = count, cell, options
            if count < 2:
                break
    rest = [cell for cell in blanks if cell != chosen]
    for bit in order[chosen] if order else _BITS:
        if choices & bit:
            _put(bits, free, chosen, bit)
            if _complete(bits, free, rest, order):
                return True
            _put(bits, free, chosen, bit)
    return False


def repair(board: str, solution: str, own: Sequence[int], size: int) -> Move | None:
    """First move of a shortest way to make the digits in the `own` cells right.

    A digit can't be erased and the right one may be blocked, so a digit may have to step aside.
    Blank cells are of no use on the way: a digit more only blocks more. None where all are right
    already, where there's no way, and where it isn't found within `_MOST_POSITIONS` boards.
    """
    plan = layout(size)
    start = sum([board[cell] != solution[cell] for cell in own])
    queue: list[tuple[int, int, str, Move | None]] = [(start, start, board, None)]
    length_to = {board: 0}
    for _ in range(_MOST_POSITIONS):
        if not queue:
            return None
        _, wrong, board, first = heapq.heappop(queue)
        if wrong == 0:
            return first
        length = length_to[board] + 1
        for cell, digit in _legal_moves(board, own, plan):
            ahead = written(board, cell, digit)
            if length < length_to.get(ahead, length + 1):
                length_to[ahead] = length
                right = solution[cell]
                left = wrong + (board[cell] == right) - (digit == right)
                heapq.heappush(queue, (length + left, left, ahead, first or (cell, digit)))
    return None


def _legal_moves(board: str, cells: Sequence[int], plan: Layout) -> Iterator[Move]:
    """Moves that change something and break no rule."""
    for cell in cells:
        taken = {board[cell], *plan.seen[cell](board)}
        for digit in plan.digits:
            if digit not in taken:
                yield cell, digit


def random_success(givens: str, size: int, num_actions: int) -> float | None:
    """Probability that uniformly drawn cells (all but the givens) and digits solve the puzzle.

    Exact, over every board that such play may reach; None where these are too many. A full board
    is a solved one, since no digit is ever written into a conflict.
    """
    cells = [cell for cell, digit in enumerate(givens) if digit == BLANK]
    if len(cells) > num_actions:
        return 0.0
    plan = layout(size)
    seen = [plan.seen[cell](givens) for cell in cells]
    fits = [[int(digit) for digit in plan.digits if digit not in each] for each in seen]
    if math.prod(len(options) + 1 for options in fits) > _MOST_STATES:
        return None
    targets_ML, is_full_L = _tables(cells, fits, plan)
    value_L = is_full_L.astype(np.float64)
    num_moves = len(cells) * size
    num_idle = num_moves - len(targets_ML)
    for _ in range(num_actions):
        value_L = (value_L[targets_ML].sum(axis=0) + num_idle * value_L) / num_moves
    return float(value_L[0])


def _tables(
    cells: Sequence[int], fits: Sequence[Sequence[int]], plan: Layout
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each move leads from each legal board (L), and which boards are full.

    A move (M) writes a digit that the givens allow; all others change nothing. Board 0 is the
    givens alone. C counts the blank cells, B the boards with conflicting ones among them.
    """
    shape = tuple(len(options) + 1 for options in fits)
    choice_CB = np.array(np.unravel_index(np.arange(math.prod(shape)), shape))
    digit_CB = [
        np.array([0, *fit])[choice_B] for fit, choice_B in zip(fits, choice_CB, strict=True)
    ]
    is_legal_B = np.ones(choice_CB.shape[1], dtype=np.bool_)
    for (i, one), (j, other) in combinations(enumerate(cells), 2):
        if other in plan.peers[one]:
            is_legal_B &= (digit_CB[i] != digit_CB[j]) | (digit_CB[i] == 0)
    legal_L = np.flatnonzero(is_legal_B)
    number_B = np.cumsum(is_legal_B) - 1
    targets = []
    for i, options in enumerate(fits):
        stride = math.prod(shape[i + 1 :])
        for option in range(1, len(options) + 1):
            ahead_L = legal_L + (option - choice_CB[i, legal_L]) * stride
            targets.append(np.where(is_legal_B[ahead_L], number_B[ahead_L], number_B[legal_L]))
    is_full_L: NDArray[np.bool_] = np.all(choice_CB[:, legal_L] > 0, axis=0)
    return np.array(targets), is_full_L
