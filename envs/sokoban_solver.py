"""Exact play of Sokoban: shortest solutions in moves, and what random moves reach.

A state is a player and boxes in ascending order. The search is A* on moves. What a state lacks at
least is the best matching of boxes and targets, by pushes in a room without other boxes, and the
player's way to the nearest box. Without any matching the boxes are stuck and the state is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count, permutations

import numpy as np
from numpy.typing import NDArray

from envs.sokoban_rooms import WALL, Boxes, Room, distances, steps_of

State = tuple[int, Boxes]

_MATCHED = 4
"""Up to so many boxes all matchings are compared; with more, each box takes its nearest target."""
_MAX_STATES = 20_000
"""States that a floor is computed over, which takes about 50 ms."""


def moved(ground: str, player: int, boxes: Boxes, step: int) -> State:
    """One move; the very same objects where a wall or a second box is in the way."""
    ahead = player + step
    if ground[ahead] == WALL:
        return player, boxes
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + step
    if ground[beyond] == WALL or beyond in boxes:
        return player, boxes
    if len(boxes) == 1:
        return ahead, (beyond,)
    return ahead, tuple(sorted([beyond if box == ahead else box for box in boxes]))


@lru_cache(maxsize=1024)
def shortest_plan(room: Room) -> tuple[int, ...] | None:
    """Indices of Up, Down, Left, Right that solve the room soonest; None where nothing does."""
    ground, stride, targets, player, boxes = room
    lacking = _lower_bound(room)
    first = lacking(player, boxes)
    if first is None:
        return None
    came: dict[State, tuple[State, int]] = {}
    waiting = {first: [((player, boxes), 0, (player, boxes), 0)]}
    for estimate in count(first):
        states = waiting.get(estimate, [])
        while states:
            state, cost, before, direction = states.pop()
            if state in came:
                continue
            came[state] = before, direction
            if state[1] == targets:
                return _path(came, state)
            for direction, step in enumerate(steps_of(stride)):
                ahead = moved(ground, *state, step)
                if ahead in came:
                    continue
                lacks = lacking(*ahead)
                if lacks is not None:
                    entry = (ahead, cost + 1, state, direction)
                    waiting.setdefault(cost + 1 + lacks, []).append(entry)
        waiting.pop(estimate, None)
        if not waiting:
            break
    return None


def _path(came: Mapping[State, tuple[State, int]], state: State) -> tuple[int, ...]:
    path = []
    while came[state][0] != state:
        state, direction = came[state]
        path.append(direction)
    return tuple(reversed(path))


def _lower_bound(room: Room) -> Callable[[int, Boxes], int | None]:
    """(player, boxes) -> moves that any solution needs, None where there is none.

    It falls by no more than one in a move, so A* needs no state twice.
    """
    pushes_to = [_pushes(room.ground, room.stride, target) for target in room.targets]
    known: dict[Boxes, tuple[int, list[tuple[int, ...]]] | None] = {}

    def bound(player: int, boxes: Boxes) -> int | None:
        if boxes not in known:
            pushes = _matching(pushes_to, boxes)
            ways = [distances(len(room.ground), room.stride, box) for box in boxes]
            known[boxes] = None if pushes is None else (pushes, ways)
        entry = known[boxes]
        if entry is None:
            return None
        pushes, ways = entry
        return pushes and pushes - 1 + min([way[player] for way in ways])

    return bound


def _matching(pushes_to: list[Mapping[int, int]], boxes: Boxes) -> int | None:
    """The fewest pushes that bring each box to a target of its own."""
    if len(boxes) > _MATCHED:
        nearest = [[to[box] for to in pushes_to if box in to] for box in boxes]
        return sum(min(pushes) for pushes in nearest) if all(nearest) else None
    sums = [
        sum([to[box] for to, box in zip(pushes_to, order, strict=True)])
        for order in permutations(boxes)
        if all(box in to for to, box in zip(pushes_to, order, strict=True))
    ]
    return min(sums, default=None)


@lru_cache(maxsize=4096)
def _pushes(ground: str, stride: int, target: int) -> Mapping[int, int]:
    """Cell -> pushes from there to the target for the only box; other cells are dead."""
    pushes, queue = {target: 0}, [target]
    for cell in queue:
        for step in steps_of(stride):
            before, player = cell - step, cell - 2 * step
            if before not in pushes and ground[before] != WALL and ground[player] != WALL:
                pushes[before] = pushes[cell] + 1
                queue.append(before)
    return pushes


def random_success(room: Room, num_moves: int) -> float | None:
    """Probability that so many uniformly random moves solve the room; None for too many states."""
    ground, steps = room.ground, steps_of(room.stride)
    number = {(room.player, room.boxes): 1}  # 0 is the end
    table = [[0, 0, 0, 0]]
    layer = list(number)
    for _ in range(num_moves):
        layer_ahead = []
        for player, boxes in layer:
            row = []
            for step in steps:
                state = moved(ground, player, boxes, step)
                if state[1] == room.targets:
                    row.append(0)
                    continue
                if state not in number:
                    number[state] = len(number) + 1
                    layer_ahead.append(state)
                row.append(number[state])
            table.append(row)
        layer = layer_ahead
        if len(number) > _MAX_STATES:
            return None
    table += [[0, 0, 0, 0]] * len(layer)  # too late to go on from there
    ahead_N = np.array(table).ravel()  # N: four moves of each state
    mass_S: NDArray[np.float64] = np.eye(1, len(table), 1)[0]
    for _ in range(num_moves):
        mass_N = np.repeat(mass_S / 4, 4)
        mass_S = np.asarray(np.bincount(ahead_N, mass_N, len(table)), dtype=np.float64)
    return float(mass_S[0])
