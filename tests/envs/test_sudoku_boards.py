"""Sudoku's puzzles: one solution each by another solver, counted, and drawn without favour."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from envs.errors import EnvironmentConfigError
from envs.sudoku_boards import draw_puzzle, grids_4x4, layout, random_success, repair

KINDS = [(4, 10), (4, 9), (4, 6), (4, 4), (9, 36)]

Demand = tuple[str, int, int]


def exact_cover(board: str) -> Iterator[dict[int, str]]:
    """All solutions, by Knuth's algorithm X: each cell, and each digit of each row, column, box."""
    size = {16: 4, 81: 9}[len(board)]
    side = {4: 2, 9: 3}[size]
    meets: dict[tuple[int, int], list[Demand]] = {}
    for cell, digit in itertools.product(range(size * size), range(1, size + 1)):
        row, column = divmod(cell, size)
        box = row // side * side + column // side
        meets[cell, digit] = [
            ("cell", cell, 0), ("row", row, digit), ("column", column, digit), ("box", box, digit)
        ]  # fmt: skip
    wanted: dict[Demand, set[tuple[int, int]]] = {}
    for choice, demands in meets.items():
        for demand in demands:
            wanted.setdefault(demand, set()).add(choice)
    solution: dict[int, str] = {}

    def take(choice: tuple[int, int]) -> list[set[tuple[int, int]]]:
        removed = []
        for demand in meets[choice]:
            for other in wanted[demand]:
                for theirs in meets[other]:
                    if theirs != demand:
                        wanted[theirs].discard(other)
            removed.append(wanted.pop(demand))
        solution[choice[0]] = str(choice[1])
        return removed

    def give_back(choice: tuple[int, int], removed: list[set[tuple[int, int]]]) -> None:
        del solution[choice[0]]
        for demand in reversed(meets[choice]):
            wanted[demand] = removed.pop()
            for other in wanted[demand]:
                for theirs in meets[other]:
                    if theirs != demand:
                        wanted[theirs].add(other)

    def search() -> Iterator[dict[int, str]]:
        if not wanted:
            yield dict(solution)
            return
        for choice in list(min(wanted.values(), key=len)):
            removed = take(choice)
            yield from search()
            give_back(choice, removed)

    for cell, digit in enumerate(board):
        if digit != ".":
            take((cell, int(digit)))
    yield from search()


@pytest.mark.parametrize(("size", "clues"), KINDS)
def test_every_puzzle_has_its_clues_and_one_solution(size: int, clues: int) -> None:
    for seed in range(500):
        puzzle = draw_puzzle(size, clues, np.random.default_rng(seed))
        assert len(puzzle.givens) - puzzle.givens.count(".") == clues
        (found,) = itertools.islice(exact_cover(puzzle.givens), 2)
        assert "".join(found[cell] for cell in range(size * size)) == puzzle.solution


def test_the_slow_solver_counts_what_is_known() -> None:
    """288 complete grids; an open rectangle of two digits has two fillings."""
    assert len(list(exact_cover("." * 16))) == 288
    assert len(list(exact_cover("..34341243212143"))) == 1
    assert len(list(exact_cover("..343412..434321"))) == 2


def test_there_are_288_grids_of_4x4() -> None:
    found = {"".join(each[cell] for cell in range(16)) for each in exact_cover("." * 16)}
    assert set(grids_4x4()) == found
    assert list(grids_4x4()) == sorted(found)


@cache
def unique_by_clues() -> dict[str, list[int]]:
    """Grid with 12/34 in its first box -> number of cell sets of each size that determine it."""
    grids = np.array([list(grid) for grid in grids_4x4()])
    sets = np.arange(1 << 16)
    sizes = np.array([number.bit_count() for number in range(1 << 16)])
    counts = {}
    for grid in grids:
        if "".join(grid[[0, 1, 4, 5]]) == "1234":
            is_unique = np.ones(1 << 16, dtype=np.bool_)
            for other in grids:
                differing = int(((grid != other) << np.arange(16)).sum())
                if differing:
                    is_unique &= (sets & differing) != 0
            counts["".join(grid)] = np.bincount(sizes[is_unique], minlength=17).tolist()
    return counts


def test_the_sheets_numbers_of_puzzles_are_right() -> None:
    """Each of the 12 grids stands for 24, one for each naming of the digits."""
    counts = unique_by_clues()
    assert len(counts) == 12
    totals = [24 * sum(each[clues] for each in counts.values()) for clues in range(17)]
    assert totals[:4] == [0, 0, 0, 0] and totals[4] == 25_728
    assert (totals[10], totals[9], totals[6]) == (2_204_928, 2_958_336, 1_041_408)
    assert (totals[15], totals[16]) == (16 * 288, 288)


def test_puzzles_with_15_clues_come_up_equally_often() -> None:
    """Every cell of every grid may be the blank one. Chi-square with 4607 degrees of freedom."""
    rng = np.random.default_rng(0)
    draws = 10 * 4608
    counts = Counter(draw_puzzle(4, 15, rng).givens for _ in range(draws))
    assert len(counts) > 4600
    missing = 4608 - len(counts)
    statistic = sum((count - 10) ** 2 / 10 for count in counts.values()) + 10 * missing
    assert abs(statistic - 4607) < 5 * (2 * 4607) ** 0.5


def test_grids_with_more_puzzles_come_up_more_often() -> None:
    """With 4 clues a third of the grids has 12 puzzles each and two thirds have 128."""
    of_grid = {grid: each[4] for grid, each in unique_by_clues().items()}
    assert Counter(of_grid.values()) == {12: 4, 128: 8}
    rng = np.random.default_rng(0)
    draws, poor = 4000, 0
    for _ in range(draws):
        solution = draw_puzzle(4, 4, rng).solution
        names = dict(zip((solution[cell] for cell in (0, 1, 4, 5)), "1234", strict=True))
        poor += of_grid["".join(names[digit] for digit in solution)] == 12
    assert poor / draws == pytest.approx(4 * 12 / (4 * 12 + 8 * 128), abs=0.012)


def test_9x9_grids_are_no_shuffles_of_one_pattern() -> None:
    """In a shifted pattern the three rows of a box hold the same three sets of digits; in grids
    at large that's rare."""
    rng = np.random.default_rng(0)
    shifted = 0
    cells: list[Counter[str]] = [Counter() for _ in range(81)]
    for _ in range(300):
        solution = draw_puzzle(9, 60, rng).solution
        for cell, digit in enumerate(solution):
            cells[cell][digit] += 1
        thirds = [
            {frozenset(solution[9 * r + c : 9 * r + c + 3]) for c in (0, 3, 6)} for r in range(3)
        ]
        shifted += thirds[0] == thirds[1] == thirds[2]
    assert shifted < 30
    assert all(len(counts) == 9 and max(counts.values()) < 70 for counts in cells)


def test_blanks_of_9x9_fall_everywhere() -> None:
    rng = np.random.default_rng(0)
    blank = np.zeros(81)
    for _ in range(300):
        blank += [cell == "." for cell in draw_puzzle(9, 36, rng).givens]
    assert blank.min() / 300 > 0.4 and blank.max() / 300 < 0.72
    assert blank.sum() == 300 * 45


def test_a_puzzle_that_cannot_be_drawn_is_given_up() -> None:
    """No board of three clues has one solution."""
    with pytest.raises(EnvironmentConfigError, match=r"gave no puzzle with 3 clues.*ask for more"):
        draw_puzzle(4, 3, np.random.default_rng(0))


def test_the_layout_by_hand() -> None:
    plan = layout(4)
    assert plan.peers[0] == (1, 2, 3, 4, 5, 8, 12)
    assert plan.peers[6] == (2, 3, 4, 5, 7, 10, 14)
    assert (plan.names[0], plan.names[7], plan.names[12]) == ("(1,1)", "(2,4)", "(4,1)")
    assert plan.moves["2", "4", "3"] == (7, "3")
    assert len(layout(9).moves) == 729
    assert {len(peers) for peers in layout(9).peers} == {20}
    assert layout(9).units[40] == (4, 13, 22)


def test_repair_says_nothing_where_nothing_is_wrong_or_nothing_helps() -> None:
    solution = "4213312423411432"
    assert repair("42133.242..1.4.2", solution, [4], 4) is None
    assert repair("421313242..1.4.2", solution, [4, 5], 4) is None
    assert repair("42131.242..1.4.2", solution, [4], 4) == (4, "3")


def test_too_many_boards_have_no_exact_floor() -> None:
    """77 cells of a 9x9 board are beyond listing; too few actions are zero all the same."""
    board = "1234" + "." * 77
    assert random_success(board, 9, 77) is None
    assert random_success(board, 9, 76) == 0.0
