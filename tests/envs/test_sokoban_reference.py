"""Sokoban's rooms against the generators that they are meant to equal, run in another interpreter.

`SPA_REFERENCE_PYTHON` names a Python with gym_sokoban 0.0.6 (and gym 0.26.2, numpy below 2,
setuptools 65.5); `SPA_REFERENCE_RAGEN`, if set, a checkout of RAGEN, whose generator needs
matplotlib there. Run with `pytest -m reference -s` to see the statistics.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from envs.sokoban_rooms import Room, _play_back, _ways, draw_room, room_of
from envs.sokoban_solver import moved, shortest_plan

ALPHA = 0.001

GENERATE = """
import importlib.util, json, os, random, sys, warnings
warnings.simplefilter("ignore")
import numpy as np

name, size, num_boxes, count, depth = sys.argv[1], *map(int, sys.argv[2:6])
if name == "gym_sokoban":
    from gym_sokoban.envs import room_utils as generator
else:
    path = os.path.join(sys.argv[6], "ragen", "env", "sokoban", "utils.py")
    spec = importlib.util.spec_from_file_location("generator", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
more = {} if name == "gym_sokoban" else {"search_depth": depth}

def rows(fixed, state):
    fixed, state = fixed.astype(int), state.astype(int)
    shown = [["#_O"[cell] for cell in row] for row in fixed.tolist()]
    for r, row in enumerate(state.tolist()):
        for c, cell in enumerate(row):
            on = fixed[r, c] == 2
            if cell in (3, 4):
                shown[r][c] = "\\u221a" if on else "X"
            elif cell == 5:
                shown[r][c] = "S" if on else "P"
    return ["".join(row) for row in shown]

random.seed(7)
np.random.seed(7)
starts = []
play = generator.reverse_playing

def noted(state, fixed, *rest):
    player = np.argwhere(state == 5)[0].tolist()
    result = play(state, fixed, *rest)
    starts.append([player, float(generator.best_room_score), rows(fixed, generator.best_room)])
    return result

generator.reverse_playing = noted
out = []
while len(out) < count:
    try:
        fixed, state, *_ = generator.generate_room(
            (size, size), 0.35, int(1.7 * 2 * size), num_boxes, **more
        )
    except (RuntimeError, RuntimeWarning):
        continue
    out.append([rows(fixed, state), *starts[-1]])
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def generate() -> Callable[..., list[list[Any]]]:
    """`[rows, player before the reverse play, score, rows after it]` of rooms drawn there."""
    interpreter = os.environ.get("SPA_REFERENCE_PYTHON")
    if not interpreter:
        pytest.skip("SPA_REFERENCE_PYTHON names no Python with gym_sokoban 0.0.6")

    @cache
    def run(name: str, size: int, num_boxes: int, count: int, depth: int) -> list[list[Any]]:
        checkout = os.environ.get("SPA_REFERENCE_RAGEN", "")
        if name == "ragen" and not checkout:
            pytest.skip("SPA_REFERENCE_RAGEN names no checkout of RAGEN")
        numbers = map(str, (size, num_boxes, count, depth))
        done = subprocess.run(
            [interpreter, "-c", GENERATE, name, *numbers, checkout], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        rooms: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
        return rooms

    return run


def kolmogorov_smirnov(one: list[int], other: list[int]) -> tuple[float, float]:
    """The largest distance of two empirical distributions, and what exceeds it with `ALPHA`."""
    values = np.unique([*one, *other])
    shares = [
        np.searchsorted(np.sort(sample), values, side="right") / len(sample)
        for sample in (one, other)
    ]
    limit = np.sqrt(-np.log(ALPHA / 2) / 2 * (1 / len(one) + 1 / len(other)))
    return float(np.abs(shares[0] - shares[1]).max()), float(limit)


def test_the_statistic_by_hand() -> None:
    assert kolmogorov_smirnov([1, 2, 3, 4], [1, 2, 3, 4])[0] == 0.0
    assert kolmogorov_smirnov([1, 1, 2, 2], [2, 2, 3, 3])[0] == 0.5
    assert kolmogorov_smirnov([1] * 500, [2] * 500) == (1.0, pytest.approx(0.123296, abs=1e-6))


def measured(room: Room) -> tuple[int, int, int]:
    """Moves and pushes of one shortest solution, and cells of floor."""
    plan = shortest_plan(room)
    assert plan is not None
    player, boxes, pushes = room.player, room.boxes, 0
    for direction in plan:
        step = (-room.stride, room.stride, -1, 1)[direction]
        player, after = moved(room.ground, player, boxes, step)
        pushes, boxes = pushes + (after != boxes), after
    return len(plan), pushes, len(room.ground.replace("#", "").replace("\n", ""))


SIZES = [(6, 1, 500), (6, 2, 500), (8, 2, 300), (10, 2, 120)]


@pytest.mark.reference
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "num_boxes", "count"), SIZES)
@pytest.mark.parametrize("name", ["gym_sokoban", "ragen"])
def test_rooms_are_distributed_like_those_of_the_published_generator(
    generate: Callable[..., list[list[Any]]], name: str, size: int, num_boxes: int, count: int
) -> None:
    """gym_sokoban ends with the reverse play, RAGEN lets the player walk."""
    theirs = [measured(room_of(room[0])) for room in generate(name, size, num_boxes, count, 300)]
    rng = np.random.default_rng(11)
    ours = []
    for _ in range(count):
        room = draw_room(size, num_boxes, rng, reverse_play=name, is_walked=name == "ragen")
        assert room is not None
        ours.append(measured(room))
    print(f"\n{name} {size}x{size}, {num_boxes} boxes, {count} rooms each")
    for what, one, other in zip(
        ("moves", "pushes", "floor"), zip(*ours, strict=True), zip(*theirs, strict=True),
        strict=True,
    ):  # fmt: skip
        distance, limit = kolmogorov_smirnov(list(one), list(other))
        print(f"  {what:7} D {distance:.4f} of {limit:.4f}", end="")
        print(f"  means {np.mean(one):.2f} and {np.mean(other):.2f}")
        assert distance < limit, what


@pytest.mark.reference
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "size", "num_boxes", "count", "depth"),
    [
        *((name, *sizes, 300) for name in ("gym_sokoban", "ragen") for sizes in SIZES),
        ("ragen", 6, 2, 100, 30),
        ("ragen", 8, 2, 100, 10),
    ],
)
def test_reverse_play_ends_in_the_same_state_as_theirs(
    generate: Callable[..., list[list[Any]]],
    name: str, size: int, num_boxes: int, count: int, depth: int,
) -> None:  # fmt: skip
    """From the same room and player: the same score, and the same boxes and player after it."""
    for _, (row, column), score, rows in generate(name, size, num_boxes, count, depth):
        room = room_of(rows)
        stride = room.stride
        ways = _ways({cell for cell, x in enumerate(room.ground) if x in "_O"}, stride)
        found = _play_back(
            ways, stride, room.targets, row * stride + column, depth,
            is_free=name == "gym_sokoban",
        )  # fmt: skip
        assert found is not None
        player, load = found
        assert (load.score, player, tuple(sorted(load.boxes))) == (score, room.player, room.boxes)
