"""Times Sokoban beside gym_sokoban's own environment, and RAGEN's, in one run on one core.

`python -m benchmarks.sokoban_reference --reference-python PATH` takes a Python that has gym_sokoban
0.0.6 (with gym 0.26.2, numpy below 2 and setuptools 65.5); `--ragen DIR` adds a checkout of RAGEN,
for which that Python needs omegaconf and matplotlib. The reference runs this very file there, with
`--inside`, so nothing but the standard library is imported at the top.

A step is one of about ten random moves an episode, resets included, and ends with the state in
words: ours with coordinates, RAGEN's grid, gym_sokoban's picture (none with rendering off).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import random
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable

EPISODE = 10
SIZES = ((6, 1), (8, 2), (10, 2))
OURS = ("ours", "ours, ragen rooms")
FIRST_SEED = 10_000

Reset = Callable[[int], object]
Step = Callable[[int], bool]
"""Plays one of four moves; whether the game is over."""
World = tuple[Reset, Step]


def measure(make: Callable[[int, int], World], seconds: float) -> dict[str, float]:
    """Seconds a step with resets in 6x6 with one box, and a reset in each size."""
    taken = {"step": step_seconds(make(6, 1), seconds)}
    for size, num_boxes in SIZES:
        _forget_rooms()
        reset, _ = make(size, num_boxes)
        taken[f"reset {size}x{size}/{num_boxes}"] = reset_seconds(reset, seconds)
    return taken


def _forget_rooms() -> None:
    """Ours would be remembered; the references' interpreters have nothing of ours installed."""
    if drawn := sys.modules.get("envs.drawn"):
        drawn.forget()


def step_seconds(world: World, seconds: float) -> float:
    """Mean over as many episodes as fit."""
    reset, step = world
    choose, steps, seed, start = random.Random(0), 0, FIRST_SEED, time.perf_counter()
    while time.perf_counter() - start < seconds:
        reset(seed)
        seed += 1
        for _ in range(EPISODE):
            steps += 1
            if step(choose.randrange(4)):
                break
    return (time.perf_counter() - start) / steps


def reset_seconds(reset: Reset, seconds: float) -> float:
    """Mean over as many seeds as fit, the same ones from the first."""
    seed, start = FIRST_SEED, time.perf_counter()
    while time.perf_counter() - start < seconds:
        reset(seed)
        seed += 1
    return (time.perf_counter() - start) / (seed - FIRST_SEED)


def our_world(name: str) -> Callable[[int, int], World]:
    """Sokoban of this package."""
    from envs.sokoban import Sokoban
    from envs.sokoban_words import DIRECTIONS

    def make(size: int, num_boxes: int) -> World:
        reverse_play = "ragen" if name == OURS[1] else "gym_sokoban"
        game = Sokoban(size=size, num_boxes=num_boxes, reverse_play=reverse_play)
        return lambda seed: game.reset(seed=seed), lambda move: game.step(DIRECTIONS[move])[2]

    return make


def gym_world(*, is_drawn: bool) -> Callable[[int, int], World]:
    """gym_sokoban's environment; `is_drawn` says whether its frames are."""
    import numpy as np
    from gym_sokoban.envs.sokoban_env import SokobanEnv

    def make(size: int, num_boxes: int) -> World:
        game = SokobanEnv(dim_room=(size, size), max_steps=120, num_boxes=num_boxes, reset=False)
        if not is_drawn:
            game.get_image = lambda mode, scale=1: None

        def reset(seed: int) -> None:
            random.seed(seed)
            np.random.seed(seed)
            game.reset()

        return reset, lambda move: bool(game.step(move + 1)[2])

    return make


def ragen_world(checkout: str, *, is_drawn: bool) -> Callable[[int, int], World]:
    """RAGEN's environment as it stands in a checkout, or without the frames that it drops."""
    sys.path.insert(0, checkout)
    package = types.ModuleType("ragen.env")  # its own __init__ imports every game
    package.__path__ = [os.path.join(checkout, "ragen", "env")]
    sys.modules["ragen.env"] = package
    games = importlib.import_module("ragen.env.sokoban")

    def make(size: int, num_boxes: int) -> World:
        config = games.SokobanEnvConfig(dim_room=(size, size), num_boxes=num_boxes, max_steps=100)
        game = games.SokobanEnv(config)
        if not is_drawn:
            game.get_image = lambda mode, scale=1: None
        return lambda seed: game.reset(seed=seed), lambda move: bool(game.step(move + 1)[2])

    return make


def inside(options: argparse.Namespace) -> None:
    """The reference's part; its last line of output is the result."""
    warnings.simplefilter("ignore")
    worlds = {
        "gym_sokoban": gym_world(is_drawn=True),
        "gym_sokoban, no frames": gym_world(is_drawn=False),
    }
    if options.ragen:
        worlds["RAGEN"] = ragen_world(options.ragen, is_drawn=True)
        worlds["RAGEN, no frames"] = ragen_world(options.ragen, is_drawn=False)
    print(json.dumps({name: measure(make, options.seconds) for name, make in worlds.items()}))


def reference(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What `inside` measures in the other interpreter."""
    command = [options.reference_python, os.path.abspath(__file__), "--inside"]
    command += ["--seconds", str(options.seconds)]
    command += ["--ragen", os.path.abspath(options.ragen)] if options.ragen else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{options.reference_python} can't run the reference: {done.stderr[-1000:]}")
    result: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print microseconds of each side, and how often ours fit into theirs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference-python", help="a Python with gym_sokoban 0.0.6")
    parser.add_argument("--ragen", metavar="DIR", help="a checkout of RAGEN")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each number (default 5)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    if not options.reference_python:
        parser.error("--reference-python is needed")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the child inherits it
    taken = {name: measure(our_world(name), options.seconds) for name in OURS}
    theirs = reference(options)
    what = list(taken[OURS[0]])
    print(f"{platform.machine()}, one core, Python {platform.python_version()}")
    print(f"load average {os.getloadavg()[0]:.1f}; microseconds, and times slower than ours")
    print(f"{'':<24}" + "".join(f"{column:>20}" for column in what))
    for name, row in (taken | theirs).items():
        base = taken[OURS[1] if name.startswith("RAGEN") else OURS[0]]
        cells = "".join(
            f"{row[column] * 1e6:>12.1f}{row[column] / base[column]:>7.0f}x" for column in what
        )
        print(f"{name:<24}{cells}")
    print(f"steps a second with resets: ours {1 / taken[OURS[0]]['step']:,.0f}")


if __name__ == "__main__":
    main()
