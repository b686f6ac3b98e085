"""Rooms for Sokoban: dug by a random walk, then played backwards to where the boxes start.

The method is DeepMind's (Racanière et al., 2017) as gym_sokoban 0.0.6 implements it.
Its reverse play is a depth-first search whose score belongs to the path, so the room depends on
the order of visits: this one visits the same states in the same order, but a state is an integer
and a move an entry of a table. Random numbers are drawn otherwise, the distribution is the same.

RAGEN's generator, from which SPA's puzzles come, is the same with two changes in the reverse play
(`reverse_play="ragen"`): next to a box the player can't walk away without pulling it, and the score
counts how often the pulled box changes instead of every pull. RAGEN's walk of the player from
where the reverse play ends follows in both: without it nearly all start beside a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from envs.errors import EnvironmentConfigError


class Symbols(NamedTuple):
    """What each kind of cell is written as."""

    wall: str
    empty: str
    target: str
    box_on_target: str
    box: str
    player: str
    player_on_target: str


SYMBOLS = Symbols(*"#_O√XPS")
"""As published."""
WALL, EMPTY, TARGET, *_ = SYMBOLS
REVERSE_PLAYS = ("gym_sokoban", "ragen")
SEARCH_DEPTH = 300
"""gym_sokoban's own; RAGEN's default. A search of depth n goes n - 2 moves far."""

_DIGGING_STEPS = 1.7
"""For each row and column."""
_TURN_PROB = 0.35
_STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""What is dug around a cell: gym_sokoban's five 3x3 masks."""
_MAX_STATES = 300_000
_MAX_DRAWS = 20_000
"""Rooms of one size and number of boxes that fail before the wish counts as impossible."""

_WALK_PROB, _WALK_PROB_NEAR = 0.5, 0.8
"""The second where the boxes are only one cell away from their targets."""
_WALK_ON_PROB = 0.5
_LONGEST_WALK = 3

Boxes = tuple[int, ...]
Ways = Mapping[int, Sequence[tuple[int, int]]]
"""Cell -> (the cell ahead, the cell behind) for each direction that isn't walled off."""


class Room(NamedTuple):
    """A puzzle. A cell is its index in `ground`, cells are in reading order."""

    ground: str
    """Rows joined by newlines, without player and boxes: # wall, _ empty, O target."""
    stride: int
    """Length of a row and its newline."""
    targets: Boxes
    player: int
    boxes: Boxes


def steps_of(stride: int) -> tuple[int, int, int, int]:
    """What Up, Down, Left and Right add to a cell."""
    return -stride, stride, -1, 1


def draw_room(
    size: int,
    num_boxes: int,
    rng: np.random.Generator,
    *,
    search_depth: int = SEARCH_DEPTH,
    reverse_play: str = REVERSE_PLAYS[0],
    is_walked: bool = True,
) -> Room | None:
    """Draw until all boxes stand off their targets; None where that won't succeed.

    `is_walked` is about RAGEN's walk of the player.
    """
    stride = size + 1
    num_draws = 2 * int(_DIGGING_STEPS * (size + size)) + 4 + num_boxes
    for _ in range(_MAX_DRAWS):
        draws = iter(rng.random(num_draws).tolist())
        floor = _dig(size, draws)
        if len(floor) <= num_boxes + 1:
            continue
        spare = sorted(floor)
        player = spare.pop(int(next(draws) * len(spare)))
        targets = sorted(spare.pop(int(draw * len(spare))) for draw in draws)
        ways = _ways(floor, stride)
        is_free = reverse_play == REVERSE_PLAYS[0]
        found = _play_back(ways, stride, tuple(targets), player, search_depth, is_free=is_free)
        if found is None:
            continue
        player, (_, boxes, _, _, _, distance) = found
        if is_walked:
            walk_prob = _WALK_PROB_NEAR if distance == 1 else _WALK_PROB
            player = _walk(ways, boxes, player, walk_prob, rng)
        ground = _ground(size, floor, targets)
        return Room(ground, stride, tuple(targets), player, tuple(sorted(boxes)))
    return None


def _dig(size: int, draws: Iterator[float]) -> set[int]:
    """The cells that a walk with a stamp digs out of the rock; the border stays."""
    drift, stamps = _drift(size), _stamps(size)
    direction = int(next(draws) * 4)
    cell = (1 + int(next(draws) * (size - 1))) * (size + 1) + 1 + int(next(draws) * (size - 1))
    floor: set[int] = set()
    for _ in range(int(_DIGGING_STEPS * (size + size))):
        turn = next(draws) / _TURN_PROB
        if turn < 1.0:
            direction = int(turn * 4)
        cell = drift[cell][direction]
        floor.update(stamps[cell][int(next(draws) * len(_STAMPS))])
    return floor


@lru_cache(maxsize=64)
def _drift(size: int) -> tuple[tuple[int, ...], ...]:
    """Where each direction leads from a cell, kept off the border."""

    def kept(row: int, column: int) -> int:
        return min(max(row, 1), size - 2) * (size + 1) + min(max(column, 1), size - 2)

    return tuple(
        (kept(row + 1, col), kept(row, col + 1), kept(row - 1, col), kept(row, col - 1))
        for row in range(size)
        for col in range(size + 1)
    )


@lru_cache(maxsize=64)
def _stamps(size: int) -> tuple[tuple[Boxes, ...], ...]:
    """The cells inside the border that each stamp digs around a cell."""
    inside = range(1, size - 1)
    return tuple(
        tuple(
            tuple(
                (row + down) * (size + 1) + column + right
                for down, right in stamp
                if row + down in inside and column + right in inside
            )
            for stamp in _STAMPS
        )
        for row in range(size)
        for column in range(size + 1)
    )


def _ways(floor: set[int], stride: int) -> Ways:
    """Right, left, down, up: last in, first out."""
    reverse = steps_of(stride)[::-1]
    return {
        cell: [(cell + step, cell - step) for step in reverse if cell + step in floor]
        for cell in floor
    }


def _ground(size: int, floor: set[int], targets: Sequence[int]) -> str:
    cells = [WALL] * (size * (size + 1) - 1)
    cells[size :: size + 1] = "\n" * (size - 1)
    for cell in floor:
        cells[cell] = EMPTY
    for cell in targets:
        cells[cell] = TARGET
    return "".join(cells)


class _Yard(NamedTuple):
    """What stays the same through one search."""

    targets: Boxes
    stride: int
    weights: Mapping[int, int]
    """Cell -> what a box adds there to the code of a state; one bit each."""
    unmoved: tuple[int, ...]
    """What each box adds before its first pull."""
    is_free: bool
    """The player may leave a box without pulling it, and every pull counts as a swap."""


class _Load(NamedTuple):
    """The boxes on one path of the search."""

    code: int
    """Tells sets of boxes apart, and a box that never moved from one that is back."""
    boxes: Boxes
    """In the order of the targets that they come from."""
    score: int
    """Swaps times distance; 0 with a box on a target."""
    swaps: int
    last: int
    """The box pulled last."""
    distance: int
    """Sum of the boxes' distances from where they come from, in rows and columns."""


def _play_back(
    ways: Ways, stride: int, targets: Boxes, player: int, search_depth: int, *, is_free: bool
) -> tuple[int, _Load] | None:
    """Player and boxes in the first of the states with the highest score; None without a score.

    From each state the search tries up, down, left and right, pulling a box that is there to be
    pulled, and then, if the player `is_free`, the same without pulling. A state belongs to the
    path that gets there first.
    """
    yard = _yard(ways, stride, targets, is_free=is_free)
    load = _Load(sum(yard.unmoved), targets, 0, 0, -1, 0)
    best, found = 0, None
    seen: set[int] = set()
    stack = [(load.code + player, player, load, search_depth - 2)]
    pop, push, see = stack.pop, stack.append, seen.add
    while stack and len(seen) < _MAX_STATES:
        key, player, load, left = pop()
        if key in seen:
            continue
        see(key)
        code, boxes, score, _, _, _ = load
        if score > best and player not in targets:
            best, found = score, (player, load)
        if left == 0:
            continue
        left -= 1
        bottom = len(stack)
        for ahead, behind in ways[player]:
            if ahead in boxes:
                continue
            if behind in boxes:
                pulled = _pull(yard, load, behind, player)
                push((pulled.code + ahead, ahead, pulled, left))
                if is_free:
                    stack.insert(bottom, (code + ahead, ahead, load, left))
                    bottom += 1
            elif code + ahead not in seen:
                push((code + ahead, ahead, load, left))
    return found


def _yard(ways: Ways, stride: int, targets: Boxes, *, is_free: bool) -> _Yard:
    shift = max(ways).bit_length()  # the bits below are the player's cell
    weights = {cell: 1 << (shift + index) for index, cell in enumerate(ways)}
    unmoved = tuple(1 << (shift + len(ways) + number) for number in range(len(targets)))
    return _Yard(targets, stride, weights, unmoved, is_free)


def _pull(yard: _Yard, load: _Load, box: int, to: int) -> _Load:
    """One box pulled from its cell to the next."""
    targets, stride, weights, unmoved, is_free = yard
    code, boxes, _, swaps, last, distance = load
    number = boxes.index(box)
    weight = unmoved[number]
    if not code & weight:
        weight = weights[box]
    code += weights[to] - weight
    boxes = (*boxes[:number], to, *boxes[number + 1 :])
    swaps += is_free or last != number
    far = distances(stride * (stride - 1), stride, targets[number])
    distance += far[to] - far[box]
    score = swaps * distance if set(boxes).isdisjoint(targets) else 0
    return _Load(code, boxes, score, swaps, number, distance)


@lru_cache(maxsize=4096)
def distances(num_cells: int, stride: int, origin: int) -> tuple[int, ...]:
    """Rows plus columns between each cell and one."""
    row, column = divmod(origin, stride)
    cells = (divmod(cell, stride) for cell in range(num_cells))
    return tuple(abs(r - row) + abs(c - column) for r, c in cells)


def _walk(ways: Ways, boxes: Boxes, player: int, walk_prob: float, rng: np.random.Generator) -> int:
    """Where the player starts: up to three cells away, never twice in one cell."""
    if rng.random() >= walk_prob:
        return player
    seen = [player]
    while len(seen) <= _LONGEST_WALK:
        free = [cell for cell, _ in ways[player] if cell not in boxes and cell not in seen]
        if not free:
            break
        player = free[int(rng.random() * len(free))]
        seen.append(player)
        if rng.random() >= _WALK_ON_PROB:
            break
    return player


def room_of(rows: Sequence[str], symbols: Symbols = SYMBOLS) -> Room:
    """The room that rows of symbols show. Raises `EnvironmentConfigError` where they show none."""
    text = "\n".join(map(str, rows))
    cells: dict[str, list[int]] = {symbol: [] for symbol in (*symbols, "\n")}
    for cell, symbol in enumerate(text):
        cells.setdefault(symbol, []).append(cell)
    player, boxes, targets = (
        sorted(cell for symbol in kinds for cell in cells[symbol])
        for kinds in (
            (symbols.player, symbols.player_on_target),
            (symbols.box, symbols.box_on_target),
            (symbols.target, symbols.box_on_target, symbols.player_on_target),
        )
    )
    lines = text.split("\n")
    edge = {*lines[0], *lines[-1], *(line[:1] for line in lines), *(line[-1:] for line in lines)}
    problem = ""
    if isinstance(rows, str) or len({len(line) for line in lines}) != 1 or not text:
        problem = "it must be a list of rows of one length"
    elif len(cells) != len(symbols) + 1:
        problem = f"it may hold {' '.join(symbols)} only"
    elif edge != {symbols.wall}:
        problem = f"its border must be walls ({symbols.wall})"
    elif len(player) != 1:
        problem = f"it needs one player ({symbols.player}, or {symbols.player_on_target})"
    elif not boxes or len(boxes) != len(targets):
        problem = f"it has {len(boxes)} boxes and {len(targets)} targets"
    elif boxes == targets:
        problem = "all boxes are on targets"
    if problem:
        raise EnvironmentConfigError(f"sokoban: map {list(rows)!r} can't be played: {problem}.")
    ground = [EMPTY] * len(text)
    for symbol, kept in ((symbols.wall, WALL), ("\n", "\n")):
        for cell in cells[symbol]:
            ground[cell] = kept
    for cell in targets:
        ground[cell] = TARGET
    return Room("".join(ground), len(lines[0]) + 1, tuple(targets), player[0], tuple(boxes))
